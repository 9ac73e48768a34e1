"""`gpu-ami prove` and `publish` killed by SIGKILL at 12 moments from plan to publication, under `aws-like`.

Then `gpu-ami sweep` leaves nothing that costs money but a finished AMI that build.json names, the same commands
succeed, and what they publish is an AMI that one run has made to its end. The moments are drawn by seed over the
changes that an undisturbed run makes; `pytest -s` prints them. No machine is booted (tests/killed_driver).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from gpu_ami import cli, cloud
from gpu_ami.cloud import load_place
from gpu_ami.release import keys
from tests.killed_driver import SPEED, account
from tests.local.conftest import World, served

pytestmark = pytest.mark.slow

SEED, MOMENTS = 38, 12
CONDITIONS = "aws-like:1"
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

    def document(self, name: str) -> dict[str, Any] | None:
        path = self.folder / "out/killed" / name
        return json.loads(path.read_text()) if path.exists() else None

    def log(self) -> str:
        return (self.folder / "commands.log").read_text()[-4000:]


@contextlib.contextmanager
def project(folder: Path) -> Iterator[Project]:
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
    world = World(folder / "region", CONDITIONS)
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
        stack.callback(drivers.end)
        stack.enter_context(account.observed(drivers))
        yield Project(folder, home, stack.enter_context(moto_server()), drivers)


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module", autouse=True)
def access() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
        sleep = time.sleep
        patch.setattr("time.sleep", lambda seconds: sleep(seconds / SPEED))  # of `sweep`, in this process
        patch.setattr(cloud, "load_place", lambda file: replace(load_place(file), consistent_seconds=12.0 / SPEED))
        yield


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The changes of a run that nobody disturbs: it leaves an image in each region, and nothing else."""
    with project(tmp_path_factory.mktemp("undisturbed") / "project") as undisturbed:
        code = undisturbed.drivers.run(COMMANDS)
        assert code == 0, undisturbed.log()
        assert account.left(undisturbed.endpoint, undisturbed.home) == {}
        published(undisturbed)
        return undisturbed.drivers.changes


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    with project(tmp_path / "project") as made:
        monkeypatch.setenv("GPU_AMI_HOME", str(made.home))
        monkeypatch.chdir(made.folder)
        yield made


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


def nothing_is_half_made(of: Project) -> None:
    """Every image at home is one that build.json names and that is complete; its snapshots alone are there."""
    build = of.document("build.json")
    found = account.images(of.endpoint, HOME_REGION)
    assert [row["ImageId"] for row in found] == ([build["ami"]] if build else [])
    assert all(row["State"] == "available" and row["Tags"].get("gpu-ami:expires") == "never" for row in found)
    assert account.snapshots(of.endpoint, HOME_REGION) == account.of_images(found)


@pytest.mark.parametrize("number", range(MOMENTS))
def test_after_sigkill_nothing_is_left_and_the_next_run_succeeds(
    number: int, changes: list[str], killed: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    moment = account.draw(SEED, len(changes), MOMENTS)[number]
    code = killed.drivers.run(COMMANDS, moment)
    assert code == -9, f"{moment}: {code}\n{killed.log()}"
    at = killed.drivers.changes[moment.number - 1]
    before = account.left(killed.endpoint, killed.home)
    assert cli.main(["sweep", "--where", "aws.yml", "--json"]) == 0, capsys.readouterr().out
    swept = sorted({row["kind"] for row in json.loads(capsys.readouterr().out)})
    assert account.left(killed.endpoint, killed.home) == {}, f"{moment} ({at}); before: {before}"
    nothing_is_half_made(killed)
    assert killed.drivers.run(COMMANDS) == 0, f"{moment} ({at})\n{killed.log()}"
    assert account.left(killed.endpoint, killed.home) == {}
    published(killed)
    with capsys.disabled():
        print(f"\n| {number + 1} | {moment} | {at} | {', '.join(swept)} |", end="")


def test_the_moments_are_of_the_whole_way(changes: list[str]) -> None:
    """Of builder, image, proof and publication, and the same for a seed ever after."""
    moments = account.draw(SEED, len(changes), MOMENTS)
    assert moments == account.draw(SEED, len(changes), MOMENTS)
    first, last = changes.index("RunInstances"), changes.index("CopyImage")
    numbers = [moment.number - 1 for moment in moments]
    assert any(number <= first + 2 for number in numbers) and any(number >= last for number in numbers)
    assert any(moment.seconds is None for moment in moments) and any(moment.seconds for moment in moments)
