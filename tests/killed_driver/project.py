"""A folder with a recipe, a place and a key, in an account of its own under conditions; commands run in it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from gpu_ami import cloud
from gpu_ami.cloud import load_place
from gpu_ami.cloud import sweep as cloud_sweep
from gpu_ami.release import keys
from tests.killed_driver import SPEED, account
from tests.localregion.conftest import World, served

HOME_REGION, OTHER_REGION = "us-east-1", "eu-central-1"
ROLE = "arn:aws:iam::123456789012:role/gpu-ami-dead-man"
RECIPE = {
    "os": "debian12", "flag": "killed", "instance_types": ["g5.12xlarge"], "nvidia_driver": {"version": "580.178.04"},
}  # fmt: skip
POLICY = {"regions": [{"region": HOME_REGION}, {"region": OTHER_REGION}], "ssm": {"prefix": "/images/killed"}}
COMMANDS = (
    "prove killed.yml --where aws.yml -o out/killed --sign release.key -q;"
    "publish out/killed --key release.key.pub --where aws.yml -q"
)


@dataclass
class Project:
    """A folder with a recipe, a place and a key; each run of the commands in it is a process of its own.

    endpoint: shows the same state to whoever may see everything.
    """

    folder: Path
    home: Path
    endpoint: str
    drivers: account.Drivers
    world: World

    def document(self, name: str) -> dict[str, Any] | None:
        path = self.folder / "out/killed" / name
        return json.loads(path.read_text()) if path.exists() else None

    def log(self) -> str:
        return (self.folder / "commands.log").read_text()[-4000:]


@contextlib.contextmanager
def project(folder: Path, conditions: str) -> Iterator[Project]:
    """An account of its own, and a folder in which nothing was run yet."""
    from moto.backends import get_backend

    for service in ("ec2", "iam", "logs", "cloudwatch", "scheduler", "ssm", "autoscaling"):
        get_backend(service).reset()  # type: ignore[call-overload]
    folder.mkdir()
    home = folder / "home"
    program = folder / "packer"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.killed_driver.packer "$@"\n')
    program.chmod(0o755)
    keys.new_key(folder / "release.key")
    (folder / "killed.yml").write_text(json.dumps(RECIPE))
    (folder / "publish.yml").write_text(json.dumps(POLICY))
    world = World(folder / "region", conditions)
    environment = {**os.environ, "PACKER": str(program), "GPU_AMI_HOME": str(home), "PYTHONPATH": str(account.ROOT)}
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(served(world, conditions=True))
        stack.enter_context(account.ticking(world))
        place = {
            "region": HOME_REGION, "endpoint": endpoint, "ssh_interface": "private_ip", "dead_man_role": ROLE,
            "subnet_id": world.ec2.subnet_id, "security_group_ids": [world.ec2.group_id], "capacity_minutes": 5,
        }  # fmt: skip
        (folder / "aws.yml").write_text(json.dumps(place))
        drivers = account.Drivers(folder, environment)
        stack.enter_context(account.observed(drivers))
        yield Project(folder, home, stack.enter_context(moto_server()), drivers, world)


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def quick(place: cloud.Place) -> cloud.Place:
    return replace(place, api=replace(place.api, consistent_seconds=12.0 / SPEED))


@contextlib.contextmanager
def quickened() -> Iterator[None]:
    """This process has credentials, and waits as quickly as the drivers do, as in `sweep`."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
        sleep = time.sleep
        patch.setattr("time.sleep", lambda seconds: sleep(seconds / SPEED))
        patch.setattr(cloud, "load_place", lambda file: quick(load_place(file)))
        # What sweep waits for is in this clock already: divided again, it looked while lists still lacked an instance.
        patch.setattr(cloud_sweep, "time", SimpleNamespace(sleep=sleep, time=time.time, monotonic=time.monotonic))
        yield


def published(of: Project) -> None:
    """One AMI in each region, made by one run to its end; documents and parameters name it, and no snapshot is over."""
    build, record = of.document("build.json"), of.document("publication.json")
    assert build and record and record["state"] == "published"
    (image,) = account.images(of.endpoint, HOME_REGION)
    assert image["ImageId"] == build["ami"] == record["image"]["ami"] and image["State"] == "available"
    assert (image["Tags"]["gpu-ami:run"], image["Tags"]["gpu-ami:expires"]) == (build["run"], "never")
    for region in (HOME_REGION, OTHER_REGION):
        (copy,) = account.images(of.endpoint, region)
        parameter = account.services(of.endpoint, region, "ssm").get_parameter(Name="/images/killed/latest")
        assert parameter["Parameter"]["Value"] == copy["ImageId"] and copy["Name"] == image["Name"]
        assert account.snapshots(of.endpoint, region) == account.of_images([copy])
