"""A simulated upgrade: which packages belong to the stack, what newer versions look like, and what apt then does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from onhost import system_upgrade as program

NVIDIA, DEBIAN = "NVIDIA <x@nvidia.com>", "Debian <x@debian.org>"
# name, version, maintainer, depends
DEBS = [
    ("nvidia-open-dkms", "580.1-1", NVIDIA, "dkms (>= 2.1), nvidia-kernel-common (= 580.1-1)"),
    ("nvidia-kernel-common", "580.1-1", NVIDIA, "kmod"),
    ("nvidia-smi", "580.1-1", NVIDIA, "libcuda1 (>= 580.1-1), libc6 (>= 2.34)"),
    ("libcuda1", "1:580.1-1", NVIDIA, "libc6 (>= 2.34)"),
    ("nvidia-xconfig", "1:580.1-1", NVIDIA, "libc6"),
    ("dkms", "3.0.10-8", DEBIAN, "gcc, make"),
    ("gcc", "12.2-1", DEBIAN, "cpp (= 12.2-1)"),
    ("cpp", "12.2-1", DEBIAN, ""),
    ("make", "4.3-4", DEBIAN, ""),
    ("kmod", "30-1", DEBIAN, ""),
    ("libc6", "2.36-9", DEBIAN, ""),
    ("dpkg", "1.21", DEBIAN, ""),
    ("linux-image-cloud-amd64", "6.1.158-1", DEBIAN, "linux-image-6.1.0-44-cloud-amd64 (= 6.1.158-1)"),
    ("linux-image-6.1.0-44-cloud-amd64", "6.1.158-1", DEBIAN, "kmod"),
]
STACK = {
    "nvidia-open-dkms", "nvidia-kernel-common", "nvidia-smi", "libcuda1", "dkms", "linux-image-cloud-amd64",
    "linux-image-6.1.0-44-cloud-amd64",
}  # fmt: skip
ASKED: dict[str, Any] = {
    "planned": ["nvidia-open-dkms", "nvidia-smi"], "records": [], "kernel": ["linux-image-cloud-amd64"],
    "files": ["nvidia-com"],
}  # fmt: skip


def status(held: set[str]) -> str:
    """dpkg's database."""
    return "\n".join(
        f"Package: {name}\nStatus: {'hold' if name in held else 'install'} ok installed\nPriority: optional\n"
        f"Section: misc\nMaintainer: {maintainer}\nArchitecture: amd64\nVersion: {version}\n"
        + (f"Depends: {depends}\n" if depends else "")
        + "Description: x\n"
        for name, version, maintainer, depends in DEBS
    )


def packages(rows: Sequence[tuple[str, str, str, str]]) -> list[program.Package]:
    made = []
    for name, version, publisher, requires in rows:
        package = program.Package(name, version, "amd64", publisher)
        package.requires = [[program.relation(part)] for part in requires.split(",") if part]
        made.append(package)
    return made


def test_stack_is_what_is_planned_and_bound_to_it() -> None:
    """Not the compiler that DKMS needs, nor a package of the vendor that nothing planned requires."""
    stack = program.Stack("deb", packages(DEBS), {}, ASKED)
    assert stack.names == STACK
    assert stack.to_hold == STACK - {"linux-image-6.1.0-44-cloud-amd64"}  # bound to one that is held


def test_what_dkms_runs_with_is_the_systems_although_one_vendor_publishes_both() -> None:
    """On ParallelCluster's AMI only the agent is planned, and a replica's publisher is that of the compiler's."""
    one = [
        (name, version, NVIDIA if name in ("gcc", "cpp", "make") else who, needs) for name, version, who, needs in DEBS
    ]
    assert program.Stack("deb", packages(one), {}, ASKED).names == STACK


def test_package_that_is_bound_to_the_stack_is_of_it() -> None:
    bound = ("nvidia-settings", "580.1-1", DEBIAN, "nvidia-smi (= 580.1-1)")
    assert program.Stack("deb", packages([*DEBS, bound]), {}, ASKED).names == STACK | {"nvidia-settings"}


def test_dnf_says_what_came_from_a_planned_repository() -> None:
    rows = [("kmod-nvidia", "3:580.1-1", "", "dkms"), ("came-along", "1:2-1", "", ""), ("dkms", "0:3-1", "", "")]
    asked = ASKED | {"planned": ["kmod-nvidia"], "kernel": []}
    sources = {"kmod-nvidia": "nvidia-com", "came-along": "nvidia-com", "dkms": "amazonlinux"}
    assert program.Stack("rpm", packages(rows), sources, asked).names == {"kmod-nvidia", "came-along", "dkms"}


