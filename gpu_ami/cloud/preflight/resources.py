"""What a run uses in the account: KMS key, source AMI, instance types, quotas, reserved capacity, and the role of Spot.

Source of what Spot needs: EC2 user guide, "Service-linked role for EC2 Spot Instances" and "Grant access to customer
managed keys for use with encrypted AMIs and EBS snapshots", read 2026-11-28.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from gpu_ami.cloud import Cloud, aws_errors, capacity, runs
from gpu_ami.cloud.preflight import identity
from gpu_ami.cloud.preflight.findings import Finding, Level, Scope, error, ok, warning
from gpu_ami.cloud.preflight.network import zones
from gpu_ami.cloud.preflight.network import zones as zones_of_place
from gpu_ami.errors import CloudError, ForeignAnswer, UsageError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import CapacityReservationTypeDef, FilterTypeDef, InstanceTypeInfoTypeDef
    from mypy_boto3_iam import IAMClient
    from mypy_boto3_kms import KMSClient

    from validator.plan_document import PlanDocument

AWS_EBS = "alias/aws/ebs"  # as GetEbsDefaultKmsKeyId answers where the account has set no other
_OLD = timedelta(days=730)  # AWS deprecates public AMIs after two years (EC2, "Deprecate an AMI")


def volume_key(cloud: Cloud) -> str:
    """The key that a builder's volume is encrypted with: the place's, or the account's default one for EBS."""
    return cloud.place.kms_key_id or cloud.ec2.get_ebs_default_kms_key_id()["KmsKeyId"]


def kms_key(scope: Scope) -> Iterator[Finding]:
    """The key, or the account's default one for EBS, exists, is enabled, and can encrypt a volume (symmetric)."""
    name = volume_key(scope.cloud)
    if name == AWS_EBS:
        yield ok("kms_key_id", f"none: the account's default key for EBS, {AWS_EBS}")
        return
    kms = scope.cloud.client("kms")
    try:
        key = kms.describe_key(KeyId=name)["KeyMetadata"]
    except kms.exceptions.NotFoundException:
        own = "correct kms_key_id (id, alias/NAME or ARN) or region"
        remedy = own if scope.place.kms_key_id else "the account's default key for EBS is gone: set kms_key_id"
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
        whose = "" if scope.place.kms_key_id else "none: the account's default key for EBS, "
        yield ok("kms_key_id", f"{whose}{name} is enabled")


def source_ami(scope: Scope) -> Iterator[Finding]:
    """The source AMI is there, of the image's architecture, backed by EBS, and neither deprecated nor old."""
    if not scope.plan or not scope.source_ami:
        return
    try:
        resolved = scope.source_ami(scope.cloud, scope.plan)
    except UsageError as wrong:
        hint = _allowed_amis(scope) or wrong.hint
        yield error("source_ami", wrong.message, f"an AMI in {scope.place.region}", hint)
        return
    image = scope.cloud.image(resolved["id"]) or {}
    if image.get("ImageAllowed") is False:  # else EC2 would not list it (EC2 user guide, "Allowed AMIs")
        text_refused = f"{resolved['id']} is outside the account's Allowed AMIs, which are in audit mode"
        yield warning("source_ami", text_refused, "an AMI that they allow", f"add {image.get('OwnerId')} to them")
    yield from _kernel(scope.plan, resolved["id"], f"{resolved['name']} {image.get('Description', '')}")
    text = f"{resolved['id']} ({resolved['name']}), created {resolved['created'][:10] or 'at an unknown time'}"
    if image.get("Architecture") != scope.plan["architecture"]:
        expected = str(scope.plan["architecture"])
        yield error("source_ami", f"{text}: {image.get('Architecture')}", expected, "name an AMI of this architecture")
    if image.get("RootDeviceType", "ebs") != "ebs":
        yield error("source_ami", f"{text}: root device {image.get('RootDeviceType')}", "ebs", "name an EBS-backed AMI")
    deprecated = parsed_time(image.get("DeprecationTime", ""))
    if deprecated and deprecated < datetime.now(UTC):
        text_deprecated = f"{text}, deprecated since {deprecated:%Y-%m-%d}"
        yield warning("source_ami", text_deprecated, "an AMI that is maintained", "name a newer release")
        return
    created = parsed_time(resolved["created"])
    if created and datetime.now(UTC) - created > _OLD:
        yield warning("source_ami", text, "an AMI of the last two years", "name a newer release")
    else:
        yield ok("source_ami", text)


