"""What a system is made of: packages by dpkg and rpm, their repositories, kernel modules, and the image's own BOM."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onhost import materials as program
from onhost import observation
from tests.observe import foreign_images as foreign

STATUS = """\
Package: nvidia-smi
Status: install ok installed
Architecture: amd64
Source: nvidia-graphics-drivers (580.1-1)
Version: 580.1-1
Maintainer: NVIDIA <x@nvidia.com>
Description: a tool
 Version: not this one

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: libc6
Status: hold ok installed
Architecture: amd64
Version: 2:2.36-9+deb12u10
"""
MODINFO = """\
filename:       /lib/modules/6.1/updates/dkms/nvidia-uvm.ko.xz
version:        580.1
license:        Dual MIT/GPL
depends:        nvidia
name:           nvidia_uvm
vermagic:       6.1.0-40-cloud-amd64 SMP preempt mod_unload modversions
sig_id:         PKCS#7
signer:         DKMS module signing key
signature:      30:65:02
\t\t09:AB
parm:           uvm_debug: enable
filename:       /lib/modules/6.1/kernel/drivers/net/ena.ko
license:        GPL
vermagic:       6.1.0-40-cloud-amd64 SMP
"""
POLICY = """\
nvidia-smi:
  Installed: 580.1-1
  Candidate: 580.2-1
  Version table:
     580.2-1 500
        500 https://new.example/debian ./ Packages
 *** 580.1-1 500
        500 https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64  Packages
        100 /var/lib/dpkg/status
libc6:
  Installed: 2:2.36-9+deb12u10
  Candidate: 2:2.36-9+deb12u10
  Version table:
 *** 2:2.36-9+deb12u10 100
        100 /var/lib/dpkg/status
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(STATUS)
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/dpkg-query").touch()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    return tmp_path


def test_packages_of_dpkg(tree: Path) -> None:
    found = program.materials(str(tree))
    assert (found["os"], found["os_version"]) == ("debian", "12")
    assert [(row["name"], row["version"], row["source"]) for row in found["packages"]] == [
        ("libc6", "2:2.36-9+deb12u10", ""),
        ("nvidia-smi", "580.1-1", "nvidia-graphics-drivers (580.1-1)"),
    ]


def test_packages_of_rpm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = (
        "gpg-pubkey\t0\t1\t2\t(none)\t(none)\t(none)\n"
        "openssl\t1\t3.2.2\t1.amzn2023\tx86_64\topenssl-3.2.2-1.amzn2023.src.rpm\tAmazon Linux\n"
    )
    monkeypatch.setattr(program, "output", lambda command: rows if command[0] == "rpm" else "")
    (package,) = program.packages(str(tmp_path))
    assert (package["name"], package["epoch"], package["vendor"]) == ("openssl", "1", "Amazon Linux")
    assert package["version"] == "3.2.2-1.amzn2023"


