from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_ami.cloud.preflight import identity
from gpu_ami.cloud.preflight.findings import Level, Scope


def scope(**credentials: Any) -> Scope:
    session = SimpleNamespace(get_credentials=lambda: SimpleNamespace(**credentials))
    return cast("Scope", SimpleNamespace(cloud=SimpleNamespace(session=lambda: session)))


def in_minutes(minutes: float) -> datetime:
    return datetime.now(UTC) + timedelta(minutes=minutes)


@pytest.mark.parametrize(
    ("credentials", "level", "text"),
    [
        ({"token": None}, Level.OK, "no expiry"),
        ({"token": "t"}, Level.WARNING, "temporary, expiry unknown"),
        ({"_expiry_time": -1, "method": "env"}, Level.ERROR, "(0 minutes left)"),
        ({"_expiry_time": 60, "method": "sso"}, Level.WARNING, "(60 minutes left)"),
        ({"_expiry_time": 600, "method": "sso"}, Level.OK, "(600 minutes left)"),
        ({"_expiry_time": 60, "method": "iam-role"}, Level.OK, "renewed automatically"),
    ],
)
def test_credentials_last_as_long_as_a_run(credentials: dict[str, Any], level: Level, text: str) -> None:
    if "_expiry_time" in credentials:
        credentials = credentials | {"_expiry_time": in_minutes(credentials["_expiry_time"] + 0.9)}
    (finding,) = identity.credentials(scope(**credentials))
    assert finding.level is level
    assert text in finding.found


@pytest.mark.parametrize(
    ("caller", "principal"),
    [
        ("arn:aws:iam::000000000000:user/ci", "arn:aws:iam::000000000000:user/ci"),
        ("arn:aws:sts::000000000000:assumed-role/images/job-7", "arn:aws:iam::000000000000:role/images"),
        ("arn:aws-cn:sts::000000000000:assumed-role/images/i-1", "arn:aws-cn:iam::000000000000:role/images"),
    ],
)
def test_simulated_principal_is_the_role_behind_the_session(caller: str, principal: str) -> None:
    assert identity._principal(caller) == principal


def test_only_unconditional_actions_are_simulated() -> None:
    actions = identity.unconditional_actions()
    assert {"ec2:DescribeImages", "cloudwatch:GetMetricData"} <= set(actions)
    assert not {"ec2:RunInstances", "iam:PassRole", "kms:Decrypt"} & set(actions)
