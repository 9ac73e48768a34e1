"""The API as boto3 sees it: what it refuses, what it answers instead of moto, what reaches instance and image."""

from __future__ import annotations

import threading
import time
import urllib.request
from dataclasses import replace
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from localregion.api.application import Call, read_call, take_snapshot_tags
from tests.localregion.conftest import BASE_ID, PUBLIC_KEY, World, base_image, served


def client(endpoint: str, service: str = "ec2", region: str = "us-east-1") -> Any:
    return boto3.client(
        service,  # type: ignore[call-overload]
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}),
    )


@pytest.fixture
def ec2(endpoint: str) -> Any:
    return client(endpoint)


def launch(ec2: Any, **changes: Any) -> dict[str, Any]:
    asked = {"ImageId": BASE_ID, "InstanceType": "g5.12xlarge", "MinCount": 1, "MaxCount": 1} | changes
    found: dict[str, Any] = ec2.run_instances(**asked)["Instances"][0]
    return found


def state(ec2: Any, instance: dict[str, Any]) -> str:
    found = ec2.describe_instances(InstanceIds=[instance["InstanceId"]])["Reservations"][0]["Instances"][0]
    return str(found["State"]["Name"])


def test_the_base_image_is_found_as_packer_looks_for_it(ec2: Any) -> None:
    filters = {
        "name": "debian-12-amd64-*",
        "state": "available",
        "root-device-type": "ebs",
        "virtualization-type": "hvm",
    }
    images = ec2.describe_images(
        Owners=["136693071363"], Filters=[{"Name": name, "Values": [value]} for name, value in filters.items()]
    )["Images"]
    assert [image["ImageId"] for image in images] == [BASE_ID]
    assert images[0]["RootDeviceName"] == "/dev/xvda"
    assert ec2.describe_images(Owners=["self"])["Images"] == []


def test_launch_answers_pending_and_needs_tokens(ec2: Any, world: World) -> None:
    instance = launch(ec2)
    assert instance["State"] == {"Code": 0, "Name": "pending"}
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert instance["PrivateIpAddress"].startswith("127.99.")
    world.settle()
    assert state(ec2, instance) == "running"


def test_a_waiter_is_answered_as_soon_as_the_state_has_changed(world: World) -> None:
    with served(world, hold_seconds=60) as endpoint:
        ec2 = client(endpoint)
        instance = launch(ec2)
        threading.Timer(0.3, world.settle).start()
        started = time.monotonic()
        assert state(ec2, instance) == "running"
        image = ec2.create_image(InstanceId=instance["InstanceId"], Name="made", NoReboot=True)["ImageId"]
        threading.Timer(0.3, world.settle).start()
        assert ec2.describe_images(ImageIds=[image])["Images"][0]["State"] == "available"
        assert time.monotonic() - started >= 0.6


def test_a_waiter_is_answered_after_a_while_although_nothing_has_changed(world: World) -> None:
    with served(world, hold_seconds=0.2) as endpoint:
        ec2 = client(endpoint)
        instance = launch(ec2)
        assert state(ec2, instance) == "pending"
        other = ec2.describe_instances(Filters=[{"Name": "instance-state-name", "Values": ["pending"]}])
        assert len(other["Reservations"]) == 1


def test_a_launch_may_ask_for_the_old_metadata_service(ec2: Any) -> None:
    assert launch(ec2, MetadataOptions={"HttpTokens": "optional"})["MetadataOptions"]["HttpTokens"] == "optional"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"ImageId": "ami-12345678"}, "InvalidAMIID.NotFound"),
        ({"KeyName": "nobody"}, "InvalidKeyPair.NotFound"),
        ({"InstanceType": "p9.huge"}, "InvalidInstanceType"),
        ({"SubnetId": "subnet-12345678"}, "InvalidSubnetID.NotFound"),
    ],
)
def test_a_launch_of_what_is_not_there_is_refused(ec2: Any, world: World, changes: dict[str, str], code: str) -> None:
    with pytest.raises(ClientError) as caught:
        launch(ec2, **changes)
    assert caught.value.response["Error"]["Code"] == code
    assert world.reconciler.units == {}