@pytest.mark.parametrize("path", ["usr/lib/sysimage/rpm", "var/lib/rpm"])
def test_packages_of_a_tree_of_rpm_need_no_rpm(path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Debian machine that reads the files of Amazon Linux has no rpm."""
    image = foreign.Image(tmp_path, "al2023")
    image.install("gpg-pubkey", version="1-2")
    image.install("nvidia-driver", version="580.126.09-1.amzn2023")
    image.done()
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "usr/lib/sysimage/rpm").rename(tmp_path / path)
    monkeypatch.setattr(program, "output", lambda _command: "")
    found = program.materials(str(tmp_path))
    (base, driver) = found["packages"]
    assert base["name"] == "base-files"
    assert driver == {
        "name": "nvidia-driver", "version": "580.126.09-1.amzn2023", "epoch": "3", "architecture": "x86_64",
        "kind": "rpm", "source": "nvidia-driver-580.126.09-1.amzn2023.src.rpm", "vendor": "A vendor", "repository": "",
    }  # fmt: skip
    purl = "pkg:rpm/amzn/nvidia-driver@580.126.09-1.amzn2023?arch=x86_64&distro=amzn-2023&epoch=3"
    assert purl in [component["bom-ref"] for component in program.bom(found)["components"]]


def test_a_running_system_asks_its_rpm_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What rpm has written may still be in the log beside its database, which this program does not read."""
    row = "openssl\t1\t3.2.2\t1.amzn2023\tx86_64\t(none)\t(none)\n"
    monkeypatch.setattr(program, "output", lambda _command: row)
    monkeypatch.setattr(program, "rpm_file", lambda _tree: pytest.fail("read as a file"))
    monkeypatch.setattr(program.Tree, "text", lambda *_: None)
    assert program.database(program.Tree(""))[0] == "rpm (rpm -qa)"


@pytest.mark.parametrize(("system", "other"), [("al2023", "debian12"), ("debian12", "al2023")])
def test_the_other_tool_s_database_lists_little(system: str, other: str, tmp_path: Path) -> None:
    """`dnf install dpkg` and `apt install rpm` bring a database that knows none of the system's packages."""
    of_system = foreign.Image(tmp_path / "root", system)
    of_system.install("nvidia-driver", "nvidia-persistenced", version="580.178.04-1")
    of_system.done()
    of_other = foreign.Image(tmp_path / "other", other)
    of_other.done()
    for path in ("var/lib/dpkg/status", "usr/bin/dpkg-query", "usr/lib/sysimage/rpm/rpmdb.sqlite"):
        if (tmp_path / "other" / path).exists():
            of_system.write_bytes(path, (tmp_path / "other" / path).read_bytes())
    name, packages = program.database(program.Tree(str(tmp_path / "root")))
    assert name.partition(" ")[0] == ("rpm" if system == "al2023" else "dpkg")
    assert len(packages) == 3


def test_links_of_a_tree_stay_within_it(tmp_path: Path) -> None:
    """os-release and the modules' folder are those of the tree, also behind absolute links."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").symlink_to("/usr/lib/os-release")
    (tmp_path / "usr/lib/modules/6.1/extra").mkdir(parents=True)
    (tmp_path / "usr/lib/os-release").write_text("ID=amzn\nVERSION_ID=2023\n")
    (tmp_path / "usr/lib/modules/6.1/extra/ours.ko").touch()
    (tmp_path / "lib").symlink_to("/usr/lib")
    found = program.materials(str(tmp_path))
    assert (found["os"], found["os_version"]) == ("amzn", "2023")
    assert program.module_files(str(tmp_path)) == [str(tmp_path / "usr/lib/modules/6.1/extra/ours.ko")]


@pytest.mark.parametrize("build", [foreign.eks_base, foreign.vendor_without_holds])
def test_observation_and_materials_have_the_same_packages(build: Callable[[Path], Path], tmp_path: Path) -> None:
    root = build(tmp_path / "root")
    observed = observation.observe(str(root), False, {"all": [["package", ".*", "(.*)", ""]]})
    listed = {(row["name"], row["version"]) for row in program.packages(str(root))}
    assert {(row["package"], row["full"]) for row in observed["readings"]["all"]} == listed
    assert observed["packages"] == len(listed) > 3


def test_database_of_dpkg_without_its_programs_is_not_the_system_s(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "usr/bin/dpkg-query").unlink()
    monkeypatch.setattr(program, "output", lambda command: "openssl\t1\t3.2\t1\tx86_64\t(none)\t(none)\n")
    assert [row["name"] for row in program.packages(str(tree))] == ["openssl"]


def test_the_repository_is_that_of_the_installed_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "output", lambda _command: POLICY)
    url = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64"
    assert program.apt_repositories(["nvidia-smi", "libc6"]) == {"nvidia-smi": f"{url} Packages"}
    assert program.apt_repositories([]) == {}
    monkeypatch.setattr(program, "output", lambda _command: "openssl\tamazonlinux\nmine\t<unknown>\n")
    assert program.dnf_repositories() == {"openssl": "amazonlinux"}


def test_modules_of_modinfo() -> None:
    uvm, ena = program.parse_modules(MODINFO, "")
    assert uvm == {
        "path": "/lib/modules/6.1/updates/dkms/nvidia-uvm.ko.xz", "name": "nvidia_uvm", "version": "580.1",
        "signer": "DKMS module signing key", "license": "Dual MIT/GPL",
        "vermagic": "6.1.0-40-cloud-amd64 SMP preempt mod_unload modversions",
    }  # fmt: skip
    assert (ena["name"], ena["version"], ena["signer"]) == ("ena", "", "")


def test_every_module_is_asked_for_in_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "lib/modules/6.1/kernel"
    folder.mkdir(parents=True)
    names = [f"m{number}.ko" for number in range(900)]
    for name in (*names, "modules.dep", "x.ko.txt"):
        (folder / name).touch()
    asked: list[list[str]] = []

    def modinfo(command: list[str]) -> str:
        asked.append(list(command[1:]))
        return "".join(f"filename: {path}\n" for path in command[1:])

    monkeypatch.setattr(program, "output", modinfo)
    found = program.modules(str(tmp_path))
    assert len(found) == 900 and max(map(len, asked)) == program.MODULES_AT_ONCE
    assert found[0]["path"] == "/lib/modules/6.1/kernel/m0.ko"
    (tmp_path / "lib/modules/6.1/updates").mkdir()
    (tmp_path / "lib/modules/6.1/updates/nvidia.ko").touch()
    assert [row["name"] for row in program.modules(str(tmp_path), program.ADDED)] == ["nvidia"]
    asked.clear()
    listed = program.modules(str(tmp_path), program.LISTED)
    assert len(listed) == 901 and [row["path"] for row in listed] == sorted(row["path"] for row in listed)
    assert asked == [[str(tmp_path / "lib/modules/6.1/updates/nvidia.ko")]]  # the kernel's own are not read


@pytest.mark.parametrize(
    ("package", "system", "version", "expected"),
    [
        (
            {"kind": "deb", "name": "libc6", "version": "2:2.36-9+deb12u10", "architecture": "amd64"},
            "debian", "12", "pkg:deb/debian/libc6@2:2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12",
        ),
        (
            {"kind": "rpm", "name": "openssl", "version": "3.2.2-1", "architecture": "x86_64", "epoch": "1"},
            "amzn", "2023", "pkg:rpm/amzn/openssl@3.2.2-1?arch=x86_64&distro=amzn-2023&epoch=1",
        ),
        (
            {"kind": "rpm", "name": "g++", "version": "1-1", "architecture": "x86_64", "epoch": "0"},
            "rhel", "9.4", "pkg:rpm/redhat/g%2B%2B@1-1?arch=x86_64&distro=rhel-9.4",
        ),
    ],
)  # fmt: skip
def test_package_urls(package: dict[str, Any], system: str, version: str, expected: str) -> None:
    """By the purl specification's own library."""
    from packageurl import PackageURL

    text = program.purl(package, system, version)
    assert text == expected
    parsed = PackageURL.from_string(text)
    assert (parsed.name, parsed.version) == (package["name"], package["version"])
    assert parsed.to_string() == text


def test_the_document_is_valid_and_the_same_for_the_same_content(tree: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    command = [
        sys.executable,
        "-IS",
        program.__file__,
        "--root",
        str(tree),
        "--bom",
        str(tree / "usr/share/x/bom.json"),
    ]
    subprocess.run(command, check=True, timeout=60)
    text = (tree / "usr/share/x/bom.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    assert [component["name"] for component in document["components"]] == ["libc6", "nvidia-smi"]
    assert [json.loads(line.rstrip(","))["name"] for line in text.splitlines()[1:-1]] == ["libc6", "nvidia-smi"]
    subprocess.run(command, check=True, timeout=60)
    assert (tree / "usr/share/x/bom.json").read_text() == text


def test_modules_are_components() -> None:
    found = {"os": "debian", "os_version": "12", "packages": [], "modules": program.parse_modules(MODINFO, "")}
    document = program.bom(found)
    assert [(row["type"], row["name"], row["version"]) for row in document["components"]] == [
        ("device-driver", "ena", ""), ("device-driver", "nvidia_uvm", "580.1"),
    ]  # fmt: skip
    assert {"name": "gpu-ami:signer", "value": "DKMS module signing key"} in document["components"][1]["properties"]


def test_a_program_that_fails_or_is_missing_says_nothing() -> None:
    assert program.output(["no-such-program"]) == program.output(["false"]) == ""


def test_its_language_is_that_of_python_3_6() -> None:
    vermin = [Path(sys.executable).with_name("vermin"), "--no-tips", "--violations", "-t=3.6-", program.__file__]
    done = subprocess.run(vermin, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
