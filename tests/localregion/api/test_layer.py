"""Each condition as boto3 sees it, and what the product makes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from gpu_ami.cloud import Cloud, Launch, Network
from gpu_ami.cloud.capacity import Attempt
from gpu_ami.cloud.place import ApiAccess, Capacity, Credentials, Place
from gpu_ami.errors import CapacityError, CloudError, GpuAmiError
from localregion.backends import cloudwatch
from tests.localregion.conftest import BASE_ID, PUBLIC_KEY, Region

TAGS = {"gpu-ami:run": "20261122-000000-abcdef"}  # without it the policies of iam/ allow no launch
LAUNCH = {"ImageId": BASE_ID, "InstanceType": "g5.12xlarge", "MinCount": 1, "MaxCount": 1}


def client(endpoint: str, service: str = "ec2", access_key: str = "local") -> Any:
    return boto3.client(
        service,  # type: ignore[call-overload]
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}),
    )


def refused(call: Callable[..., Any], **arguments: Any) -> tuple[str, int]:
    """Code and HTTP status of a call that must fail."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    response = caught.value.response
    return str(response["Error"]["Code"]), int(response["ResponseMetadata"]["HTTPStatusCode"])


def state(ec2: Any, instance_id: str) -> tuple[str, str]:
    instance = ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]
    return instance["State"]["Name"], instance.get("StateReason", {}).get("Code", "")


@pytest.mark.parametrize(
    ("conditions", "code", "status"),
    [
        ("no-capacity", "InsufficientInstanceCapacity", 500),
        ("vcpu-quota", "VcpuLimitExceeded", 400),
        ("spot-quota", "MaxSpotInstanceCountExceeded", 400),
        ("unsupported-zone", "Unsupported", 400),
        ("no-launch-permission", "UnauthorizedOperation", 403),
    ],
)
def test_a_launch_is_refused_with_the_code_and_status_of_aws(
    region: Region, conditions: str, code: str, status: int
) -> None:
    world, endpoint = region(conditions)
    assert refused(client(endpoint).run_instances, **LAUNCH) == (code, status)
    assert world.reconciler.units == {}
    assert client(endpoint).describe_instances()["Reservations"] == []  # other calls go on


def test_throttling_comes_and_goes(region: Region) -> None:
    _, endpoint = region("throttling:3")
    ec2, telemetry = client(endpoint), client(endpoint, "logs")
    codes = []
    for call in [ec2.describe_instances] * 40 + [telemetry.describe_log_groups] * 40:
        try:
            call()
        except ClientError as error:
            codes.append((error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]))
    assert set(codes) == {("RequestLimitExceeded", 503), ("ThrottlingException", 400)}
    assert 2 < len(codes) < 30


def test_expired_credentials_end_every_service(region: Region) -> None:
    world, endpoint = region("expired-credentials")
    services = {name: client(endpoint, name) for name in ("ec2", "sts", "logs", "cloudwatch")}
    calls = {
        services["ec2"].describe_instances: ("RequestExpired", 400),
        services["sts"].get_caller_identity: ("ExpiredToken", 403),
        services["logs"].describe_log_groups: ("ExpiredTokenException", 400),
        services["cloudwatch"].list_metrics: ("ExpiredTokenException", 400),
    }
    for call in calls:
        call()
    world.clock.now = 600
    assert {call: refused(call) for call in calls} == calls


def test_refused_telemetry_and_console_name_the_action(region: Region) -> None:
    _, endpoint = region("no-telemetry-permission")
    with pytest.raises(ClientError, match="is not authorized to perform: logs:GetLogEvents"):
        client(endpoint, "logs").get_log_events(logGroupName="g", logStreamName="s")
    assert refused(client(endpoint, "cloudwatch").list_metrics) == ("AccessDeniedException", 400)


