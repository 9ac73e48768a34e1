"""Reservations of a place; each mistake beside the others is in test_examination.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gpu_ami.cloud import Place
from gpu_ami.cloud.preflight.capacity import reservations
from gpu_ami.cloud.preflight.findings import Level


def scope(ways: tuple[str, ...], rows: list[dict[str, Any]]) -> Any:
    subnets = [{"SubnetId": "subnet-0000000a", "AvailabilityZone": "us-east-1a"}]
    ec2 = SimpleNamespace(
        describe_capacity_reservations=lambda **_: {"CapacityReservations": rows},
        describe_subnets=lambda **_: {"Subnets": subnets},
    )
    place = Place("aws", "us-east-1", subnet_id="subnet-0000000a", capacity={"*": ways})
    return SimpleNamespace(place=place, ec2=ec2, instance_types=["p5.48xlarge"])


ROW = {"CapacityReservationId": "cr-00000001", "InstanceType": "p5.48xlarge", "AvailabilityZone": "us-east-1a"}


def test_a_usable_reservation_is_ok() -> None:
    (finding,) = reservations(scope(("reservation:cr-00000001", "spot"), [ROW | {"State": "active"}]))
    assert (finding.level, finding.found) == (Level.OK, "reservation:cr-00000001: p5.48xlarge in us-east-1a")


def test_without_reservations_nothing_is_asked() -> None:
    assert list(reservations(SimpleNamespace(place=Place("aws", "us-east-1"), instance_types=[]))) == []  # type: ignore[arg-type]
