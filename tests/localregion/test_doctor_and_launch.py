"""What doctor says of a place in an account, and what builder and machine do there: they agree, row by row.

An error of doctor is a launch that fails. A launch that fails is one that doctor names, as an error or, where the place
alone cannot tell, a warning.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpu_ami.cloud import Cloud, Launch, Place, preflight, runs
from gpu_ami.cloud.place import Credentials, place_of, with_keys
from gpu_ami.cloud.policies import read_policy
from gpu_ami.cloud.preflight import identity
from gpu_ami.cloud.preflight.findings import Scope
from gpu_ami.plan import resolve_source_ami
from localregion.backends import ZONE
from tests.localregion.conftest import PUBLIC_KEY, Region, World

pytestmark = pytest.mark.slow

RUN = "20261128-000000-abcdef"
TAGS = {runs.TAG_RUN: RUN}
PLAN: dict[str, Any] = {
    "architecture": "x86_64",
    "kernel": {"version": "6.1"},
    "roles": ["cloudwatch_agent"],
    "source_ami": {"owner": "136693071363", "name": "debian-12-*"},
    "build": {"root_volume_gib": 40, "instance_type": "m5.xlarge"},
    "instance_types": [{"name": "g5.12xlarge"}],
    "telemetry": {"namespace": "CWAgent"},
}


@dataclass
class Account:
    """A region under conditions in which nothing is wrong with a place, unless `change` makes it so."""

    world: World
    cloud: Cloud
    plan: dict[str, Any] = field(default_factory=lambda: {**PLAN})
    sets_imds_v2: bool = True

    @property
    def place(self) -> Place:
        return self.cloud.place

    @property
    def backend(self) -> Any:
        return self.world.ec2.backend

    def at(self, **changes: Any) -> None:
        self.cloud.place = with_keys(self.place, changes)


def iam_of(account: str) -> Any:
    """moto's IAM, past the policies that the region enforces."""
    from moto.iam.models import iam_backends

    return iam_backends[account]["aws"]


def account_of(world: World, endpoint: str) -> Account:
    """With a way out, a role for the agent, and SSH from this machine."""
    ec2, backend = world.ec2, world.ec2.backend
    gateway = backend.create_internet_gateway()
    backend.attach_internet_gateway(gateway.id, ec2.vpc_id)
    table = next(table for table in backend.route_tables.values() if table.vpc_id == ec2.vpc_id)
    backend.create_route(table.id, "0.0.0.0/0", None, gateway_id=gateway.id)
    document = json.dumps({"Version": "2012-10-17", "Statement": read_policy("instance")})
    iam_of(ec2.account).put_role_policy(ec2.profile, "agent", document)
    keys = {
        "name": "aws", "region": "us-east-1", "endpoint": endpoint, "credentials": Credentials("local", "local"),
        "ssh_interface": "private_ip", "subnet_ids": (ec2.subnet_id,), "security_group_ids": (ec2.group_id,),
        "instance_profile": ec2.profile,
    }  # fmt: skip
    return Account(world, Cloud(place_of(keys)))


def diagnosed(account: Account) -> list[preflight.Finding]:
    return preflight.examine(account.cloud, account.plan, resolve_source_ami, sets_imds_v2=lambda: account.sets_imds_v2)


def launched(account: Account) -> str:
    """Launches the builder as Packer does and a machine as the proof does; what failed, or ""."""
    cloud, world = account.cloud, account.world
    try:
        ami = resolve_source_ami(cloud, account.plan)["id"]
        cloud.import_key("gpu-ami-k", PUBLIC_KEY, TAGS)
        scope = Scope(cloud, account.plan, resolve_source_ami, sets_imds_v2=lambda: account.sets_imds_v2)
        request: Any = identity.builder_request(scope, ami, account.sets_imds_v2)
        names = [cloud.ec2.run_instances(**request)["Instances"][0]["InstanceId"]]
        for row in account.plan["instance_types"]:
            names.append(cloud.launch(Launch(ami, row["name"], "gpu-ami-k", TAGS, "")))
        world.settle()
        for name in names:
            cloud.wait_for_state(name, "running", 10)
    except Exception as error:  # what botocore says of a call that Packer makes, too
        return f"{error}: {'; '.join(getattr(error, 'details', ()))}"
    return ""


def _nothing(_: Account) -> None:
    pass


def _at(**changes: Any) -> Callable[[Account], None]:
    return lambda account: account.at(**changes)