def _kernel(plan: PlanDocument, ami: str, described: str) -> Iterator[Finding]:
    """Whether the source AMI boots a kernel that the plan takes. Amazon Linux's name and description have the series;
    Canonical's, Debian's, EKS's and Deep Learning AMIs' do not: it is known when the builder has booted.
    """
    taken = plan["kernel"].get("follows") or [plan["kernel"]["version"]]
    named = re.search(r"\bkernel[- ]?(\d+\.\d+)\b", described, re.IGNORECASE)
    if not named:
        text = f"name and description of {ami} do not name its kernel: the build reads it on the builder"
        yield ok("kernel", f"{text} (planned: {' or '.join(taken)}; another series stops the build)")
    elif named[1] not in taken:
        remedy = f"name another source_ami, or kernel.version {named[1]}"
        yield warning("kernel", f"{ami} boots kernel {named[1]}", " or ".join(taken), remedy)
    else:
        yield ok("kernel", f"{ami} boots kernel {named[1]}")


def _allowed_amis(scope: Scope) -> str:
    """What to do where the account's Allowed AMIs may hide an AMI; "" where they are off, or cannot be read."""
    with contextlib.suppress(CloudError), aws_errors.translated("looking up Allowed AMIs"):
        settings = scope.ec2.get_allowed_images_settings()
        if settings.get("State") == "enabled":
            criteria = settings.get("ImageCriteria") or []
            listed = sorted({name for row in criteria for name in row.get("ImageProviders", [])})
            return f"Allowed AMIs hides AMIs of all but {', '.join(listed) or 'some owners'}: add its owner there"
    return ""


def parsed_time(text: str) -> datetime | None:
    """Return an ISO 8601 time of AWS; UTC where it names no zone, None for another text."""
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
        for listed in scope.place.capacity.ways.values()
        for text in listed
        if capacity.Way.parse(text).reservation
    }
    if not ways:
        return
    own = zones(scope)
    for text, users in ways.items():
        way = capacity.Way.parse(text)
        row = _reservation(scope, way.reservation)
        if row is None:
            found = f"{way.reservation} is not in {scope.place.region}"
            yield error(_SUBJECT, found, "a reservation of this account or shared with it", "correct its id or region")
            continue
        findings = list(_mistakes(way, row, users, own))
        yield from findings or [ok(_SUBJECT, f"{way}: {row['InstanceType']} in {row['AvailabilityZone']}")]


def _reservation(scope: Scope, reservation_id: str) -> CapacityReservationTypeDef | None:
    """A Capacity Reservation or Capacity Block by its id (there is no filter for it); None: EC2 does not know it.

    One call for each: a call that names several fails if EC2 does not know one of them.
    """
    try:
        with aws_errors.translated(f"looking up {reservation_id}"):
            answer = scope.ec2.describe_capacity_reservations(CapacityReservationIds=[reservation_id])
            rows = answer["CapacityReservations"]
    except CloudError as refusal:
        if refusal.code.startswith("InvalidCapacityReservationId"):
            return None
        raise
    return rows[0] if rows else None


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


@dataclass(frozen=True)
class Quota:
    """A quota of Service Quotas (service code ec2), in vCPUs."""

    code: str
    name: str


