"""Who calls AWS, for how long, and with which permissions."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from gpu_ami.cloud import aws_errors, capacity, launches, log_groups, policies, runs
from gpu_ami.cloud.preflight.findings import Finding, Level, Scope, error, examined, ok, warning
from gpu_ami.errors import CapacityError, GpuAmiError, UsageError
from gpu_ami.files import data_dir
from validator import aws
from validator.probes.agent import config as agent_config

if TYPE_CHECKING:
    from mypy_boto3_iam import IAMClient
    from mypy_boto3_iam.type_defs import ContextEntryTypeDef, EvaluationResultTypeDef, RoleTypeDef

CALLER_POLICIES = ("caller-build.json", "caller-prove.json", "caller-sweep.json")
# Methods of botocore's providers that obtain new credentials by themselves when the old ones expire.
_RENEWED = {"iam-role", "container-role", "assume-role-with-web-identity"}
_SIMULATED_A_CALL = 50
_CALLER = re.compile(r"arn:(?P<partition>[\w-]+):(?:iam|sts)::(?P<account>\d{12}):.+")
_ASSUMED = re.compile(r"arn:(?P<partition>[\w-]+):sts::(?P<account>\d+):assumed-role/(?P<role>[^/]+)/.+")


def identity(scope: Scope) -> Iterator[Finding]:
    """The caller identity (STS GetCallerIdentity, which needs no permission)."""
    yield ok("identity", str(_caller(scope)))


def _caller(scope: Scope) -> str:
    return _parsed_caller(scope)[0]


def _parsed_caller(scope: Scope) -> re.Match[str]:
    """The caller's ARN, with its partition and account. NotOfAws: it is none."""
    arn = str(scope.cloud.client("sts").get_caller_identity()["Arn"])
    parsed = _CALLER.fullmatch(arn)
    if parsed is None:
        raise aws.NotOfAws(f"Arn: expected that of a caller, got {arn!r:.60}")
    return parsed


def account(scope: Scope) -> str:
    """The caller's account id."""
    return _parsed_caller(scope)["account"]


def credentials(scope: Scope) -> Iterator[Finding]:
    """How long the credentials last, compared with the longest run."""
    current = scope.cloud.session().get_credentials()
    expiry: datetime | None = getattr(current, "_expiry_time", None)  # botocore shows it nowhere else
    if expiry is None:
        temporary = bool(getattr(current, "token", None))
        yield (
            warning("credentials", "temporary, expiry unknown", f"at least {runs.LIFETIME} left")
            if temporary
            else ok("credentials", "no expiry")
        )
        return
    left = expiry - datetime.now(UTC)
    text = f"expire at {expiry:%Y-%m-%dT%H:%M:%SZ} ({max(0, int(left / timedelta(minutes=1)))} minutes left)"
    if getattr(current, "method", "") in _RENEWED:
        yield ok("credentials", f"{text}, renewed automatically")
    elif left <= timedelta(minutes=5):
        yield error("credentials", text, f"at least {runs.LIFETIME} left", "log in again", refused=True)
    elif left < runs.LIFETIME:
        yield warning(
            "credentials", text, f"at least {runs.LIFETIME} left", "log in again, or ask for a longer session"
        )
    else:
        yield ok("credentials", text)


def simulated_permissions(scope: Scope) -> Iterator[Finding]:
    """What IAM's policy simulator answers for the actions of the caller's policies.

    Only actions that the policies allow on every resource without a condition: for others the simulator needs the
    resource and the context of the call. It does not see service control policies of an organization it cannot read.
    """
    parsed = _parsed_caller(scope)
    caller = parsed[0]
    if caller.endswith(":root"):
        yield warning(
            "permissions", "the caller is the account's root user", "a role or user with the policies of iam/"
        )
        return
    denied: list[str] = []
    explicit: list[str] = []
    principal = _principal(scope, caller)
    # Policies allow changes of instances, not of everything (ResourceArns defaults to `*`, which none of ours allows).
    instance = "arn:{}:ec2:{}:{}:instance/i-0123456789abcdef0".format(
        parsed["partition"], scope.place.region, parsed["account"]
    )
    rows = [*simulate(scope, principal, unconditional_actions())]
    rows += simulate(scope, principal, _OF_TAGGED, context=_tagged_context(), resources=[instance])
    for row in rows:
        if row["EvalDecision"] != "allowed":
            sure = row["EvalDecision"] == "explicitDeny" and not row.get("MissingContextValues")
            (explicit if sure else denied).append(row["EvalActionName"])
    remedy = "attach iam/caller-build.json, caller-prove.json and caller-sweep.json to the caller (iam/README.md)"
    for action in explicit:
        yield error("permissions", f"{action} is denied explicitly", "allowed", remedy, refused=True)
    if denied:  # a policy that names its resources answers the same
        yield warning("permissions", f"not allowed on every resource: {', '.join(denied)}", "allowed", remedy)
    if not denied and not explicit:
        yield ok("permissions", "the policy simulator allows every action that it can judge")


