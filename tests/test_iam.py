"""The policies of iam/ allow what the code and Packer call, and nothing else."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from botocore import xform_name
from botocore.loaders import Loader

from gpu_ami.cloud.policies import Request, allows, listed, read_policy

ROOT = Path(__file__).resolve().parents[1]
IAM = ROOT / "iam"
PUBLISHER = ROOT / "gpu_ami" / "publish"
POLICIES = sorted(path.name for path in IAM.glob("*.json"))
# Service name of boto3 → prefix of its actions in IAM.
SERVICES = {
    "ec2": "ec2",
    "iam": "iam",
    "kms": "kms",
    "ssm": "ssm",
    "cloudwatch": "cloudwatch",
    "ecs": "ecs",
    "eks": "eks",
    "logs": "logs",
    "service-quotas": "servicequotas",
    "sts": "sts",
    "scheduler": "scheduler",
    "ec2-instance-connect": "ec2-instance-connect",
    "autoscaling": "autoscaling",
}
# HashiCorp's list of what the Amazon plugin needs ("IAM Task or Instance Role", read 2026-11-22), without the actions
# of steps that this template does not have: other builders (AttachVolume, CreateVolume, DetachVolume, RegisterImage,
# CreateSnapshot, DescribeImageAttribute, DescribeSnapshots, DescribeTags), copies and sharing (CopyImage,
# ModifySnapshotAttribute) and Windows (GetPasswordData). The last three are of session_manager (common/ssm/session.go).
PACKER = {
    *(
        f"ec2:{name}"
        for name in (
            "AuthorizeSecurityGroupIngress", "CreateImage", "CreateKeyPair", "CreateSecurityGroup",
            "CreateTags", "DeleteKeyPair", "DeleteSecurityGroup", "DeleteSnapshot", "DeleteVolume",
            "DeregisterImage", "DescribeImages", "DescribeInstances", "DescribeRegions",
            "DescribeSecurityGroups", "DescribeSubnets", "DescribeVolumes", "ModifyImageAttribute",
            "ModifyInstanceAttribute", "RunInstances", "StopInstances", "TerminateInstances",
        )
    ),
    "ec2:DescribeInstanceStatus",
    "iam:GetInstanceProfile",  # common/step_iam_instance_profile.go, where an instance profile is named
    "ssm:StartSession",
    "ssm:TerminateSession",
}  # fmt: skip
VALIDATOR = [ROOT / "validator" / name for name in ("cloudwatch.py", "checks/node_in_ecs.py")]
# Calls of the AWS CLI as the way to log in (gpu_ami/cloud/login.py).
AWS_CLI = {
    "ssm:StartSession", "ssm:TerminateSession", "ec2-instance-connect:OpenTunnel",
    "ec2:DescribeInstanceConnectEndpoints",  # open-tunnel looks the endpoint up, where none or an id is named
}  # fmt: skip
# What a call needs beside its own action.
IMPLIED = {
    "ec2:CreateTags": "TagSpecifications of RunInstances and ImportKeyPair",
    "ecs:TagResource": "tags in CreateCluster, RegisterTaskDefinition and StartTask",
    "ec2:DeleteSnapshot": "DeleteAssociatedSnapshots of DeregisterImage",
    "iam:PassRole": "IamInstanceProfile of RunInstances",
    "kms:CreateGrant": "an encrypted volume attached to an instance (EBS, 'Required IAM permissions')",
    "kms:Decrypt": "the same",
    "kms:DescribeKey": "the same",
    "kms:GenerateDataKeyWithoutPlaintext": "the same",
    "kms:ReEncryptFrom": "the same",
    "kms:ReEncryptTo": "the same",
    "iam:CreateServiceLinkedRole": "the first Spot Instance of an account (EC2, 'Service-linked role for Spot')",
}
NO_PERMISSION_NEEDED = {"sts:GetCallerIdentity"}  # STS API reference, GetCallerIdentity
# A cluster of EKS is made only in a place with cluster_versions: the local region, which asks for no permission.
LOCAL_REGION_ALONE = {"eks:CreateAccessEntry", "eks:CreateCluster", "eks:DeleteCluster"}


@functools.cache
def methods() -> dict[str, set[str]]:
    """Method of a boto3 client → actions it may stand for."""
    found: dict[str, set[str]] = {}
    for service, prefix in SERVICES.items():
        for operation in Loader().load_service_model(service, "service-2")["operations"]:
            found.setdefault(xform_name(operation), set()).add(f"{prefix}:{operation}")
    return found


def called(paths: Iterable[Path]) -> set[str]:
    """Actions of every boto3 method that modules name, as an attribute or as a paginator's name."""
    return set().union(*(called_in(path) for path in paths)) - NO_PERMISSION_NEEDED - LOCAL_REGION_ALONE


