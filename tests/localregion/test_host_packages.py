"""The doctor and `make packages` name the same things.

Where Debian's archive is.
`make packages`: what is installed on which system. Programs in apt's place answer and note their calls.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_ami import cli
from gpu_ami.process import Completed
from localregion import host

ROOT = Path(__file__).resolve().parents[2]


def test_makefile_installs_what_the_doctor_asks_for() -> None:
    makefile = (ROOT / "Makefile").read_text()
    found = re.search(r"^PACKAGES := ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    assert found
    assert set(host.TOOLS.values()) <= set(found.group(1).replace("\\", " ").split())


@pytest.mark.slow  # packer tells its version
def test_missing_tool_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **rest: None if name == "qemu-img" else real(name, **rest))
    assert cli.main(["doctor", "-q"]) == 2
    out = capsys.readouterr().out
    assert "MISSING qemu-img" in out and "apt-get install qemu-utils" in out


def test_each_finding_says_how_to_mend_it(home: Path) -> None:
    examined = host.examine(home)
    assert all(one.ok or one.remedy for one in examined)
    assert {one.name for one in examined} >= {"gcc", "disk"} and ("arm64" in {one.name for one in examined}) == (
        platform.machine() != "aarch64"
    )


def test_archive_is_the_hosts_own_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = (
        "Debian|bookworm|http://mirror.example/debian/|main\nDebian|bookworm-security|http://mirror.example/security/|main\n"
        "Debian|bookworm|http://mirror.example/debian/|contrib\nDebian|trixie|http://new.example/debian/|main\n"
        "Debian|bookworm-backports|http://mirror.example/debian/|main\n"
        "Node|nodistro|http://other.example/|main\nhalf a line\n"
    )
    monkeypatch.setattr(host, "find_tool", lambda *_, **__: "apt-get")
    monkeypatch.setattr(host, "run", lambda *_, **__: Completed(("apt-get",), 0, shown, "", 0.0))
    assert host.archive_lines("bookworm") == [
        "deb http://mirror.example/debian/ bookworm main",
        "deb http://mirror.example/security/ bookworm-security main",
        "deb http://mirror.example/debian/ bookworm-backports main",
    ]
    assert host.archive_lines("trixie") == ["deb http://new.example/debian/ trixie main"]
    # apt of this host has no line of it: the same mirror has it, too, and who has backports did not ask for another's.
    assert host.archive_lines("forky") == [
        "deb http://mirror.example/debian/ forky main",
        "deb http://mirror.example/security/ forky-security main",
    ]


def test_archive_of_a_host_that_is_not_debian_is_left_to_mmdebstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "find_tool", lambda *_, **__: "apt-get")
    monkeypatch.setattr(host, "run", lambda *_, **__: Completed(("apt-get",), 100, "", "", 0.0))
    assert host.archive_lines("bookworm") == []
    assert host.archive_sources("trixie") == ["deb http://deb.debian.org/debian trixie main"]


PROGRAM = Path(__file__).resolve().parents[2] / "localregion" / "packages.sh"
# $SYSTEM: files of what the system has. installed: packages; common: version of qemu-system-common; indexes: releases
# that `apt-get update` has read; offered: releases that the mirror has; impossible: what apt cannot install of a
# release, as `-t` names it; lacking: the release that has no qemu-system-x86.
_DPKG_QUERY = """case "$3" in
    *Version*) cat $SYSTEM/common ;;
    *) grep -qx "$4" $SYSTEM/installed && echo "install ok installed" ;;
esac"""
_APT_GET = r"""echo "apt-get $*" >> $SYSTEM/calls
case "$1" in
    update) for file in $SYSTEM/parts/*.sources; do
                [ -e "$file" ] || continue
                release=$(sed -n 's/^Suites: //p' $file)
                grep -qx $release $SYSTEM/offered || exit 100
                echo "$release http://mirror.example/debian /keyring.gpg" >> $SYSTEM/indexes
            done ;;
    indextargets) cat $SYSTEM/indexes ;;
    install) case "$*" in
                 # As apt 2.6 says it: the release of one package is not that of what it depends on.
                 */bookworm-backports*) echo "qemu-system-x86 : Depends: qemu-system-common (= 10)" >&2; exit 100 ;;
                 *-t\ bookworm-backports*) [ ! -e $SYSTEM/impossible ] && exit; echo "unmet" >&2; exit 100 ;;
             esac ;;
