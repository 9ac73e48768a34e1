"""Replicas have the shape of the vendors' own packages, as far as these are public (replicas/real_packages.yml)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from localregion.mirror import Package, find_row
from localregion.mirror.staging import stage
from localregion.mirror.table import REPLICAS

pytestmark = pytest.mark.slow

REAL = yaml.safe_load((REPLICAS / "real_packages.yml").read_text())
# The replica's programs are Python, and need it; some make users with useradd.
_OWN_NEEDS = {"python3", "passwd"}
# A package of each record: name and kind.
SAMPLES = [
    ("nvidia-dkms-580-open", "deb"), ("nvidia-dkms-580", "deb"), ("nvidia-kernel-source-580-open", "deb"),
    ("nvidia-kernel-common-580", "deb"), ("nvidia-utils-580", "deb"), ("nvidia-compute-utils-580", "deb"),
    ("libnvidia-compute-580", "deb"), ("nvidia-dkms-open", "deb"), ("libnvidia-compute", "deb"),
    ("nvidia-kernel-open-dkms", "deb"), ("nvidia-driver-cuda", "deb"), ("nvidia-smi", "deb"),
    ("libnvidia-ml1", "deb"), ("libnvidia-ml", "rpm"),
    ("nvidia-persistenced", "deb"), ("kmod-nvidia-open-dkms", "rpm"), ("kmod-nvidia-latest-dkms", "rpm"),
    ("nvidia-kmod-common", "rpm"), ("nvidia-modprobe", "rpm"), ("nvidia-driver-cuda", "rpm"),
    ("nvidia-driver-cuda-libs", "rpm"),
    ("nvidia-persistenced", "rpm"), ("nvidia-fabricmanager-550", "deb"), ("nvidia-fabricmanager", "deb"),
    ("nvidia-fabric-manager", "rpm"), ("nvidia-fabricmanager", "rpm"), ("nvidia-container-toolkit", "deb"),
    ("nvidia-container-toolkit", "rpm"), ("nvidia-container-toolkit-base", "deb"),
    ("nvidia-container-toolkit-base", "rpm"), ("datacenter-gpu-manager-4-core", "deb"),
    ("datacenter-gpu-manager-4-cuda13", "rpm"), ("efa", "deb"), ("efa", "rpm"), ("efa-nv-peermem", "rpm"),
    ("libnccl-ofi", "deb"), ("libnccl-ofi", "rpm"), ("libfabric1-aws", "deb"), ("libfabric-aws", "rpm"),
    ("libnvidia-container-tools", "deb"), ("libnvidia-container1", "rpm"), ("nvidia-imex-580", "deb"),
    ("nvidia-imex", "rpm"),
    ("amazon-cloudwatch-agent", "deb"), ("amazon-cloudwatch-agent", "rpm"), ("libcudnn9-cuda-13", "deb"),
    ("libcudnn9-cuda-12", "rpm"),
]  # fmt: skip


@dataclass(frozen=True)
class Sample:
    package: Package
    real: Mapping[str, Any]
    values: Mapping[str, str]

    def names(self, key: str) -> set[str]:
        """Names of a relation of the real package."""
        return {name.format(**self.values) for name in self.real.get(key, ())}

    def own(self, key: str) -> set[str]:
        """Names of a relation of the replica."""
        entries = self.package.row.entry.get(key, {}).get(self.package.kind, [])
        return {re.split(r"[ (=]", self.package.fill(entry))[0] for entry in entries}


def records(name: str, kind: str) -> Iterator[tuple[Mapping[str, Any], re.Match[str]]]:
    for family in REAL["packages"].values():
        for row in family:
            matched = re.fullmatch(row["name"], name)
            if matched and row.get("kind", kind) == kind:
                yield row, matched


@pytest.fixture(params=SAMPLES, ids=lambda sample: "-".join(sample))
def sample(request: pytest.FixtureRequest) -> Sample:
    name, kind = request.param
    version = "580.159.03-1" if kind == "deb" else "3:580.159.03-1.amzn2023"
    package = Package(name, version, kind, "x86_64", find_row("packages", name, kind=kind, asked_by="test"))
    ((real, matched),) = records(name, kind)
    groups = {key: value or "" for key, value in matched.groupdict().items()}
    return Sample(package, real, package.values | groups)


def public(path: str) -> bool:
    """Whether others find the file by its place: programs, units, libraries, settings."""
    return path.startswith(("usr/bin/", "usr/sbin/", "usr/lib/systemd/", "etc/")) or bool(
        re.fullmatch(r"usr/lib(64|/[^/]+-linux-gnu)/[^/]+", path)
    )


def test_every_record_is_compared_and_has_its_source() -> None:
    compared = {id(row) for name, kind in SAMPLES for row, _ in records(name, kind)}
    rows = [row for family in REAL["packages"].values() for row in family]
    assert {id(row) for row in rows} == compared
    assert all({"source", "date"} <= row.keys() for row in rows)


def test_files_are_those_of_the_real_package(sample: Sample, tmp_path: Path) -> None:
    stage(sample.package.row, sample.package.values, tmp_path)
    staged = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if not path.is_dir()}
    allowed = sample.names("files")
    extra = {path for path in staged if public(path) and not {path, path.rpartition("/")[2]} & allowed}
    assert extra == set()
    setuid = {path for path in staged if (tmp_path / path).lstat().st_mode & 0o6000}
    assert setuid == sample.names("setuid")
    if "libraries" in sample.real:
        assert {path for path in staged if ".so" in path.rpartition("/")[2]} == sample.names("libraries")


def test_units_are_there_and_start_the_same_way(sample: Sample, tmp_path: Path) -> None:
    stage(sample.package.row, sample.package.values, tmp_path)
    units = {path for path in sample.names("files") if path.endswith((".service", ".path"))}
    assert {path for path in units if not (tmp_path / path).is_file()} == set()
    if "unit" in sample.real:
        (unit,) = units
        assert f"\nExecStart={sample.real['unit']}\n" in (tmp_path / unit).read_text()


def test_it_provides_nothing_that_the_real_one_does_not(sample: Sample) -> None:
    assert sample.own("provides") <= sample.names("provides")


def test_it_depends_on_what_the_real_one_depends_on(sample: Sample) -> None:
    real, left_out = sample.names("depends"), " ".join(sample.real.get("without", ()))
    assert sample.own("depends") - _OWN_NEEDS <= real
    assert {name for name in real - sample.own("depends") if name not in left_out} <= {"adduser"}