def called_in(path: Path) -> set[str]:
    """Actions that a module calls. A method of several services (CreateCluster) is of the one it makes a client of."""
    names: set[str] = set()
    clients: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "client":
            clients |= {SERVICES.get(str(word.value), "") for word in node.args if isinstance(word, ast.Constant)}
    actions: set[str] = set()
    for name in names & methods().keys():
        of = methods()[name]
        of = of if len(of) == 1 else {action for action in of if action.partition(":")[0] in clients}
        assert len(of) == 1, f"{path}: {name} is one of {sorted(methods()[name])}; services of the module: {clients}"
        actions |= of
    return actions


def cloud_modules() -> list[Path]:
    packages = [*(ROOT / "gpu_ami" / "cloud").rglob("*.py"), *PUBLISHER.rglob("*.py")]
    return [*packages, ROOT / "gpu_ami" / "plan" / "resolution.py"]


def statements(name: str) -> list[dict[str, Any]]:
    document = json.loads((IAM / name).read_text(encoding="utf-8"))
    assert set(document) == {"Version", "Statement"} and document["Version"] == "2012-10-17"
    return list(document["Statement"])


def allowed(*names: str) -> set[str]:
    rows = [row for name in names for row in read_policy(name.removesuffix(".json"))]
    return {action for row in rows for action in listed(row["Action"])}


CALLERS = [name for name in POLICIES if name.startswith("caller-")]


