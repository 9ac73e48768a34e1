"""The source AMI that a plan means: newest by name, by public parameter, never guessed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from botocore.exceptions import ClientError

from gpu_ami.cloud.client import Cloud
from gpu_ami.errors import CloudError, UsageError
from gpu_ami.plan.source_ami import resolve_source_ami
from tests.plan.conftest import AWS

PLAN = {"architecture": "x86_64", "build": {"root_volume_gib": 40}}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    from moto import mock_aws

    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # seconds for each fresh moto
    with mock_aws():
        yield Cloud(AWS)


def an_image(cloud: Cloud) -> str:
    """An AMI of our own."""
    return str(cloud.ec2.register_image(Name="al2023")["ImageId"])


def test_source_ami_is_the_newest_of_owner_and_name() -> None:
    dated = {"ami-1": "2025-01-01", "ami-2": "2026-01-01", "ami-3": "2025-06-01"}
    images = [{"ImageId": ami, "Name": f"debian-{ami}", "CreationDate": date} for ami, date in dated.items()]
    ec2 = Mock(describe_images=Mock(return_value={"Images": images}))
    cloud = Mock(ec2=ec2, place=AWS, image=lambda ami: next(one for one in images if one["ImageId"] == ami))
    plan = PLAN | {"source_ami": {"owner": "136693071363", "name": "debian-12-amd64-*"}}
    assert resolve_source_ami(cloud, plan) == {
        "id": "ami-2", "name": "debian-ami-2", "created": "2026-01-01", "through": "136693071363:debian-12-amd64-*",
        "root_device": "",
    }  # fmt: skip
    asked = ec2.describe_images.call_args.kwargs
    assert asked["Owners"] == ["136693071363"]
    assert asked["IncludeDeprecated"] is True  # AMIs of an ended release are hidden otherwise
    assert {one["Name"]: one["Values"] for one in asked["Filters"]} == {
        "name": ["debian-12-amd64-*"], "architecture": ["x86_64"], "state": ["available"],
    }  # fmt: skip


def test_source_ami_comes_from_the_public_parameter(cloud: Cloud) -> None:
    wanted = an_image(cloud)
    cloud.client("ssm").put_parameter(Name="/gpu-ami/test", Value=wanted, Type="String")
    found = resolve_source_ami(cloud, PLAN | {"source_ami": {"ssm": "/gpu-ami/test"}})
    assert (found["id"], found["through"]) == (wanted, "ssm:/gpu-ami/test")


@pytest.mark.parametrize(
    "source, message",
    [
        ({"owner": "self", "name": "nothing-*"}, "no AMI of self named nothing"),
        ({"id": "ami-0123456789abcdef0"}, "is not in eu-central-1"),
        ({"ssm": "/gpu-ami/none"}, "no SSM parameter /gpu-ami/none"),
    ],
)
def test_source_ami_that_is_not_there_is_an_error(source: dict[str, str], message: str, cloud: Cloud) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_source_ami(cloud, PLAN | {"source_ami": source})


def test_root_volume_smaller_than_the_source_ami_s_is_refused() -> None:
    image = {
        "ImageId": "ami-1", "RootDeviceName": "/dev/xvda",
        "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 64}}],
    }  # fmt: skip
    cloud = Mock(place=AWS, image=lambda ami: image)
    with pytest.raises(UsageError, match=r"build\.root_volume_gib: expected at least 64 \(source AMI ami-1\), got 40"):
        resolve_source_ami(cloud, PLAN | {"source_ami": {"id": "ami-1"}})
    assert resolve_source_ami(cloud, {"build": {"root_volume_gib": 64}, "source_ami": {"id": "ami-1"}})["id"] == "ami-1"


@pytest.mark.parametrize(
    ("source", "action"),
    [
        ({"ssm": "/gpu-ami/test"}, "SSM parameter /gpu-ami/test"),
        ({"owner": "amazon", "name": "al2023-*"}, "amazon:al2023-*"),
    ],
)
def test_a_refused_look_up_says_what_aws_said_and_what_to_do(source: dict[str, str], action: str) -> None:
    refusal = ClientError({"Error": {"Code": "AccessDenied", "Message": "not authorized"}}, "op")
    refused = Mock(side_effect=refusal)
    ssm = Mock(get_parameter=refused, exceptions=SimpleNamespace(ParameterNotFound=KeyError))
    cloud = Mock(ec2=Mock(describe_images=refused), place=AWS, client=lambda _: ssm)
    with pytest.raises(CloudError) as caught:
        resolve_source_ami(cloud, PLAN | {"source_ami": source})
    assert action in caught.value.message and caught.value.code == "AccessDenied"
    assert caught.value.hint and caught.value.exit_code == 4
