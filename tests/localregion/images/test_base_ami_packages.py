"""Packages that a node family's base AMI has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from localregion.images import source_ami
from localregion.images.rootfs_layers import Base

pytestmark = pytest.mark.slow

LOCKS = Path(__file__).parents[3] / "variables" / "locks"


def locked(name: str) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads((LOCKS / f"{name}.json").read_text())["plan"]
    return plan


def test_what_a_node_brings_is_at_the_planned_versions() -> None:
    plan = locked("pcluster-3.16-ubuntu2404")
    base = source_ami.base_of(plan)
    brought = {package.name: package.version for package in base.layers[-1].provided.packages}
    assert brought["nvidia-dkms-open"] == brought["libnvidia-compute"] == plan["nvidia_driver"]["version"]
    assert brought["nvidia-fabricmanager"] == plan["fabric_manager"]["version"]
    (installer,) = base.layers[-1].provided.archives
    assert installer.values["version"] == plan["efa"]["version"]
    assert not Base("al2023").layers[-1].provided


def test_what_a_node_brings_is_built(tmp_path: Path, home: Path) -> None:
    provided = Base("ubuntu2404", "parallelcluster", "3.16.3").layers[-1].provided
    provided.put(tmp_path / "replicas", home)
    names = {package.file_name for package in provided.packages} | {archive.name for archive in provided.archives}
    assert {path.name for path in (tmp_path / "replicas").iterdir()} == names
    assert any(name.startswith("aws-efa-installer-") for name in names)