def test_scanner_reads_calls_and_paginators(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text(
        "ec2.run_instances()\nec2.get_paginator('describe_volumes')\nx = iam.get_role_policy\nmine.image()\n"
    )
    assert called([module]) == {"ec2:RunInstances", "ec2:DescribeVolumes", "iam:GetRolePolicy"}


def test_scanner_tells_services_with_the_same_method_apart(tmp_path: Path) -> None:
    for service in ("ecs", "eks"):
        (tmp_path / f"{service}.py").write_text(f'made = cloud.client("{service}")\nmade.create_cluster()\n')
        assert called_in(tmp_path / f"{service}.py") == {f"{service}:CreateCluster"}
    both = tmp_path / "both.py"
    both.write_text('cloud.client("ecs").delete_cluster()\ncloud.client("eks").describe_cluster()\n')
    with pytest.raises(AssertionError, match=r"both\.py: delete_cluster is one of \['ecs:DeleteCluster', 'eks:Del"):
        called_in(both)


def test_every_call_is_allowed() -> None:
    needed = called([*cloud_modules(), *VALIDATOR])
    assert sorted((needed | PACKER | AWS_CLI | set(IMPLIED)) - allowed(*CALLERS)) == []


def test_nothing_is_allowed_that_nobody_calls() -> None:
    needed = called([*cloud_modules(), *VALIDATOR])
    assert sorted(allowed(*CALLERS) - needed - PACKER - AWS_CLI - set(IMPLIED)) == []


def test_each_policy_suffices_for_its_stage() -> None:
    preflight = {path for path in cloud_modules() if path.parent.name == "preflight"}
    dry_runs = {"ec2:RunInstances", "ec2:CreateKeyPair", "ec2:CreateSecurityGroup"}
    assert preflight and called(preflight) - dry_runs <= allowed("caller-preflight.json")
    assert called([ROOT / "validator" / "cloudwatch.py"]) <= allowed("caller-prove.json")
    ecs = [ROOT / "gpu_ami" / "cloud" / "ecs.py", ROOT / "validator" / "checks/node_in_ecs.py"]
    assert called(ecs) <= allowed("caller-join.json", "caller-sweep.json", "caller-sweep-ecs.json")
    assert called([ROOT / "gpu_ami" / "cloud" / "eks.py"]) == {
        "eks:DescribeAccessEntry", "eks:DescribeAddon", "eks:DescribeCluster", "eks:ListAddons",
        "iam:GetInstanceProfile",
    } <= allowed("caller-join.json")  # fmt: skip
    assert called([ROOT / "gpu_ami" / "plan" / "resolution.py"]) <= allowed("caller-build.json")
    optional = ("caller-build-security-group.json", "caller-session-manager.json")
    assert allowed("caller-build.json", *optional) >= PACKER
    assert called(PUBLISHER.rglob("*.py")) <= allowed("caller-publish.json")


def test_who_builds_cannot_sign() -> None:
    signing = {name for name in POLICIES if "kms:Sign" in allowed(name)}
    assert signing == {"caller-sign.json"}
    assert called([ROOT / "gpu_ami" / "cloud" / "kms.py"]) == allowed("caller-sign.json")


def test_an_instance_publishes_and_does_nothing_else() -> None:
    assert allowed("instance.json") == {
        "cloudwatch:PutMetricData", "ec2:DescribeTags", "logs:CreateLogGroup", "logs:CreateLogStream",
        "logs:DescribeLogStreams", "logs:PutLogEvents", "logs:PutRetentionPolicy",
    }  # fmt: skip
    metrics = next(row for row in statements("instance.json") if "cloudwatch:PutMetricData" in row["Action"])
    assert metrics["Condition"] == {"StringEquals": {"cloudwatch:namespace": ["CWAgent", "CWAgent-proof"]}}


def test_instance_policy_fits_the_default_telemetry() -> None:
    import yaml

    telemetry = yaml.safe_load((ROOT / "variables" / "defaults.yml").read_text())["telemetry"]
    logs = next(row for row in statements("instance.json") if "logs:PutLogEvents" in row["Action"])["Resource"]
    prefix = logs[0].rpartition(":log-group:")[2].removesuffix("*")
    assert telemetry["namespace"] == "CWAgent"
    assert all(telemetry[key].startswith(prefix) for key in ("raw_log_group", "json_log_group"))
    assert logs[0].endswith("*"), "a proof's groups are below the same prefix"


@pytest.mark.parametrize("name", ["caller-prove.json", "caller-sweep.json"])
def test_only_log_groups_of_proofs_can_be_deleted(name: str) -> None:
    rows = [row for row in statements(name) if "logs:DeleteLogGroup" in row["Action"]]
    assert [row["Resource"] for row in rows] == ["arn:aws:logs:*:*:log-group:*-proof/*"]
    assert "logs:DeleteLogGroup" not in allowed("caller-build.json", "instance.json")


@pytest.mark.parametrize("name", POLICIES)
def test_statement_is_well_formed(name: str) -> None:
    identifiers = [statement["Sid"] for statement in statements(name)]
    assert len(identifiers) == len(set(identifiers))
    for statement in statements(name):
        assert set(statement) - {"Condition"} == {"Sid", "Effect", "Action", "Resource"}
        assert statement["Effect"] == "Allow"
        assert statement["Action"] == sorted(set(statement["Action"]))
        for action in statement["Action"]:
            prefix, _, operation = action.partition(":")
            assert prefix in SERVICES.values() and re.fullmatch(r"[A-Z][A-Za-z]+", operation), action


@pytest.mark.parametrize("name", POLICIES)
def test_no_account_is_named(name: str) -> None:
    assert not re.search(r"\d{12}", (IAM / name).read_text())


@pytest.mark.parametrize("name", POLICIES)
def test_what_changes_an_instance_needs_our_tag(name: str) -> None:
    changing = {"ec2:TerminateInstances", "ec2:StopInstances", "ec2:DeleteVolume", "ec2:DeregisterImage"}
    for statement in statements(name):
        if changing & set(statement["Action"]):
            assert statement["Condition"] == {"StringLike": {"aws:ResourceTag/gpu-ami:run": "*"}}, statement["Sid"]


# A resource of each type that is somebody else's: no tag, a name that is not ours (Service Authorization Reference).
FOREIGN = {
    "ec2": [
        *(f"arn:aws:ec2:us-east-1::{kind}/x-1" for kind in ("image", "snapshot")),
        *(
            f"arn:aws:ec2:us-east-1:123456789012:{kind}/x-1"
            for kind in ("instance", "volume", "security-group", "key-pair", "placement-group", "launch-template")
        ),
    ],
    "ssm": [
        "arn:aws:ec2:us-east-1:123456789012:instance/i-1",
        "arn:aws:ssm:us-east-1:123456789012:parameter/theirs",
        "arn:aws:ssm:us-east-1:123456789012:document/SSM-SessionManagerRunShell",
        "arn:aws:ssm:us-east-1:123456789012:session/theirs-1",
        "arn:aws:ssm:us-east-1::document/AWS-RunShellScript",
    ],
    "ecs": [
        f"arn:aws:ecs:us-east-1:123456789012:{name}"
        for name in ("cluster/theirs", "task-definition/theirs:1", "task/theirs/1")
    ],
    "logs": ["arn:aws:logs:us-east-1:123456789012:log-group:/theirs"],
    "scheduler": ["arn:aws:scheduler:us-east-1:123456789012:schedule/default/theirs"],
    "iam": ["arn:aws:iam::123456789012:role/theirs"],
    "kms": ["arn:aws:kms:us-east-1:123456789012:key/1"],
}  # fmt: skip
# Actions that only read, that use what they name without changing it, or that make something new.
_HARMLESS = re.compile(
    r"(Describe|Get|List|Simulate)|ec2:(RunInstances|CopyImage|Create(Image|SecurityGroup|LaunchTemplate))$|kms:GetPublicKey$"
)
# What a caller may do to others' resources all the same, and why. Each is a file of its own, or ECS's.
REACHES_OTHERS = {
    ("caller-build-untagged", "ec2:CreateTags"): "Packer before 1.7, and in GovCloud and China, tags an untagged image",
    ("caller-sweep-untagged", "ec2:CreateTags"): "the same image after a kill",
    ("caller-sweep-ecs", "ecs:DeregisterContainerInstance"): "ECS judges this call by the cluster, not by the machine",
    ("caller-sweep-ecs", "ecs:DeregisterTaskDefinition"): "ECS does not limit this call to a resource",
    ("caller-join", "ecs:DeregisterContainerInstance"): "ECS judges this call by the cluster, not by the machine",
    ("caller-join", "ecs:DeregisterTaskDefinition"): "ECS does not limit this call to a resource",
    ("caller-join", "ecs:RegisterTaskDefinition"): "the same; it makes a new one",
    ("caller-fleet", "ssm:CreateAssociation"): "Systems Manager has no tag of machines in this call (--future)",
    ("caller-fleet", "ssm:DeleteAssociation"): "the same",
}  # fmt: skip


def test_no_policy_reaches_resources_of_others() -> None:
    """May a principal with this policy change a foreign, untagged resource, or get a shell on a foreign machine?

    The request carries the tag that a caller chooses itself (aws:RequestTag) and everything else that it can choose.
    """
    chosen = {"aws:RequestTag/gpu-ami:run": "any", "aws:username": "us", "aws:userid": "AIDA1",
              "ssm:SessionDocumentAccessCheck": "true", "kms:ViaService": "s3.us-east-1.amazonaws.com"}  # fmt: skip
    reached = {
        (name.removesuffix(".json"), action)
        for name in POLICIES
        for row in statements(name)
        for action in row["Action"]
        if not _HARMLESS.search(action.partition(":")[2]) and not _HARMLESS.search(action)
        for resource in FOREIGN.get(action.partition(":")[0], ["*"])
        if allows(read_policy(name.removesuffix(".json")), Request(action, resource, chosen))
    }
    assert reached == set(REACHES_OTHERS)


@pytest.mark.parametrize("name", POLICIES)
def test_the_table_lists_each_statement(name: str) -> None:
    readme = (IAM / "README.md").read_text(encoding="utf-8")
    section = readme.partition(f"## {name}\n")[2].partition("\n## ")[0]
    in_table = set(
        re.findall(r"`([A-Z]\w+)`", "\n".join(line.split("|")[1] for line in section.splitlines() if "|" in line))
    )
    assert in_table == {statement["Sid"] for statement in statements(name)}
