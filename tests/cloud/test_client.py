"""What the calls to EC2 carry, against plain moto; and how AWS's answers become errors with a hint and an exit code."""

from __future__ import annotations

import base64
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gpu_ami.cloud import client, runs
from gpu_ami.cloud.client import Cloud, Launch, tags_of
from gpu_ami.cloud.login import temporary_key
from gpu_ami.cloud.place import ApiAccess, Network, Place
from gpu_ami.errors import CapacityError, CloudError, GpuAmiError, UsageError
from gpu_ami.validate.machines.launch import launch_of, launched, user_data
from tests.aws_requests import Checked
from tests.cloud.conftest import PUBLIC_KEY, an_ami, launch, sent_launches


def test_launch_carries_everything_from_the_creating_call(
    cloud: Cloud, run: runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.import_key("k", PUBLIC_KEY, run.tags())
    sent = sent_launches(monkeypatch, cloud)
    instance_id = cloud.launch(
        Launch(an_ami(cloud), "g5.12xlarge", "k", run.tags(recipe="r"), user_data(7, "gpu-ami-proof"))
    )
    request = sent[0]
    assert request["MetadataOptions"]["HttpTokens"] == "required"
    assert request["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert b"systemctl poweroff" in base64.b64decode(request["UserData"])
    kinds = {one["ResourceType"]: {tag["Key"] for tag in one["Tags"]} for one in request["TagSpecifications"]}
    assert set(kinds) == {"instance", "volume", "network-interface"}
    assert all({runs.TAG_RUN, runs.TAG_EXPIRES, runs.TAG_RECIPE} <= keys for keys in kinds.values())
    assert tags_of(cloud.instance(instance_id))[runs.TAG_RUN] == run.id


def test_launched_is_terminated_even_on_error(cloud: Cloud, run: runs.Run) -> None:
    with (
        pytest.raises(RuntimeError),
        temporary_key(cloud, run, run.tags()) as key,
        launched(
            cloud,
            launch_of(cloud, run, ami=an_ami(cloud), instance_type="g5.12xlarge", key=key, tags=run.tags()),
            run,
        ) as instance_id,
    ):
        assert run.key_file.stat().st_mode & 0o777 == 0o600
        assert tags_of(cloud.ec2.describe_key_pairs(KeyNames=[key])["KeyPairs"][0])[runs.TAG_RUN] == run.id
        assert cloud.wait_for_state(instance_id, "running", 5)["InstanceId"] == instance_id
        raise RuntimeError
    assert cloud.wait_for_state(instance_id, "terminated", 5)["State"]["Name"] == "terminated"
    assert cloud.ec2.describe_key_pairs()["KeyPairs"] == []


def test_waiting_for_an_instance_that_ended_says_why(cloud: Cloud, run: runs.Run) -> None:
    cloud.import_key("k", PUBLIC_KEY, {"for": "tests"})
    instance_id = cloud.launch(Launch(an_ami(cloud), "g5.12xlarge", "k", run.tags(), ""))
    cloud.terminate([instance_id])
    with pytest.raises(CloudError, match=f"{instance_id} is terminated, expected running"):
        cloud.wait_for_state(instance_id, "running", 5)


def test_machines_of_one_call_come_and_go_together(
    cloud: Cloud, run: runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC2 may withdraw one of them before it runs: the others are not left."""
    attempts: list[Any] = []
    asked = Launch(an_ami(cloud), "g5.12xlarge", "", run.tags(), "", count=3, pending_seconds=5)
    ids = cloud.launch_all(replace(asked, on_attempt=attempts.append))
    assert len(set(ids)) == 3 and attempts[0].instance_id == ", ".join(ids)

    def withdraw(instance_id: str, *_: Any) -> None:
        if instance_id == withdrawn[-1]:
            raise CapacityError(f"{instance_id} is terminated: Server.InsufficientInstanceCapacity")

    withdrawn = [""]
    real = cloud.ec2.run_instances

    def launch_some(**request: Any) -> Any:
        made = real(**request)
        withdrawn.append(made["Instances"][1]["InstanceId"])
        return made

    monkeypatch.setattr(cloud.ec2, "run_instances", Checked("ec2", run_instances=launch_some).run_instances)
    monkeypatch.setattr(cloud, "wait_for_state", withdraw)
    with pytest.raises(CapacityError, match="InsufficientInstanceCapacity"):
        cloud.launch_all(asked)
    rows = [row for page in cloud.ec2.describe_instances()["Reservations"] for row in page["Instances"]]
    assert {row["InstanceId"] for row in rows if row["State"]["Name"] == "running"} == set(ids)


def test_machines_of_one_call_are_in_one_zone(cloud: Cloud, run: runs.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each subnet is asked for all of them: a cluster placement group has one zone, EFA one subnet."""
    vpc = cloud.ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnets = [
        cloud.ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{index}.0/24", AvailabilityZone=f"us-east-1{zone}")
        for index, zone in enumerate("ab")
    ]
    ids = tuple(row["Subnet"]["SubnetId"] for row in subnets)
    monkeypatch.setattr(cloud, "place", replace(cloud.place, network=replace(cloud.place.network, subnet_ids=ids)))
    asked: list[tuple[str, int, int]] = []
    real = cloud.ec2.run_instances

    def short_in_the_first(**request: Any) -> Any:
        asked.append((request["SubnetId"], request["MinCount"], request["MaxCount"]))
        if request["SubnetId"] == ids[0]:
            raise CapacityError("InsufficientInstanceCapacity", code="InsufficientInstanceCapacity")
        return real(**request)

    monkeypatch.setattr(cloud.ec2, "run_instances", Checked("ec2", run_instances=short_in_the_first).run_instances)
    made = cloud.launch_all(Launch(an_ami(cloud), "g5.12xlarge", "", run.tags(), "", count=3))
    assert asked == [(ids[0], 3, 3), (ids[1], 3, 3)]
    assert {cloud.instance(instance_id)["SubnetId"] for instance_id in made} == {ids[1]}


@pytest.mark.parametrize(
    ("code", "kind", "exit_code"),
    [
        ("InsufficientInstanceCapacity", CapacityError, 5),
        ("VcpuLimitExceeded", CapacityError, 5),
        ("UnauthorizedOperation", CloudError, 4),
        ("InternalError", CloudError, 4),
    ],
)
def test_errors_of_aws(
    cloud: Cloud, run: runs.Run, monkeypatch: pytest.MonkeyPatch, code: str, kind: type[CloudError], exit_code: int
) -> None:
    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": code, "Message": "we have no p4d"}}, "RunInstances")  # type: ignore[typeddict-item]

    monkeypatch.setattr(cloud.ec2, "run_instances", Checked("ec2", run_instances=refuse).run_instances)
    monkeypatch.setattr("gpu_ami.cloud.client.OUTAGE_SECONDS", 0)
    with pytest.raises(kind) as caught:
        launch(cloud, run)
    assert code in str(caught.value) and "we have no p4d" in str(caught.value)
    assert caught.value.exit_code == exit_code


def test_builder_is_made_to_ask_for_imds_v2(cloud: Cloud, run: runs.Run) -> None:
    found = cloud.ec2.run_instances(ImageId=an_ami(cloud), MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    cloud.harden(found)
    assert cloud.instance(found)["MetadataOptions"]["HttpTokens"] == "required"


def test_missing_image_is_none(cloud: Cloud) -> None:
    assert cloud.image("ami-0123456789abcdef0") is None


def test_no_credentials_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="nobody"):
        Cloud(Place(name="aws", region="us-east-1", api=ApiAccess(profile="nobody"))).instance("i-0123456789abcdef0")


@pytest.mark.parametrize(
    ("code", "kind"), [("Server.InsufficientInstanceCapacity", CapacityError), ("Server.InternalError", CloudError)]
)
def test_start_that_falls_back_to_stopped(code: str, kind: type[GpuAmiError], monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Cloud(SimpleNamespace())  # type: ignore[arg-type]
    state = {"State": {"Name": "stopped"}, "StateReason": {"Code": code, "Message": f"{code}: no room"}}
    monkeypatch.setattr(cloud, "instance", lambda _: state)
    with pytest.raises(kind, match="i-1 is stopped, expected running"):
        cloud.wait_for_state("i-1", "running", 30)


def test_stopped_by_us_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Cloud(SimpleNamespace())  # type: ignore[arg-type]
    reason = {"Code": "Client.UserInitiatedShutdown", "Message": "User initiated shutdown"}
    states = iter([{"State": {"Name": "stopped"}, "StateReason": reason}, {"State": {"Name": "running"}}])
    monkeypatch.setattr(cloud, "instance", lambda _: next(states))
    monkeypatch.setattr("gpu_ami.cloud.client.POLL_SECONDS", 0)
    assert cloud.wait_for_state("i-1", "running", 30)["State"]["Name"] == "running"


def answers(*given: object) -> Any:
    """A call that raises or returns these, one after the other."""
    left = list(given)

    def call(**_: object) -> object:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return call


def refused(code: str, operation: str = "DescribeInstances") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": f"{code} it is"}}, operation)


def fake(monkeypatch: pytest.MonkeyPatch, **calls: Any) -> Cloud:
    """A Cloud whose EC2 client answers as told; the clock of its waits stands still but for their sleeps."""
    cloud = Cloud(Place(name="aws", region="us-east-1"))
    cloud.ec2 = Checked("ec2", **calls)  # type: ignore[assignment]
    clock = [1000.0]
    monkeypatch.setattr(client.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(client.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    return cloud


RUNNING = {"Reservations": [{"Instances": [{"InstanceId": "i-1", "State": {"Name": "running"}}]}]}
NOT_FOUND = refused("InvalidInstanceID.NotFound")


@pytest.mark.parametrize("late", [NOT_FOUND, {"Reservations": []}], ids=["refused", "empty"])
def test_a_new_instance_may_be_unknown_for_a_while(monkeypatch: pytest.MonkeyPatch, late: object) -> None:
    cloud = fake(monkeypatch, describe_instances=answers(late, late, RUNNING))
    cloud.created("i-1")
    assert cloud.wait_for_state("i-1", "running", 60)["InstanceId"] == "i-1"


def test_a_builder_of_packer_may_be_unknown_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packer created it, not this process: describing and changing it are both asked again."""
    modify = answers(NOT_FOUND, {})
    cloud = fake(monkeypatch, describe_instances=answers(NOT_FOUND, RUNNING), modify_instance_metadata_options=modify)
    cloud.harden("i-1")


def test_what_a_place_names_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped reservation took two minutes to be refused: the key of the launch was new."""
    unknown = refused("InvalidCapacityReservationId.NotFound", "RunInstances")
    cloud = fake(monkeypatch, run_instances=answers(unknown))
    cloud.created("key")
    with pytest.raises(GpuAmiError, match=r"InvalidCapacityReservationId\.NotFound"):
        cloud.launch(Launch("ami-1", "g5.xlarge", "key", {}, ""))


def test_an_old_instance_that_is_not_found_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = fake(monkeypatch, describe_instances=answers(NOT_FOUND))
    with pytest.raises(CloudError, match=r"describing i-1: InvalidInstanceID\.NotFound"):
        cloud.instance("i-1")


def test_a_new_instance_that_never_appears_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = fake(monkeypatch, describe_instances=answers(*[NOT_FOUND] * 500))
    cloud.created("i-1")
    with pytest.raises(CloudError, match="NotFound"):
        cloud.instance("i-1")


def test_terminate_waits_until_the_new_instance_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = fake(monkeypatch, terminate_instances=answers(NOT_FOUND, {}))
    cloud.created("i-1")
    cloud.terminate(["i-1"])  # else the machine would run on


def test_a_throttled_poll_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    throttled = refused("RequestLimitExceeded")
    cloud = fake(monkeypatch, describe_instances=answers(throttled, throttled, RUNNING))
    assert cloud.wait_for_state("i-1", "running", 60)["InstanceId"] == "i-1"
    cloud = fake(monkeypatch, describe_instances=answers(*[throttled] * 200))
    with pytest.raises(CloudError, match="RequestLimitExceeded") as caught:
        cloud.wait_for_state("i-1", "running", 60)
    assert "limits the rate" in caught.value.hint


def test_a_new_image_may_be_unknown_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    images = answers({"Images": []}, {"Images": [{"ImageId": "ami-1"}]})
    assert fake(monkeypatch, describe_images=images).wait_for_image("ami-1") == {"ImageId": "ami-1"}
    assert fake(monkeypatch, describe_images=answers(*[{"Images": []}] * 200)).wait_for_image("ami-1") is None


def test_the_default_group_is_the_one_of_the_subnets_vpc(cloud: Cloud) -> None:
    ec2 = cloud.ec2
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.0.0/24")["Subnet"]["SubnetId"]
    groups = {row["VpcId"]: row["GroupId"] for row in ec2.describe_security_groups()["SecurityGroups"]}
    default_vpc = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"][0]["VpcId"]
    assert cloud.default_security_group() == groups[default_vpc]
    assert (
        Cloud(Place("aws", "us-east-1", network=Network(subnet_ids=(subnet,)))).default_security_group() == groups[vpc]
    )
    with pytest.raises(UsageError, match="no VPC to work in"):
        Cloud(
            Place("aws", "us-east-1", network=Network(subnet_ids=("subnet-0123456789abcdef0",)))
        ).default_security_group()
