"""Replica packages and their repository: the same bytes every time, the right content, signatures that hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami.errors import CloudError
from gpu_ami.local import packages
from gpu_ami.run import Completed, find_tool, run


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> packages.SigningKey:
    return packages.signing_key(tmp_path_factory.mktemp("signing"))


def _named(name: str, version: str = "") -> packages.Package:
    every = packages.listed("nvidia_driver") + packages.listed("cloudwatch_agent")
    return next(item for item in every if item.name == name and item.version.startswith(version))


def _files(deb: Path) -> dict[str, str]:
    """path → mode and owner, as dpkg-deb lists them."""
    listing = run(["dpkg-deb", "--contents", deb], timeout=30).stdout.splitlines()
    return {line.split()[5].removeprefix("."): " ".join(line.split()[:2]) for line in listing}


def test_same_sources_make_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    package = _named("nvidia-smi", "550.163")
    assert packages.build(package, tmp_path / "a").read_bytes() == packages.build(package, tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (
            "nvidia-kernel-open-dkms",
            ["/usr/src/nvidia-550.163.01/dkms.conf", "/usr/src/nvidia-550.163.01/nv-version.mk"],
        ),
        ("nvidia-smi", ["/usr/bin/nvidia-smi", "/usr/lib/nvidia-smi/smi/cli.py", "/usr/lib/nvidia-smi/VERSION"]),
        ("nvidia-driver-cuda", []),
        (
            "amazon-cloudwatch-agent",
            [
                "/etc/systemd/system/amazon-cloudwatch-agent.service",
                "/opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl",
                "/opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.d/",
                "/opt/aws/amazon-cloudwatch-agent/logs/state/",
                "/usr/bin/amazon-cloudwatch-agent-ctl",
            ],
        ),
    ],
)
def test_package_has_the_real_ones_name_version_and_paths(name: str, wanted: list[str], tmp_path: Path) -> None:
    package = _named(name)
    deb = packages.build(package, tmp_path)
    files = _files(deb)
    assert set(wanted) <= files.keys()
    assert not any("__pycache__" in path for path in files)
    assert {mode.split()[1] for mode in files.values()} == {"root/root"}
    fields = {field: packages.control_field(deb, field) for field in ("Package", "Version", "Gpu-Ami-Replica")}
    assert fields == {"Package": name, "Version": package.full_version, "Gpu-Ami-Replica": "yes"}


def test_versions_are_filled_in_everywhere(tmp_path: Path) -> None:
    deb = packages.build(_named("nvidia-kernel-open-dkms", "550.163"), tmp_path)
    run(["dpkg-deb", "--raw-extract", deb, tmp_path / "x"], timeout=30)
    source = tmp_path / "x/usr/src/nvidia-550.163.01"
    assert 'PACKAGE_VERSION="550.163.01"' in (source / "dkms.conf").read_text()
    assert (source / "nv-version.mk").read_text().splitlines()[0] == "NV_VERSION := 550.163.01"
    assert "nvidia 550.163.01" in (tmp_path / "x/DEBIAN/postinst").read_text()
    left = [path for path in (tmp_path / "x").rglob("*") if path.is_file() and "@VERSION@" in path.read_text()]
    assert left == []


def test_file_that_is_no_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.deb").write_text("no archive")
    with pytest.raises(CloudError, match="dpkg-deb"):
        packages.control_field(tmp_path / "x.deb", "Package")


def _repository(folder: Path, key: packages.SigningKey) -> Path:
    folder.mkdir()
    packages.build(_named("nvidia-driver-cuda"), folder)
    packages.write_repository(folder, key)
    return key.export(folder / "keyring.gpg", armor=False)


def _verify(keyring: Path, *files: Path) -> Completed:
    return run([find_tool("gpgv", package="gpgv"), "--keyring", keyring, *files], timeout=30, check=False)


def test_repository_verifies_and_tampering_shows(tmp_path: Path, key: packages.SigningKey) -> None:
    keyring = _repository(tmp_path / "repo", key)
    release, inrelease = tmp_path / "repo/Release", tmp_path / "repo/InRelease"
    assert _verify(keyring, inrelease).returncode == 0
    assert _verify(keyring, tmp_path / "repo/Release.gpg", release).returncode == 0
    release.write_text(release.read_text().replace("gpu-ami", "evil", 1))
    inrelease.write_text(inrelease.read_text().replace("gpu-ami", "evil", 1))
    assert "BAD signature" in _verify(keyring, tmp_path / "repo/Release.gpg", release).stderr
    assert _verify(keyring, inrelease).returncode != 0


def test_another_key_does_not_verify(tmp_path: Path, key: packages.SigningKey) -> None:
    _repository(tmp_path / "repo", key)
    other = packages.signing_key(tmp_path / "other")
    keyring = other.export(tmp_path / "other.gpg", armor=False)
    assert other.fingerprint != key.fingerprint
    assert _verify(keyring, tmp_path / "repo/InRelease").returncode != 0


def test_apt_finds_every_package_by_its_sum(tmp_path: Path, key: packages.SigningKey) -> None:
    _repository(tmp_path / "repo", key)
    text = (tmp_path / "repo/Packages").read_text()
    stanza = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line and not line.startswith(" "))
    deb = tmp_path / "repo" / stanza["Filename"]
    assert (int(stanza["Size"]), stanza["Package"]) == (deb.stat().st_size, "nvidia-driver-cuda")
    sum_of_index = run(["sha256sum", tmp_path / "repo/Packages"], timeout=30).stdout.split()[0]
    assert f" {sum_of_index} {len(text)} Packages\n" in (tmp_path / "repo/Release").read_text()


def test_key_stays_and_stays_private(key: packages.SigningKey) -> None:
    assert packages.signing_key(key.folder.parent) == key
    assert oct(key.folder.stat().st_mode & 0o777) == "0o700"
    assert len(key.fingerprint) == 40


def _colons(validity: str, expires: int) -> str:
    return f"sec:{validity}:3072:1:AAAA:1:{expires}::u:::scESC:::+:::23::0:\nfpr:::::::::{'A' * 40}:\n"


@pytest.mark.parametrize(
    ("shown", "usable"),
    [
        (_colons("u", 4000000000), True),
        (_colons("e", 4000000000), False),
        (_colons("u", 1000), False),
        (_colons("u", 0), False),
        ("", False),
    ],
)
def test_key_near_its_end_is_not_used(shown: str, usable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "run", lambda *_, **__: Completed(("gpg",), 0, shown, "", 0.0))
    assert packages._valid_key(["gpg"]) == ("A" * 40 if usable else None)


def test_table_names_existing_sources_and_its_documentation() -> None:
    table = json.loads((packages.REPLICAS / "packages.json").read_text())
    assert {"550.163.01", "550.144.03"} <= set(table["nvidia_driver"]["versions"])
    for family in ("nvidia_driver", "cloudwatch_agent"):
        for package in packages.listed(family):
            assert package.documentation.startswith("https://") and package.entry["does"]
            assert all((packages.REPLICAS / family / source).is_dir() for source in package.entry["trees"])


def test_package_that_dpkg_refuses_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CloudError, match="dpkg-deb"):
        packages.build(replace(_named("nvidia-driver-cuda"), name="Not A Name"), tmp_path)