def test_a_new_instance_is_unknown_for_some_seconds(region: Region) -> None:
    world, endpoint = region("consistency")
    ec2 = client(endpoint)
    instance_id = ec2.run_instances(**LAUNCH)["Instances"][0]["InstanceId"]
    for call in (ec2.describe_instances, ec2.terminate_instances, ec2.stop_instances):
        assert refused(call, InstanceIds=[instance_id]) == ("InvalidInstanceID.NotFound", 400)
    assert refused(ec2.create_tags, Resources=[instance_id], Tags=[{"Key": "a", "Value": "b"}])[1] == 400
    by_id = [{"Name": "instance-id", "Values": [instance_id]}]
    assert ec2.describe_instances(Filters=by_id)["Reservations"] == []
    assert ec2.describe_instances()["Reservations"] == []
    world.clock.now = 5
    world.settle()
    assert state(ec2, instance_id) == ("running", "")
    assert len(ec2.describe_instances(Filters=by_id)["Reservations"]) == 1
    assert len(ec2.describe_instances()["Reservations"]) == 1


def test_a_new_key_pair_is_unknown_for_some_seconds(region: Region) -> None:
    world, endpoint = region("consistency")
    ec2 = client(endpoint)
    ec2.import_key_pair(KeyName="gpu-ami-k", PublicKeyMaterial=PUBLIC_KEY.encode())
    assert refused(ec2.run_instances, **LAUNCH, KeyName="gpu-ami-k") == ("InvalidKeyPair.NotFound", 400)
    assert ec2.describe_key_pairs()["KeyPairs"] == []
    world.clock.now = 5
    assert [row["KeyName"] for row in ec2.describe_key_pairs()["KeyPairs"]] == ["gpu-ami-k"]


def test_what_has_the_name_of_a_new_key_pair_can_be_created(region: Region) -> None:
    """The placement group of a run has the name of its key pair: `--nodes` was refused under these conditions."""
    _, endpoint = region("consistency")
    ec2 = client(endpoint)
    ec2.import_key_pair(KeyName="gpu-ami-k", PublicKeyMaterial=PUBLIC_KEY.encode())
    ec2.create_placement_group(GroupName="gpu-ami-k", Strategy="cluster")
    assert [row["GroupName"] for row in ec2.describe_placement_groups()["PlacementGroups"]] == ["gpu-ami-k"]


def test_a_new_image_and_group_are_unknown_for_some_seconds(region: Region) -> None:
    world, endpoint = region("consistency")
    ec2 = client(endpoint)
    image_id = ec2.copy_image(SourceImageId=BASE_ID, SourceRegion="us-east-1", Name="copy")["ImageId"]
    group_id = ec2.create_security_group(GroupName="g", Description="d", VpcId=world.ec2.vpc_id)["GroupId"]
    assert refused(ec2.describe_images, ImageIds=[image_id]) == ("InvalidAMIID.NotFound", 400)
    assert refused(ec2.describe_security_groups, GroupIds=[group_id]) == ("InvalidGroup.NotFound", 400)
    world.clock.now = 5
    assert ec2.describe_images(ImageIds=[image_id])["Images"][0]["Name"] == "copy"
    assert ec2.describe_security_groups(GroupIds=[group_id])["SecurityGroups"][0]["GroupName"] == "g"


def test_the_image_of_a_build_is_known_at_once(region: Region) -> None:
    """The waiter of Packer's plugin 1.8.2 ends at the first InvalidAMIID.NotFound."""
    world, endpoint = region("consistency")
    ec2 = client(endpoint)
    instance_id = ec2.run_instances(**LAUNCH)["Instances"][0]["InstanceId"]
    world.clock.now = 5
    world.settle()
    image_id = ec2.create_image(InstanceId=instance_id, Name="made")["ImageId"]
    assert [row["ImageId"] for row in ec2.describe_images(ImageIds=[image_id])["Images"]] == [image_id]


def test_capacity_may_be_missing_after_the_launch(region: Region) -> None:
    world, endpoint = region("no-capacity-later")
    ec2 = client(endpoint)
    launched = ec2.run_instances(**LAUNCH)["Instances"][0]
    assert launched["State"]["Name"] == "pending"
    world.settle()
    assert state(ec2, launched["InstanceId"]) == ("terminated", "Server.InsufficientInstanceCapacity")
    assert world.machines.started == []


