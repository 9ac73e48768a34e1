"""Mistakes of a place, planted one at a time and all together: the preflight finds each, beside the others."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from gpu_ami.cloud import preflight
from gpu_ami.cloud.client import Cloud
from gpu_ami.cloud.findings import Finding, Level
from gpu_ami.cloud.place import Place
from gpu_ami.errors import CloudError, UsageError
from gpu_ami.plan import resolve_source_ami

REGION = "us-east-1"
TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}
IMAGE = {
    "ImageId": "ami-0123456789abcdef0",
    "Name": "base",
    "Architecture": "x86_64",
    "RootDeviceType": "ebs",
    "RootDeviceName": "/dev/xvda",
    "CreationDate": "2099-01-01T00:00:00.000Z",
}
AGENT = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Action": ["cloudwatch:PutMetricData", "logs:*", "ec2:DescribeTags"],
            "Resource": "*",
        }
    ],
}


@dataclass
class Account:
    """An account in which nothing is wrong; a mutation changes it or the place."""

    cloud: Cloud
    vpc: str
    table: str
    plan: dict[str, Any]
    image: dict[str, Any] = field(default_factory=lambda: dict(IMAGE))
    quotas: dict[str, float] = field(default_factory=dict)
    simulated: dict[str, str] = field(default_factory=dict)
    dry_run_refusals: dict[str, str] = field(default_factory=dict)
    reservations: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ec2(self) -> Any:
        return self.cloud.ec2

    @property
    def place(self) -> Place:
        return self.cloud.place

    def change(self, **changes: Any) -> None:
        self.cloud.place = dataclasses.replace(self.place, **changes)

    def policy(self, document: dict[str, Any]) -> None:
        self.cloud.client("iam").put_role_policy(
            RoleName="gpu-ami-node", PolicyName="agent", PolicyDocument=json.dumps(document)
        )

    def findings(self) -> list[Finding]:
        return preflight.examine(self.cloud, self.plan, resolve_source_ami)


@functools.cache
def _session() -> Any:
    """One session for all tests: parsing EC2's model takes most of a test's time."""
    return boto3.Session(region_name=REGION)


class _Wrapped:
    """A boto3 client of which some operations are answered here."""

    def __init__(self, client: Any, **operations: Callable[..., Any]) -> None:
        self._client, self._operations = client, operations

    def __getattr__(self, name: str) -> Any:
        return self._operations.get(name) or getattr(self._client, name)


def _refusal(code: str, operation: str = "Operation") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": f"{operation} was refused"}}, operation)


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    monkeypatch.setattr(Cloud, "session", lambda _: _session())
    with mock_aws():
        cloud = Cloud(Place(name="aws", region=REGION, ssh_interface="public_ip"))
        made = _account(cloud)
        _answer(made, monkeypatch)
        yield made


def _account(cloud: Cloud) -> Account:
    ec2: Any = cloud.ec2
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24", AvailabilityZone="us-east-1a")["Subnet"]["SubnetId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
    iam: Any = cloud.client("iam")
    iam.create_role(RoleName="gpu-ami-node", AssumeRolePolicyDocument=json.dumps(TRUST))
    iam.create_instance_profile(InstanceProfileName="gpu-node")
    iam.add_role_to_instance_profile(InstanceProfileName="gpu-node", RoleName="gpu-ami-node")
    plan = {
        "architecture": "x86_64",
        "build": {"instance_type": "m5.2xlarge", "root_volume_gib": 64},
        "instance_types": [{"name": "p4d.24xlarge", "efa_interfaces": 4}, {"name": "g5.12xlarge", "efa_interfaces": 1}],
        "roles": ["cloudwatch_agent"],
        "source_ami": {"id": "ami-0123456789abcdef0"},
        "telemetry": {"namespace": "CWAgent"},
    }
    account = Account(cloud, vpc, table, plan)
    key = cloud.client("kms").create_key(KeyUsage="ENCRYPT_DECRYPT")["KeyMetadata"]["KeyId"]
    account.change(
        subnet_id=subnet,
        instance_profile="gpu-node",
        kms_key_id=key,
        security_group_ids=(_group(account, vpc, "52.94.76.7/32"),),
    )
    account.policy(AGENT)
    return account


def _answer(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """Service Quotas, the policy simulator, refused dry runs and an image's attributes, none of which moto has."""
    real = Cloud.client
    monkeypatch.setattr(Cloud, "image", lambda _, ami: account.image if ami == account.image["ImageId"] else None)

    def quota(*, QuotaCode: str, **_: Any) -> dict[str, Any]:
        value = account.quotas.get(QuotaCode, 10_000)
        if value < 0:
            raise _refusal("AccessDeniedException")
        return {"Quota": {"Value": float(value)}}

    def simulate(*, ActionNames: list[str], **_: Any) -> dict[str, Any]:
        rows = [(name, account.simulated.get(name, "allowed")) for name in ActionNames]
        return {"EvaluationResults": [{"EvalActionName": name, "EvalDecision": decision} for name, decision in rows]}

    def client(cloud: Cloud, service: str) -> Any:
        own = real(cloud, service)
        overridden = {"service-quotas": {"get_service_quota": quota}, "iam": {"simulate_principal_policy": simulate}}
        return _Wrapped(own, **overridden[service]) if service in overridden else own

    monkeypatch.setattr(Cloud, "client", client)

    def refuse(params: Any, model: Any, **_: Any) -> Any:
        if model.name == "DescribeCapacityReservations":  # moto has none
            return SimpleNamespace(status_code=200), {"CapacityReservations": account.reservations}
        if params.get("body", {}).get("DryRun") and model.name in account.dry_run_refusals:
            raise _refusal(account.dry_run_refusals[model.name], model.name)
        return None

    account.ec2.meta.events.register("before-call.ec2", refuse)