def test_stack_has_what_an_installer_recorded_and_the_kernels_further_modules(tmp_path: Path) -> None:
    rows = [("efa", "3.3-1", "", ""), ("rdma-core", "64-1", "", ""), ("kernel6.12", "6.12-1", "", "")]
    rows += [("kernel6.12-modules-extra-6.12.1", "6.12-1", "", ""), ("bash", "5-1", "", "")]
    record = tmp_path / "record"
    record.write_text(
        "# EFA installer version: 1.50.0\nefa-3.3-1.amzn2023.x86_64 rdma-core-64-1.x86_64 gone-1-1.x86_64\n"
    )
    asked = ASKED | {"planned": [], "kernel": ["kernel6.12"], "records": [str(record), str(tmp_path / "none")]}
    assert program.Stack("rpm", packages(rows), {}, asked).names == {row[0] for row in rows} - {"bash"}


@pytest.mark.parametrize(
    ("kind", "version", "expected"),
    [
        ("deb", "1:4.6.1-1", "1:4.6.1.9999-1"),
        ("deb", "1.9", "1.9.9999"),
        ("rpm", "3:580.1-1.el9", "3:580.1.9999-1.el9"),
    ],
)
def test_newer_version(kind: str, version: str, expected: str) -> None:
    assert program.newer(kind, version) == expected


def test_newer_versions_are_bound_to_each_other_as_the_installed_ones() -> None:
    offered = {item.name: item for item in program.Stack("deb", packages(DEBS), {}, ASKED).newer()}
    assert offered["nvidia-open-dkms"].requires == [
        [("dkms", ">=", "2.1")], [("nvidia-kernel-common", "=", "580.1.9999-1")],
    ]  # fmt: skip
    # a new kernel has a name of its own
    assert offered["linux-image-cloud-amd64"].requires == [[("linux-image-cloud-amd64-9999", "", "")]]
    assert "linux-image-cloud-amd64-9999" in offered


@pytest.fixture
def upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[set[str]], tuple[list[dict[str, Any]], str]]:
    """This machine's own apt, with another database of packages."""
    real = program.output
    database = tmp_path / "status"
    other = [
        "-o",
        f"Dir::State::status={database}",
        "-o",
        "APT::Architecture=amd64",
        "-o",
        "Dir::Etc::preferencesparts=-",
    ]

    def output(command: Sequence[str], environment: Any = None) -> tuple[int, str, str]:
        return real([*command, *other] if command[0] == "apt-get" else command, environment)

    monkeypatch.setattr(program, "output", output)

    def simulate(held: set[str]) -> tuple[list[dict[str, Any]], str]:
        database.write_text(status(held))
        work = tmp_path / f"work-{len(held)}"
        work.mkdir()
        return program.upgrade_apt(str(work), program.Stack("deb", packages(DEBS), {}, ASKED).newer())

    return simulate


def test_upgrade_leaves_held_packages_alone(upgrade: Callable[[set[str]], Any]) -> None:
    assert upgrade(STACK) == ([], "")


@pytest.mark.parametrize(
    ("free", "changed"),
    [
        ("libcuda1", {"libcuda1"}),  # nothing is bound to exactly its version
        ("dkms", {"dkms"}),
        ("linux-image-cloud-amd64", {"linux-image-cloud-amd64", "linux-image-cloud-amd64-9999"}),
    ],
)
def test_upgrade_takes_a_package_that_is_not_held(
    upgrade: Callable[[set[str]], Any], free: str, changed: set[str]
) -> None:
    changes, problem = upgrade(STACK - {free})
    assert {row["name"] for row in changes} == changed, problem
    assert all("9999" in row["to"] for row in changes)


def test_whole_program_says_why_it_cannot_run(tmp_path: Path) -> None:
    """Here without repositories that answer: the answer is JSON, and what it made is removed."""
    asked = json.dumps(ASKED | {"offer": program.NEWER_STACK})
    done = subprocess.run(
        [sys.executable, "-I", "-", asked],
        input=Path(program.__file__).read_text(),
        capture_output=True,
        text=True,
        env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        timeout=60,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["kind"] in ("deb", "rpm") and list(tmp_path.iterdir()) == []
    assert answer["unable"] or answer["changes"] == []


def test_index_of_dnf_has_relations_with_their_versions() -> None:
    package = program.Package("kmod", "3:580.1-1.el9", "x86_64", "")
    package.requires = [[("common", "=", "3:580.1-1.el9")], [("bash", "", "")]]
    package.provides = [("kmod", "=", "3:580.1-1.el9")]
    index = program.primary([package])
    bound = '<rpm:entry name="common" flags="EQ" epoch="3" ver="580.1" rel="1.el9"/>'
    assert bound in index and '<rpm:entry name="bash"/>' in index
    assert '<version epoch="3" ver="580.1" rel="1.el9"/>' in index


def test_requirement_that_repeats_a_package_is_not_exact() -> None:
    assert program.same("580.1-1", "3:580.1-1") and program.same("580.1", "580.1-1")
    assert not program.same("580.1-1", "580.2-1") and not program.same("", "1-1")
