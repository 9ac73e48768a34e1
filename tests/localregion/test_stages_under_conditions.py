"""The AWS calls of each stage against a region under `aws-like`: build, launch, restart, validator, clean-up, sweep.

No machine: the waits move the region's clock, and every wait of botocore's is one of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.build import image as builds
from gpu_ami.cloud import ApiAccess, Cloud, Place, key_name, runs
from gpu_ami.cloud.client import Launch
from gpu_ami.cloud.place import Credentials
from gpu_ami.cloud.sweep import sweep_cloud
from gpu_ami.plan import resolve_source_ami
from gpu_ami.progress import Progress
from localregion.backends import cloudwatch as metrics_backend
from localregion.backends import instance_access_key
from localregion.machines.qemu import Exit
from tests.cloud.test_sweep import dead_record
from tests.localregion.api.test_layer import client
from tests.localregion.conftest import BASE_ID, PUBLIC_KEY, Region, World
from validator.cloudwatch import CloudWatch, Series

pytestmark = pytest.mark.slow

SEEDS = (1, 2, 3)
PLAN = {
    "architecture": "x86_64",
    "source_ami": {"owner": "136693071363", "name": "debian-12-*"},
    "build": {"root_volume_gib": 40},
}
KEY = key_name("20261122-000000-abcdef")  # the policies of iam/ allow no other names
KEY_OF_AGENT = instance_access_key("i-0123456789abcdef0")
GROUP = "/ec2/accelerated/accel-event-log"


@pytest.fixture(params=SEEDS)
def rough(region: Region, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> tuple[World, str]:
    """A region under aws-like in which time passes when somebody sleeps."""
    world, endpoint = region(f"aws-like:{request.param}")

    def sleep(seconds: float) -> None:
        world.clock.now += max(seconds, 0.5)
        world.settle()

    monkeypatch.setattr("time.sleep", sleep)
    start = time.time()
    monkeypatch.setattr(metrics_backend, "time", SimpleNamespace(monotonic=lambda: world.clock.now))
    monkeypatch.setattr("localregion.backends.logs.time", SimpleNamespace(time=lambda: start + world.clock.now))
    return world, endpoint


def _until(call: Callable[[], Any]) -> Any:
    """What the agent and Packer do: the same call again until AWS accepts it."""
    from botocore.exceptions import ClientError

    for _ in range(100):
        try:
            return call()
        except ClientError as error:
            assert error.response["Error"]["Code"] not in ("UnauthorizedOperation", "AccessDeniedException"), error
            time.sleep(0.5)
    raise AssertionError("the call was never accepted")


def open_cloud(endpoint: str) -> Cloud:
    return Cloud(
        Place("local", "us-east-1", api=ApiAccess(endpoint=endpoint, credentials=Credentials("local", "local")))
    )


def test_the_source_ami_is_found_and_a_new_ami_is_hardened(rough: tuple[World, str], run: runs.Run) -> None:
    _, endpoint = rough
    cloud = open_cloud(endpoint)
    assert resolve_source_ami(cloud, PLAN)["id"] == BASE_ID
    cloud.import_key(KEY, PUBLIC_KEY, run.tags())
    instance_id = cloud.launch(Launch(BASE_ID, "g5.12xlarge", KEY, run.tags(), ""))
    cloud.wait_for_state(instance_id, "running", 300)
    # What Packer does: it makes an AMI of the stopped builder, and reports it at once.
    tags = [{"Key": name, "Value": value} for name, value in run.tags().items()]
    tagged = [{"ResourceType": kind, "Tags": tags} for kind in ("image", "snapshot")]
    ami = _until(lambda: client(endpoint).create_image(InstanceId=instance_id, Name="made", TagSpecifications=tagged))
    ami = ami["ImageId"]
    cloud.created(ami)
    cloud.require_imds_v2(ami)
    image = cloud.wait_for_image(ami)
    assert image is not None
    assert builds.snapshots_of(image)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[runs.Run]:
    with runs.begin(tmp_path / "driver", "local") as begun:
        yield begun


def test_a_machine_is_launched_restarted_and_terminated(rough: tuple[World, str], run: runs.Run) -> None:
    world, endpoint = rough
    cloud = open_cloud(endpoint)
    cloud.import_key(KEY, PUBLIC_KEY, run.tags())
    instance_id = cloud.launch(Launch(BASE_ID, "g5.12xlarge", KEY, run.tags(), ""))
    open_cloud(endpoint).harden(instance_id)  # a builder that Packer has just launched
    assert cloud.wait_for_state(instance_id, "running", 300)["InstanceId"] == instance_id
    (world.layout.instance(instance_id) / "console.log").write_bytes(b"[    0.0] Linux")
    while not cloud.console(instance_id):
        time.sleep(1)
    cloud.stop(instance_id)
    world.settle()
    world.machine.ended = Exit("shutdown")
    cloud.wait_for_state(instance_id, "stopped", 300)
    cloud.start(instance_id)
    cloud.wait_for_state(instance_id, "running", 300)
    cloud.terminate([instance_id])
    cloud.wait_for_state(instance_id, "terminated", 300)
    cloud.delete_key(KEY)
    assert world.ec2.backend.key_pairs == {}


def test_sweep_leaves_nothing(rough: tuple[World, str], tmp_path: Path) -> None:
    _, endpoint = rough
    cloud = open_cloud(endpoint)
    home = tmp_path / "driver"
    with runs.begin(home, "local") as begun:
        tags = begun.tags() | {runs.TAG_EXPIRES: "2020-01-01T00:00:00Z"}
        cloud.import_key(KEY, PUBLIC_KEY, tags)
        instance_id = cloud.launch(Launch(BASE_ID, "g5.12xlarge", KEY, tags, ""))
    dead_record(home, begun.id, place="local")
    (home / "runs" / begun.id / "alive").touch()  # a moment ago: no list has its instance and its key pair yet
    assert cloud.instances_of(begun.id, "pending") == []
    swept = sweep_cloud(cloud, home, Progress("quiet"))
    assert {(one.kind, one.outcome) for one in swept} == {("instance", "removed"), ("key-pair", "removed")}
    assert cloud.instance(instance_id)["State"]["Name"] == "terminated"


def test_the_validator_sees_all_that_arrived(rough: tuple[World, str], monkeypatch: pytest.MonkeyPatch) -> None:
    _, endpoint = rough
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    telemetry = CloudWatch("us-east-1", endpoint=endpoint)
    telemetry.sleep = lambda seconds: time.sleep(seconds)
    series = Series("CWAgent", "power", (("InstanceId", "i-1"),))
    datum = {"MetricName": "power", "Value": 7.0, "Dimensions": [{"Name": "InstanceId", "Value": "i-1"}]}
    agent, logs = client(endpoint, "cloudwatch", KEY_OF_AGENT), client(endpoint, "logs", KEY_OF_AGENT)
    assert telemetry.events(GROUP, "i-1") is None
    for call in (
        lambda: agent.put_metric_data(Namespace="CWAgent", MetricData=[datum | {"Timestamp": datetime.now(UTC)}]),
        lambda: logs.create_log_group(logGroupName=GROUP),
        lambda: logs.put_retention_policy(logGroupName=GROUP, retentionInDays=90),
        lambda: logs.create_log_stream(logGroupName=GROUP, logStreamName="i-1"),
        lambda: logs.put_log_events(
            logGroupName=GROUP,
            logStreamName="i-1",
            logEvents=[{"timestamp": int(datetime.now(UTC).timestamp() * 1000), "message": "NVRM: Xid"}],
        ),
    ):
        _until(call)
    since = datetime.now(UTC).timestamp() - 60

    def points() -> Any:
        return telemetry.points([series], since, 10)[series] or None

    for look in (
        points,
        lambda: telemetry.known_series("CWAgent", {"InstanceId": "i-1"}) or None,
        lambda: telemetry.events(GROUP, "i-1") or None,
    ):
        assert telemetry.wait(look, 60) is not None
    assert telemetry.retention_days(GROUP) == 90
