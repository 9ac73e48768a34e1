"""The KMS key and the source AMI of a run, and the Capacity Reservations and Capacity Blocks that a place names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from gpu_ami.cloud import aws_errors, capacity, runs
from gpu_ami.cloud.preflight.findings import Finding, Scope, error, ok, warning
from gpu_ami.cloud.preflight.network import zones
from gpu_ami.cloud.preflight.network import zones as zones_of_place
from gpu_ami.errors import CloudError, ForeignAnswer, UsageError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import CapacityReservationTypeDef, FilterTypeDef, InstanceTypeInfoTypeDef

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


# Running On-Demand vCPUs by family letters (Service Quotas, service code ec2; codes and names as ListServiceQuotas
# answers them, read 2026-11-22 in public quota listings).
QUOTAS: Mapping[tuple[str, ...], tuple[str, str]] = {
    ("p",): ("L-417A185B", "Running On-Demand P instances"),
    ("g", "gr", "vt"): ("L-DB2E81BA", "Running On-Demand G and VT instances"),
    ("trn",): ("L-2C3B7624", "Running On-Demand Trn instances"),
    ("inf",): ("L-1945791B", "Running On-Demand Inf instances"),
    ("dl",): ("L-6E869C2A", "Running On-Demand DL instances"),
    ("f",): ("L-74FC7D96", "Running On-Demand F instances"),
    ("hpc",): ("L-F7808C92", "Running On-Demand HPC instances"),
    ("x",): ("L-7295265B", "Running On-Demand X instances"),
    ("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"): (
        "L-1216C47A",
        "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    ),
}


def _described(scope: Scope) -> dict[str, InstanceTypeInfoTypeDef]:
    """The plan's instance types that the region knows, as DescribeInstanceTypes has them."""
    if not scope.instance_types:
        return {}
    filters: list[FilterTypeDef] = [{"Name": "instance-type", "Values": scope.instance_types}]
    pages = scope.ec2.get_paginator("describe_instance_types").paginate(Filters=filters)
    return {row["InstanceType"]: row for page in pages for row in page["InstanceTypes"]}


def architecture(scope: Scope) -> Iterator[Finding]:
    """Each instance type, the builder's included, is of the image's architecture."""
    for name, row in _described(scope).items():
        expected = scope.plan["architecture"] if scope.plan else ""
        supported = row["ProcessorInfo"]["SupportedArchitectures"]
        if expected not in supported:
            remedy = "set build.instance_type to a type of this architecture" if name == scope.builder else ""
            role = "builder " if name == scope.builder else ""
            yield error("architecture", f"{role}{name} is {', '.join(supported)}", expected, remedy)


def offerings(scope: Scope) -> Iterator[Finding]:
    """Each instance type is offered in the zone of one of the subnets; without a subnet, in some zone of the region."""
    if not scope.instance_types:
        return
    filters: list[FilterTypeDef] = [{"Name": "instance-type", "Values": scope.instance_types}]
    paginator = scope.ec2.get_paginator("describe_instance_type_offerings")
    zones: dict[str, set[str]] = {}
    for page in paginator.paginate(LocationType="availability-zone", Filters=filters):
        for row in page["InstanceTypeOfferings"]:
            zones.setdefault(row["InstanceType"], set()).add(row["Location"])
    own = zones_of_place(scope)
    for name in scope.instance_types:
        offered = ", ".join(sorted(zones.get(name, ())))
        if not offered:
            remedy = "work in another region, or leave the type out (--instance-type)"
            yield error("offerings", f"{scope.place.region} does not offer {name}", "a zone that offers it", remedy)
        elif own and not own & zones[name]:
            remedy = "set subnet_id to a subnet of such a zone"
            text = f"{', '.join(sorted(own))} does not offer {name}"
            yield error("offerings", text, f"a zone that does: {offered}", remedy)
        else:
            yield ok("offerings", f"{name} is offered in {', '.join(sorted(own & zones[name])) or offered}")


def quota_of(instance_type: str) -> tuple[str, str]:
    """Code and name of the quota that an instance type's vCPUs count to; ("", "") for a family of another quota."""
    letters = re.match(r"[a-z]+", instance_type)
    return next((quota for family, quota in QUOTAS.items() if letters and letters[0] in family), ("", ""))


def quotas(scope: Scope) -> Iterator[Finding]:
    """Each quota has room for the vCPUs that run at the same time: the builder's, then all machines of the proof.

    On-Demand vCPUs that run in the region already count.
    """
    vcpus = {name: int(row["VCpuInfo"]["DefaultVCpus"]) for name, row in _described(scope).items()}
    needed: dict[tuple[str, str], int] = {}
    for row in scope.proven:
        quota = quota_of(row["name"])
        needed[quota] = needed.get(quota, 0) + scope.nodes * vcpus.get(row["name"], 0)
    if scope.builder:
        quota = quota_of(scope.builder)
        needed[quota] = max(needed.get(quota, 0), vcpus.get(scope.builder, 0))
    running = _running_vcpus(scope) if needed else {}
    for (code, name), count in needed.items():
        if code:
            yield _quota(scope, code, name, count, running.get(code, 0))


def _running_vcpus(scope: Scope) -> dict[str, int]:
    """vCPUs of On-Demand instances that run now, by the code of their quota."""
    filters: list[FilterTypeDef] = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    vcpus: dict[str, int] = {}
    for page in scope.ec2.get_paginator("describe_instances").paginate(Filters=filters):
        for reservation in page["Reservations"]:
            for instance in reservation["Instances"]:
                if instance.get("InstanceLifecycle"):  # Spot and Capacity Blocks have quotas of their own
                    continue
                cores = instance.get("CpuOptions", {})
                code = quota_of(instance["InstanceType"])[0]
                count = int(cores.get("CoreCount", 0)) * int(cores.get("ThreadsPerCore", 0))
                vcpus[code] = vcpus.get(code, 0) + count
    return vcpus


def _quota(scope: Scope, code: str, name: str, needed: int, running: int) -> Finding:
    client = scope.cloud.client("service-quotas")
    subject = f"quota {code}"
    try:
        with aws_errors.translated(subject):
            value = client.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]["Value"]
    except ForeignAnswer:
        raise
    except CloudError as refusal:
        text = f"{name}: not examined: {refusal.code or refusal.message}"
        return warning(subject, text, f"at least {needed} vCPUs", "allow servicequotas:GetServiceQuota", refused=True)
    text = f"{name}: {value:.0f} vCPUs" + (f", {running} in use" if running else "")
    if value < needed + running:
        remedy = "request a higher quota in Service Quotas, or prove fewer types at a time (--instance-type)"
        return error(subject, text, f"at least {needed + running}", remedy, refused=True)
    return ok(subject, f"{text}, {needed} needed")
