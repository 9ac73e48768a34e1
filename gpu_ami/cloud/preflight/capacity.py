"""The Capacity Reservations and Capacity Blocks that a place names."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from gpu_ami.cloud import capacity, runs
from gpu_ami.cloud.preflight.findings import Finding, Scope, error, ok, warning
from gpu_ami.cloud.preflight.network import zones

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import CapacityReservationTypeDef, FilterTypeDef

_SUBJECT = "capacity"


def reservations(scope: Scope) -> Iterator[Finding]:
    """Each named reservation is there, usable, of the right type, and in a zone of a subnet of the place."""
    ways = {
        text: [name for name in scope.instance_types if capacity.Way.parse(text) in capacity.ways_of(scope.place, name)]
        for listed in scope.place.capacity.values()
        for text in listed
        if capacity.Way.parse(text).reservation
    }
    if not ways:
        return
    names = [capacity.Way.parse(text).reservation for text in ways]
    filters: list[FilterTypeDef] = [{"Name": "capacity-reservation-id", "Values": names}]
    answer = scope.ec2.describe_capacity_reservations(Filters=filters)["CapacityReservations"]
    rows = {row["CapacityReservationId"]: row for row in answer}
    own = zones(scope)
    for text, users in ways.items():
        way = capacity.Way.parse(text)
        row = rows.get(way.reservation)
        if row is None:
            found = f"{way.reservation} is not in {scope.place.region}"
            yield error(_SUBJECT, found, "a reservation of this account or shared with it", "correct its id or region")
            continue
        findings = list(_mistakes(way, row, users, own))
        yield from findings or [ok(_SUBJECT, f"{way}: {row['InstanceType']} in {row['AvailabilityZone']}")]


def _mistakes(way: capacity.Way, row: CapacityReservationTypeDef, users: list[str], own: set[str]) -> Iterator[Finding]:
    is_block = row.get("ReservationType", "default") == "capacity-block"
    if is_block != (way.kind == capacity.CAPACITY_BLOCK):
        kind = "a Capacity Block" if is_block else "a Capacity Reservation"
        remedy = f"write {capacity.CAPACITY_BLOCK if is_block else capacity.RESERVATION}:{way.reservation}"
        yield error(_SUBJECT, f"{way}: {way.reservation} is {kind}", way.kind, remedy)
    if row["State"] != "active":
        yield error(_SUBJECT, f"{way} is {row['State']}", "active", "name another, or wait until it begins")
    for name in users:
        if name != row["InstanceType"]:
            remedy = "list it under its own type in capacity"
            yield error(_SUBJECT, f"{way} is for {row['InstanceType']}", f"{name}, which uses it", remedy)
    if own and row["AvailabilityZone"] not in own:
        text = f"{way} is in {row['AvailabilityZone']}"
        yield error(_SUBJECT, text, f"a zone of the subnets: {', '.join(sorted(own))}", "add a subnet in its zone")
    end = row.get("EndDate")
    if row["State"] == "active" and isinstance(end, datetime) and end - datetime.now(UTC) < runs.LIFETIME:
        minutes = max(0, int((end - datetime.now(UTC)) / timedelta(minutes=1)))
        yield warning(_SUBJECT, f"{way} ends in {minutes} minutes", f"at least {runs.LIFETIME} left", "extend it")
    if row["State"] == "active" and row.get("AvailableInstanceCount") == 0:
        yield warning(_SUBJECT, f"{way}: no free instance", "at least 1", "terminate what runs there, or wait")