def test_machines_boot_and_stop_slowly_and_have_no_console_at_first(region: Region) -> None:
    world, endpoint = region("slow-machines")
    ec2 = client(endpoint)
    instance_id = ec2.run_instances(**LAUNCH)["Instances"][0]["InstanceId"]
    (world.layout.instance(instance_id)).mkdir(parents=True, exist_ok=True)
    (world.layout.instance(instance_id) / "console.log").write_bytes(b"Linux")
    for now, expected in ((19.0, "pending"), (20.0, "running")):
        world.clock.now = now
        world.settle()
        assert state(ec2, instance_id)[0] == expected
    assert ec2.get_console_output(InstanceId=instance_id).get("Output", "") == ""
    world.clock.now = 60.0
    assert ec2.get_console_output(InstanceId=instance_id)["Output"] == "Linux"
    ec2.stop_instances(InstanceIds=[instance_id])
    world.settle()
    from localregion.machines.qemu import Exit

    world.machine.ended = Exit("shutdown")
    for now, expected in ((79.0, "stopping"), (80.0, "stopped")):
        world.clock.now = now
        world.settle()
        assert state(ec2, instance_id)[0] == expected


def test_metrics_are_seen_late(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    _, endpoint = region("late-telemetry")
    ago = 0.0
    monkeypatch.setattr(cloudwatch, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ago))
    metrics, now = client(endpoint, "cloudwatch"), datetime.now(UTC)
    metrics.put_metric_data(Namespace="CWAgent", MetricData=[{"MetricName": "power", "Value": 7.0, "Timestamp": now}])

    def values() -> list[float]:
        stat = {"Metric": {"Namespace": "CWAgent", "MetricName": "power"}, "Period": 10, "Stat": "Average"}
        window = {"StartTime": now - timedelta(seconds=60), "EndTime": now + timedelta(seconds=60)}
        answer = metrics.get_metric_data(MetricDataQueries=[{"Id": "a", "MetricStat": stat}], **window)
        return list(answer["MetricDataResults"][0]["Values"])

    def listed() -> int:
        return len(metrics.list_metrics(Namespace="CWAgent")["Metrics"])

    assert (values(), listed()) == ([], 0)
    ago = 21.0
    assert (values(), listed()) == ([7.0], 0)
    ago = 61.0
    assert (values(), listed()) == ([7.0], 1)


# What the product makes of it


def cloud(endpoint: str) -> Cloud:
    return Cloud(
        Place("local", "us-east-1", api=ApiAccess(endpoint=endpoint, credentials=Credentials("local", "local")))
    )


def start(endpoint: str) -> tuple[Cloud, str]:
    client = cloud(endpoint)
    client.import_key("gpu-ami-k", PUBLIC_KEY, TAGS)
    return client, client.launch(Launch(BASE_ID, "g5.12xlarge", "gpu-ami-k", TAGS, ""))


