"""Preflight of the account: identity, permissions, names that a plan takes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from gpu_ami.cloud import preflight
from gpu_ami.cloud.client import Cloud
from gpu_ami.cloud.place import Capacity, Login, Network, Place
from gpu_ami.cloud.preflight import identity, resources
from gpu_ami.cloud.preflight.findings import Level, Scope, error, ok, warning
from gpu_ami.cloud.preflight.identity import NEEDED, allows
from gpu_ami.files import data_dir
from tests.aws_requests import Checked


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
        (
            "arn:aws:sts::000000000000:assumed-role/AWSReservedSSO_Admin_0123456789abcdef/me@example.org",
            "arn:aws:iam::000000000000:role/aws-reserved/sso.amazonaws.com/eu-central-1/"
            "AWSReservedSSO_Admin_0123456789abcdef",
        ),
    ],
)
def test_simulated_principal_is_the_role_behind_the_session(caller: str, principal: str) -> None:
    """IAM says where the role is: STS leaves its path out."""
    asked: list[str] = []

    def simulate(*, PolicySourceArn: str, ActionNames: list[str], **_: Any) -> dict[str, Any]:
        asked.append(PolicySourceArn)
        return {"EvaluationResults": [{"EvalActionName": name, "EvalDecision": "allowed"} for name in ActionNames]}

    iam = Checked("iam", get_role={"Role": {"Arn": principal}}, simulate_principal_policy=simulate)
    clients = {"iam": iam, "sts": Checked("sts", get_caller_identity={"Arn": caller})}
    scope: Any = SimpleNamespace(cloud=SimpleNamespace(client=clients.__getitem__), place=Place("aws", "eu-central-1"))
    (finding,) = identity.simulated_permissions(scope)
    assert finding.level is Level.OK and set(asked) == {principal}


def test_only_unconditional_actions_are_simulated() -> None:
    actions = identity.unconditional_actions()
    assert {"ec2:DescribeImages", "cloudwatch:GetMetricData"} <= set(actions)
    assert not {"ec2:RunInstances", "iam:PassRole", "kms:Decrypt"} & set(actions)


def test_dry_run_asks_for_what_a_launch_asks_for() -> None:
    """A policy that demands IMDSv2, a tag or Spot refused the launch that the dry run had found permitted."""
    place = Place(
        "aws", "us-east-1", instance_profile="images", tags={"team": "ml"}, network=Network(("subnet-1",), ("sg-1",)),
        login=Login(ssh_interface="private_ip"), capacity=Capacity(ways={"g5.*": ("spot",)}),
    )  # fmt: skip
    asked = identity.launch_request(SimpleNamespace(place=place, ec2=None), "ami-1", "g5.xlarge")  # type: ignore[arg-type]
    assert asked["MetadataOptions"]["HttpTokens"] == "required"  # type: ignore[index]
    assert asked["IamInstanceProfile"] == {"Name": "images"} and "InstanceMarketOptions" in asked
    assert {kind["ResourceType"] for kind in asked["TagSpecifications"]} >= {"instance", "volume"}  # type: ignore[attr-defined]
    assert {"Key": "team", "Value": "ml"} in asked["TagSpecifications"][0]["Tags"]  # type: ignore[index]
    assert "KeyName" not in asked


WITH_SPOT = Place("aws", "us-east-1", network=Network(("subnet-1",)), capacity=Capacity({"*": ("spot",)}))


def _builder_asks(sets_imds_v2: bool, **place: Any) -> dict[str, Any]:
    cloud = SimpleNamespace(
        place=replace(WITH_SPOT, **place),
        image=lambda _ami: {"RootDeviceName": "/dev/xvda"}, ec2=None,
    )  # fmt: skip
    plan = {"build": {"instance_type": "m5.2xlarge", "root_volume_gib": 40}, "instance_types": []}
    return identity.builder_request(Scope(cloud, plan, None), "ami-1", sets_imds_v2)  # type: ignore[arg-type]


def test_dry_run_of_the_builder_asks_as_packer_does() -> None:
    """A policy that demands encrypted volumes, or one key, refused the builder that the dry run had found permitted."""
    asked = _builder_asks(True, kms_key_id="alias/images")
    assert asked["BlockDeviceMappings"] == [{"DeviceName": "/dev/xvda", "Ebs": {
        "Encrypted": True, "VolumeType": "gp3", "DeleteOnTermination": True, "VolumeSize": 40,
        "KmsKeyId": "alias/images",
    }}]  # fmt: skip
    assert "InstanceMarketOptions" not in asked and asked["MetadataOptions"]["HttpTokens"] == "required"
    assert "MetadataOptions" not in _builder_asks(False)


@pytest.mark.parametrize(("sets_imds_v2", "level"), [(False, Level.ERROR), (True, Level.OK)])
@pytest.mark.parametrize("reason", [": ec2:MetadataHttpTokens", ". Encoded authorization failure message: QkY"])
def test_packer_that_cannot_set_imds_v2_is_named_before_the_launch(
    sets_imds_v2: bool, level: Level, reason: str
) -> None:
    """A service control policy demands it; Debian's Packer 1.6.6 launches without."""

    def run_instances(**asked: Any) -> None:
        code, text = ("DryRunOperation", "Request would have succeeded")
        if asked.get("MetadataOptions", {}).get("HttpTokens") != "required":
            code, text = "UnauthorizedOperation", f"explicit deny in a service control policy{reason}"
        error: Any = {"Error": {"Code": code, "Message": text}, "ResponseMetadata": {"RequestId": "1"}}
        raise ClientError(error, "RunInstances")

    ec2 = Checked("ec2", run_instances=run_instances)
    place = Place("aws", "us-east-1", network=Network(subnet_ids=("subnet-1",)))
    cloud = SimpleNamespace(place=place, image=lambda _ami: None, ec2=ec2)
    finding, *_ = preflight.examine_builder(
        cloud,
        PLAN,
        lambda *_: {"id": "ami-1"},
        sets_imds_v2=lambda: sets_imds_v2,  # type: ignore[arg-type]
    )
    assert finding.level is level and finding.subject == "dry run of RunInstances m5.2xlarge"
    if level is Level.ERROR:
        assert "Packer 1.6.6 cannot: install Packer 1.7 or later" in finding.remedy
        assert preflight.exit_code([finding]) == 4