def _group(account: Account, vpc: str, source: str, port: int = 22) -> str:
    made = account.ec2.create_security_group(GroupName=f"g{source}{port}{vpc}", Description="d", VpcId=vpc)["GroupId"]
    if source:
        rule = {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "IpRanges": [{"CidrIp": source}]}
        account.ec2.authorize_security_group_ingress(GroupId=made, IpPermissions=[rule])
    return str(made)


def _other_vpc(account: Account) -> str:
    return str(account.ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"])


def _small_subnet(account: Account) -> None:
    made = account.ec2.create_subnet(VpcId=account.vpc, CidrBlock="10.0.1.0/28", AvailabilityZone="us-east-1a")
    subnet = made["Subnet"]["SubnetId"]
    account.ec2.associate_route_table(RouteTableId=account.table, SubnetId=subnet)
    for _ in range(10):
        account.ec2.create_network_interface(SubnetId=subnet)
    account.change(subnet_id=subnet)


def _in_use(account: Account) -> None:
    """A p4d.24xlarge of somebody else's runs already: 96 vCPUs."""
    account.quotas["L-417A185B"] = 150
    cores = {"CoreCount": 48, "ThreadsPerCore": 2}
    running = {"InstanceType": "p4d.24xlarge", "CpuOptions": cores}
    spot = running | {"InstanceLifecycle": "spot"}
    pages = [{"Reservations": [{"Instances": [running, spot]}]}]
    real = account.ec2

    def get_paginator(name: str) -> Any:
        return SimpleNamespace(paginate=lambda **_: pages) if name == "describe_instances" else real.get_paginator(name)

    account.cloud._ec2 = _Wrapped(real, get_paginator=get_paginator)


def _no_default_route(account: Account) -> None:
    account.ec2.delete_route(RouteTableId=account.table, DestinationCidrBlock="0.0.0.0/0")


def _nat_route(account: Account) -> None:
    _no_default_route(account)
    nat = account.ec2.create_nat_gateway(SubnetId=account.place.subnet_id, ConnectivityType="private")
    account.ec2.create_route(
        RouteTableId=account.table,
        DestinationCidrBlock="0.0.0.0/0",
        NatGatewayId=nat["NatGateway"]["NatGatewayId"],
    )


def _further_subnet(vpc: Callable[[Account], str], zone: str = "us-east-1b") -> Callable[[Account], None]:
    def mutate(account: Account) -> None:
        cidr = "10.9.2.0/24" if vpc is _other_vpc else "10.0.2.0/24"
        made = account.ec2.create_subnet(VpcId=vpc(account), CidrBlock=cidr, AvailabilityZone=zone)["Subnet"][
            "SubnetId"
        ]
        account.change(subnet_ids=(str(account.place.subnet_id), made))

    return mutate


def _reservation(way: str = "reservation", **changes: Any) -> Callable[[Account], None]:
    """A reservation for the plan's p4d.24xlarge."""

    def mutate(account: Account) -> None:
        row = {
            "CapacityReservationId": "cr-00000001", "InstanceType": "p4d.24xlarge", "State": "active",
            "AvailabilityZone": "us-east-1a", "AvailableInstanceCount": 1, "ReservationType": "default",
            **({"ReservationType": "capacity-block"} if way == "capacity-block" else {}), **changes,
        }  # fmt: skip
        account.reservations.append(row)
        account.change(capacity={"p4d*": (f"{way}:cr-00000001",)})

    return mutate


def _egress_closed(account: Account) -> None:
    group = account.place.security_group_ids[0]
    rules = account.ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissionsEgress"]
    account.ec2.revoke_security_group_egress(GroupId=group, IpPermissions=rules)


def _empty_profile(account: Account) -> None:
    account.cloud.client("iam").create_instance_profile(InstanceProfileName="empty")
    account.change(instance_profile="empty")


def _trust_of_lambda(account: Account) -> None:
    document = json.dumps(TRUST).replace("ec2.", "lambda.")
    account.cloud.client("iam").update_assume_role_policy(RoleName="gpu-ami-node", PolicyDocument=document)


def _without(action: str) -> Callable[[Account], None]:
    def mutate(account: Account) -> None:
        deny = {"Effect": "Deny", "Action": action, "Resource": "*"}
        account.policy({"Version": "2012-10-17", "Statement": [*AGENT["Statement"], deny]})

    return mutate


def _other_namespace(account: Account) -> None:
    rest = {"Effect": "Allow", "Action": ["logs:*", "ec2:DescribeTags"], "Resource": "*"}
    condition = {"StringEquals": {"cloudwatch:namespace": "Other"}}
    metrics = {"Effect": "Allow", "Action": "cloudwatch:PutMetricData", "Resource": "*", "Condition": condition}
    account.policy({"Version": "2012-10-17", "Statement": [rest, metrics]})


def _disabled_key(account: Account) -> None:
    account.cloud.client("kms").disable_key(KeyId=account.place.kms_key_id)


def _signing_key(account: Account) -> None:
    made = account.cloud.client("kms").create_key(KeySpec="RSA_2048", KeyUsage="SIGN_VERIFY")
    account.change(kms_key_id=made["KeyMetadata"]["KeyId"])


def _image(**changes: str) -> Callable[[Account], None]:
    return lambda account: account.image.update(changes)


def _set(key: str, value: Any) -> Callable[[Account], None]:
    return lambda account: account.plan.update({key: value})


def _place(**changes: Any) -> Callable[[Account], None]:
    return lambda account: account.change(**changes)


def _own_group(source: str, port: int = 22) -> Callable[[Account], None]:
    return lambda account: account.change(security_group_ids=(_group(account, account.vpc, source, port),))


def _foreign_group(account: Account) -> None:
    account.change(security_group_ids=(_group(account, _other_vpc(account), "52.94.76.7/32"),))


def _no_default_vpc(account: Account) -> None:
    account.change(subnet_id=None)
    for vpc in account.ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]:
        for subnet in account.ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc["VpcId"]]}])["Subnets"]:
            account.ec2.delete_subnet(SubnetId=subnet["SubnetId"])
        account.ec2.delete_vpc(VpcId=vpc["VpcId"])


