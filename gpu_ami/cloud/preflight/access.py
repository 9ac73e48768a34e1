"""The instance profile: it exists, EC2 may assume its role, and the role's policies let the agent publish.

Permissions boundaries and service control policies are not read; a boundary that takes a permission away is not found.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from gpu_ami.cloud import policies
from gpu_ami.cloud.preflight.findings import Finding, Scope, error, examined, ok, warning

if TYPE_CHECKING:
    from mypy_boto3_iam import IAMClient
    from mypy_boto3_iam.type_defs import RoleTypeDef

# What the CloudWatch agent calls on an instance, and what is missing without it (agent guide, "Create IAM roles").
NEEDED = {
    "cloudwatch:PutMetricData": "metrics arrive",
    "logs:PutLogEvents": "log events arrive",
    "logs:CreateLogStream": "log streams exist",
    "logs:CreateLogGroup": "log groups exist",
    "ec2:DescribeTags": "the agent's ec2tagger starts; without it no metric is published",
}
_NAMESPACE = "cloudwatch:namespace"


def instance_profile(scope: Scope) -> Iterator[Finding]:
    """The profile has one role, which EC2 may assume and whose policies allow NEEDED."""
    name = scope.place.instance_profile
    if not name:
        make = error if scope.plan and "cloudwatch_agent" in scope.plan["roles"] else warning
        remedy = "set instance_profile to one with iam/instance.json"
        yield make("instance_profile", "none: the agent can publish nothing", "a profile", remedy)
        return
    iam = scope.cloud.client("iam")
    try:
        roles = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Roles"]
    except iam.exceptions.NoSuchEntityException:
        remedy = "create it, or correct instance_profile (its name, not its ARN)"
        yield error("instance_profile", f"{name} does not exist", "an instance profile", remedy)
        return
    if not roles:
        yield error("instance_profile", f"{name} has no role", "a role", "add a role with iam/instance.json")
        return
    yield from _role(scope, iam, name, roles[0])


def _role(scope: Scope, iam: IAMClient, profile: str, role: RoleTypeDef) -> Iterator[Finding]:
    subject = f"role {role['RoleName']} of {profile}"
    if not _ec2_may_assume(cast("policies.PolicyDocument", role["AssumeRolePolicyDocument"])):
        remedy = "add ec2.amazonaws.com to the role's trust policy"
        yield error(subject, "its trust policy does not name ec2.amazonaws.com", "sts:AssumeRole for EC2", remedy)
    statements = [
        statement for document in _policies(iam, role["RoleName"]) for statement in policies.statements_of(document)
    ]
    namespace = str(scope.plan["telemetry"]["namespace"]) if scope.plan else ""
    missing = [action for action in NEEDED if not allows(statements, action, namespace)]
    for action in missing:
        of = f" for namespace {namespace}" if namespace and action == "cloudwatch:PutMetricData" else ""
        remedy = f"attach iam/instance.json, so that {NEEDED[action]}"
        yield error(subject, f"{action} is not allowed{of}", "allowed", remedy)
    if not missing:
        yield ok(subject, "allows what the CloudWatch agent calls")


def role_allows(scope: Scope, needed: Mapping[str, str], policy: str, what: str) -> Iterator[Finding]:
    """The role of the place's instance profile allows these actions (action → what it is for). policy: the remedy."""
    subject = f"role of {scope.place.instance_profile}"
    yield from examined(subject, functools.partial(_needed, scope, subject, needed, policy, what))


def _needed(scope: Scope, subject: str, needed: Mapping[str, str], policy: str, what: str) -> Iterator[Finding]:
    missing = missing_actions(scope, needed)
    for action in missing:
        yield error(subject, f"{action} is not allowed", "allowed", f"{policy}, so that {needed[action]}")
    if not missing:
        yield ok(subject, f"allows {what}")


def missing_actions(scope: Scope, actions: Iterable[str]) -> list[str]:
    """Those of the actions that the role of the place's instance profile does not allow; all, where it has no role."""
    iam, name = scope.cloud.client("iam"), scope.place.instance_profile
    try:
        roles = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Roles"]
    except iam.exceptions.NoSuchEntityException:
        roles = []
    documents = _policies(iam, roles[0]["RoleName"]) if roles else ()
    statements = [statement for document in documents for statement in policies.statements_of(document)]
    return [action for action in actions if not allows(statements, action)]


def _policies(iam: IAMClient, role: str) -> Iterator[policies.PolicyDocument]:
    """Every policy document of a role: inline and attached."""
    for page in iam.get_paginator("list_role_policies").paginate(RoleName=role):
        for name in page["PolicyNames"]:
            yield cast("policies.PolicyDocument", iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"])
    for attached in iam.get_paginator("list_attached_role_policies").paginate(RoleName=role):
        for policy in attached["AttachedPolicies"]:
            arn = policy["PolicyArn"]
            version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
            document = iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]
            yield cast("policies.PolicyDocument", document)


def allows(statements: Sequence[policies.Statement], action: str, namespace: str = "") -> bool:
    """Whether policy statements allow an action somewhere, and none denies it everywhere.

    namespace: of the metrics, for statements with the condition cloudwatch:namespace; "": not judged. Other conditions
    are taken as met.
    """
    matching = [row for row in statements if policies.names_action(row, action)]
    denied = any(
        row["Effect"] == "Deny" and "*" in policies.listed(row.get("Resource")) and "Condition" not in row
        for row in matching
    )
    return not denied and any(row["Effect"] == "Allow" and _condition_holds(row, namespace) for row in matching)


def _condition_holds(statement: policies.Statement, namespace: str) -> bool:
    """Whether the condition on the namespace holds, where there is one and a namespace to judge by."""
    judged = {
        operator: {key: values for key, values in entries.items() if key.lower() == _NAMESPACE}
        for operator, entries in statement.get("Condition", {}).items()
        if operator in ("StringEquals", "StringLike")
    }
    return not namespace or policies.conditions_hold({"Condition": judged}, {_NAMESPACE: namespace})


def _ec2_may_assume(document: policies.PolicyDocument) -> bool:
    services = [
        service
        for statement in policies.statements_of(document)
        if statement["Effect"] == "Allow"
        for service in policies.listed(statement.get("Principal", {}).get("Service"))
    ]
    return any(service.startswith("ec2.amazonaws.com") for service in services)