esac"""
_APT_CACHE = """case "$2" in
    qemu-system-x86) while read -r release uri _; do
            [ $release = "$(cat $SYSTEM/lacking)" ] || echo "qemu-system-x86 | 1 | $uri $release/main Packages"
        done < $SYSTEM/indexes
        # More than a pipe holds, after the line that is looked for: whoever stops reading there ends this program.
        printf 'qemu-system-x86 | 1 | http://mirror.example/debian bookworm/main Sources %.0s\n' {1..3000} ;;
    packer) cat $SYSTEM/packer ;;
esac"""
_PROGRAMS = {
    "dpkg-query": _DPKG_QUERY,
    "apt-get": _APT_GET,
    "apt-cache": _APT_CACHE,
    "apt-config": 'echo "folder=$SYSTEM/parts/"',
    "id": "cat $SYSTEM/uid",
    "sudo": 'echo "sudo $*" >> $SYSTEM/calls; [ "$1" = -n ] && exit 1; "$@"',
}
_BACKPORTS = ["-t", "bookworm-backports"]
_DEBIAN_12 = "bookworm http://mirror.example/debian /keyring.gpg\n"


class System:
    """A system that `packages.sh` is run on."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder / "system", folder / "bin"
        for path in (self.bin, self.folder / "parts"):
            path.mkdir(parents=True)
        for name, text in _PROGRAMS.items():
            self.add(name, text)
        for name in ("sed", "grep", "head", "tee", "rm", "cat", "env"):  # and no Packer
            (self.bin / name).symlink_to(str(shutil.which(name)))
        self.has(
            installed="",
            indexes=_DEBIAN_12,
            offered="bookworm-backports\n",
            packer="packer | 1.6.6\n",
            uid="0\n",
            lacking="",
        )

    def add(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.bin / name).chmod(0o755)

    def has(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / name).write_text(text)

    def run(self, *packages: str, **environment: str) -> subprocess.CompletedProcess[str]:
        given = {"PATH": str(self.bin), "SYSTEM": str(self.folder), **environment}
        command = [str(shutil.which("bash")), str(PROGRAM), *packages]
        return subprocess.run(command, env=given, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=30)

    @property
    def installs(self) -> list[list[str]]:
        """What apt-get was asked to install, call by call, without questions what it would do (`-s`)."""
        calls = (self.folder / "calls").read_text().splitlines() if (self.folder / "calls").exists() else []
        lines = [line for line in calls if line.startswith("apt-get install") and " -s " not in line]
        return [line.split("--no-install-recommends ")[1].split() for line in lines]

    @property
    def installed(self) -> list[str]:
        """What its only call to install was given; empty where there was none."""
        assert len(self.installs) <= 1
        return self.installs[0] if self.installs else []

    @property
    def sources(self) -> list[str]:
        return [file.read_text() for file in (self.folder / "parts").iterdir()]


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run(["shellcheck", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_a_machine_that_has_all_is_asked_nothing(system: System) -> None:
    system.has(installed="qemu-system-x86\npacker\n", uid="1000\n")
    done = system.run("qemu-system-x86", "packer")
    assert (done.returncode, done.stdout, system.installed) == (0, "", [])


def test_on_debian_12_qemu_comes_from_the_backports(system: System) -> None:
    done = system.run("packer", "qemu-system-x86", "qemu-utils", "mmdebstrap")
    assert done.returncode == 0, done.stderr
    assert system.installs == [[*_BACKPORTS, "qemu-system-x86", "qemu-utils"], ["packer", "mmdebstrap"]]
    assert [
        "Signed-By: /keyring.gpg" in text and "URIs: http://mirror.example/debian" in text for text in system.sources
    ] == [True]
    assert "apt's sources (make BACKPORTS=no" in done.stdout


def test_backports_that_the_system_has_are_not_added_again(system: System) -> None:
    system.has(indexes=_DEBIAN_12 + _DEBIAN_12.replace("bookworm", "bookworm-backports"))
    system.run("qemu-system-x86")
    assert system.installed == [*_BACKPORTS, "qemu-system-x86"]
    assert system.sources == []


def test_backports_that_cannot_be_installed_leave_debian_12_s_qemu(system: System) -> None:
    system.has(impossible="")
    done = system.run("qemu-system-x86", "rpm")
    assert done.returncode == 0, done.stderr
    assert system.installed == ["qemu-system-x86", "rpm"]
    assert "unmet" in done.stderr
    assert "apt cannot install qemu-system-x86 from the backports (above): QEMU is Debian 12's own" in done.stderr


@pytest.mark.parametrize(
    ("has", "backports", "reason"),
    [
        ({}, "no", "BACKPORTS=no: QEMU is Debian 12's own"),
        (
            {"offered": ""},
            "yes",
            "the backports cannot be had from http://mirror.example/debian: QEMU is Debian 12's own",
        ),
        ({"lacking": "bookworm-backports"}, "yes", "the backports have no qemu-system-x86: QEMU is Debian 12's own"),
        ({"indexes": _DEBIAN_12.replace("bookworm", "trixie")}, "yes", ""),  # whose own QEMU is the newer one
    ],
    ids=["not wanted", "not offered", "without QEMU", "another system"],
)
def test_a_qemu_that_is_not_of_the_backports_is_said(
    system: System, has: dict[str, str], backports: str, reason: str
) -> None:
    system.has(**has)
    done = system.run("qemu-system-x86", "qemu-utils", BACKPORTS=backports)
    assert done.returncode == 0, done.stderr
    assert system.installed == ["qemu-system-x86", "qemu-utils"]
    assert done.stderr.startswith(reason) and bool(reason) == bool(done.stderr)
    assert bool(system.sources) == ("lacking" in has)


def test_version_of_the_installed_qemu_is_said(system: System) -> None:
    system.add("qemu-system-x86_64", "echo 'QEMU emulator version 10.0.2'; echo Copyright")
    assert system.run("qemu-system-x86").stdout.splitlines()[-1] == "QEMU emulator version 10.0.2"


def test_an_installed_qemu_stays(system: System) -> None:
    system.has(installed="qemu-system-x86\n")
    system.run("qemu-system-x86", "packer")
    assert (system.installed, system.sources) == (["packer"], [])


@pytest.mark.parametrize(
    ("common", "installs"),
    [
        (
            "1:10.0.2+ds-2+deb13u1~bpo12+1",
            [[*_BACKPORTS, "qemu-system-arm", "qemu-user-static"], ["gcc-aarch64-linux-gnu"]],
        ),
        ("1:7.2+dfsg-7+deb12u18", [["qemu-system-arm", "qemu-user-static", "gcc-aarch64-linux-gnu"]]),
    ],
)
def test_a_further_qemu_is_of_the_release_of_the_first(system: System, common: str, installs: list[list[str]]) -> None:
    """Its programs share qemu-system-common, of exactly one version."""
    system.has(installed="qemu-system-x86\n", common=f"{common}\n")
    done = system.run("qemu-system-x86", "qemu-system-arm", "qemu-user-static", "gcc-aarch64-linux-gnu")
    assert (done.returncode, system.installs) == (0, installs)


def test_a_packer_that_is_no_debian_package_counts(system: System) -> None:
    system.has(indexes=_DEBIAN_12.replace("bookworm", "trixie"), packer="")
    done = system.run("packer", "rpm")
    assert done.returncode == 2
    assert "developer.hashicorp.com/packer/install" in done.stderr
    assert system.installed == []
    system.add("packer", "")
    assert system.run("packer", "rpm").returncode == 0
    assert system.installed == ["rpm"]


def test_without_root_it_says_what_to_do(system: System) -> None:
    system.has(uid="1000\n")
    done = system.run("rpm")
    assert done.returncode == 2
    assert "sudo apt-get update && sudo apt-get install --no-install-recommends -y rpm" in done.stderr
    assert system.installed == []