ERROR, WARNING = Level.ERROR, Level.WARNING
BUILDER = {"root_volume_gib": 64, "instance_type": "m6g.2xlarge"}
MISSING_TYPE = [{"name": "p9.48xlarge", "efa_interfaces": 1}]
ZONED_TYPE = [{"name": "g5.12xlarge", "efa_interfaces": 1}]

# (name, mutation, level, subject, part of what was found)
MISTAKES: list[tuple[str, Callable[[Account], None], Level, str, str]] = [
    ("subnet unknown", _place(subnet_id="subnet-00000000"), ERROR, "subnet_id", "subnet-00000000 is not in us-east-1"),
    ("subnet full", _small_subnet, ERROR, "subnet_id", "1 free addresses"),
    ("no default VPC", _no_default_vpc, ERROR, "subnet_id", "no default VPC"),
    (
        "no way out",
        _no_default_route,
        ERROR,
        "routes",
        "no default route and no VPC endpoint for monitoring, logs, ec2",
    ),
    ("NAT for public addresses", _nat_route, ERROR, "routes", "0.0.0.0/0 to nat-"),
    ("group unknown", _place(security_group_ids=("sg-00000000",)), ERROR, "security_group_ids", "sg-00000000 is not"),
    ("group of another VPC", _foreign_group, ERROR, "security_group_ids", "is in vpc-"),
    ("group without ingress", _own_group(""), ERROR, "SSH ingress", "do not allow TCP 22"),
    ("group for another port", _own_group("52.94.76.7/32", 2222), ERROR, "SSH ingress", "do not allow TCP 22"),
    ("sshd on another port", _place(ssh_port=2022), ERROR, "SSH ingress", "do not allow TCP 2022"),
    ("group open to all", _own_group("0.0.0.0/0"), WARNING, "SSH ingress", "from anywhere"),
    ("private source for a public login", _own_group("10.1.0.0/16"), ERROR, "SSH ingress", "from 10.1.0.0/16"),
    ("no group", _place(security_group_ids=()), WARNING, "security_group_ids", "the VPC's default group sg-"),
    ("default group closed", _place(security_group_ids=()), ERROR, "SSH ingress", "do not allow TCP 22"),
    ("no egress", _egress_closed, ERROR, "egress", "do not allow TCP 443 out"),
    ("session manager", _place(ssh_interface="session_manager"), WARNING, "ssh_interface", "cannot log in"),
    ("no profile", _place(instance_profile=None), ERROR, "instance_profile", "can publish nothing"),
    ("profile unknown", _place(instance_profile="nobody"), ERROR, "instance_profile", "nobody does not exist"),
    ("profile without role", _empty_profile, ERROR, "instance_profile", "empty has no role"),
    ("trust policy", _trust_of_lambda, ERROR, "role gpu-ami-node of gpu-node", "does not name ec2.amazonaws.com"),
    (
        "no PutMetricData",
        _without("cloudwatch:Put*"),
        ERROR,
        "role gpu-ami-node of gpu-node",
        "cloudwatch:PutMetricData is not allowed",
    ),
    (
        "no PutLogEvents",
        _without("logs:PutLogEvents"),
        ERROR,
        "role gpu-ami-node of gpu-node",
        "logs:PutLogEvents is not allowed",
    ),
    ("no DescribeTags", _without("ec2:*"), ERROR, "role gpu-ami-node of gpu-node", "ec2:DescribeTags is not allowed"),
    ("namespace", _other_namespace, ERROR, "role gpu-ami-node of gpu-node", "not allowed for namespace CWAgent"),
    ("key unknown", _place(kms_key_id="alias/nothing"), ERROR, "kms_key_id", "alias/nothing is not in us-east-1"),
    ("key disabled", _disabled_key, ERROR, "kms_key_id", "is Disabled"),
    ("key for signatures", _signing_key, ERROR, "kms_key_id", "RSA_2048 for SIGN_VERIFY"),
    ("source AMI unknown", _set("source_ami", {"id": "ami-00000000"}), ERROR, "source_ami", "ami-00000000 (id) is not"),
    ("source AMI of another architecture", _image(Architecture="arm64"), ERROR, "source_ami", ": arm64"),
    ("source AMI not on EBS", _image(RootDeviceType="instance-store"), ERROR, "source_ami", "instance-store"),
    ("source AMI old", _image(CreationDate="2020-01-01T00:00:00.000Z"), WARNING, "source_ami", "created 2020-01-01"),
    (
        "source AMI deprecated",
        _image(DeprecationTime="2024-06-30T00:00:00.000Z"),
        WARNING,
        "source_ami",
        "deprecated since 2024-06-30",
    ),
    ("builder of another architecture", _set("build", BUILDER), ERROR, "architecture", "builder m6g.2xlarge is arm64"),
    ("type unknown", _set("instance_types", MISSING_TYPE), ERROR, "offerings", "does not offer p9.48xlarge"),
    (
        "further subnet unknown",
        lambda account: account.change(subnet_ids=(str(account.place.subnet_id), "subnet-00000000")),
        ERROR,
        "subnet_ids",
        "subnet-00000000 is not in us-east-1",
    ),
    ("subnet of another VPC", _further_subnet(_other_vpc), ERROR, "subnet_ids", "is in vpc-"),
    (
        "reservation unknown",
        _place(capacity={"*": ("reservation:cr-00000009",)}),
        ERROR,
        "capacity",
        "cr-00000009 is not in us-east-1",
    ),
    ("reservation of another type", _reservation(InstanceType="p5.48xlarge"), ERROR, "capacity", "is for p5.48xlarge"),
    ("reservation in another zone", _reservation(AvailabilityZone="us-east-1f"), ERROR, "capacity", "is in us-east-1f"),
    ("reservation cancelled", _reservation(State="cancelled"), ERROR, "capacity", "is cancelled"),
    ("reservation full", _reservation(AvailableInstanceCount=0), WARNING, "capacity", "no free instance"),
    ("Capacity Block expired", _reservation("capacity-block", State="expired"), ERROR, "capacity", "is expired"),
    ("Capacity Block not begun", _reservation("capacity-block", State="scheduled"), ERROR, "capacity", "is scheduled"),
    (
        "Capacity Block taken for a reservation",
        _reservation(ReservationType="capacity-block"),
        ERROR,
        "capacity",
        "cr-00000001 is a Capacity Block",
    ),
    (
        "Capacity Block ends soon",
        _reservation("capacity-block", EndDate=datetime.now(UTC) + timedelta(hours=1)),
        WARNING,
        "capacity",
        "ends in 5",
    ),
    (
        "quota too small",
        lambda account: account.quotas.update({"L-417A185B": 64}),
        ERROR,
        "quota L-417A185B",
        "Running On-Demand P instances: 64 vCPUs",
    ),
    ("quota in use", _in_use, ERROR, "quota L-417A185B", "150 vCPUs, 96 in use"),
    (
        "CreateImage not allowed",
        lambda account: account.simulated.update({"ec2:CreateImage": "implicitDeny"}),
        WARNING,
        "permissions",
        "not allowed on every resource: ec2:CreateImage",
    ),
    (
        "quota unreadable",
        lambda account: account.quotas.update({"L-DB2E81BA": -1}),
        WARNING,
        "quota L-DB2E81BA",
        "not examined: AccessDeniedException",
    ),
    (
        "RunInstances refused",
        lambda account: account.dry_run_refusals.update({"RunInstances": "UnauthorizedOperation"}),
        ERROR,
        "dry run of RunInstances p4d.24xlarge",
        "UnauthorizedOperation",
    ),
    (
        "CreateKeyPair throttled",
        lambda account: account.dry_run_refusals.update({"CreateKeyPair": "RequestLimitExceeded"}),
        WARNING,
        "dry run of CreateKeyPair",
        "not examined: RequestLimitExceeded",
    ),
    (
        "action denied explicitly",
        lambda account: account.simulated.update({"ec2:DescribeImages": "explicitDeny"}),
        ERROR,
        "permissions",
        "ec2:DescribeImages is denied explicitly",
    ),
    (
        "action not allowed",
        lambda account: account.simulated.update({"ec2:DescribeVolumes": "implicitDeny"}),
        WARNING,
        "permissions",
        "not allowed on every resource: ec2:DescribeVolumes",
    ),
]


