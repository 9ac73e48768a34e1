"""Which requests a policy allows, by IAM's rules."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.cloud.policies import Request, allows, read_policy

TERMINATE = "ec2:TerminateInstances"
INSTANCE = "arn:aws:ec2:us-east-1:123456789012:instance/i-1"
TAG = "aws:ResourceTag/gpu-ami:run"


def statement(**changes: Any) -> Any:
    return {"Effect": "Allow", "Action": [TERMINATE], "Resource": "*", **changes}


@pytest.mark.parametrize(
    ("statements", "request_", "allowed"),
    [
        ([statement()], Request(TERMINATE, INSTANCE), True),
        ([], Request(TERMINATE, INSTANCE), False),
        ([statement(Action="ec2:terminate*")], Request(TERMINATE, INSTANCE), True),
        ([statement(Action="ec2:Terminate?nstances")], Request(TERMINATE, INSTANCE), True),
        ([statement(Action="ec2:[T]erminateInstances")], Request(TERMINATE, INSTANCE), False),
        ([statement(), statement(Effect="Deny")], Request(TERMINATE, INSTANCE), False),
        ([statement(Resource="arn:aws:ec2:*:*:instance/*")], Request(TERMINATE, INSTANCE), True),
        ([statement(Resource="arn:aws:ec2:*:*:volume/*")], Request(TERMINATE, INSTANCE), False),
        ([statement(Resource="arn:aws:ec2:*::*")], Request(TERMINATE, INSTANCE), False),  # an empty account is no `*`
        ([statement(Resource="arn:aws:ec2:*:instance/*")], Request(TERMINATE, INSTANCE), False),
        ([statement(Condition={"StringLike": {TAG: "*"}})], Request(TERMINATE, INSTANCE), False),
        ([statement(Condition={"StringLike": {TAG: "*"}})], Request(TERMINATE, INSTANCE, {TAG: "r"}), True),
        ([statement(Condition={"StringEquals": {TAG: ["a", "r"]}})], Request(TERMINATE, INSTANCE, {TAG: "r"}), True),
        ([statement(Condition={"StringEquals": {TAG: "*"}})], Request(TERMINATE, INSTANCE, {TAG: "r"}), False),
        ([statement(Condition={"Bool": {"kms:X": "true"}})], Request(TERMINATE, INSTANCE, {"kms:x": "True"}), True),
        ([{"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"}], Request(TERMINATE, INSTANCE), True),
        ([{"Effect": "Allow", "NotAction": "ec2:*", "Resource": "*"}], Request(TERMINATE, INSTANCE), False),
    ],
)
def test_a_request_is_judged_as_iam_does(statements: list[Any], request_: Request, allowed: bool) -> None:
    assert allows(statements, request_) is allowed


def test_an_operator_that_is_not_evaluated_is_an_error() -> None:
    with pytest.raises(ValueError, match="IpAddress is not evaluated"):
        allows([statement(Condition={"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}})], Request(TERMINATE, INSTANCE))


def test_a_policy_of_the_project_is_read() -> None:
    assert [row["Sid"] for row in read_policy("instance")] == ["PublishMetrics", "WriteLogs", "ReadOwnTags"]
