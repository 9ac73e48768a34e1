"""What each kind of call needs to be allowed."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.cloud.policies import Request
from localregion.api.permissions import needed
from localregion.api.protocol import ServiceCall
from tests.localregion.conftest import BASE_ID, World

A = "123456789012"


def call(name: str, protocol: str = "ec2", body: Any = None, **parameters: str) -> ServiceCall:
    service, _, action = name.partition(":")
    return ServiceCall(
        service, action, protocol, {key.replace("__", "."): parameters[key] for key in parameters}, body or {}
    )


def pairs(world: World, one: ServiceCall) -> list[tuple[str, str]]:
    return [(request.action, request.resource) for request in needed(one, world.ec2)]


@pytest.mark.parametrize(
    ("one", "action", "resource"),
    [
        (call("ec2:DescribeInstances", InstanceId__1="i-1"), "ec2:DescribeInstances", "*"),
        (call("ec2:DeleteKeyPair", KeyName="k"), "ec2:DeleteKeyPair", f"arn:aws:ec2:us-east-1:{A}:key-pair/k"),
        (
            call("ec2:DeregisterImage", ImageId="ami-1"),
            "ec2:DeregisterImage",
            "arn:aws:ec2:us-east-1::image/ami-1",
        ),
        (
            call("logs:GetLogEvents", "json", logGroupName="/g", logStreamName="s"),
            "logs:GetLogEvents",
            f"arn:aws:logs:us-east-1:{A}:log-group:/g:log-stream:s",
        ),
        (
            call("logs:CreateLogGroup", "json", logGroupName="/g"),
            "logs:CreateLogGroup",
            f"arn:aws:logs:us-east-1:{A}:log-group:/g:",
        ),
        (
            call("ssm:GetParameter", "json", Name="/aws/service/x"),
            "ssm:GetParameter",
            "arn:aws:ssm:us-east-1::parameter/aws/service/x",
        ),
        (
            call("ssm:PutParameter", "json", Name="/images/x/latest"),
            "ssm:PutParameter",
            f"arn:aws:ssm:us-east-1:{A}:parameter/images/x/latest",
        ),
        (
            call("ssm:CreateDocument", "json", Name="mine"),
            "ssm:CreateDocument",
            f"arn:aws:ssm:us-east-1:{A}:document/mine",
        ),
        (
            call("ssm:GetParameters", "json", {"Names": ["/images/x"]}),
            "ssm:GetParameters",
            f"arn:aws:ssm:us-east-1:{A}:parameter/images/x",
        ),
        (call("ssm:DescribeParameters", "json"), "ssm:DescribeParameters", "*"),
        (call("kms:GetKeyPolicy", "json", KeyId="k"), "kms:GetKeyPolicy", f"arn:aws:kms:us-east-1:{A}:key/k"),
        (call("iam:GetRolePolicy", "query"), "iam:GetRolePolicy", "*"),
    ],
)
def test_a_call_needs_its_action_on_its_resource(world: World, one: ServiceCall, action: str, resource: str) -> None:
    assert pairs(world, one) == [(action, resource)]


def test_who_am_i_needs_nothing(world: World) -> None:
    assert pairs(world, call("sts:GetCallerIdentity", "query")) == []


def test_the_namespace_of_metrics_is_a_condition_key(world: World) -> None:
    (request,) = needed(call("cloudwatch:PutMetricData", "query", Namespace="CWAgent"), world.ec2)
    assert request == Request("cloudwatch:PutMetricData", "*", {"cloudwatch:namespace": "CWAgent"})


def test_a_change_of_an_instance_has_its_tags_in_the_context(world: World) -> None:
    instance = world.launch(tags={"instance": {"gpu-ami:run": "r"}})
    (request,) = needed(call("ec2:StopInstances", InstanceId__1=instance.id), world.ec2)
    assert request.resource.endswith(f"instance/{instance.id}")
    assert request.context == {"aws:ResourceTag/gpu-ami:run": "r"}


def test_a_launch_needs_each_resource_its_tags_its_role_and_its_key(world: World) -> None:
    parameters = {
        "ImageId": BASE_ID,
        "KeyName": "k",
        "NetworkInterface.1.SubnetId": "subnet-1",
        "NetworkInterface.1.SecurityGroupId.1": "sg-1",
        "IamInstanceProfile.Name": world.ec2.profile,
        "BlockDeviceMapping.1.Ebs.KmsKeyId": "key-1",
        "InstanceMarketOptions.MarketType": "spot",
        "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId": "cr-1",
        "TagSpecification.1.ResourceType": "volume",
        "TagSpecification.1.Tag.1.Key": "gpu-ami:run",
        "TagSpecification.1.Tag.1.Value": "r",
    }
    requests = list(needed(ServiceCall("ec2", "RunInstances", "ec2", parameters), world.ec2))
    launched = {request.resource.partition(f"{A}:")[2] or request.resource for request in requests[:10]}
    assert launched == {
        f"arn:aws:ec2:us-east-1::image/{BASE_ID}", "key-pair/k", "subnet/subnet-1", "security-group/sg-1", "instance/*",
        "volume/*", "network-interface/*", "spot-instances-request/*", "capacity-reservation/cr-1",
    }  # fmt: skip
    of_volume = next(request for request in requests if request.resource.endswith(":volume/*"))
    assert of_volume.context == {"aws:RequestTag/gpu-ami:run": "r"}
    rest = {request.action: request for request in requests if request.action != "ec2:RunInstances"}
    assert rest["ec2:CreateTags"].context["ec2:CreateAction"] == "RunInstances"
    assert rest["iam:PassRole"].resource == f"arn:aws:iam::{A}:role/gpu-ami-local"
    assert rest["kms:CreateGrant"].context == {
        "kms:ViaService": "ec2.us-east-1.amazonaws.com",
        "kms:GrantIsForAWSResource": "true",
    }


def test_a_launch_that_names_no_network_uses_the_region_s(world: World) -> None:
    resources = dict.fromkeys(resource for _, resource in pairs(world, call("ec2:RunInstances", ImageId=BASE_ID)))
    assert any(resource.endswith(f"subnet/{world.ec2.subnet_id}") for resource in resources)
    assert any(resource.endswith(f"security-group/{world.ec2.default_group()}") for resource in resources)


def test_a_schedule_needs_the_role_that_it_passes(world: World) -> None:
    body = {"Target": {"RoleArn": "arn:aws:iam::1:role/gpu-ami-dead-man"}}
    own, role = needed(call("scheduler:CreateSchedule", "rest-json", body, Name="gpu-ami-i-1"), world.ec2)
    assert own.resource == f"arn:aws:scheduler:us-east-1:{A}:schedule/default/gpu-ami-i-1"
    assert role == Request(
        "iam:PassRole", "arn:aws:iam::1:role/gpu-ami-dead-man", {"iam:PassedToService": "scheduler.amazonaws.com"}
    )


def test_a_copy_needs_its_key_and_a_deregistration_its_snapshots(world: World) -> None:
    needs = pairs(world, call("ec2:CopyImage", SourceImageId="ami-1", Encrypted="true", KmsKeyId="k"))
    assert ("ec2:CopyImage", "arn:aws:ec2:us-east-1::image/*") in needs
    assert ("kms:CreateGrant", f"arn:aws:kms:us-east-1:{A}:key/k") in needs
    removed = call("ec2:DeregisterImage", ImageId=BASE_ID, DeleteAssociatedSnapshots="true")
    assert ("ec2:DeleteSnapshot", "arn:aws:ec2:us-east-1::snapshot/snap-0000000000000000b") in pairs(world, removed)


@pytest.mark.parametrize(("document", "account"), [("AWS-RunShellScript", ""), ("mine", A)])
def test_a_command_needs_its_document_and_its_machines(world: World, document: str, account: str) -> None:
    sent = call("ssm:SendCommand", "json", {"InstanceIds": ["i-1", "i-2"]}, DocumentName=document)
    assert pairs(world, sent) == [
        ("ssm:SendCommand", f"arn:aws:ssm:us-east-1:{account}:document/{document}"),
        ("ssm:SendCommand", f"arn:aws:ec2:us-east-1:{A}:instance/i-1"),
        ("ssm:SendCommand", f"arn:aws:ec2:us-east-1:{A}:instance/i-2"),
    ]
