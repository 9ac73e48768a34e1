"""What a call needs to be allowed: an action, its resources and their condition keys, and further actions.

Source: AWS, Service Authorization Reference ("Actions, resources, and condition keys" of EC2, Logs, SSM, Scheduler and
IAM); EBS user guide, "Required permissions" for customer managed keys; both read 2026-11-22. An action of which no
resource is known here is judged on `*`, as AWS does for actions without resource types.

Judges calls by the IAM policies of who makes them, as AWS does before a service sees the call.

The access key says who calls: an instance's (localregion/machines/metadata.py) or any other, which is the caller's.
moto's own enforcement knows no resources and no conditions, and answers with other codes than AWS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_ami.cloud import policies
from localregion.api.conditions import Conditions, access_denied
from localregion.api.protocol import ErrorAnswer, ServiceCall
from localregion.backends import REGION, Ec2, instance_of_access_key

USER = "gpu-ami-local"  # the caller from outside
# STS answers it whatever the caller's policies say (STS API reference, GetCallerIdentity).
_FREE = {"sts:GetCallerIdentity"}
# Parameter of an EC2 call → resource type in its ARN. Images and snapshots have no account in theirs.
_PARAMETERS = {
    "InstanceId": "instance",
    "VolumeId": "volume",
    "ImageId": "image",
    "SnapshotId": "snapshot",
    "GroupId": "security-group",
    "SubnetId": "subnet",
    "SecurityGroupId": "security-group",
    "KeyName": "key-pair",
    "VpcId": "vpc",
    "CapacityReservationId": "capacity-reservation",
}
_WITHOUT_ACCOUNT = ("image", "snapshot")
# Creating action → types of the resources that it makes.
_CREATED = {
    "RunInstances": ("instance", "volume", "network-interface"),
    "CreateImage": ("image", "snapshot"),
    "CopyImage": ("image", "snapshot"),
    "CreateSecurityGroup": ("security-group",),
}
_OF_PLACEMENT = ("CreatePlacementGroup", "DeletePlacementGroup")  # others name a security group by it
_OF_PARAMETERS = ("DeleteParameter", "GetParameter", "GetParameters", "PutParameter")
_OF_DOCUMENTS = (
    "CreateDocument", "DeleteDocument", "DescribeDocument", "UpdateDocument", "UpdateDocumentDefaultVersion",
)  # fmt: skip
# Action of ECS → the type of its resource, and the key that names it.
_OF_ECS = {
    "CreateCluster": ("cluster", "clusterName"),
    "DeleteCluster": ("cluster", "cluster"),
    "DeleteTaskDefinitions": ("task-definition", "taskDefinitions"),
    "DeregisterContainerInstance": ("cluster", "cluster"),
    "StartTask": ("task-definition", "taskDefinition"),
    "StopTask": ("task", "task"),
}
_KEY_FOR_VOLUME = (
    "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext", "kms:Decrypt", "kms:ReEncryptFrom", "kms:ReEncryptTo",
)  # fmt: skip


def needed(call: ServiceCall, ec2: Ec2) -> Iterator[policies.Request]:
    """The requests that must all be allowed for the call to be carried out."""
    if call.name not in _FREE:
        yield from _SERVICES.get(call.service, _on_all)(call, ec2)


def _on_all(call: ServiceCall, _: Ec2) -> Iterator[policies.Request]:
    yield policies.Request(call.name)


def _ec2(call: ServiceCall, ec2: Ec2) -> Iterator[policies.Request]:
    if call.action.startswith("Describe"):
        yield policies.Request(call.name)
        return
    on_tags = dict(_tags_at_creation(call))
    resources: dict[str, Mapping[str, str]] = dict(_resources(call, ec2))
    for resource_type in _CREATED.get(call.action, ()):
        context = {f"aws:RequestTag/{key}": value for key, value in on_tags.get(resource_type, {}).items()}
        resources[_arn(ec2, resource_type, "*")] = context
    if call.action == "CreateTags":
        requested = {f"aws:RequestTag/{key}": value for key, value in _tags(call, "Tag.").items()}
        resources = {arn: {**keys, **requested} for arn, keys in resources.items()}
    for arn, keys in resources.items():
        yield policies.Request(call.name, arn, keys)
    if not resources:
        yield policies.Request(call.name)
    for resource_type, tags in on_tags.items():
        context = {f"aws:RequestTag/{key}": value for key, value in tags.items()}
        name = call.parameters.get("KeyName", "*") if resource_type == "key-pair" else "*"
        yield policies.Request(
            "ec2:CreateTags", _arn(ec2, resource_type, name), {**context, "ec2:CreateAction": call.action}
        )
    if call.action == "RunInstances":
        yield from _launch(call, ec2)
    elif call.action == "CopyImage" and call.parameters.get("KmsKeyId"):
        yield from _encrypt(ec2, call.parameters["KmsKeyId"])
    elif call.action == "DeregisterImage" and call.parameters.get("DeleteAssociatedSnapshots") == "true":
        for snapshot in ec2.snapshots_of(call.parameters.get("ImageId", "")):
            yield policies.Request("ec2:DeleteSnapshot", _arn(ec2, "snapshot", snapshot), _tags_of(ec2, snapshot))


def _resources(call: ServiceCall, ec2: Ec2) -> Iterator[tuple[str, Mapping[str, str]]]:
    """ARN and context of each existing resource that a call names."""
    for key, value in call.parameters.items():
        names = [part for part in key.split(".") if not part.isdigit()]
        resource_type = _PARAMETERS.get(names[-1])
        if call.action == "CreateTags" and names == ["ResourceId"]:
            resource_type = _type_of(value)
        if key == "Placement.GroupName" or (key == "GroupName" and call.action in _OF_PLACEMENT):
            resource_type = "placement-group"
        if resource_type and value and not key.startswith(("Filter", "Tag")):
            yield _arn(ec2, resource_type, value), _tags_of(ec2, value)
    if call.action == "RunInstances":
        names_subnet = any(key.endswith("SubnetId") and value for key, value in call.parameters.items())
        if not names_subnet:
            yield _arn(ec2, "subnet", ec2.subnet_id), {}
        if not any("SecurityGroup" in key for key in call.parameters):
            yield _arn(ec2, "security-group", ec2.default_group()), {}
        if call.parameters.get("InstanceMarketOptions.MarketType") == "spot":
            yield _arn(ec2, "spot-instances-request", "*"), {}


def _tags_of(ec2: Ec2, resource_id: str) -> dict[str, str]:
    return {f"aws:ResourceTag/{key}": value for key, value in ec2.tags(resource_id).items()}


def _managed_tags(ec2: Ec2, instance_id: str) -> dict[str, str]:
    """Systems Manager has the tags of a managed node under a key of its own, too."""
    tags = ec2.tags(instance_id).items()
    return {**_tags_of(ec2, instance_id), **{f"ssm:resourceTag/{key}": value for key, value in tags}}


def _type_of(resource_id: str) -> str:
    prefixes = {"i": "instance", "vol": "volume", "ami": "image", "snap": "snapshot", "sg": "security-group"}
    return prefixes.get(resource_id.partition("-")[0], "*")


def _tags_at_creation(call: ServiceCall) -> Iterator[tuple[str, dict[str, str]]]:
    """Resource type and tags of each TagSpecification."""
    for key, resource_type in call.parameters.items():
        match = re.fullmatch(r"(TagSpecification\.\d+)\.ResourceType", key)
        if match:
            yield resource_type, _tags(call, f"{match[1]}.Tag.")


def _tags(call: ServiceCall, prefix: str) -> dict[str, str]:
    """The tags that a call lists under a prefix."""
    names = [name for name in call.parameters if name.startswith(prefix) and name.endswith(".Key")]
    return {call.parameters[name]: call.parameters.get(name[:-3] + "Value", "") for name in names}


def _launch(call: ServiceCall, ec2: Ec2) -> Iterator[policies.Request]:
    """What a launch needs beside RunInstances: the role of the instance profile, the key of an encrypted volume."""
    parameters = call.parameters
    profile = parameters.get("IamInstanceProfile.Name") or parameters.get("IamInstanceProfile.Arn")
    role = ec2.role_arn(profile) if profile else ""
    if role:
        yield policies.Request("iam:PassRole", role, {"iam:PassedToService": "ec2.amazonaws.com"})
    keys = {value for name, value in parameters.items() if name.endswith(".Ebs.KmsKeyId") and value}
    keys |= {ec2.image_key(parameters.get("ImageId", ""))}
    for key in sorted(keys - {""} or {ec2.ebs_default_key} - {""}):
        yield from _encrypt(ec2, key)


def _encrypt(ec2: Ec2, key: str) -> Iterator[policies.Request]:
    """What EC2 does with a customer managed key on behalf of its caller."""
    arn, via = _key_arn(ec2, key), {"kms:ViaService": f"ec2.{REGION}.amazonaws.com"}
    for action in _KEY_FOR_VOLUME:
        yield policies.Request(action, arn, via)
    yield policies.Request("kms:CreateGrant", arn, {**via, "kms:GrantIsForAWSResource": "true"})


def _key_arn(ec2: Ec2, key: str) -> str:
    """An alias stands for its key, whose id is not looked up here."""
    return key if key.startswith("arn:") else f"arn:aws:kms:{REGION}:{ec2.account}:key/{key.rpartition('/')[2]}"


def _kms(call: ServiceCall, ec2: Ec2) -> Iterator[policies.Request]:
    key = call.parameters.get("KeyId", "")
    yield policies.Request(call.name, _key_arn(ec2, key) if key else "*")


def _arn(ec2: Ec2, resource_type: str, name: str) -> str:
    account = "" if resource_type in _WITHOUT_ACCOUNT else ec2.account
    return f"arn:aws:ec2:{REGION}:{account}:{resource_type}/{name}"


def _cloudwatch(call: ServiceCall, _: Ec2) -> Iterator[policies.Request]:
    namespace = call.parameters.get("Namespace")
    context = {"cloudwatch:namespace": namespace} if call.action == "PutMetricData" and namespace else {}
    yield policies.Request(call.name, "*", context)


def _logs(call: ServiceCall, ec2: Ec2) -> Iterator[policies.Request]:
    parameters = call.parameters
    group, stream = parameters.get("logGroupName", ""), parameters.get("logStreamName")
    tail = f"log-stream:{stream}" if stream else "log-stream:" if call.action == "DescribeLogGroups" else ""
    yield policies.Request(call.name, f"arn:aws:logs:{REGION}:{ec2.account}:log-group:{group}:{tail}")


def _ssm(call: ServiceCall, ec2: Ec2) -> Iterator[policies.Request]:
    parameters = call.parameters
    listed = call.body.get("Names")
    names = [str(each) for each in listed] if isinstance(listed, list) else [parameters.get("Name", "")]
    if call.action in _OF_PARAMETERS and all(names):
        for name in names:
            account = "" if name.startswith("/aws/service/") else ec2.account
            yield policies.Request(call.name, f"arn:aws:ssm:{REGION}:{account}:parameter/{name.removeprefix('/')}")
    elif call.action == "StartSession":
        target = parameters.get("Target", "*")
        # AWS checks the document only where a policy asks for the check ("Start a session with a document").
        checked = {"ssm:SessionDocumentAccessCheck": "true"} if "DocumentName" in parameters else {}
        yield policies.Request(call.name, _arn(ec2, "instance", target), {**_managed_tags(ec2, target), **checked})
        document = parameters.get("DocumentName", "SSM-SessionManagerRunShell")
        account = "" if document.startswith("AWS-") else ec2.account
        yield policies.Request(call.name, f"arn:aws:ssm:{REGION}:{account}:document/{document}")
    elif call.action == "SendCommand":
        document = parameters.get("DocumentName", "*")
        account = "" if document.startswith(("AWS-", "AmazonCloudWatch-Manage")) else ec2.account
        yield policies.Request(call.name, f"arn:aws:ssm:{REGION}:{account}:document/{document}")
        named = call.body.get("InstanceIds")
        for target in named if isinstance(named, list) and named else ["*"]:
            yield policies.Request(call.name, _arn(ec2, "instance", str(target)), _managed_tags(ec2, str(target)))
    elif call.action in _OF_DOCUMENTS:
        yield policies.Request(call.name, f"arn:aws:ssm:{REGION}:{ec2.account}:document/{parameters.get('Name', '*')}")
    elif call.action == "TerminateSession":
        session = f"arn:aws:ssm:{REGION}:{ec2.account}:session/{parameters.get('SessionId', '*')}"
        yield policies.Request(call.name, session, {"aws:username": USER})
    else:
        yield policies.Request(call.name)


def _scheduler(call: ServiceCall, ec2: Ec2) -> Iterator[policies.Request]:
    name = call.parameters.get("Name", "")
    yield policies.Request(call.name, f"arn:aws:scheduler:{REGION}:{ec2.account}:schedule/default/{name}")
    target = call.body.get("Target")
    role = target.get("RoleArn") if isinstance(target, Mapping) else None
    if role:
        yield policies.Request("iam:PassRole", str(role), {"iam:PassedToService": "scheduler.amazonaws.com"})


def _ecs(call: ServiceCall, ec2: Ec2) -> Iterator[policies.Request]:
    resource_type, key = _OF_ECS.get(call.action, ("", ""))
    if not resource_type:
        yield policies.Request(call.name)
        return
    named = call.body.get(key)
    for name in named if isinstance(named, list) else [named]:
        last = str(name or "*").rpartition("/")[2]
        yield policies.Request(call.name, f"arn:aws:ecs:{REGION}:{ec2.account}:{resource_type}/{last}")


_SERVICES: Mapping[str, Callable[[ServiceCall, Ec2], Iterator[policies.Request]]] = {
    "ec2": _ec2,
    "cloudwatch": _cloudwatch,
    "ecs": _ecs,
    "logs": _logs,
    "ssm": _ssm,
    "kms": _kms,
    "scheduler": _scheduler,
}


@dataclass(frozen=True)
class Identity:
    """Who calls: its ARN, as AWS names it in a refusal, and the statements of its policies."""

    arn: str
    statements: Sequence[policies.Statement]


@dataclass
class Authorization:
    """The policies of a region's identities. caller: whoever calls from outside; instance: by its profile."""

    ec2: Ec2
    caller: Sequence[policies.Statement]
    instance: Sequence[policies.Statement]

    @staticmethod
    def of(conditions: Conditions, ec2: Ec2) -> Authorization | None:
        """What the conditions enforce; None where they enforce no policies."""
        names = conditions.policies
        if names is None:
            return None
        caller = [statement for name in names.caller for statement in policies.read_policy(name)]
        return Authorization(ec2, caller, [row for name in names.instance for row in policies.read_policy(name)])

    def refusal(self, call: ServiceCall) -> ErrorAnswer | None:
        """The answer to a call that its caller may not make; None where it may."""
        identity = self.identity(call)
        for request in needed(call, self.ec2):
            if not policies.allows(identity.statements, request):
                return access_denied(call.protocol, _sentence(identity, request))
        return None

    def identity(self, call: ServiceCall) -> Identity:
        instance_id = instance_of_access_key(call.access_key)
        if instance_id is None:
            return Identity(f"arn:aws:iam::{self.ec2.account}:user/{USER}", self.caller)
        role = self.ec2.role_arn(self.ec2.profile).rpartition("/")[2]
        arn = f"arn:aws:sts::{self.ec2.account}:assumed-role/{role}/{instance_id}"
        return Identity(arn, self.instance)


def _sentence(identity: Identity, request: policies.Request) -> str:
    action, resource = request.action, f"on resource: {request.resource}"
    return (
        f"User: {identity.arn} is not authorized to perform: {action} {resource}"
        f" because no identity-based policy allows the {action} action"
    )
