"""A place of moto's, an AMI to build on, a plan that needs no facts, and a checkout with one role."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from moto import mock_aws

from gpu_ami.cloud import Cloud, Login, Place
from gpu_ami.plan import Plan
from gpu_ami.progress import Progress

QUIET = Progress("quiet")


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    with mock_aws():
        yield Cloud(Place(name="aws", region="us-east-1", login=Login(ssh_interface="private_ip")))


def an_ami(cloud: Cloud, name: str, root_device: str = "/dev/sda1") -> str:
    return str(cloud.ec2.register_image(Name=name, RootDeviceName=root_device, Architecture="x86_64")["ImageId"])


def a_plan(source_ami: str, gib: int = 40) -> Plan:
    document = {
        "image": "x", "digest": "sha256:1", "architecture": "x86_64", "source_ami": {"id": source_ami},
        "build": {"instance_type": "c7i.2xlarge", "root_volume_gib": gib}, "roles": ["x", "hygiene"], "x": {},
        "os": {"id": "debian"}, "node": {"family": "ec2"},
    }  # fmt: skip
    return Plan(document)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("packer", "playbooks", "roles/x/tasks"):
        (tmp_path / "checkout" / folder).mkdir(parents=True)
    (tmp_path / "checkout/roles/x/tasks/main.yml").write_text("[]")
    return tmp_path / "checkout"
