from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_ami.cloud.preflight.access import NEEDED, allows
from gpu_ami.data import data_dir


def allow(action: Any, **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": "*", **more}


def deny(action: Any, **more: Any) -> dict[str, Any]:
    return allow(action) | {"Effect": "Deny", **more}


IN_CWAGENT = {"Condition": {"StringEquals": {"cloudwatch:namespace": ["CWAgent"]}}}


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ([allow("*")], True),
        ([allow("CloudWatch:Put*")], True),
        ([allow(["logs:*", "cloudwatch:PutMetricData"])], True),
        ([allow("logs:*")], False),
        ([], False),
        ([allow("*"), deny("cloudwatch:*")], False),
        ([allow("*"), deny("cloudwatch:*", Resource="arn:aws:x")], True),
        ([allow("*"), deny("cloudwatch:*", Condition={"Bool": {"aws:SecureTransport": "false"}})], True),
        ([{"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"}], True),
        ([{"Effect": "Allow", "NotAction": "cloudwatch:*", "Resource": "*"}], False),
        ([allow("cloudwatch:PutMetricData", **IN_CWAGENT)], True),
    ],
)
def test_allows(statements: list[dict[str, Any]], expected: bool) -> None:
    assert allows(statements, "cloudwatch:PutMetricData", "CWAgent") is expected


def test_condition_on_another_namespace_does_not_allow() -> None:
    assert not allows([allow("cloudwatch:PutMetricData", **IN_CWAGENT)], "cloudwatch:PutMetricData", "Other")


def test_instance_policy_of_the_project_allows_what_the_agent_needs() -> None:
    statements = json.loads(data_dir("iam", "instance.json").read_text())["Statement"]
    assert [action for action in NEEDED if not allows(statements, action, "CWAgent")] == []
