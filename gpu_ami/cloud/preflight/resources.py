"""The KMS key and the source AMI of a run, and the Capacity Reservations and Capacity Blocks that a place names."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from gpu_ami.cloud import capacity, runs
from gpu_ami.cloud.preflight.findings import Finding, Scope, error, ok, warning
from gpu_ami.cloud.preflight.network import zones
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import CapacityReservationTypeDef, FilterTypeDef


_OLD = timedelta(days=730)  # AWS deprecates public AMIs after two years (EC2, "Deprecate an AMI")


def kms_key(scope: Scope) -> Iterator[Finding]:
    """The key exists, is enabled, and can encrypt a volume (symmetric)."""
    name = scope.place.kms_key_id
    if not name:
        yield ok("kms_key_id", "none: the account's default key for EBS")
        return
    kms = scope.cloud.client("kms")
    try:
        key = kms.describe_key(KeyId=name)["KeyMetadata"]
    except kms.exceptions.NotFoundException:
        remedy = "correct kms_key_id (id, alias/NAME or ARN) or region"
        yield error("kms_key_id", f"{name} is not in {scope.place.region}", "a key", remedy)
        return
    if key["KeyState"] != "Enabled":
        yield error("kms_key_id", f"{name} is {key['KeyState']}", "Enabled", "enable the key, or name another")
    elif key.get("KeySpec", "SYMMETRIC_DEFAULT") != "SYMMETRIC_DEFAULT" or key.get("KeyUsage") != "ENCRYPT_DECRYPT":
        text = f"{name} is {key.get('KeySpec')} for {key.get('KeyUsage')}"
        yield error("kms_key_id", text, "SYMMETRIC_DEFAULT for ENCRYPT_DECRYPT", "name a symmetric key")
    elif key.get("KeyManager") == "AWS":
        text = f"{name} is managed by AWS: images encrypted with it cannot be shared"
        yield warning("kms_key_id", text, "a customer managed key, if the image is for other accounts")
    else:
        yield ok("kms_key_id", f"{name} is enabled")


def source_ami(scope: Scope) -> Iterator[Finding]:
    """The source AMI is there, of the image's architecture, backed by EBS, and neither deprecated nor old."""
    if not scope.plan or not scope.source_ami:
        return
    try:
        resolved = scope.source_ami(scope.cloud, scope.plan)
    except UsageError as wrong:
        yield error("source_ami", wrong.message, f"an AMI in {scope.place.region}", wrong.hint)
        return
    image = scope.cloud.image(resolved["id"]) or {}
    text = f"{resolved['id']} ({resolved['name']}), created {resolved['created'][:10] or 'at an unknown time'}"
    if image.get("Architecture") != scope.plan["architecture"]:
        expected = str(scope.plan["architecture"])
        yield error("source_ami", f"{text}: {image.get('Architecture')}", expected, "name an AMI of this architecture")
    if image.get("RootDeviceType", "ebs") != "ebs":
        yield error("source_ami", f"{text}: root device {image.get('RootDeviceType')}", "ebs", "name an EBS-backed AMI")
    deprecated = _time(image.get("DeprecationTime", ""))
    if deprecated and deprecated < datetime.now(UTC):
        text_deprecated = f"{text}, deprecated since {deprecated:%Y-%m-%d}"
        yield warning("source_ami", text_deprecated, "an AMI that is maintained", "name a newer release")
        return
    created = _time(resolved["created"])
    if created and datetime.now(UTC) - created > _OLD:
        yield warning("source_ami", text, "an AMI of the last two years", "name a newer release")
    else:
        yield ok("source_ami", text)


def _time(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


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
