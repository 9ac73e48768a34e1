"""An account of AWS in which nothing is wrong with a place, and what moto does not answer about it."""

from __future__ import annotations

import functools
import json
import shutil
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from gpu_ami.cloud import preflight
from gpu_ami.cloud.client import Cloud
from gpu_ami.cloud.place import Place, with_keys
from gpu_ami.cloud.policies import read_policy
from gpu_ami.cloud.preflight.findings import Finding
from gpu_ami.plan import resolve_source_ami
from localregion.api import protocol
from tests.aws_requests import Checked
from validator import aws

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


SETTINGS: dict[str, dict[str, Any]] = {
    "GetEbsDefaultKmsKeyId": {"KmsKeyId": "alias/aws/ebs"},
    "DescribeVpcBlockPublicAccessOptions": {"VpcBlockPublicAccessOptions": {"InternetGatewayBlockMode": "off"}},
    "DescribeVpcBlockPublicAccessExclusions": {"VpcBlockPublicAccessExclusions": []},
    "GetAllowedImagesSettings": {"State": "disabled"},
    "GetImageBlockPublicAccessState": {"ImageBlockPublicAccessState": "block-new-sharing"},
}
DEAD_MAN = "arn:aws:iam::123456789012:role/gpu-ami-dead-man"
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
    # Settings of the account that moto has not, by the call that reads them.
    settings: dict[str, dict[str, Any]] = field(default_factory=lambda: dict(SETTINGS))

    @property
    def ec2(self) -> Any:
        return self.cloud.ec2

    @property
    def place(self) -> Place:
        return self.cloud.place

    def change(self, **changes: Any) -> None:
        self.cloud.place = with_keys(self.place, changes)

    def policy(self, document: dict[str, Any]) -> None:
        self.cloud.client("iam").put_role_policy(
            RoleName="gpu-ami-node", PolicyName="agent", PolicyDocument=json.dumps(document)
        )

    def findings(self) -> list[Finding]:
        return preflight.examine(self.cloud, self.plan, resolve_source_ami)


@functools.cache
def session() -> Any:
    """One session for all tests, with Cloud's parsers: parsing EC2's model takes most of a test's time."""
    return boto3.Session(botocore_session=aws.session(), region_name=REGION)


class Wrapped:
    """A boto3 client of which some operations are answered here."""

    def __init__(self, client: Any, service: str = "ec2", /, **operations: Any) -> None:
        self._client, self._own, self._names = client, Checked(service, **operations), operations.keys()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own if name in self._names else self._client, name)

    def get_paginator(self, name: str) -> Any:
        return (self._own if name in self._names else self._client).get_paginator(name)


def refusal(code: str, operation: str = "Operation") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": f"{operation} was refused"}}, operation)


def good_account(cloud: Cloud) -> Account:
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
    trust = json.dumps(TRUST).replace("ec2.", "scheduler.")
    iam.create_role(RoleName="gpu-ami-dead-man", AssumeRolePolicyDocument=trust)
    end = json.dumps({"Version": "2012-10-17", "Statement": read_policy("dead-man")})
    iam.put_role_policy(RoleName="gpu-ami-dead-man", PolicyName="end", PolicyDocument=end)
    plan = {
        "architecture": "x86_64",
        "build": {"instance_type": "m5.2xlarge", "root_volume_gib": 64},
        "instance_types": [{"name": "p4d.24xlarge", "efa_interfaces": 4}, {"name": "g5.12xlarge", "efa_interfaces": 1}],
        "roles": ["cloudwatch_agent"],
        "kernel": {"version": "6.12", "follows": ["6.1", "6.12"]},
        "source_ami": {"id": "ami-0123456789abcdef0"},
        "telemetry": {
            "namespace": "CWAgent",
            "raw_log_group": "/ec2/accelerated/accel-event-log",
            "json_log_group": "/ec2/accelerated/accel-event-json",
        },
    }
    account = Account(cloud, vpc, table, plan)
    key = cloud.client("kms").create_key(KeyUsage="ENCRYPT_DECRYPT")["KeyMetadata"]["KeyId"]
    account.change(
        subnet_ids=(subnet,),
        instance_profile="gpu-node",
        kms_key_id=key,
        dead_man_role=DEAD_MAN,
        security_group_ids=(security_group(account, vpc, "52.94.76.7/32"),),
    )
    account.policy(AGENT)
    return account


def answer(content: dict[str, Any]) -> tuple[SimpleNamespace, dict[str, Any]]:
    """What an endpoint of AWS answers: every success has a request id."""
    return SimpleNamespace(status_code=200), {**content, "ResponseMetadata": {"RequestId": "1"}}


def answer_what_moto_lacks(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """Service Quotas, the policy simulator, refused dry runs and an image's attributes, none of which moto has."""
    real = Cloud.client
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "session-manager-plugin" else which(name))
    monkeypatch.setattr(Cloud, "image", lambda _, ami: account.image if ami == account.image["ImageId"] else None)

    def quota(**asked: Any) -> dict[str, Any]:
        value = account.quotas.get(asked["QuotaCode"], 10_000)
        if value < 0:
            raise refusal("AccessDeniedException")
        return {"Quota": {"Value": float(value)}}

    def simulate(**asked: Any) -> dict[str, Any]:
        rows = [(name, account.simulated.get(name, "allowed")) for name in asked["ActionNames"]]
        return {"EvaluationResults": [{"EvalActionName": name, "EvalDecision": decision} for name, decision in rows]}

    def client(cloud: Cloud, service: str) -> Any:
        own = real(cloud, service)
        overridden = {"service-quotas": {"get_service_quota": quota}, "iam": {"simulate_principal_policy": simulate}}
        return Wrapped(own, service, **overridden[service]) if service in overridden else own

    monkeypatch.setattr(Cloud, "client", client)

    def refuse(params: Any, model: Any, **_: Any) -> Any:
        body = params.get("body", {})
        assert list(protocol.mistakes(model.name, body)) == [], f"{model.name}: EC2 refuses {body}"
        if model.name == "DescribeCapacityReservations":  # moto has none
            named = [value for key, value in body.items() if key.startswith("CapacityReservationId.")]
            rows = [row for row in account.reservations if row["CapacityReservationId"] in named]
            if len(rows) < len(named):
                raise refusal("InvalidCapacityReservationId.NotFound", model.name)
            return answer({"CapacityReservations": rows})
        if model.name == "DescribeInstanceConnectEndpoints":
            row = {"InstanceConnectEndpointId": "eice-00000001", "State": "create-complete"}
            return answer({"InstanceConnectEndpoints": [row]})
        if model.name in account.settings:
            return answer(account.settings[model.name])
        if params.get("body", {}).get("DryRun") and model.name in account.dry_run_refusals:
            raise refusal(account.dry_run_refusals[model.name], model.name)
        return None

    account.ec2.meta.events.register("before-call.ec2", refuse)


def security_group(account: Account, vpc: str, source: str, port: int = 22) -> str:
    made = account.ec2.create_security_group(GroupName=f"g{source}{port}{vpc}", Description="d", VpcId=vpc)["GroupId"]
    if source:
        rule = {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "IpRanges": [{"CidrIp": source}]}
        account.ec2.authorize_security_group_ingress(GroupId=made, IpPermissions=[rule])
    return str(made)


def other_vpc(account: Account) -> str:
    return str(account.ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"])
