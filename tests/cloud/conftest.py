"""An account without machines: moto, a run, and what a test launches."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from gpu_ami.cloud import Cloud, Login, Place, placement_groups, runs
from gpu_ami.cloud.client import Launch
from gpu_ami.validate.machines.launch import user_data

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqMyRWr1wAJYt6OZjNRZqGjpbPFWYzBqkHRmSXLcSVp test"


@pytest.fixture(autouse=True)
def _no_list_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # seconds for each fresh moto; the tests make their own


@pytest.fixture(autouse=True)
def _no_placement_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_groups, "tagged", lambda *_: [])  # moto has none; the local region's are tested there


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with mock_aws():
        yield Cloud(Place(name="aws", region="us-east-1", login=Login(ssh_interface="private_ip")))


@pytest.fixture
def run(home: Path) -> Iterator[runs.Run]:
    with runs.begin(home, "aws") as begun:
        yield begun


@functools.cache
def an_ami(cloud: Cloud) -> str:
    return str(cloud.ec2.register_image(Name="base", RootDeviceName="/dev/xvda", Architecture="x86_64")["ImageId"])


def launch(cloud: Cloud, run: runs.Run, **changes: Any) -> str:
    tags = run.tags(recipe="r", plan_digest="sha256:0") | changes.pop("tags", {})
    return cloud.launch(Launch(an_ami(cloud), "g5.12xlarge", "", tags, user_data(240, "gpu-ami-proof")))


def sent_launches(monkeypatch: pytest.MonkeyPatch, cloud: Cloud) -> list[dict[str, Any]]:
    """Records RunInstances requests as they leave."""
    sent: list[dict[str, Any]] = []
    cloud.ec2.meta.events.register("provide-client-params.ec2.RunInstances", lambda params, **_: sent.append(params))
    return sent