# Allowed on what carries the run's tag; EC2 has no dry run of them without an instance.
_OF_TAGGED = ["ec2:CreateImage", "ec2:StartInstances", "ec2:StopInstances", "ec2:TerminateInstances"]


def _tagged_context() -> list[ContextEntryTypeDef]:
    """The context of a call on a resource of a run, for the simulator."""
    keys = (f"aws:ResourceTag/{runs.TAG_RUN}", f"aws:RequestTag/{runs.TAG_RUN}")
    return [{"ContextKeyName": key, "ContextKeyValues": ["preflight"], "ContextKeyType": "string"} for key in keys]


def simulate(
    scope: Scope,
    principal: str,
    actions: list[str],
    context: Sequence[ContextEntryTypeDef] = (),
    resources: Sequence[str] = ("*",),
) -> Iterator[EvaluationResultTypeDef]:
    """Ask IAM's policy simulator whether a principal may call each action."""
    iam: IAMClient = scope.cloud.client("iam")
    for first in range(0, len(actions), _SIMULATED_A_CALL):
        names = actions[first : first + _SIMULATED_A_CALL]
        answer = iam.simulate_principal_policy(
            PolicySourceArn=principal, ActionNames=names, ContextEntries=context, ResourceArns=resources
        )
        yield from answer["EvaluationResults"]


def _principal(scope: Scope, caller: str) -> str:
    """The ARN of the role behind an assumed one, with the path that STS leaves out (Identity Center)."""
    assumed = _ASSUMED.fullmatch(caller)
    if not assumed:
        return caller
    return str(scope.cloud.client("iam").get_role(RoleName=assumed["role"])["Role"]["Arn"])


def service_role_arn(scope: Scope, service: str, role: str) -> str:
    """The ARN that a service-linked role of the account has or would have."""
    caller = _parsed_caller(scope)
    return f"arn:{caller['partition']}:iam::{caller['account']}:role/aws-service-role/{service}/{role}"


def may_create_service_role(scope: Scope, service: str, arn: str) -> bool:
    """Whether the policy simulator lets the caller create a service-linked role; the root user may."""
    caller = _caller(scope)
    if caller.endswith(":root"):
        return True
    context: list[ContextEntryTypeDef] = [
        {"ContextKeyName": "iam:AWSServiceName", "ContextKeyValues": [service], "ContextKeyType": "string"}
    ]
    action = ["iam:CreateServiceLinkedRole"]
    row = aws.first(list(simulate(scope, _principal(scope, caller), action, context, [arn])), "EvaluationResults")
    return row["EvalDecision"] == "allowed"


def unconditional_actions() -> list[str]:
    """Actions that the caller's policies (iam/) allow on every resource without a condition."""
    actions = set()
    for name in CALLER_POLICIES:
        for statement in json.loads(data_dir("iam", name).read_text(encoding="utf-8"))["Statement"]:
            if statement["Resource"] == "*" and "Condition" not in statement:
                actions |= set(statement["Action"])
    return sorted(actions)


def dry_runs(scope: Scope) -> Iterator[Finding]:
    """What EC2 answers to the creating calls with DryRun: DryRunOperation where they would be permitted.

    CreateImage, StopInstances and the like need an instance that exists: the policy simulator judges those.
    """
    ec2 = scope.ec2
    yield _dry_run("CreateKeyPair", ec2.create_key_pair, {"KeyName": "gpu-ami-preflight"})
    if not scope.plan or not scope.source_ami:
        return
    try:
        ami = scope.source_ami(scope.cloud, scope.plan)["id"]
    except UsageError:  # a finding of its own
        return
    yield from builder_dry_run(scope)
    for row in scope.proven:
        name = row["name"]
        subject = f"RunInstances {name} (proof)" if name == scope.builder else f"RunInstances {name}"
        efa = row.get("efa_interfaces", 0) if scope.plan and "efa" in scope.plan else 0
        has_other_way = len(capacity.ways_of(scope.place, name)) > 1
        yield _dry_run(subject, ec2.run_instances, launch_request(scope, ami, name, efa), has_other_way=has_other_way)