def matching(findings: list[Finding], level: Level, subject: str, text: str) -> list[Finding]:
    return [found for found in findings if (found.level, found.subject) == (level, subject) and text in found.found]


def test_nothing_is_found_in_a_good_place(account: Account) -> None:
    findings = account.findings()
    assert [str(found) for found in findings if found.level is not Level.OK] == []
    assert {found.subject for found in findings} >= {
        "identity", "credentials", "subnet_id", "routes", "SSH ingress", "role gpu-ami-node of gpu-node", "kms_key_id",
        "source_ami", "offerings", "quota L-417A185B", "permissions", "dry run of RunInstances m5.2xlarge",
    }  # fmt: skip
    assert preflight.exit_code(findings) == 0
    preflight.require(findings)


@pytest.mark.parametrize(
    ("mutation", "level", "subject", "text"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES]
)
def test_planted_mistake_is_found(
    account: Account, mutation: Callable[[Account], None], level: Level, subject: str, text: str
) -> None:
    mutation(account)
    findings = account.findings()
    found = matching(findings, level, subject, text)
    assert len(found) == 1, [str(finding) for finding in findings]
    assert level is not ERROR or found[0].expected
    assert preflight.exit_code(findings) in ((2, 4) if level is ERROR else (0, 2))


# Mistakes that one place can have at the same time.
TOGETHER = (
    "subnet full", "no way out", "group without ingress", "no egress", "trust policy", "no PutLogEvents",
    "key disabled", "source AMI of another architecture", "builder of another architecture",
    "quota too small", "quota unreadable", "RunInstances refused", "CreateKeyPair throttled",
    "action denied explicitly", "action not allowed",
)  # fmt: skip