ARM_ID = "ami-000000000000000ab"


@pytest.mark.parametrize(
    ("instance_type", "image", "of_type"),
    [
        ("g5g.xlarge", BASE_ID, "arm64"),
        ("p6e-gb200.36xlarge", BASE_ID, "arm64"),  # in the facts alone
        ("g5.12xlarge", ARM_ID, "x86_64"),
        ("t2.micro", ARM_ID, "i386,x86_64"),
    ],
)
def test_a_launch_of_another_architecture_is_refused(
    ec2: Any, world: World, instance_type: str, image: str, of_type: str
) -> None:
    world.images.register(replace(base_image(world.layout), id=ARM_ID, name="arm", architecture="arm64"))
    with pytest.raises(ClientError) as caught:
        launch(ec2, InstanceType=instance_type, ImageId=image)
    error = caught.value.response["Error"]
    assert error["Code"] == "InvalidParameterValue"
    of_image = {BASE_ID: "x86_64", ARM_ID: "arm64"}[image]
    assert error["Message"].startswith(
        f"The architecture '{of_type}' of the specified instance type does not match the architecture '{of_image}' of "
        "the specified AMI."
    )
    assert world.reconciler.units == {}


@pytest.mark.parametrize("instance_type", ["g5g.xlarge", "p6e-gb200.36xlarge", "m6g.2xlarge"])
def test_an_instance_has_its_image_s_architecture(ec2: Any, world: World, instance_type: str) -> None:
    world.images.register(replace(base_image(world.layout), id=ARM_ID, name="arm", architecture="arm64"))
    instance = launch(ec2, InstanceType=instance_type, ImageId=ARM_ID)
    assert instance["Architecture"] == "arm64"
    assert ec2.describe_images(ImageIds=[ARM_ID])["Images"][0]["BootMode"] == "uefi"
    assert ec2.describe_images(ImageIds=[BASE_ID])["Images"][0]["BootMode"] == "legacy-bios"


@pytest.mark.parametrize("interface", [False, True])
def test_an_empty_subnet_is_none(ec2: Any, world: World, interface: bool) -> None:
    """Packer's amazon plugin 1.8.2 sends SubnetId= when the configuration names none."""
    changes = {"NetworkInterfaces": [{"DeviceIndex": 0, "SubnetId": ""}]} if interface else {"SubnetId": ""}
    instance = launch(ec2, **changes)
    assert instance["SubnetId"] == world.ec2.subnet_id
    assert instance["PrivateIpAddress"].startswith("127.99.")


@pytest.mark.parametrize("as_interface", [True, False])
def test_groups_of_the_first_interface_are_the_instance_s(ec2: Any, world: World, as_interface: bool) -> None:
    asked: dict[str, Any] = {"SubnetId": world.ec2.subnet_id, "Groups": [world.ec2.group_id], "DeviceIndex": 0}
    direct = {"SubnetId": world.ec2.subnet_id, "SecurityGroupIds": [world.ec2.group_id]}
    made = launch(ec2, **({"NetworkInterfaces": [asked]} if as_interface else direct))
    shown = ec2.describe_instances(InstanceIds=[made["InstanceId"]])["Reservations"][0]["Instances"][0]
    assert [group["GroupId"] for group in shown["SecurityGroups"]] == [world.ec2.group_id]


def test_a_launch_without_groups_shows_the_default_one(ec2: Any, world: World) -> None:
    made = launch(ec2)
    shown = ec2.describe_instances(InstanceIds=[made["InstanceId"]])["Reservations"][0]["Instances"][0]
    assert [group["GroupName"] for group in shown["SecurityGroups"]] == ["default"]


