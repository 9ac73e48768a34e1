"""What the layer answers itself, and what it leaves to moto."""

from __future__ import annotations

from tests.local.api.test_layer import client, refused
from tests.local.conftest import World


def test_parameters_are_moto_s_and_nodes_the_region_s(endpoint: str, world: World) -> None:
    ssm = client(endpoint, "ssm")
    ssm.put_parameter(Name="AmazonCloudWatch-x", Value="{}", Type="String")
    assert ssm.get_parameter(Name="AmazonCloudWatch-x")["Parameter"]["Value"] == "{}"
    assert ssm.describe_instance_information()["InstanceInformationList"] == []


def test_a_refusal_has_aws_s_code(endpoint: str) -> None:
    named = {"InstanceIds": ["i-0123456789abcdef0"], "DocumentName": "AWS-RunShellScript"}
    assert refused(client(endpoint, "ssm").send_command, **named) == ("InvalidInstanceId", 400)