def test_all_mistakes_are_found_in_one_go(account: Account) -> None:
    rows = [row for row in MISTAKES if row[0] in TOGETHER]
    assert len(rows) == len(TOGETHER)
    for row in sorted(rows, key=lambda row: row[0] == "no egress"):  # of the group that the place ends up with
        row[1](account)
    findings = account.findings()
    assert [row[0] for row in rows if not matching(findings, *row[2:])] == []
    with pytest.raises(UsageError) as raised:
        preflight.require(findings)
    assert sum("expected" in line for line in raised.value.details) >= 11


def test_refused_credentials_are_the_only_finding(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    def client(_cloud: Cloud, _service: str) -> Any:
        def refuse() -> None:
            raise _refusal("ExpiredToken", "GetCallerIdentity")

        return _Wrapped(None, get_caller_identity=refuse)

    monkeypatch.setattr(Cloud, "client", client)
    (found,) = account.findings()
    assert (found.level, found.subject, found.refused) == (ERROR, "identity", True)
    assert "ExpiredToken" in found.found and "log in again" in found.remedy
    assert preflight.exit_code([found]) == 4
    with pytest.raises(CloudError):
        preflight.require([found])


def test_a_refused_look_up_is_a_warning(account: Account) -> None:
    def refuse(**_: Any) -> None:
        raise _refusal("UnauthorizedOperation", "DescribeRouteTables")

    account.cloud._ec2 = _Wrapped(account.ec2, describe_route_tables=refuse)
    findings = account.findings()
    assert matching(findings, WARNING, "routes", "not examined: looking up routes: UnauthorizedOperation")
    assert preflight.exit_code(findings) == 0


def test_without_a_plan_the_place_alone_is_examined(account: Account) -> None:
    findings = preflight.examine(account.cloud)
    assert {found.level for found in findings} == {Level.OK}
    assert not [found for found in findings if found.subject in ("offerings", "source_ami", "architecture")]


def test_summary_counts_each_level() -> None:
    findings = [Finding(Level.OK, "a", "b"), Finding(ERROR, "a", "b"), Finding(Level.OK, "c", "d")]
    assert preflight.summary(findings) == "1 error, 0 warnings, 2 ok"


def test_private_login_needs_an_address_for_each_interface(account: Account) -> None:
    account.change(ssh_interface="private_ip")
    account.plan["instance_types"] = [{"name": "p4d.24xlarge", "efa_interfaces": 300}]
    assert matching(account.findings(), ERROR, "subnet_id", "free addresses")
