"""Examines the account and the place before anything is launched: every finding at once, none of them a crash.

Nothing is created: look-ups, IAM's policy simulator, and calls with DryRun. A look-up that AWS refuses or throttles is
itself a finding, since the run may succeed without it. Where something else than AWS answers, no run can succeed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpu_ami.cloud import Cloud
from gpu_ami.cloud.preflight import clusters, identity, network, resources
from gpu_ami.cloud.preflight.findings import Finding, Level, Scope, SourceAmi, examined, yes
from gpu_ami.errors import CloudError, GpuAmiError, UsageError
from validator.plan_document import PlanDocument

Check = Callable[[Scope], Iterable[Finding]]

CHECKS: Mapping[str, Check] = {
    "credentials": identity.credentials,
    "subnet_id": network.subnet,
    "login": network.ways_in,
    "routes": network.routes,
    "VPC Block Public Access": network.public_access,
    "security_group_ids": network.security_groups,
    "instance_profile": identity.instance_profile,
    "dead_man_role": identity.dead_man,
    "cluster": clusters.cluster,
    "kms_key_id": resources.kms_key,
    "source_ami": resources.source_ami,
    "architecture": resources.architecture,
    "offerings": resources.offerings,
    "quotas": resources.quotas,
    "capacity": resources.reservations,
    "spot": resources.spot,
    "permissions": identity.simulated_permissions,
    "dry run": identity.dry_runs,
}


def examine_builder(
    cloud: Cloud, plan: PlanDocument, source_ami: SourceAmi, *, sets_imds_v2: Callable[[], bool] = yes
) -> list[Finding]:
    """Whether EC2 would launch the builder as Packer asks for it; a build would find out after minutes."""
    scope = Scope(cloud, plan, source_ami, sets_imds_v2=sets_imds_v2)
    return run_check("dry run of the builder", identity.builder_dry_run, scope)


def examine(
    cloud: Cloud,
    plan: PlanDocument | None = None,
    source_ami: SourceAmi | None = None,
    nodes: int = 1,
    *,
    join: str | None = None,
    sets_imds_v2: Callable[[], bool] = yes,
) -> list[Finding]:
    """All findings about a place, and about a plan at it where one is given.

    source_ami: looks the plan's source AMI up (gpu_ami.plan.resolve_source_ami). nodes: machines of each type at once.
    join: the cluster that they are to join, as --join has it; None: not asked. sets_imds_v2: whether the installed
    Packer does. Where AWS does not accept the credentials, that is the only finding: every other call would be refused
    too.
    """
    scope = Scope(cloud, plan, source_ami, nodes, sets_imds_v2, join)
    findings = run_check("identity", identity.identity, scope, decisive=True)
    if any(finding.level is Level.ERROR for finding in findings):
        return findings
    for name, check in CHECKS.items():
        findings += run_check(name, check, scope)
    return findings


def examine_cluster(cloud: Cloud, plan: PlanDocument, join: str | None, nodes: int = 1) -> list[Finding]:
    """All findings about the cluster that machines of a plan's image are to join. join, nodes: as of `examine`."""
    return run_check("cluster", clusters.cluster, Scope(cloud, plan, nodes=nodes, join=join))


def run_check(name: str, check: Check, scope: Scope, *, decisive: bool = False) -> list[Finding]:
    """Run one check of the place; what it raises becomes a finding, or ends the rest where it is decisive."""
    return examined(name, functools.partial(check, scope), decisive=decisive)


def exit_code(findings: Sequence[Finding]) -> int:
    """0: no error; 2: something about the place or the plan is wrong; 4: AWS refuses, and nothing else is wrong."""
    errors = [finding for finding in findings if finding.level is Level.ERROR]
    if any(not finding.refused for finding in errors):
        return UsageError.exit_code
    return GpuAmiError.exit_code if errors else 0


def summary(findings: Sequence[Finding]) -> str:
    """`1 error, 2 warnings, 12 ok`."""
    counts = {level: sum(finding.level is level for finding in findings) for level in reversed(Level)}
    names = {Level.ERROR: "errors", Level.WARNING: "warnings", Level.OK: "ok"}
    return ", ".join(f"{count} {names[level].removesuffix('s' * (count == 1))}" for level, count in counts.items())


def require(findings: Sequence[Finding]) -> None:
    """UsageError or CloudError that lists every error among the findings; nothing where there is none."""
    errors = [finding for finding in findings if finding.level is Level.ERROR]
    if not errors:
        return
    details = [line for finding in errors for line in str(finding).splitlines()]
    code = exit_code(findings)
    kind = UsageError if code == UsageError.exit_code else CloudError
    raise kind("the preflight found errors; nothing was launched", details=details, hint="gpu-ami doctor --where FILE")
