"""Preflight of the place: instance types, quotas, network."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud import Capacity, Login, Network, Place
from gpu_ami.cloud.preflight import network, resources
from gpu_ami.cloud.preflight.findings import Level
from gpu_ami.cloud.preflight.resources import quota_of, reservations
from gpu_ami.recipes import load_facts
from tests.aws_requests import Checked


@pytest.mark.parametrize(
    ("instance_type", "code"),
    [
        ("p6e-gb200.36xlarge", "L-417A185B"),
        ("p4d.24xlarge", "L-417A185B"),
        ("g6f.large", "L-DB2E81BA"),
        ("gr6.4xlarge", "L-DB2E81BA"),
        ("trn1n.32xlarge", "L-2C3B7624"),
        ("inf2.xlarge", "L-1945791B"),
        ("t3.micro", "L-1216C47A"),
        ("im4gn.large", "L-1216C47A"),
        ("dl1.24xlarge", "L-6E869C2A"),
        ("mac1.metal", ""),
    ],
)
def test_quota_of_an_instance_type(instance_type: str, code: str) -> None:
    quota = quota_of(instance_type)
    assert (quota.code if quota else "") == code


@pytest.mark.parametrize(
    ("instance_type", "kind", "code"),
    [
        ("p4d.24xlarge", "spot", "L-7212CCBC"),
        ("p5en.48xlarge", "spot", "L-C4BD4855"),
        ("g6e.xlarge", "spot", "L-3819A6DF"),
        ("trn2.48xlarge", "spot", "L-6B0D517C"),
        ("p6-b200.48xlarge", "spot", ""),  # not established which
        ("p5.48xlarge", "reservation", "L-417A185B"),
        ("p5.48xlarge", "capacity-block", ""),
    ],
)
def test_quota_depends_on_how_capacity_is_bought(instance_type: str, kind: str, code: str) -> None:
    quota = quota_of(instance_type, kind)
    assert (quota.code if quota else "") == code


def _quotas(ways: tuple[str, ...], limits: dict[str, float]) -> list[tuple[Level, str]]:
    """Findings of one p5.48xlarge (192 vCPUs) that a place buys in these ways; limits: by quota code."""
    types = {"InstanceTypes": [{"InstanceType": "p5.48xlarge", "VCpuInfo": {"DefaultVCpus": 192}}]}
    pages = {"describe_instance_types": [types], "describe_instances": [{"Reservations": []}]}
    ec2 = Checked("ec2", **pages)
    service = Checked(
        "service-quotas", get_service_quota=lambda **asked: {"Quota": {"Value": limits[asked["QuotaCode"]]}}
    )
    scope: Any = SimpleNamespace(
        place=Place("aws", "us-east-1", capacity=Capacity({"*": ways})), ec2=ec2,
        cloud=SimpleNamespace(client=lambda _: service),
        instance_types=["p5.48xlarge"], proven=[{"name": "p5.48xlarge"}], builder="", nodes=1,
    )  # fmt: skip
    return [(finding.level, finding.subject) for finding in resources.quotas(scope)]


@pytest.mark.parametrize(
    ("ways", "limits", "findings"),
    [
        (("on-demand",), {"L-417A185B": 0.0}, [(Level.ERROR, "quota L-417A185B")]),
        (("spot",), {"L-C4BD4855": 192.0}, [(Level.OK, "quota L-C4BD4855")]),
        (("spot",), {"L-C4BD4855": 0.0}, [(Level.ERROR, "quota L-C4BD4855")]),
        (("spot", "on-demand"), {"L-C4BD4855": 0.0}, [(Level.WARNING, "quota L-C4BD4855")]),
        (("capacity-block:cr-00000001",), {}, [(Level.OK, "quota of p5.48xlarge")]),
        (("reservation:cr-00000001",), {"L-417A185B": 192.0}, [(Level.OK, "quota L-417A185B")]),
    ],
)
def test_the_quota_of_the_way_is_asked(
    ways: tuple[str, ...], limits: dict[str, float], findings: list[tuple[Level, str]]
) -> None:
    assert _quotas(ways, limits) == findings


def test_every_instance_type_of_the_facts_has_a_quota() -> None:
    assert [name for name in load_facts().instance_types["instance_types"] if not quota_of(name)] == []


# Reservations of a place; each mistake beside the others is in test_examination.py.


def scope(ways: tuple[str, ...], rows: list[dict[str, Any]]) -> Any:
    subnets = [{"SubnetId": "subnet-0000000a", "AvailabilityZone": "us-east-1a"}]
    ec2 = Checked(
        "ec2", describe_capacity_reservations={"CapacityReservations": rows}, describe_subnets={"Subnets": subnets}
    )
    place = Place(
        "aws", "us-east-1", network=Network(subnet_ids=("subnet-0000000a",)), capacity=Capacity(ways={"*": ways})
    )
    return SimpleNamespace(place=place, ec2=ec2, instance_types=["p5.48xlarge"])


ROW = {"CapacityReservationId": "cr-00000001", "InstanceType": "p5.48xlarge", "AvailabilityZone": "us-east-1a"}


def test_a_usable_reservation_is_ok() -> None:
    (finding,) = reservations(scope(("reservation:cr-00000001", "spot"), [ROW | {"State": "active"}]))
    assert (finding.level, finding.found) == (Level.OK, "reservation:cr-00000001: p5.48xlarge in us-east-1a")


def test_without_reservations_nothing_is_asked() -> None:
    assert list(reservations(SimpleNamespace(place=Place("aws", "us-east-1"), instance_types=[]))) == []  # type: ignore[arg-type]


# Who may log in, as a preflight shows it; each mistake beside the others is in test_examination.py.


def rule(**sources: Any) -> dict[str, Any]:
    return {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, **sources}


@pytest.mark.parametrize(
    ("rules", "level", "found"),
    [
        ([], Level.ERROR, "sg-1 do not allow TCP 22"),
        ([rule(IpRanges=[{"CidrIp": "52.94.76.7/32"}])], Level.OK, "sg-1 allow TCP 22 from 52.94.76.7/32"),
        ([rule(IpRanges=[{"CidrIp": "0.0.0.0/0"}])], Level.WARNING, "sg-1 allow TCP 22 from anywhere"),
        ([rule(PrefixListIds=[{"PrefixListId": "pl-1"}])], Level.OK, "sg-1 allow TCP 22 from pl-1"),
        ([rule(UserIdGroupPairs=[{"GroupId": "sg-9"}])], Level.WARNING, "from members of sg-9 only"),
    ],
)
def test_ssh_ingress(rules: list[Any], level: Level, found: str) -> None:
    scope: Any = SimpleNamespace(place=Place("aws", "us-east-1"))
    groups: Any = [{"GroupId": "sg-1", "IpPermissions": rules}]
    (finding,) = network.ssh_ingress(scope, groups)
    assert finding.level is level and found in finding.found
    session: Any = SimpleNamespace(place=Place("aws", "us-east-1", login=Login(ssh_interface="session_manager")))
    assert list(network.ssh_ingress(session, groups)) == []


MEMBERS = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-1"}]}


@pytest.mark.parametrize(
    ("egress", "level", "found"),
    [
        ([MEMBERS], Level.OK, "sg-1 allow all traffic of their own members"),
        ([], Level.ERROR, "sg-1: no outbound rule for all traffic of its own members"),
    ],
)
def test_traffic_between_nodes(egress: list[Any], level: Level, found: str) -> None:
    scope: Any = SimpleNamespace(place=Place("aws", "us-east-1"), plan=None, nodes=2)
    groups: Any = [{"GroupId": "sg-1", "IpPermissions": [MEMBERS], "IpPermissionsEgress": egress}]
    (finding,) = network.traffic_of_members(scope, groups)
    assert (finding.level, finding.found) == (level, found)


def test_quotas_are_for_all_nodes() -> None:
    name = "p5.48xlarge"
    pages = {
        "describe_instance_types": {"InstanceTypes": [{"InstanceType": name, "VCpuInfo": {"DefaultVCpus": 192}}]},
        "describe_instances": {"Reservations": []},
    }
    ec2 = SimpleNamespace(get_paginator=lambda call: SimpleNamespace(paginate=lambda **_: [pages[call]]))
    quota = SimpleNamespace(get_service_quota=lambda **_: {"Quota": {"Value": 4.0 * 192 - 1}})
    cloud = SimpleNamespace(client=lambda _: quota)
    scope: Any = SimpleNamespace(
        proven=[{"name": name}], instance_types=[name], builder="", nodes=4, place=Place("aws", "us-east-1"),
        ec2=ec2, cloud=cloud,
    )  # fmt: skip
    (finding,) = resources.quotas(scope)
    assert (finding.level, finding.expected) == (Level.ERROR, f"at least {4 * 192}")
