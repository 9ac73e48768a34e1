"""The plan of the main recipe for plain moto, which the tests of Packer's template share."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.cloud.place import ApiAccess, Credentials, Login, Place
from gpu_ami.plan import Plan, make_plan

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "packer"
RECIPE = ROOT / "variables" / "recipes" / "debian12-gpu.yml"
PLACE = Place(
    name="moto",
    region="us-east-1",
    tags={"team": "vision"},
    source_ami="ami-0b5e1f0d2c3a49678",
    api=ApiAccess(credentials=Credentials("testing", "testing")),
    login=Login(ssh_interface="private_ip", ssh_port=9),
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(RECIPE, PLACE)
