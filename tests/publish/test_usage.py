"""Whatever uses an image is found: instances, launch templates in every version, groups, parameters."""

from __future__ import annotations

from gpu_ami.cloud import Cloud
from gpu_ami.publish import usage
from tests.local.conftest import BASE_ID
from tests.publish.conftest import LATEST, Account

PINNED = "/images/demo/v1"


def test_each_kind_of_user_is_named(account: Account) -> None:
    account.build()
    ami = "ami-00000000000000001"
    ec2, ssm, scaling = account.client("ec2"), account.client("ssm"), account.client("autoscaling")
    cloud = Cloud(account.place())
    assert usage.users(cloud, {ami: PINNED}, LATEST) == {ami: []} and usage.users(cloud, {}, LATEST) == {}
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
    assert sorted(usage.users(cloud, {ami: PINNED}, LATEST)[ami]) == [
        "SSM parameter /team/golden",
        f"instance {instance.id}",
        "launch configuration old of Auto Scaling group fleet",
        "launch template training version 1",
        "launch template training version 3",
        "launch template training version 4",
    ]