def _plan(**changes: Any) -> Callable[[Account], None]:
    return lambda account: account.plan.update(changes)


def _old_packer(account: Account) -> None:
    account.sets_imds_v2 = False


def _own_key(state: str, usage: str = "ENCRYPT_DECRYPT") -> Callable[[Account], None]:
    def change(account: Account) -> None:
        arn = account.world.ec2.make_key(state)
        from moto.kms.models import kms_backends

        kms_backends[account.world.ec2.account]["us-east-1"].describe_key(arn).key_usage = usage
        account.at(kms_key_id=arn)

    return change


def _default_key(state: str) -> Callable[[Account], None]:
    def change(account: Account) -> None:
        account.world.ec2.ebs_default_key = account.world.ec2.make_key(state)

    return change


def _other_vpc(account: Account) -> Any:
    return account.backend.create_vpc("10.9.0.0/16")


def _foreign_group(account: Account) -> None:
    group = account.backend.create_security_group("other", "other", vpc_id=_other_vpc(account).id)
    account.at(security_group_ids=(group.id,))


def _foreign_subnet(account: Account) -> None:
    subnet = account.backend.create_subnet(_other_vpc(account).id, "10.9.1.0/24", availability_zone=ZONE)
    account.at(subnet_ids=(subnet.id,))


def _full_subnet(account: Account) -> None:
    for subnets in account.backend.subnets.values():
        for subnet in subnets.values():
            subnet._available_ip_addresses = 0


def _empty_profile(account: Account) -> None:
    iam_of(account.world.ec2.account).create_instance_profile("empty", "/", [])
    account.at(instance_profile="empty")


