"""Preflight of EC2 Spot: its service-linked role, the right to create it, and the key of the volumes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud.place import Capacity, Place
from gpu_ami.cloud.preflight import resources
from gpu_ami.cloud.preflight.findings import Level, Scope
from tests.aws_requests import Checked

ARN = "arn:aws:iam::123456789012:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
CALLER = "arn:aws:iam::123456789012:user/ci"


class NoSuchEntity(Exception):
    pass


def scope(
    *, role: bool, creates: bool = False, grants: int = 0, key: str = "", ways: tuple[str, ...] = ("spot",)
) -> Any:
    def get_role(RoleName: str) -> Any:
        if not role:
            raise NoSuchEntity
        return {"Role": {"Arn": ARN}}

    def simulate(*, ActionNames: list[str], ResourceArns: list[str], ContextEntries: list[Any], **_: Any) -> Any:
        assert (ActionNames, ResourceArns) == (["iam:CreateServiceLinkedRole"], [ARN])
        assert ContextEntries[0]["ContextKeyValues"] == ["spot.amazonaws.com"]
        return {"EvaluationResults": [{"EvalDecision": "allowed" if creates else "implicitDeny"}]}

    pages = [{"Grants": []}, {"Grants": [{}] * grants}]
    clients = {
        "iam": Checked(
            "iam",
            get_role=get_role,
            simulate_principal_policy=simulate,
            exceptions=SimpleNamespace(NoSuchEntityException=NoSuchEntity),
        ),
        "sts": Checked("sts", get_caller_identity={"Arn": CALLER}),
        "kms": Checked("kms", list_grants=pages),
    }
    ec2 = Checked("ec2", get_ebs_default_kms_key_id={"KmsKeyId": key or "alias/aws/ebs"})
    place = Place("aws", "us-east-1", capacity=Capacity({"*": ways}))
    cloud: Any = SimpleNamespace(client=clients.__getitem__, place=place, ec2=ec2)
    return Scope(cloud, {"build": {"instance_type": "m5.xlarge"}, "instance_types": [{"name": "g5.xlarge"}]})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("account", "level", "text"),
    [
        ({"role": True}, Level.OK, "AWSServiceRoleForEC2Spot exists"),
        ({"role": False, "creates": True}, Level.OK, "the first Spot Instance creates"),
        ({"role": False}, Level.ERROR, "the caller may not create it"),
        ({"role": False, "ways": ("spot", "on-demand")}, Level.WARNING, "the caller may not create it"),
        ({"role": True, "key": "arn:aws:kms:x"}, Level.WARNING, "no grant lets AWSServiceRoleForEC2Spot use"),
        ({"role": True, "key": "arn:aws:kms:x", "grants": 1}, Level.OK, "has a grant for arn:aws:kms:x"),
    ],
)
def test_what_spot_needs(account: dict[str, Any], level: Level, text: str) -> None:
    (finding,) = resources.spot(scope(**account))
    assert finding.level is level and text in finding.found
    assert (finding.remedy == "") is (level is Level.OK)


def test_other_ways_need_nothing_of_spot() -> None:
    assert list(resources.spot(scope(role=False, ways=("on-demand",)))) == []