def builder_dry_run(scope: Scope) -> Iterator[Finding]:
    """What EC2 answers to the builder as Packer launches it: an encrypted volume, and IMDSv2 if this Packer sets it."""
    if not scope.plan or not scope.source_ami:
        return
    try:
        ami = scope.source_ami(scope.cloud, scope.plan)["id"]
    except UsageError:  # a finding of its own
        return
    sets_imds_v2 = scope.sets_imds_v2()
    operation = f"RunInstances {scope.builder}"
    finding = _dry_run(operation, scope.ec2.run_instances, builder_request(scope, ami, sets_imds_v2))
    if finding.level is Level.ERROR and not sets_imds_v2:
        with_imds_v2 = _dry_run(operation, scope.ec2.run_instances, builder_request(scope, ami, True))
        if with_imds_v2.level is Level.OK:  # AWS's refusal says why in its encoded part alone
            text = f"{finding.found}; permitted with IMDSv2 required"
            finding = error(finding.subject, text, "DryRunOperation", aws.classify("", "IMDSv1").advice, refused=True)
    yield finding
    if finding.level is Level.OK and not sets_imds_v2:
        yield ok("builder's metadata service", "the place demands no IMDSv2, which this Packer (before 1.7) cannot set")


def launch_request(scope: Scope, ami: str, instance_type: str, efa_interfaces: int = 0) -> dict[str, object]:
    """What a launch will ask for, but for the key pair, which does not exist yet: a policy may depend on all of it."""
    place = scope.place
    tags = {**place.tags, runs.TAG_RUN: "preflight"}
    launch = launches.Launch(ami, instance_type, "", tags, "", efa_interfaces)
    way = capacity.ways_of(place, instance_type)[0]
    request = dict(launches.request(launch, place, way, place.network.subnets[0], scope.ec2))
    del request["KeyName"], request["UserData"]
    return request


def builder_request(scope: Scope, ami: str, sets_imds_v2: bool) -> dict[str, object]:
    """As packer/source.pkr.hcl asks for the builder: On-Demand, its root volume encrypted with the place's key."""
    request = launch_request(scope, ami, scope.builder)
    request.pop("InstanceMarketOptions", None)
    request.pop("CapacityReservationSpecification", None)
    if not sets_imds_v2:
        del request["MetadataOptions"]
    image = scope.cloud.image(ami)
    volume: dict[str, object] = {"Encrypted": True, "VolumeType": "gp3", "DeleteOnTermination": True}
    if scope.plan:
        volume["VolumeSize"] = scope.plan["build"].get("root_volume_gib", 30)
    if scope.place.kms_key_id:
        volume["KmsKeyId"] = scope.place.kms_key_id
    if image and image.get("RootDeviceName"):
        request["BlockDeviceMappings"] = [{"DeviceName": image["RootDeviceName"], "Ebs": volume}]
    return request


def _dry_run(
    operation: str, call: Callable[..., object], request: Mapping[str, object], *, has_other_way: bool = False
) -> Finding:
    """has_other_way: where this one has no capacity, a launch goes on with the next of the place."""
    subject = f"dry run of {operation}"
    try:
        with aws_errors.translated(subject):
            call(**request, DryRun=True)
    except GpuAmiError as answer:
        if answer.code == "DryRunOperation":
            return ok(subject, "permitted")
        text = ": ".join([answer.code or answer.message, *answer.details])
        if aws_errors.may_pass(answer):
            return warning(subject, f"not examined: {text}", remedy=answer.hint, refused=True)
        if has_other_way and isinstance(answer, CapacityError):
            return warning(subject, text, remedy=f"{answer.hint}; the place's other ways are tried next", refused=True)
        return error(subject, text, "DryRunOperation", answer.hint, refused=True)
    return error(subject, "the call was carried out", "DryRunOperation", "report this: the API ignores DryRun")


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
    if not _may_assume(role["AssumeRolePolicyDocument"], "ec2"):
        remedy = "add ec2.amazonaws.com to the role's trust policy"
        yield error(subject, "its trust policy does not name ec2.amazonaws.com", "sts:AssumeRole for EC2", remedy)
    statements = [
        statement for document in _policies(iam, role["RoleName"]) for statement in policies.statements_of(document)
    ]
    of_proof = scope.place.log_groups == log_groups.PROOF
    namespace = str(scope.plan["telemetry"]["namespace"]) if scope.plan else ""
    namespace += agent_config.NAMESPACE_SUFFIX if namespace and of_proof else ""
    missing = [action for action in NEEDED if not allows(statements, action, namespace)]
    for action in missing:
        of = f" for namespace {namespace}" if namespace and action == "cloudwatch:PutMetricData" else ""
        other = ", or set log_groups: production" if of and of_proof else ""
        remedy = f"attach iam/instance.json, so that {NEEDED[action]}{other}"
        yield error(subject, f"{action} is not allowed{of}", "allowed", remedy)
    refused = list(_refused_log_groups(scope, statements)) if not missing else []
    for action, group in refused:
        remedy = "let the policy's Resource cover the group (iam/instance.json), or set log_groups: production"
        yield error(subject, f"{action} is not allowed for {group}", "allowed", remedy)
    if not missing and not refused:
        yield ok(subject, "allows what the CloudWatch agent calls")


