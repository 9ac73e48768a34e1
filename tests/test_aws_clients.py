"""tests/aws_clients.py shares between clients only what is the same for all of them."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore import hooks
from moto import mock_aws

from tests import aws_requests

REGIONS = ("us-east-1", "eu-central-1")


def client(service: str, region: str = "us-east-1", **arguments: Any) -> Any:
    return boto3.Session("key", "secret", region_name=region).client(service, **arguments)


def test_clients_of_a_service_have_one_class_and_their_own_places() -> None:
    here, there = client("ec2"), client("ec2", "eu-central-1", endpoint_url="http://127.0.0.1:1")
    assert type(here) is type(there) is not type(client("logs"))
    assert [one.meta.region_name for one in (here, there)] == list(REGIONS)
    assert here.meta.endpoint_url != there.meta.endpoint_url == "http://127.0.0.1:1"


@mock_aws
def test_a_handler_is_of_its_client_alone() -> None:
    first, second = client("ec2"), client("ec2")
    seen: list[str] = []
    first.meta.events.register("before-call.ec2.DescribeImages", lambda **_: seen.append("first"))
    second.describe_images()
    assert seen == []
    first.describe_images()
    assert seen == ["first"]


@pytest.mark.parametrize(
    ("aliases", "name", "expected"),
    [
        (None, "before-call.logs.GetLogEvents", "before-call.cloudwatch-logs.GetLogEvents"),
        ({"logs": "mine"}, "before-call.logs.GetLogEvents", "before-call.mine.GetLogEvents"),
        (None, "before-call.logs.GetLogEvents", "before-call.cloudwatch-logs.GetLogEvents"),
    ],
)
def test_aliases_of_one_emitter_are_not_another_s(aliases: Any, name: str, expected: str) -> None:
    emitter = hooks.HierarchicalEmitter()
    hooks.EventAliaser(emitter, aliases).register(name, lambda **_: "called")
    assert [answer for _, answer in emitter.emit(expected)] == ["called"]


@mock_aws
def test_a_call_that_aws_refuses_fails() -> None:
    """moto answers it: a filter that an operation lacks would be found on a real account alone."""
    ec2 = client("ec2")
    unknown: Any = [{"Name": "capacity-reservation", "Values": ["cr-1"]}]
    with pytest.raises(AssertionError, match="The filter 'capacity-reservation' is invalid"):
        ec2.describe_subnets(Filters=unknown)
    with aws_requests.refused_by_aws("DescribeVolumes"):
        ec2.describe_volumes(Filters=[{"Name": "tag", "Values": ["x"]}])
    with pytest.raises(AssertionError, match="expected at most 10, got 11"):
        client("ssm").get_parameters_by_path(Path="/", MaxResults=11)
