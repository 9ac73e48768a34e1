"""Recipes, two places, and a folder of one lock to change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud.place import ApiAccess, Login, MachineTraits, Mirror, Network, Place
from gpu_ami.plan.lock import lock_file

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "variables" / "recipes").glob("*.yml"))
DEBIAN = ROOT / "variables" / "recipes" / "debian12-gpu.yml"
AL2023 = ROOT / "variables" / "recipes" / "al2023-compute.yml"
AWS = Place(
    name="aws", region="eu-central-1", tags={"team": "gpu"}, network=Network(subnet_ids=("subnet-0123456789abcdef0",))
)
LOCAL = Place(
    name="local",
    region="us-east-1",
    mirror=Mirror("http://169.254.169.252", "A" * 40),
    api=ApiAccess(endpoint="http://127.0.0.1:4566", guest_endpoint="http://169.254.169.251"),
    login=Login(ssh_interface="private_ip", ssh_port=2222),
    machines=MachineTraits(simulated=True),
)


def urls(value: Any) -> list[str]:
    """Every address in a document."""
    if isinstance(value, dict):
        return [url for key, item in value.items() if key not in ("sources", "notes") for url in urls(item)]
    if isinstance(value, list):
        return [url for item in value for url in urls(item)]
    return [value] if isinstance(value, str) and value.startswith("http") else []


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    """A copy of AL2023's lock, to change."""
    folder = tmp_path / "locks"
    folder.mkdir()
    shutil.copy(lock_file(AL2023.stem), folder)
    return folder