def test_a_launch_that_fails_is_described_with_its_reason(ec2: Any, world: World) -> None:
    world.machines.broken = "QEMU ended with 1"
    instance = launch(ec2)
    world.settle()
    found = ec2.describe_instances(InstanceIds=[instance["InstanceId"]])["Reservations"][0]["Instances"][0]
    assert found["State"]["Name"] == "terminated"
    assert found["StateReason"]["Code"] == "Server.InternalError"
    assert found["StateReason"]["Message"].endswith("Internal error on launch: QEMU ended with 1")


def test_a_paused_machine_is_described_as_such(ec2: Any, world: World) -> None:
    instance = launch(ec2)
    world.settle()
    for free, message in ((0, "paused: no space left on the disk of"), (1 << 40, "")):
        world.machine.stopped_by, world.machines.free = "no space", free
        world.settle()
        found = ec2.describe_instances(InstanceIds=[instance["InstanceId"]])["Reservations"][0]["Instances"][0]
        assert found["State"]["Name"] == "running"
        assert message in found.get("StateReason", {}).get("Message", "")
    assert found.get("StateReason", {}).get("Message", "") == ""


def test_a_launch_of_a_pending_image_is_refused(ec2: Any, world: World) -> None:
    world.ec2.set_image_state(world.ec2.images()[BASE_ID], "pending")
    with pytest.raises(ClientError, match=r"InvalidAMIID\.Unavailable"):
        launch(ec2)


def test_another_region_s_signature_is_refused(endpoint: str) -> None:
    """Other regions hold copies of AMIs; machines run in one."""
    other = client(endpoint, region="eu-central-1")
    assert other.describe_instances()["Reservations"] == []
    with pytest.raises(ClientError, match="the local region is us-east-1; RunInstances was signed for another region"):
        launch(other)


def test_stop_is_stopping_in_answer_and_description(ec2: Any, world: World) -> None:
    instance = launch(ec2)
    world.settle()
    answer = ec2.stop_instances(InstanceIds=[instance["InstanceId"]])["StoppingInstances"][0]
    assert answer["CurrentState"]["Name"] == "stopping"
    assert state(ec2, instance) == "stopping"
    with pytest.raises(ClientError, match="IncorrectInstanceState"):
        ec2.start_instances(InstanceIds=[instance["InstanceId"]])


def test_reboot_reaches_the_machine(ec2: Any, world: World) -> None:
    instance = launch(ec2)
    world.settle()
    ec2.reboot_instances(InstanceIds=[instance["InstanceId"]])
    assert world.machine.told == ["power_down"]


def test_forced_stop_reaches_the_machine(ec2: Any, world: World) -> None:
    instance = launch(ec2)
    world.settle()
    ec2.stop_instances(InstanceIds=[instance["InstanceId"]], Force=True)
    world.settle()
    assert world.machine.told[-1] == "kill"


def test_the_console_is_the_machine_s(ec2: Any, world: World) -> None:
    instance = launch(ec2)
    assert ec2.get_console_output(InstanceId=instance["InstanceId"]).get("Output", "") == ""
    folder = world.layout.instance(instance["InstanceId"])
    folder.mkdir(exist_ok=True)
    (folder / "console.log").write_text("x" * 70_000 + "Kernel panic <here>\n")
    output = ec2.get_console_output(InstanceId=instance["InstanceId"])["Output"]
    assert output.endswith("Kernel panic <here>\n")
    assert len(output) == 64 * 1024
    with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
        ec2.get_console_output(InstanceId="i-00000000")


