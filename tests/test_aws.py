"""What the calls to EC2 carry, against plain moto; and how AWS's answers become errors with a hint and an exit code."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from gpu_ami import machine, runs, sweep
from gpu_ami.aws import Cloud, Launch, tags_of
from gpu_ami.errors import CapacityError, CloudError, GpuAmiError, UsageError
from gpu_ami.log import Progress
from gpu_ami.place import Place

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqMyRWr1wAJYt6OZjNRZqGjpbPFWYzBqkHRmSXLcSVp test"


@pytest.fixture(autouse=True)
def _no_list_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # seconds for each fresh moto; the tests make their own


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with mock_aws():
        yield Cloud(Place(name="aws", region="us-east-1", ssh_interface="private_ip"))


@pytest.fixture
def run(home: Path) -> Iterator[runs.Run]:
    with runs.begin(home, "aws") as begun:
        yield begun


@functools.cache
def an_ami(cloud: Cloud) -> str:
    return str(cloud.ec2.register_image(Name="base", RootDeviceName="/dev/xvda", Architecture="x86_64")["ImageId"])


def launch(cloud: Cloud, run: runs.Run, **changes: Any) -> str:
    tags = run.tags(recipe="r", plan_digest="sha256:0") | changes.pop("tags", {})
    return cloud.launch(Launch(an_ami(cloud), "g5.12xlarge", "", tags, machine.dead_man_user_data(240)))


def keyless(monkeypatch: pytest.MonkeyPatch, cloud: Cloud) -> list[dict[str, Any]]:
    """Records RunInstances requests as they leave."""
    sent: list[dict[str, Any]] = []
    cloud.ec2.meta.events.register("provide-client-params.ec2.RunInstances", lambda params, **_: sent.append(params))
    return sent


def test_launch_carries_everything_from_the_creating_call(
    cloud: Cloud, run: runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.import_key("k", PUBLIC_KEY, run.tags())
    sent = keyless(monkeypatch, cloud)
    instance_id = cloud.launch(
        Launch(an_ami(cloud), "g5.12xlarge", "k", run.tags(recipe="r"), machine.dead_man_user_data(7))
    )
    request = sent[0]
    assert request["MetadataOptions"]["HttpTokens"] == "required"
    assert request["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert b"--on-active=7m systemctl poweroff" in base64.b64decode(request["UserData"])
    kinds = {one["ResourceType"]: {tag["Key"] for tag in one["Tags"]} for one in request["TagSpecifications"]}
    assert set(kinds) == {"instance", "volume", "network-interface"}
    assert all({runs.TAG_RUN, runs.TAG_EXPIRES, runs.TAG_RECIPE} <= keys for keys in kinds.values())
    assert tags_of(cloud.instance(instance_id))[runs.TAG_RUN] == run.id


def test_place_reaches_the_launch(run: runs.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with mock_aws():
        plain = Cloud(Place(name="aws", region="us-east-1"))
        subnet = plain.ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        group = plain.ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
        iam = plain.client("iam")
        iam.create_instance_profile(InstanceProfileName="gpu-node")
        cloud = Cloud(
            Place(
                name="aws",
                region="us-east-1",
                subnet_id=subnet,
                security_group_ids=(group,),
                instance_profile="gpu-node",
            )
        )
        cloud.import_key("k", PUBLIC_KEY, {"for": "tests"})
        sent = keyless(monkeypatch, cloud)
        found = cloud.instance(cloud.launch(Launch(an_ami(cloud), "g5.12xlarge", "k", run.tags(), "")))
        assert found["SubnetId"] == subnet and found["SecurityGroups"][0]["GroupId"] == group
        assert sent[0]["IamInstanceProfile"] == {"Name": "gpu-node"}


@pytest.mark.parametrize(("ssh_interface", "cards"), [("private_ip", 4), ("session_manager", 4), ("public_ip", 1)])
def test_efa_interfaces_are_asked_for(
    run: runs.Run, monkeypatch: pytest.MonkeyPatch, ssh_interface: str, cards: int
) -> None:
    """One a network card; a public address is only given to an instance with a single interface."""
    with mock_aws():
        plain = Cloud(Place(name="aws", region="us-east-1"))
        subnet = plain.ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        group = plain.ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
        place = Place("aws", "us-east-1", subnet_id=subnet, security_group_ids=(group,), ssh_interface=ssh_interface)
        cloud = Cloud(place)
        cloud.import_key("k", PUBLIC_KEY, {"for": "tests"})
        sent = keyless(monkeypatch, cloud)
        instance = cloud.launch(Launch(an_ami(cloud), "p4d.24xlarge", "k", run.tags(), "", efa_interfaces=4))
        asked = sent[0]["NetworkInterfaces"]
        assert [(one["NetworkCardIndex"], one["DeviceIndex"]) for one in asked] == [(0, 0), (1, 1), (2, 1), (3, 1)][
            :cards
        ]
        assert {(one["InterfaceType"], one["SubnetId"], *one["Groups"]) for one in asked} == {("efa", subnet, group)}
        assert "SubnetId" not in sent[0] and "SecurityGroupIds" not in sent[0]
        assert cloud.instance(instance)["SubnetId"] == subnet


def test_launched_is_terminated_even_on_error(cloud: Cloud, run: runs.Run) -> None:
    with (
        pytest.raises(RuntimeError),
        machine.temporary_key(cloud, run, run.tags()) as key,
        machine.launched(cloud, an_ami(cloud), "g5.12xlarge", key, run, run.tags()) as instance_id,
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
    with pytest.raises(CloudError, match=f"{instance_id} is terminated while we waited for running"):
        cloud.wait_for_state(instance_id, "running", 5)


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

    monkeypatch.setattr(cloud.ec2, "run_instances", refuse)
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
        Cloud(Place(name="aws", region="us-east-1", profile="nobody")).instance("i-0123456789abcdef0")


def dead_record(home: Path, identity: str, place: str = "aws") -> None:
    folder = home / "runs" / identity
    folder.mkdir(parents=True)
    record = {"id": identity, "expires": "2999-01-01T00:00:00Z", "pid": "4194303", "pid_started": "1", "place": place}
    (folder / "run.json").write_text(json.dumps(record))


def test_sweep_takes_leftovers_and_nothing_else(cloud: Cloud, home: Path) -> None:
    cloud.import_key("k", PUBLIC_KEY, {"for": "tests"})
    dead_record(home, "dead-run")
    dead_record(home, "dead-elsewhere", place="other")
    with runs.begin(home, "aws", timedelta(hours=-1)) as alive_but_late:
        past, future = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"

        def start(**tags: str) -> str:
            named = {key.replace("_", ":", 1).replace("gpu:", "gpu-ami:"): value for key, value in tags.items()}
            return cloud.launch(Launch(an_ami(cloud), "g5.12xlarge", "k", named, ""))

        leftovers = [start(gpu_run="gone", gpu_expires=past), start(gpu_run="dead-run", gpu_expires=future)]
        kept = [
            start(gpu_run="elsewhere", gpu_expires=future),
            start(gpu_run="dead-elsewhere", gpu_expires=future),
            start(gpu_run=alive_but_late.id, gpu_expires=alive_but_late.expires),
            start(gpu_expires=past),
            start(Name="somebody's"),
        ]
        cloud.import_key("gpu-ami-dead-run-builder", PUBLIC_KEY, {"by": "packer"})  # old Packer: by name only, no tags
        cloud.import_key("gpu-ami-tagged", PUBLIC_KEY, {runs.TAG_RUN: "gone", runs.TAG_EXPIRES: past})
        plan = sweep.sweep_cloud(cloud, home, Progress("quiet"), dry_run=True)
        assert {one.outcome for one in plan} == {"would be removed"} and len(cloud.tagged(runs.TAG_RUN)) >= 5
        swept = sweep.sweep_cloud(cloud, home, Progress("quiet"))
        assert sorted(one.id for one in swept) == sorted([*leftovers, "gpu-ami-dead-run-builder", "gpu-ami-tagged"])
        states = {one: cloud.instance(one)["State"]["Name"] for one in [*leftovers, *kept]}
        assert {states[one] for one in leftovers} == {"terminated"} and {states[one] for one in kept} == {"running"}
        assert {pair["KeyName"] for pair in cloud.ec2.describe_key_pairs()["KeyPairs"]} == {"k"}
        sweep.forget_dead_runs(home, "aws", Progress("quiet"))
        assert sorted(one.id for one in runs.records(home)) == sorted(["dead-elsewhere", alive_but_late.id])
        assert sweep.sweep_cloud(cloud, home, Progress("quiet")) == []


def test_sweep_reports_what_it_could_not_remove(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.import_key("gpu-ami-x", PUBLIC_KEY, {runs.TAG_RUN: "x", runs.TAG_EXPIRES: "2020-01-01T00:00:00Z"})

    def refuse(_: object) -> None:
        raise CloudError("UnauthorizedOperation")

    monkeypatch.setattr(cloud, "remove", refuse)
    assert [one.outcome for one in sweep.sweep_cloud(cloud, home, Progress("quiet"))] == [
        "not removed: UnauthorizedOperation"
    ]


@pytest.mark.parametrize(
    ("code", "kind"), [("Server.InsufficientInstanceCapacity", CapacityError), ("Server.InternalError", CloudError)]
)
def test_start_that_falls_back_to_stopped(code: str, kind: type[GpuAmiError], monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Cloud(SimpleNamespace())  # type: ignore[arg-type]
    state = {"State": {"Name": "stopped"}, "StateReason": {"Code": code, "Message": f"{code}: no room"}}
    monkeypatch.setattr(cloud, "instance", lambda _: state)
    with pytest.raises(kind, match="i-1 is stopped while we waited for running"):
        cloud.wait_for_state("i-1", "running", 30)


def test_stopped_by_us_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Cloud(SimpleNamespace())  # type: ignore[arg-type]
    reason = {"Code": "Client.UserInitiatedShutdown", "Message": "User initiated shutdown"}
    states = iter([{"State": {"Name": "stopped"}, "StateReason": reason}, {"State": {"Name": "running"}}])
    monkeypatch.setattr(cloud, "instance", lambda _: next(states))
    monkeypatch.setattr("gpu_ami.aws._POLL_SECONDS", 0)
    assert cloud.wait_for_state("i-1", "running", 30)["State"]["Name"] == "running"