@pytest.mark.parametrize(
    ("conditions", "kind", "words"),
    [
        ("no-capacity", CapacityError, "InsufficientInstanceCapacity"),
        ("unsupported-zone", CapacityError, "zone"),
        ("no-launch-permission", CloudError, "ec2:RunInstances"),
        ("vcpu-quota", GpuAmiError, "quota"),
    ],
)
def test_a_refused_launch_never_blames_the_image(
    region: Region, conditions: str, kind: type[GpuAmiError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)  # between botocore's attempts
    _, endpoint = region(conditions)
    with pytest.raises(kind) as caught:
        start(endpoint)
    assert words in str(caught.value) and caught.value.hint
    assert caught.value.exit_code == (4 if kind is CloudError else 5)


def test_capacity_missing_after_the_launch_is_a_capacity_error(region: Region) -> None:
    world, endpoint = region("no-capacity-later")
    client, instance_id = start(endpoint)
    world.settle()
    with pytest.raises(CapacityError, match=f"{instance_id} is terminated"):
        client.wait_for_state(instance_id, "running", 5)


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_launch_survives_an_ordinary_day(region: Region, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    world, endpoint = region(f"aws-like:{seed}")

    def sleep(seconds: float) -> None:
        world.clock.now += max(seconds, 1.0)
        world.settle()

    monkeypatch.setattr("time.sleep", sleep)
    client, instance_id = start(endpoint)
    assert client.wait_for_state(instance_id, "running", 60)["InstanceId"] == instance_id
    client.terminate([instance_id])
    client.wait_for_state(instance_id, "terminated", 60)


def two_zones(world: Any, endpoint: str, **changes: Any) -> Cloud:
    keys = Credentials("local", "local")
    subnets = world.ec2.subnet_ids
    api, network = ApiAccess(endpoint=endpoint, credentials=keys), Network(subnet_ids=subnets)
    return Cloud(Place("local", "us-east-1", api=api, network=network, **changes))


def test_a_launch_goes_to_the_zone_that_offers_the_type(region: Region) -> None:
    world, endpoint = region("unsupported-zone")  # us-east-1a
    cloud = two_zones(world, endpoint)
    attempts: list[Attempt] = []
    instance_id = cloud.launch(Launch(BASE_ID, "g5.12xlarge", "", TAGS, "", on_attempt=attempts.append))
    assert cloud.instance(instance_id)["SubnetId"] == world.ec2.subnet_ids[1]
    failed, launched = attempts
    assert "g5.12xlarge in us-east-1a" in str(failed) and "on-demand: Unsupported" in str(failed)
    assert (launched.zone, launched.answer, launched.instance_id) == ("us-east-1b", "launched", instance_id)


@pytest.mark.parametrize("ways", [("on-demand",), ("spot", "on-demand")])
def test_capacity_that_is_withdrawn_is_searched_for_again(
    region: Region, monkeypatch: pytest.MonkeyPatch, ways: tuple[str, ...]
) -> None:
    world, endpoint = region("no-capacity-later")
    failure = replace(world.decisions.conditions.launch_failures[0], times=1)
    world.decisions.conditions = replace(world.decisions.conditions, launch_failures=(failure,))
    monkeypatch.setattr("time.sleep", lambda _: world.settle())
    cloud, attempts = two_zones(world, endpoint, capacity=Capacity({"*": ways})), list[Attempt]()
    asked = Launch(BASE_ID, "g5.12xlarge", "", TAGS, "", pending_seconds=60, on_attempt=attempts.append)
    instance_id = cloud.launch(asked)
    assert [(one.zone, one.way) for one in attempts] == [("us-east-1a", ways[0]), ("us-east-1b", ways[0])]
    assert attempts[0].answer.startswith("Server.InsufficientInstanceCapacity: ") and not attempts[0].instance_id
    assert (attempts[1].answer, attempts[1].instance_id) == ("launched", instance_id)
    states = {unit.id: unit.shown for unit in world.reconciler.units.values()}
    assert states.pop(instance_id) == "running" and set(states.values()) == {"terminated"}


def test_a_launch_that_is_pending_too_long_or_cancelled_leaves_nothing(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, endpoint = region("consistency")
    cloud, cancelled = two_zones(world, endpoint), threading.Event()

    def sleep(seconds: float) -> None:  # nothing settles: it stays pending
        world.clock.now += max(seconds, 1.0)

    world.clock.now = 100.0
    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("time.monotonic", world.clock)
    with pytest.raises(CloudError, match="is pending after 5 s"):
        cloud.launch(Launch(BASE_ID, "g5.12xlarge", "", TAGS, "", pending_seconds=5))
    cancelled.set()
    with pytest.raises(CloudError, match="was cancelled"):
        cloud.launch(Launch(BASE_ID, "g5.12xlarge", "", TAGS, "", cancelled=cancelled, pending_seconds=5))
    world.settle()
    assert {unit.desired for unit in world.reconciler.units.values()} == {"terminated"}


def test_a_launch_without_capacity_anywhere_names_every_attempt(region: Region) -> None:
    world, endpoint = region("no-capacity")
    cloud = two_zones(world, endpoint, capacity=Capacity({"*": ("spot", "on-demand")}))
    cloud.ec2 = client(endpoint)  # botocore retries a 500 with waits
    with pytest.raises(CapacityError, match="in 4 attempts") as caught:
        cloud.launch(Launch(BASE_ID, "g5.12xlarge", "", TAGS, ""))
    assert [(("us-east-1a" in line), ("spot" in line)) for line in caught.value.details] == [
        (True, True), (False, True), (True, False), (False, False),
    ]  # fmt: skip


def test_a_spot_instance_is_launched_as_one(region: Region) -> None:
    world, endpoint = region("consistency")
    cloud = two_zones(world, endpoint, capacity=Capacity({"g5*": ("spot",)}))
    instance_id = cloud.launch(Launch(BASE_ID, "g5.12xlarge", "", TAGS, ""))
    assert "cannot be stopped" in cloud.cannot_stop(instance_id)
