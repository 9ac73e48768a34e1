"""The instance types of a plan: architecture, zones that offer them, quotas of their families."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gpu_ami.cloud import aws_errors
from gpu_ami.cloud.preflight.findings import Finding, Scope, error, ok, warning
from gpu_ami.cloud.preflight.network import zones as zones_of_place
from gpu_ami.errors import CloudError, ForeignAnswer

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef, InstanceTypeInfoTypeDef

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
