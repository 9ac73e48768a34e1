from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_ami.cloud.place import Place
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


def test_dry_run_asks_for_what_a_launch_asks_for() -> None:
    """A policy that demands IMDSv2, a tag or Spot refused the launch that the dry run had found permitted."""
    place = Place(
        "aws", "us-east-1", subnet_id="subnet-1", security_group_ids=("sg-1",), instance_profile="images",
        ssh_interface="private_ip", tags={"team": "ml"}, capacity={"g5.*": ("spot",)},
    )  # fmt: skip
    asked = identity._launch_request(SimpleNamespace(place=place, ec2=None), "ami-1", "g5.xlarge")  # type: ignore[arg-type]
    assert asked["MetadataOptions"]["HttpTokens"] == "required"  # type: ignore[index]
    assert asked["IamInstanceProfile"] == {"Name": "images"} and "InstanceMarketOptions" in asked
    assert {kind["ResourceType"] for kind in asked["TagSpecifications"]} >= {"instance", "volume"}  # type: ignore[attr-defined]
    assert {"Key": "team", "Value": "ml"} in asked["TagSpecifications"][0]["Tags"]  # type: ignore[index]
    assert "KeyName" not in asked