# By family letters, On-Demand and Spot (codes and names as ListServiceQuotas answers them, read 2026-11-22, those of
# Spot 2026-11-27, in public quota listings). Spot: the generations of P have quotas of their own.
QUOTAS: Mapping[tuple[str, ...], tuple[Quota, Quota | None]] = {
    ("p",): (Quota("L-417A185B", "Running On-Demand P instances"), None),
    ("g", "gr", "vt"): (
        Quota("L-DB2E81BA", "Running On-Demand G and VT instances"),
        Quota("L-3819A6DF", "All G and VT Spot Instance Requests"),
    ),
    ("trn",): (
        Quota("L-2C3B7624", "Running On-Demand Trn instances"),
        Quota("L-6B0D517C", "All Trn Spot Instance Requests"),
    ),
    ("inf",): (
        Quota("L-1945791B", "Running On-Demand Inf instances"),
        Quota("L-B5D1601B", "All Inf Spot Instance Requests"),
    ),
    ("dl",): (
        Quota("L-6E869C2A", "Running On-Demand DL instances"),
        Quota("L-85EED4F7", "All DL Spot Instance Requests"),
    ),
    ("f",): (Quota("L-74FC7D96", "Running On-Demand F instances"), Quota("L-88CF9481", "All F Spot Instance Requests")),
    ("hpc",): (Quota("L-F7808C92", "Running On-Demand HPC instances"), None),
    ("x",): (Quota("L-7295265B", "Running On-Demand X instances"), Quota("L-E3A00192", "All X Spot Instance Requests")),
    ("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"): (
        Quota("L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"),
        Quota("L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"),
    ),
}
_SPOT_P = {
    **dict.fromkeys(("p2", "p3", "p4"), Quota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests")),
    "p5": Quota("L-C4BD4855", "All P5 Spot Instance Requests"),
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


def quota_of(instance_type: str, kind: str = capacity.ON_DEMAND) -> Quota | None:
    """The quota that a launch counts to; None: none that is known here.

    A Capacity Reservation counts to the On-Demand quota; a Capacity Block counts to none of vCPUs (EC2 user guide,
    "Capacity Blocks for ML": it is bought with its instances).
    """
    family = re.match(r"([a-z]+)(\d+)", instance_type)
    row = next((quotas for letters, quotas in QUOTAS.items() if family and family[1] in letters), None)
    if kind == capacity.CAPACITY_BLOCK or row is None or family is None:
        return None
    if kind != capacity.SPOT:
        return row[0]
    return _SPOT_P.get(family[0]) or row[1]


def quotas(scope: Scope) -> Iterator[Finding]:
    """Each quota has room for the vCPUs that run at the same time: the builder's, then all machines of the proof.

    A type is counted in the way that the place tries first. Where that quota is too small and the place has another way
    for the type, the finding is a warning. vCPUs that run in the region already count.
    """
    vcpus = {name: int(row["VCpuInfo"]["DefaultVCpus"]) for name, row in _described(scope).items()}
    needed: dict[Quota, int] = {}
    names: dict[Quota, list[str]] = {}
    for row in scope.proven:
        name, first = row["name"], capacity.ways_of(scope.place, row["name"])[0].kind
        quota = quota_of(name, first)
        if quota is None:
            yield _without_quota(name, first)
            continue
        needed[quota] = needed.get(quota, 0) + scope.nodes * vcpus.get(name, 0)
        names.setdefault(quota, []).append(name)
    if scope.builder and (quota := quota_of(scope.builder, capacity.ways_of(scope.place, scope.builder)[0].kind)):
        needed[quota] = max(needed.get(quota, 0), vcpus.get(scope.builder, 0))
        names.setdefault(quota, []).append(scope.builder)
    running = _running_vcpus(scope) if needed else {}
    for quota, count in needed.items():
        finding = _quota(scope, quota, count, running.get(quota, 0))
        has_other_way = all(len(capacity.ways_of(scope.place, name)) > 1 for name in names[quota])
        if finding.level is Level.ERROR and has_other_way:
            yield replace(
                finding, level=Level.WARNING, remedy=f"{finding.remedy}; the place's other ways are tried next"
            )
        else:
            yield finding


def _without_quota(name: str, kind: str) -> Finding:
    if kind == capacity.CAPACITY_BLOCK:
        return ok(f"quota of {name}", "none: a Capacity Block is bought with its instances")
    text = f"no quota of {kind} instances of this family is known to gpu-ami"
    return warning(f"quota of {name}", text, remedy="look at Service Quotas, EC2, before a long run")


_LIFECYCLES = {"": capacity.ON_DEMAND, "spot": capacity.SPOT, "capacity-block": capacity.CAPACITY_BLOCK}


def _running_vcpus(scope: Scope) -> dict[Quota, int]:
    """vCPUs of instances that run now, by their quota."""
    filters: list[FilterTypeDef] = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    vcpus: dict[Quota, int] = {}
    for page in scope.ec2.get_paginator("describe_instances").paginate(Filters=filters):
        for reservation in page["Reservations"]:
            for instance in reservation["Instances"]:
                kind = _LIFECYCLES.get(instance.get("InstanceLifecycle", ""), capacity.CAPACITY_BLOCK)
                quota = quota_of(instance["InstanceType"], kind)
                cores = instance.get("CpuOptions", {})
                count = int(cores.get("CoreCount", 0)) * int(cores.get("ThreadsPerCore", 0))
                if quota:
                    vcpus[quota] = vcpus.get(quota, 0) + count
    return vcpus


def _quota(scope: Scope, quota: Quota, needed: int, running: int) -> Finding:
    code, name = quota.code, quota.name
    client = scope.cloud.client("service-quotas")
    subject = f"quota {code}"
    try:
        with aws_errors.translated(subject):
            value = client.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]["Value"]
    except ForeignAnswer:
        raise
    except CloudError as refusal:
        text = f"{name}: not examined: {refusal.code or refusal.message}"
        remedy = "allow servicequotas:GetServiceQuota" if aws_errors.is_denied(refusal.code) else refusal.hint
        remedy = remedy or "look at Service Quotas, EC2, before a long run"  # one that was never raised has no row
        return warning(subject, text, f"at least {needed} vCPUs", remedy, refused=True)
    text = f"{name}: {value:.0f} vCPUs" + (f", {running} in use" if running else "")
    if value < needed + running:
        remedy = "request a higher quota in Service Quotas, or prove fewer types at a time (--instance-type)"
        return error(subject, text, f"at least {needed + running}", remedy, refused=True)
    return ok(subject, f"{text}, {needed} needed")


_SPOT, _SPOT_ROLE, _SPOT_SERVICE = "spot", "AWSServiceRoleForEC2Spot", "spot.amazonaws.com"
_CREATE_SPOT_ROLE = f"aws iam create-service-linked-role --aws-service-name {_SPOT_SERVICE}"


def spot(scope: Scope) -> Iterator[Finding]:
    """The service-linked role is there, or the caller may create it; the role may use the key of the volumes.

    Where a type has another way beside Spot, what is missing is a warning: the launch goes on with that way.
    """
    ways = {name: [way.kind for way in capacity.ways_of(scope.place, name)] for name in _types_of(scope)}
    bought = [kinds for kinds in ways.values() if capacity.SPOT in kinds]
    if not bought:
        return
    make = warning if all(len(kinds) > 1 for kinds in bought) else error
    iam: IAMClient = scope.cloud.client("iam")
    try:
        role = iam.get_role(RoleName=_SPOT_ROLE)["Role"]["Arn"]
    except iam.exceptions.NoSuchEntityException:
        role = identity.service_role_arn(scope, _SPOT_SERVICE, _SPOT_ROLE)
        if not identity.may_create_service_role(scope, _SPOT_SERVICE, role):
            found = f"the account has no {_SPOT_ROLE}, and the caller may not create it"
            yield make(
                _SPOT,
                found,
                "the service-linked role of EC2 Spot",
                f"{_CREATE_SPOT_ROLE}, or attach iam/caller-spot.json",
            )
            return
        yield ok(_SPOT, f"the first Spot Instance creates {_SPOT_ROLE}")
        return
    name = volume_key(scope.cloud)
    if name == AWS_EBS:
        yield ok(_SPOT, f"{_SPOT_ROLE} exists")
        return
    kms: KMSClient = scope.cloud.client("kms")
    pages = kms.get_paginator("list_grants").paginate(KeyId=name, GranteePrincipal=role)
    if any(page["Grants"] for page in pages):
        yield ok(_SPOT, f"{_SPOT_ROLE} exists and has a grant for {name}")
        return
    found = f"no grant lets {_SPOT_ROLE} use {name}; unless the key's policy does, Spot Instances terminate at launch"
    remedy = f"aws kms create-grant --key-id {name} --grantee-principal {role} --operations Decrypt Encrypt"
    more = "GenerateDataKey GenerateDataKeyWithoutPlaintext CreateGrant DescribeKey ReEncryptFrom ReEncryptTo"
    yield warning(_SPOT, found, "a grant", f"{remedy} {more}")


def _types_of(scope: Scope) -> list[str]:
    """The plan's types; of a place alone, one for each of its patterns."""
    return scope.instance_types or list(scope.place.capacity.ways)
