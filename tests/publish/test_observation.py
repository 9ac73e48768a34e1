"""What a Region has of an image: AMIs, parameters, users."""

from __future__ import annotations

import datetime

import pytest

from gpu_ami.cloud import Cloud, Network, amis, image_parameters
from gpu_ami.errors import CloudError
from gpu_ami.publish import steps
from gpu_ami.publish.policy import RegionPolicy, ReleasePolicy
from gpu_ami.publish.release import read_release
from tests.localregion.conftest import BASE_ID
from tests.publish.conftest import CONSUMER, HOME, LATEST, OTHER, Account

# What a region has: as the API describes it, and what contradicts the policy.


NOW = datetime.datetime.now(datetime.UTC)
POLICY = ReleasePolicy((RegionPolicy(HOME),), (CONSUMER,), prefix="/images/demo")


def test_a_view_has_what_the_region_has(account: Account) -> None:
    account.publish(account.build(1))
    account.build(2)
    cloud = Cloud(account.place())
    view = steps.observe(cloud, read_release(cloud, "ami-00000000000000002", "demo"), POLICY, RegionPolicy(HOME), NOW)
    assert view.image is not None and view.image.name == "gpu-ami-20261122000002" and view.shared == frozenset()
    assert [one.version for one in view.older] == ["gpu-ami-20261122000001"]
    assert view.parameters[LATEST].value == "ami-00000000000000001" and view.key is None
    assert view.snapshot_tags["/dev/xvda"]["of"] == "snapshot"


def test_another_region_is_the_same_account_without_a_network(account: Account) -> None:
    place = steps.cloud_of(account.place(network=Network(("subnet-1",))), OTHER).place
    assert (place.region, place.api.endpoint, place.network.subnet_id) == (OTHER, account.endpoint, None)


def test_a_disabled_key_ends_the_region(account: Account) -> None:
    account.build()
    kms = account.client("kms", OTHER)
    key = kms.create_key()["KeyMetadata"]["Arn"]
    kms.disable_key(KeyId=key.rpartition("/")[2])  # moto knows no ARN here
    release = read_release(Cloud(account.place()), "ami-00000000000000001", "demo")
    with pytest.raises(CloudError, match=f"{key} is disabled"):
        steps.observe(Cloud(account.place(region=OTHER)), release, POLICY, RegionPolicy(OTHER, key), NOW)


# SSM parameters: written with their type, read back, and what SSM drops is an error.


def test_values_are_read_back(account: Account) -> None:
    cloud = Cloud(account.place())
    names = [f"/images/{number}" for number in range(12)]
    for name in names:
        image_parameters.write(cloud, name, BASE_ID, overwrite=False)
    assert image_parameters.read(cloud, [*names, "/none"]) == dict.fromkeys(
        names, image_parameters.Parameter(BASE_ID, "aws:ec2:image")
    )
    account.client("ssm").put_parameter(Name="/other", Value="text", Type="String")
    assert sorted(image_parameters.naming_images(cloud)) == sorted(names)
    with pytest.raises(CloudError, match="writing SSM parameter /images/0 in us-east-1: ParameterAlreadyExists"):
        image_parameters.write(cloud, names[0], "ami-0fff", overwrite=False)
    image_parameters.write(cloud, names[0], BASE_ID, overwrite=False)  # as after a call whose answer was lost
    with pytest.raises(CloudError) as caught:
        image_parameters.write(cloud, names[0], "ami-0fff", overwrite=True)
    assert f"expected ami-0fff, got {BASE_ID}" in str(caught.value)
    assert "SSM drops an AMI that is not available" in str(caught.value)
    for _ in range(2):
        image_parameters.delete(cloud, names[0])
    assert image_parameters.read(cloud, names[:1]) == {}


# Whatever uses an image is found: instances, launch templates in every version, groups, parameters.


PINNED = "/images/demo/v1"


def test_each_kind_of_user_is_named(account: Account) -> None:
    account.build()
    ami = "ami-00000000000000001"
    ec2, ssm, scaling = account.client("ec2"), account.client("ssm"), account.client("autoscaling")
    cloud = Cloud(account.place())
    assert amis.users(cloud, {ami: PINNED}, LATEST) == {ami: []} and amis.users(cloud, {}, LATEST) == {}
    instance = account.world.launch(image_id=ami)
    data = {"LaunchTemplateName": "training", "LaunchTemplateData": {"ImageId": ami}}
    template = ec2.create_launch_template(**data)["LaunchTemplate"]["LaunchTemplateId"]
    for image in (BASE_ID, f"resolve:ssm:{PINNED}", f"resolve:ssm:{PINNED}:1"):
        ec2.create_launch_template_version(LaunchTemplateId=template, LaunchTemplateData={"ImageId": image})
    for name, value in ((PINNED, ami), (LATEST, ami), ("/team/golden", ami), ("/team/other", BASE_ID)):
        ssm.put_parameter(Name=name, Value=value, Type="String")
    scaling.create_launch_configuration(LaunchConfigurationName="old", ImageId=ami, InstanceType="g5.12xlarge")
    scaling.create_auto_scaling_group(
        AutoScalingGroupName="fleet", LaunchConfigurationName="old", MinSize=0, MaxSize=0,
        AvailabilityZones=["us-east-1a"],
    )  # fmt: skip
    assert sorted(amis.users(cloud, {ami: PINNED}, LATEST)[ami]) == [
        "SSM parameter /team/golden",
        f"instance {instance.id}",
        "launch configuration old of Auto Scaling group fleet",
        "launch template training version 1",
        "launch template training version 3",
        "launch template training version 4",
    ]
