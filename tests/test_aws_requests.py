"""The stub of a boto3 client refuses what AWS refuses (tests/aws_requests.py)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.aws_requests import Checked


@pytest.mark.parametrize(
    ("service", "call", "params", "message"),
    [
        ("ec2", "describe_subnets", {"SubnetIds": "subnet-1"}, "Invalid type for parameter SubnetIds"),
        ("ec2", "describe_subnets", {"Subnets": []}, "Unknown parameter"),
        (
            "ec2",
            "describe_capacity_reservations",
            {"Filters": [{"Name": "capacity-reservation-id", "Values": ["cr-1"]}]},
            "The filter 'capacity-reservation-id' is invalid",
        ),
        ("ec2", "create_placement_group", {"GroupName": "g", "Strategy": "near"}, "expected one of cluster"),
        ("ec2", "describe_instances", {"Filters": [{"Name": "tag:any", "Values": ["x"]}]}, ""),
        ("kms", "list_grants", {"KeyId": "k" * 2049}, "expected at most 2048"),
        ("iam", "get_role", {}, "Missing required parameter"),
    ],
)
def test_a_call_that_aws_refuses_fails(service: str, call: str, params: dict[str, Any], message: str) -> None:
    stub = Checked(service, **{call: {"answer": 1}})
    if not message:
        assert getattr(stub, call)(**params) == {"answer": 1}
        return
    with pytest.raises(AssertionError, match=message):
        getattr(stub, call)(**params)


def test_pages_and_unknown_operations() -> None:
    assert Checked("kms", list_grants=[1, 2]).get_paginator("list_grants").paginate(KeyId="k") == [1, 2]
    with pytest.raises(AssertionError, match="describe_everything"):
        Checked("ec2", describe_everything={})
    with pytest.raises(AttributeError, match="the stub has no answer"):
        Checked("ec2").run_instances  # noqa: B018