def test_an_image_carries_its_tags_and_its_snapshot_s(ec2: Any, world: World) -> None:
    instance = launch(ec2)
    world.settle()
    specifications = [
        {"ResourceType": "snapshot", "Tags": [{"Key": "of", "Value": "snapshot & more"}]},
        {"ResourceType": "image", "Tags": [{"Key": "of", "Value": "image"}]},
    ]
    asked = {
        "InstanceId": instance["InstanceId"],
        "Name": "made",
        "NoReboot": True,
        "TagSpecifications": specifications,
    }
    image_id = ec2.create_image(**asked)["ImageId"]
    world.settle()
    image = ec2.describe_images(ImageIds=[image_id])["Images"][0]
    snapshot = ec2.describe_snapshots(SnapshotIds=[image["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]])["Snapshots"][
        0
    ]
    assert (image["State"], image["Tags"]) == ("available", [{"Key": "of", "Value": "image"}])
    assert snapshot["Tags"] == [{"Key": "of", "Value": "snapshot & more"}]
    with pytest.raises(ClientError, match=f"already in use by AMI {image_id}"):
        ec2.create_image(InstanceId=instance["InstanceId"], Name="made")


def test_no_image_of_a_terminated_instance(ec2: Any, world: World) -> None:
    instance = launch(ec2)
    ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    world.settle()
    with pytest.raises(ClientError, match="IncorrectInstanceState"):
        ec2.create_image(InstanceId=instance["InstanceId"], Name="late")


def test_what_a_launch_says_reaches_the_metadata(ec2: Any, world: World) -> None:
    ec2.import_key_pair(KeyName="mine", PublicKeyMaterial=PUBLIC_KEY.encode())
    instance = launch(
        ec2,
        KeyName="mine",
        UserData="#!/bin/sh\nécho\n",
        IamInstanceProfile={"Name": world.ec2.profile},
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}],
        MetadataOptions={"InstanceMetadataTags": "enabled"},
    )
    view = world.ec2.view(world.ec2.instance(instance["InstanceId"]))
    assert (view.key_name, view.public_key) == ("mine", PUBLIC_KEY)
    assert view.user_data == "#!/bin/sh\nécho\n".encode()
    assert (view.role, view.tags, view.tags_enabled) == ("gpu-ami-local", {"a": "b"}, True)
    assert view.address == instance["PrivateIpAddress"]
    assert view.mac == instance["NetworkInterfaces"][0]["MacAddress"]


def test_other_services_answer(endpoint: str) -> None:
    assert client(endpoint, "sts").get_caller_identity()["Account"] == "123456789012"
    logs = client(endpoint, "logs")
    logs.create_log_group(logGroupName="/ec2/accelerated/test")
    assert logs.describe_log_groups()["logGroups"][0]["logGroupName"] == "/ec2/accelerated/test"


def test_only_ec2_calls_are_read() -> None:
    signed = "AWS4-HMAC-SHA256 Credential=k/20261121/us-east-1/{}/aws4_request, SignedHeaders=host, Signature=0"
    query = {"REQUEST_METHOD": "GET", "QUERY_STRING": "Action=DescribeImages&Owner.1=self"}
    assert read_call(query | {"HTTP_AUTHORIZATION": signed.format("logs")}) is None
    assert read_call(query) is None
    assert read_call(query | {"HTTP_AUTHORIZATION": signed.format("ec2")}) == Call(
        "DescribeImages", {"Action": "DescribeImages", "Owner.1": "self"}
    )


def test_specifications_that_stay_are_numbered_anew() -> None:
    call = Call(
        "CreateImage",
        {
            "TagSpecification.1.ResourceType": "snapshot",
            "TagSpecification.1.Tag.1.Key": "k",
            "TagSpecification.1.Tag.1.Value": "v",
            "TagSpecification.1.Tag.2.Key": "empty",
            "TagSpecification.2.ResourceType": "image",
            "TagSpecification.2.Tag.1.Key": "i",
        },
    )
    assert take_snapshot_tags(call) == {"k": "v", "empty": ""}
    assert call.parameters == {"TagSpecification.1.ResourceType": "image", "TagSpecification.1.Tag.1.Key": "i"}


def test_a_body_that_only_says_that_it_is_gzipped_is_an_error_of_the_caller_s(endpoint: str) -> None:
    headers = {
        "Content-Encoding": "gzip",
        "Authorization": "AWS4-HMAC-SHA256 Credential=local/20261121/us-east-1/ec2/aws4_request, Signature=0",
    }
    request = urllib.request.Request(endpoint, data=b"Action=DescribeImages&Version=2016-11-15", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert b"<DescribeImagesResponse" in answer.read()  # it could be read after all