def _refused_log_groups(scope: Scope, statements: Sequence[policies.Statement]) -> Iterator[tuple[str, str]]:
    """Action and log group of what the machines of a proof would be denied: the plan's groups, and the proof's own."""
    telemetry: Mapping[str, object] = scope.plan["telemetry"] if scope.plan else {}
    groups = sorted({str(value) for key, value in telemetry.items() if key.endswith("_log_group") and value})
    suffix = f"-proof/{_EXAMPLE_RUN}" if scope.place.log_groups == log_groups.PROOF else ""
    if not groups:
        return
    caller = _parsed_caller(scope)
    for group in [group + suffix for group in groups]:
        arn = f"arn:{caller['partition']}:logs:{scope.place.region}:{caller['account']}:log-group:{group}:log-stream:"
        for action, stream in (("logs:CreateLogStream", ""), ("logs:PutLogEvents", "i-0123456789abcdef0")):
            if not any(policies.covers(row, action, arn + stream) for row in statements if row["Effect"] == "Allow"):
                yield action, group


_EXAMPLE_RUN = "20261127-120000-abcdef"


def dead_man(scope: Scope) -> Iterator[Finding]:
    """The role that terminates instances at their expiry exists, EventBridge Scheduler may assume it, and it may."""
    subject, arn = "dead_man_role", scope.place.dead_man_role
    if not arn:
        text = "none: if this process is killed, instances run on until `gpu-ami sweep`"
        yield warning(subject, text, "a role with iam/dead-man.json", "docs/aws.md, From an empty account")
        return
    iam, name = scope.cloud.client("iam"), arn.rpartition("/")[2]
    try:
        role = iam.get_role(RoleName=name)["Role"]
    except iam.exceptions.NoSuchEntityException:
        yield error(subject, f"{name} does not exist", "a role", "create it, or correct dead_man_role")
        return
    remedy = "let scheduler.amazonaws.com assume it, and attach iam/dead-man.json"
    statements = [row for document in _policies(iam, name) for row in policies.statements_of(document)]
    if not _may_assume(role["AssumeRolePolicyDocument"], "scheduler"):
        yield error(subject, "its trust policy does not name scheduler.amazonaws.com", "sts:AssumeRole for it", remedy)
    elif not allows(statements, "ec2:TerminateInstances"):
        yield error(subject, f"{name}: ec2:TerminateInstances is not allowed", "allowed", remedy)
    else:
        yield ok(subject, f"{name} may terminate instances")


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


def _policies(iam: IAMClient, role: str) -> Iterator[object]:
    """Every policy document of a role: inline and attached."""
    for page in iam.get_paginator("list_role_policies").paginate(RoleName=role):
        for name in page["PolicyNames"]:
            yield iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
    for attached in iam.get_paginator("list_attached_role_policies").paginate(RoleName=role):
        for policy in attached["AttachedPolicies"]:
            arn = policy["PolicyArn"]
            version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
            yield iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]


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


def _may_assume(document: object, service_name: str) -> bool:
    """Whether a trust policy lets a service assume the role."""
    services = [
        service
        for statement in policies.statements_of(document)
        if statement["Effect"] == "Allow"
        for service in _services(statement.get("Principal", {}))
    ]
    return any(service.startswith(f"{service_name}.amazonaws.com") for service in services)


def _services(principal: Mapping[str, policies.Texts] | str) -> list[str]:
    """Services among the principals of a statement; `"*"`, which is everybody, names none."""
    return [] if isinstance(principal, str) else policies.listed(principal.get("Service"))
