"""Replicas as .rpms: the same content, scriptlets with Debian's arguments, packages and index signed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.errors import CloudError
from gpu_ami.process import Completed, run
from localregion.mirror import rpm, signing
from localregion.mirror import table as replica_table
from localregion.mirror.table import Package, find_row

from .replica_samples import TABLE, write_table

pytestmark = pytest.mark.slow


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = write_table(tmp_path / "replicas")
    monkeypatch.setattr(replica_table, "REPLICAS", folder)
    return folder


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> signing.SigningKey:
    return signing.signing_key(tmp_path_factory.mktemp("signing"))


def _package(name: str, version: str) -> Package:
    return Package(name, version, "rpm", "x86_64", find_row("packages", name, kind="rpm", asked_by="the test"))


def _query(file: Path, *what: str) -> str:
    return run(["rpm", "--nosignature", "-qp", *what, file], timeout=30).stdout


def test_same_sources_make_the_same_bytes(tmp_path: Path, table: Path) -> None:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made.append(rpm.build(_package("tool-1", "1.2.3-1"), tmp_path / name).read_bytes())
    assert made[0] == made[1]


def test_package_is_what_its_row_says(tmp_path: Path, table: Path) -> None:
    file = rpm.build(_package("tool-1", "2:1.2.3-1.amzn2023"), tmp_path)
    assert file.name == "tool-1-1.2.3-1.amzn2023.x86_64.rpm"
    head = _query(file, "--qf", "%{EPOCH} %{VERSION} %{RELEASE} %{VENDOR} %{ARCH}")
    assert head == "2 1.2.3 1.amzn2023 gpu-ami replica x86_64"
    assert "python3 >= 3.9" in _query(file, "--requires") and "tool = 1.2.3" in _query(file, "--provides")
    owned = _query(file, "--qf", "[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME}\n]").splitlines()
    assert "/opt/tool/bin/tool -rwxr-xr-x root" in owned and "/usr/bin/tool lrwxrwxrwx root" in owned
    assert "/var/lib/tool drwxr-xr-x root" in owned and "/opt/tool drwxr-xr-x root" in owned
    assert not any(line.split()[0] in ("/usr", "/usr/bin", "/etc", "/opt") for line in owned)
    assert "/etc/tool-1.conf" in _query(file, "--configfiles")


def test_revision_is_made_up_where_the_plan_has_none(tmp_path: Path, table: Path) -> None:
    assert rpm.build(_package("agent", "2.31.7.0"), tmp_path).name == "agent-2.31.7.0-1.x86_64.rpm"


@pytest.mark.parametrize(
    ("scriptlet", "remaining", "said"),
    [
        ("post", "1", "50% of tool-1 1.2.3 \n"),
        ("post", "2", "50% of tool-1 1.2.3 previous\n"),
        ("preun", "0", "prerm remove\n"),
        ("preun", "1", "prerm upgrade\n"),
    ],
)
def test_scriptlet_gets_debians_arguments(
    tmp_path: Path, table: Path, scriptlet: str, remaining: str, said: str
) -> None:
    file = rpm.build(_package("tool-1", "1.2.3-1"), tmp_path)
    tag = {"post": "POSTIN", "preun": "PREUN"}[scriptlet]
    text = _query(file, "--qf", f"%{{{tag}}}").replace("/tmp/said", str(tmp_path / "said"))
    run(["sh", "-c", text, "sh", remaining], timeout=30)
    assert (tmp_path / "said").read_text() == said


def test_library_package_runs_ldconfig(tmp_path: Path, table: Path) -> None:
    file = rpm.build(_package("libtool", "4.5-1"), tmp_path)
    assert "/usr/lib64/libtool.so.4.5\n" in _query(file, "--list")
    assert _query(file, "--qf", "%{POSTIN}|%{POSTUN}") == "/sbin/ldconfig|/sbin/ldconfig"


def _check(file: Path, database: Path) -> Completed:
    return run(["rpmkeys", "--dbpath", database, "--checksig", "-v", file], timeout=30, check=False)


def test_signature_holds_and_tampering_shows(tmp_path: Path, table: Path, key: signing.SigningKey) -> None:
    file = rpm.build(_package("agent", "1.0-1"), tmp_path)
    database = tmp_path / "db"
    run(["rpmkeys", "--dbpath", database, "--import", key.export(tmp_path / "key", armor=True)], timeout=30)
    with key.opened() as gpg:
        rpm.sign([file], gpg)
        rpm.sign([], gpg)
    good = _check(file, database)
    assert good.returncode == 0 and f"key ID {key.fingerprint[-8:].lower()}: OK" in good.stdout
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert _check(file, database).returncode != 0


def test_repository_is_indexed_and_signed(tmp_path: Path, table: Path, key: signing.SigningKey) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    rpm.build(_package("agent", "1.0-1"), folder)
    with key.opened() as gpg:
        rpm.write_repository(folder, gpg)
    keyring = key.export(tmp_path / "ring.gpg", armor=False)
    index = folder / "repodata/repomd.xml"
    check = ["gpgv", "--keyring", keyring, folder / "repodata/repomd.xml.asc", index]
    assert run(check, timeout=30, check=False).returncode == 0
    index.write_text(index.read_text().replace("primary", "primarx", 1))
    assert "BAD signature" in run(check, timeout=30, check=False).stderr


def test_package_that_rpmbuild_refuses_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_table(tmp_path / "replicas", TABLE.replace("python3 >= 3.9", "python3 (>= 3.9"))
    monkeypatch.setattr(replica_table, "REPLICAS", folder)
    with pytest.raises(CloudError, match="rpmbuild ended with 1"):
        rpm.build(_package("tool-1", "1.2.3-1"), tmp_path)