PLAN = {"build": {"instance_type": "m5.2xlarge"}, "instance_types": [{"name": "g5.xlarge"}, {"name": "m5.2xlarge"}]}


def test_text_names_what_was_found_what_was_expected_and_what_to_do() -> None:
    finding = error("subnet_id", "subnet-1: 2 free addresses", "at least 4", "use a larger subnet")
    text = "error   subnet_id: subnet-1: 2 free addresses; expected at least 4\n        → use a larger subnet"
    assert str(finding) == text
    assert str(ok("identity", "arn:x")) == "ok      identity: arn:x"
    assert str(warning("quota", "not examined")) == "warning quota: not examined"


def test_scope_lists_each_instance_type_once_the_builder_first() -> None:
    scope = Scope(Cloud(Place(name="aws", region="us-east-1")), PLAN)
    assert scope.instance_types == ["m5.2xlarge", "g5.xlarge"]
    assert Scope(scope.cloud).instance_types == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-06-30T00:00:00.000Z", datetime(2024, 6, 30, tzinfo=UTC)),
        ("2024-06-30", datetime(2024, 6, 30, tzinfo=UTC)),
        ("", None),
        ("never", None),
    ],
)
def test_time_of_an_image(text: str, expected: datetime | None) -> None:
    assert resources.parsed_time(text) == expected


def test_without_a_plan_there_is_no_source_ami_to_look_up() -> None:
    def unused(_cloud: Cloud, _plan: Any) -> dict[str, str]:
        raise AssertionError

    assert list(resources.source_ami(Scope(Cloud(Place(name="a", region="us-east-1")), None, unused))) == []