SPOT, BOTH = {"*": ("spot",)}, {"*": ("spot", "on-demand")}
ERROR, WARNING, FINE = preflight.Level.ERROR, preflight.Level.WARNING, preflight.Level.OK
# Name, conditions, what differs; what doctor says: level, subject, text; what the launch says ("": it runs).
ROWS: list[tuple[str, str, Callable[[Account], None], preflight.Level, str, str, str]] = [
    ("an ordinary account", "", _nothing, FINE, "", "", ""),
    ("rights of iam/ alone", "iam-enforced", _nothing, FINE, "", "", ""),
    ("a new account", "new-account", _nothing, FINE, "identity", "AWSReservedSSO_GpuImages", ""),
    ("a new account, its key", "new-account", _nothing, FINE, "kms_key_id", "the account's default key for EBS", ""),
    ("IMDSv2 demanded, Packer 1.6.6", "new-account", _old_packer, ERROR, "dry run of RunInstances m5.xlarge",
     "UnauthorizedOperation", "service control policy"),
    ("Packer 1.6.6 where nothing is demanded", "", _old_packer, FINE, "builder's metadata service", "", ""),
    ("the first Spot Instance", "new-account", _at(capacity=SPOT), ERROR, "spot",
     "the account has no AWSServiceRoleForEC2Spot", "ServiceLinkedRoleCreationNotPermitted"),
    ("Spot or On-Demand in a new account", "new-account", _at(capacity=BOTH), WARNING, "spot",
     "the account has no AWSServiceRoleForEC2Spot", ""),
    ("Spot", "", _at(capacity=SPOT), FINE, "spot", "AWSServiceRoleForEC2Spot exists", ""),
    ("Spot and a key without a grant", "", lambda a: (_own_key("enabled")(a), _at(capacity=SPOT)(a)), WARNING, "spot",
     "no grant lets AWSServiceRoleForEC2Spot use", ""),
    ("the default key is disabled", "", _default_key("disabled"), ERROR, "kms_key_id", "is Disabled",
     "Client.InternalError"),
    ("a default key", "", _default_key("enabled"), FINE, "kms_key_id", "is enabled", ""),
    ("a key of the place", "iam-enforced", _own_key("enabled"), FINE, "kms_key_id", "is enabled", ""),
    ("the place's key is disabled", "", _own_key("disabled"), ERROR, "kms_key_id", "is Disabled",
     "Client.InternalError"),
    ("the place's key signs", "", _own_key("enabled", "SIGN_VERIFY"), ERROR, "kms_key_id", "SIGN_VERIFY",
     "Client.InternalError"),
    ("no such key", "", _at(kms_key_id="0b0e0000-0000-0000-0000-000000000000"), ERROR, "kms_key_id",
     "is not in us-east-1", "Client.InternalError"),
    ("no such subnet", "", _at(subnet_ids=("subnet-00000000000000000",)), ERROR, "subnet_id", "is not in us-east-1",
     "InvalidSubnetID.NotFound"),
    ("no such group", "", _at(security_group_ids=("sg-00000000000000000",)), ERROR, "security_group_ids",
     "is not in us-east-1", "InvalidGroup.NotFound"),
    ("a group of another VPC", "", _foreign_group, ERROR, "security_group_ids", "the subnet's VPC",
     "InvalidParameter"),
    ("a subnet of another VPC", "", _foreign_subnet, ERROR, "security_group_ids", "the subnet's VPC",
     "InvalidParameter"),
    ("a full subnet", "", _full_subnet, ERROR, "subnet_id", "0 free addresses", "InsufficientFreeAddressesInSubnet"),
    ("no such profile", "", _at(instance_profile="gone"), ERROR, "instance_profile", "gone does not exist",
     "Invalid IAM Instance Profile"),
    ("a profile without a role", "", _empty_profile, ERROR, "instance_profile", "empty has no role",
     "has no associated IAM Roles"),
    ("no such source AMI", "", _plan(source_ami={"owner": "136693071363", "name": "debian-99-*"}), ERROR, "source_ami",
     "", "debian-99"),
    ("a source AMI by id", "", _plan(source_ami={"id": "ami-0000000000000000b"}), FINE, "source_ami", "", ""),
    ("a builder of another architecture", "", _plan(build={"root_volume_gib": 40, "instance_type": "m6g.xlarge"}),
     ERROR, "architecture", "m6g.xlarge is arm64", "architecture"),
    ("no such type", "", _plan(instance_types=[{"name": "g99.xlarge"}]), ERROR, "offerings", "g99.xlarge",
     "InvalidInstanceType"),
    ("no right to launch", "no-launch-permission", _nothing, ERROR, "dry run of RunInstances g5.12xlarge",
     "UnauthorizedOperation", "UnauthorizedOperation"),
    ("a zone without the type", "unsupported-zone", _nothing, ERROR, "dry run of RunInstances g5.12xlarge",
     "Unsupported", "Unsupported"),
    ("a quota that is used up", "vcpu-quota", _nothing, ERROR, "dry run of RunInstances g5.12xlarge",
     "VcpuLimitExceeded", "VcpuLimitExceeded"),
    ("a quota of Spot that is used up", "spot-quota", _at(capacity=SPOT), ERROR, "dry run of RunInstances g5.12xlarge",
     "MaxSpotInstanceCountExceeded", "MaxSpotInstanceCountExceeded"),
    ("no such reservation", "", _at(capacity={"*": ("reservation:cr-00000000000000000",)}), ERROR, "capacity",
     "is not in us-east-1", "InvalidCapacityReservationId.NotFound"),
    ("no such Capacity Block", "", _at(capacity={"g5*": ("capacity-block:cr-00000000000000000",)}), ERROR, "capacity",
     "is not in us-east-1", "InvalidCapacityReservationId.NotFound"),
    ("telemetry is not readable", "no-telemetry-permission", _nothing, FINE, "", "", ""),
    ("slow and late", "aws-like", _nothing, FINE, "", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("conditions", "change", "level", "subject", "text", "failure"),
    [row[1:] for row in ROWS],
    ids=[row[0] for row in ROWS],
)
def test_they_agree(
    region: Region,
    monkeypatch: pytest.MonkeyPatch,
    conditions: str,
    change: Callable[[Account], None],
    level: preflight.Level,
    subject: str,
    text: str,
    failure: str,
) -> None:
    world, endpoint = region(conditions)

    def sleep(seconds: float) -> None:
        world.clock.now += max(seconds, 0.5)
        world.settle()

    monkeypatch.setattr("time.sleep", sleep)
    account = account_of(world, endpoint)
    change(account)
    findings = diagnosed(account)
    errors = [str(finding) for finding in findings if finding.level is ERROR]
    said = [
        one
        for one in findings
        if one.level is level and subject in one.subject and text in f"{one.found}; {one.expected}"
    ]
    assert said or not subject, [str(finding) for finding in findings if finding.level is not FINE]
    assert bool(errors) is (level is ERROR), errors
    what = launched(account)
    assert bool(what) is bool(failure) and failure in what, what
    assert bool(what) is bool(errors)
