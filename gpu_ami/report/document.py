"""The records of a report: a machine, a stage, the whole report; the only reader and writer of report.json.

Schema gpu-ami/report/2 (docs/schemas/report.json). It differs from version 1 in `incomplete`, in `left_behind`, and in
the verdict ERROR, which a report no longer has: what stopped a machine from being checked is UNPROVEN with its error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self, TypedDict

from gpu_ami.errors import UsageError
from gpu_ami.files import read_document
from gpu_ami.report import left_out
from gpu_ami.report.left_out import LeftOut
from validator import results
from validator.results import (
    CheckRecord,
    HostResults,
    InvalidRecord,
    Program,
    Replica,
    Verdict,
    WaiverRecord,
    WaiverState,
)
from validator.tiers import NODE, SEVERAL_NODES, TIERS, Tier

SCHEMA = "gpu-ami/report/2"
REPORT_FILE = "report.json"
PASS, FAIL, FLAKY, ERROR = Verdict.PASS, Verdict.FAIL, Verdict.FLAKY, Verdict.ERROR
UNAVAILABLE, UNPROVEN = Verdict.UNAVAILABLE, Verdict.UNPROVEN
# The worst first: a report is as good as its worst host. ERROR is a verdict of single checks only.
ORDER = (FAIL, FLAKY, ERROR, UNAVAILABLE, UNPROVEN, PASS)
# A host is proven when a check of each of these roles passed on it; without one it is UNPROVEN.
CORE = ("boot", "nvidia_driver", "cloudwatch_agent", "event_parser", "metrics", "logs", "xid")
NEURON_CORE = ("boot", "neuron", "cloudwatch_agent", "event_parser", "neuron_monitor", "logs", "neuron_error")
# Core of an image as it was found, without a recipe: it boots, its driver fits together.
OBSERVED_CORE = ("boot", "nvidia_driver", "neuron")
OBSERVED_ROLE = "observed"  # of validator/checks/observed.py, and of each plan with origin `observed`
# The check without which a tier is not judged, where the image has NVIDIA's driver.
TIER_CORE = {"T2": "compute::test_one_gpu_computes_right", "T3": "compute::test_every_gpu_computes_right"}
# Core where the plan has the role.
_PLANNED_ONLY = ("nvidia_driver", "cloudwatch_agent", "event_parser", "neuron_monitor")

# The check that a machine comes back from a restart; the restart's name follows: …@reboot, …@stop-start.
COMES_BACK = "boot::test_machine_comes_back"
ONE_MACHINE = "one machine alone was checked: --nodes 2 launches several that work together (docs/nodes.md)"
NO_CLUSTER = "the machine joined no cluster: --join makes it a node of one (docs/nodes.md)"
# Tiers whose checks run in passes of their own, and why they did not where nobody asked for them.
OWN_PASSES = {NODE: NO_CLUSTER, SEVERAL_NODES: ONE_MACHINE}
# Services whose nodes an image can be, by the role that checks it. Other images have no tier TN.
NODE_SERVICES = {
    "node_eks": "EKS",
    "node_eks_ubuntu": "EKS (Ubuntu)",
    "node_ecs": "ECS",
    "node_parallelcluster": "ParallelCluster",
}
# The check without which tier T0 of an image's files is not proven.
EVERY_FILE = "file_account::test_every_file_is_explained"
NO_KERNEL_XID = (
    "xid: only a drill was seen; on real hardware an Xid of the kernel driver is required: --provoke-xid makes one"
)


def evidence_folder(instance_type: str, host: str) -> str:
    """Name of a host's folder below evidence/: its instance type, or the address by which it was reached."""
    name = re.sub(r"[^\w.+-]", "_", instance_type or host.rpartition("@")[2].rpartition("/")[2], flags=re.ASCII)
    return name if name.strip(".") else "host"  # one name, whatever a report says: it is joined to folders


@dataclass(frozen=True)
class Stage(results.Record):
    """One timed stage of the run: nesting level, seconds since the run began (None: not known), seconds it took.

    machine: the name of the machine that it is of, "" for a stage of the run itself. after: the stage whose end it
    waited for, "" for the first one.
    """

    stage: str
    level: int
    seconds: float
    outcome: str
    start: float | None = None
    machine: str = ""
    after: str = ""


@dataclass(frozen=True)
class LaunchAttempt(results.Record):
    """One attempt to launch the machine: when (RFC 3339, UTC), where, by which way, and what AWS answered.

    answer: AWS's code and message, or `launched`. zone: "" where AWS did not say. instance_id: of the one that runs.
    """

    at: str
    instance_type: str
    subnet_id: str
    zone: str
    way: str
    answer: str
    instance_id: str = ""


@dataclass(frozen=True)
class HostReport:
    """One machine: what it is, how it booted, and what each check found.

    boot: seconds from the launch to the end of each stage. error: why checks are missing ("" if none are);
    error_verdict: UNPROVEN, UNAVAILABLE, or FAIL where the image is the cause. restarts: those without which this
    machine is not proven; a check that ran again after one has its name in `after`. offline: the image's files, not a
    machine (tier T0). left_behind: what could not be removed afterwards. machine_seconds: from the launch to the order
    to terminate; cost_usd: of that time at On-Demand prices, None where the price is unknown.
    attempts: to launch it. deadlines: seconds that it had to boot, to stop, and to be seen in CloudWatch.
    programs, isolated: of all passes, as HostResults has them.
    """

    instance_type: str
    instance_id: str = ""
    host: str = ""
    boot: Mapping[str, float] = field(default_factory=dict)
    checks: tuple[CheckRecord, ...] = ()
    replicas: tuple[Replica, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)
    waivers: tuple[WaiverRecord, ...] = ()
    error: str = ""
    error_verdict: Verdict | None = None
    restarts: tuple[str, ...] = ()
    offline: bool = False
    left_behind: str = ""
    machine_seconds: float = 0.0
    cost_usd: float | None = None
    attempts: tuple[LaunchAttempt, ...] = ()
    deadlines: Mapping[str, float] = field(default_factory=dict)
    programs: tuple[Program, ...] = ()
    isolated: bool = False

    @property
    def name(self) -> str:
        return self.instance_type or self.host or "host"

    @property
    def evidence(self) -> str:
        """Name of its folder below evidence/."""
        return evidence_folder(self.instance_type, self.host)

    def with_results(self, host_results: HostResults) -> HostReport:
        """With the results of the first pass of the validator."""
        return replace(
            self,
            checks=(*self.checks, *host_results.checks),
            replicas=host_results.replicas,
            facts={**self.facts, **host_results.facts},
            waivers=host_results.waivers,
            programs=host_results.programs,
            isolated=host_results.isolated,
        )

    def _joined(self, host_results: HostResults) -> HostReport:
        """With the programs of a further pass."""
        programs = tuple(dict.fromkeys((*self.programs, *host_results.programs)))
        return replace(self, programs=programs, isolated=self.isolated and host_results.isolated)

    def with_results_after(self, host_results: HostResults, restart: str) -> HostReport:
        """With the results of a pass after a restart; a waiver that one pass used counts as used."""
        facts = {key: host_results.facts.get(key) for key in ("boot_id", "kernel", "transport")}
        return replace(
            self._joined(host_results),
            checks=(*self.checks, *host_results.checks),
            waivers=self._merged(host_results.waivers),
            facts={**self.facts, f"after {restart}": facts},
        )

    def _merged(self, waivers: Sequence[WaiverRecord]) -> tuple[WaiverRecord, ...]:
        """The waivers of all passes: one that a pass used counts as used."""
        used = [waiver for waiver in waivers if waiver.state == WaiverState.USED]
        same = [replace(waiver, state=WaiverState.UNUSED) for waiver in used]
        kept = [waiver for waiver in self.waivers if replace(waiver, state=WaiverState.UNUSED) not in same]
        return (*kept, *used)

    def with_facts(self, **facts: object) -> HostReport:
        """`nodes`: the machines that worked together, this one first; `cluster`: what it was a node of."""
        return replace(self, facts={**self.facts, **facts})

    def with_own_pass(self, host_results: HostResults) -> HostReport:
        """With the results of the checks of several machines, or of a node in its cluster."""
        checks = (*self.checks, *host_results.checks)
        return replace(self._joined(host_results), checks=checks, waivers=self._merged(host_results.waivers))

    def with_checks(self, *checks: CheckRecord) -> HostReport:
        return replace(self, checks=(*self.checks, *checks))

    def core_roles(self, roles: Sequence[str]) -> list[str]:
        """The roles that must pass on this host: those of the plan, and the ones that every plan has."""
        if self.offline:
            return []
        if OBSERVED_ROLE in roles:
            return [role for role in OBSERVED_CORE if role in roles or role == "boot"]
        core = NEURON_CORE if "neuron" in roles else CORE
        return [role for role in core if role in roles or role not in _PLANNED_ONLY]

    def unproven_roles(self, roles: Sequence[str], after: str = "") -> list[str]:
        """Core roles of which no check passed, first or after a restart: a waiver of all of them proves nothing."""
        passed = {check.role for check in self.checks if check.verdict == PASS and check.after == after}
        return [role for role in self.core_roles(roles) if role not in passed]

    def lacks_kernel_xid(self, roles: Sequence[str]) -> bool:
        """Whether this is real NVIDIA hardware on which no Xid of the kernel's own was followed to CloudWatch."""
        if self.offline or "nvidia_driver" not in roles or self.facts.get("hardware") != "real":
            return False
        if OBSERVED_ROLE in roles:  # whether it captures Xids is a finding on it
            return False
        return not any(check.verdict == PASS and _origin(check) == "kernel" for check in self.checks)

    def unproven_restarts(self, roles: Sequence[str]) -> list[str]:
        """The restarts that this machine needed and that did not prove everything, in words."""
        return [reason for restart in self.restarts for reason in self.unproven_restart(restart, roles)]

    def unproven_restart(self, restart: str, roles: Sequence[str]) -> list[str]:
        """What one restart did not prove; roles: those of the plan, none if checks were left out."""
        back = next((check for check in self.checks if check.id == f"{COMES_BACK}@{restart}"), None)
        if back is None:
            return [f"{restart}: not tried"]
        if back.verdict != PASS and not back.waived:
            return [f"{restart}: {back.verdict}: {back.first_line}"]
        missing = self.unproven_roles(roles, restart) if roles else []
        return [f"{role} after {restart}: no check of it passed" for role in missing]

    def unproven(self, roles: Sequence[str]) -> list[str]:
        """All that keeps a host whose checks ran from being proven, a sentence each."""
        reasons = [f"{role}: no check of it passed" for role in self.unproven_roles(roles)]
        if OBSERVED_ROLE in roles and (why := self.lacks_core_of("T2", roles)):
            reasons.append(why)
        reasons += [NO_KERNEL_XID] if self.lacks_kernel_xid(roles) and "xid" not in self.unproven_roles(roles) else []
        return reasons + self.unproven_restarts(roles)

    def of_tier(self, name: str) -> list[CheckRecord]:
        """Its checks of a tier; on a booted machine, T1 includes the checks of T0."""
        tiers = {name} if self.offline or name != "T1" else {"T0", "T1"}
        return [check for check in self.checks if check.tier in tiers]

    def open_of(self, tier: str) -> list[str]:
        """What checks of a pass of its own left open: one of them alone does not show that the others would pass."""
        open_ = [check for check in self.of_tier(tier) if check.verdict == UNPROVEN and not check.waived]
        return [f"{check.id.partition('::')[2]}: {check.first_line}" for check in open_]

    @property
    def not_accounted(self) -> str:
        """Of an image's files: why it is not known that each of them is explained; "" where the check of it ended."""
        if not self.offline:
            return ""
        check = next((check for check in self.checks if check.id == EVERY_FILE), None)
        if check is None:
            return "the checks of the file account did not run"
        return check.first_line if check.verdict == UNPROVEN and not check.waived else ""

    def lacks_core_of(self, tier: str, roles: Sequence[str]) -> str:
        """Why a tier is not judged although checks of it passed: nothing computed; "" where its core is judged.

        roles: none for a host without a plan, which may have GPUs. An image without NVIDIA's driver has no such core.
        """
        core = TIER_CORE.get(tier)
        if core is None or self.offline or (roles and "nvidia_driver" not in roles):
            return ""
        check = next((check for check in self.checks if check.id == core), None)
        if check is not None and check.verdict == PASS:
            return ""
        why = check.first_line if check is not None else "it did not run"
        return f"nothing computed: {core}: {why}"

    def tier_verdict(self, name: str, roles: Sequence[str]) -> Verdict:
        """The worst of its checks of a tier; UNPROVEN where none passed, or where the tier needs more than passed."""
        checks = self.of_tier(name)
        missing = not any(check.verdict == PASS for check in checks)
        missing |= name == "T0" and bool(self.not_accounted) and OBSERVED_ROLE not in roles
        missing |= bool(self.lacks_core_of(name, roles))
        missing |= name == "T1" and bool(self.unproven_restarts(roles))
        missing |= name == "T2" and self.lacks_kernel_xid(roles)
        missing |= name in OWN_PASSES and bool(self.open_of(name))
        return self._worst(checks, missing)

    def verdict(self, roles: Sequence[str]) -> Verdict:
        """The worst of its checks that are not waived, or what kept it from being checked."""
        missing = bool(self.unproven(roles)) or not any(check.verdict == PASS for check in self.checks)
        return self._worst(self.checks, missing)

    @property
    def worst_of_its_checks(self) -> Verdict:
        """As `verdict`, of what ran alone: what is missing does not count."""
        return self._worst(self.checks, False)

    def _worst(self, checks: Sequence[CheckRecord], missing: bool) -> Verdict:
        verdicts = {check.verdict for check in checks if not check.waived} & {FAIL, FLAKY, UNAVAILABLE, ERROR}
        if ERROR in verdicts:  # of one check; it says nothing about the image
            verdicts = verdicts - {ERROR} | {UNPROVEN}
        if self.error_verdict:
            verdicts.add(self.error_verdict)
        if missing:
            verdicts.add(UNPROVEN)
        return worst(verdicts)

    @property
    def is_disturbed(self) -> bool:
        """Whether cloud, network, machine or a check itself failed, so that something was not judged."""
        return bool(self.error) or any(
            (check.verdict == ERROR and not check.waived) or check.met_a_transport_error for check in self.checks
        )

    @classmethod
    def from_json(cls, data: object, where: str = "host") -> Self:
        """Reads what `Report.to_json` writes of a host. Raises InvalidRecord."""
        return results.construct(
            cls,
            _without(data, "verdict"),
            where,
            checks=lambda value: results.each(value, CheckRecord, f"{where}: checks"),
            replicas=lambda value: results.each(value, Replica, f"{where}: replicas"),
            waivers=lambda value: results.each(value, WaiverRecord, f"{where}: waivers"),
            attempts=lambda value: results.each(value, LaunchAttempt, f"{where}: attempts"),
            programs=lambda value: results.each(value, Program, f"{where}: programs"),
            error_verdict=lambda value: Verdict(value) if value else None,
            restarts=tuple,
        )


def _origin(check: CheckRecord) -> object:
    event = check.event if check.event is not None else check.observed
    return event.get("origin") if isinstance(event, Mapping) else None


def worst(verdicts: set[Verdict]) -> Verdict:
    return next((verdict for verdict in ORDER if verdict in verdicts), PASS)


def counts(checks: Sequence[CheckRecord]) -> str:
    """`1 FAIL, 20 PASS`: how many checks have each verdict, the worst first; "" without checks."""
    verdicts = [check.verdict for check in checks]
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ORDER if verdict in verdicts)


@dataclass(frozen=True)
class ReportLayer(results.Record):
    """A layer of the image, with its digest and roles (docs/layers.md)."""

    name: str
    digest: str
    roles: tuple[str, ...]
    _convert: ClassVar[results.Converters] = {"roles": tuple}


class TierResult(TypedDict):
    """A tier (validator.tiers.Tier) with its verdict over all machines, the reason, and how many checks ran."""

    name: str
    title: str
    proves: str
    does_not_prove: str
    verdict: str
    reason: str
    checks: int


@dataclass(frozen=True)
class Report:
    """A proof. `plan` is the plan's content, {} without one; `image` the AMI, or "" for a host reached by its address.

    no_files: why tier T0 was not tried. incomplete: why the proof did not end ("" where it did). conditions: name and
    seed of what the local region did as AWS does (docs/conditions.md), "" for none. price_basis: of cost_usd.
    log_groups: to which the machines sent, and what was changed for it. layers: of the image, the lowest first, if its
    build is known. suite: digest of the checks. certify_carried: of releases till 0.2: the place let a certificate of
    level `certified` have checks that were carried over from an earlier proof. left_out: what a person left out on
    purpose, beside instance types. hypervisor: what ran the machines, where the place says it; "" on AWS.
    """

    plan: Mapping[str, object]
    image: str
    place: str
    region: str
    simulated: bool
    run: str
    started: str
    finished: str
    hosts: tuple[HostReport, ...] = ()
    stages: tuple[Stage, ...] = ()
    unproven_instance_types: tuple[str, ...] = ()
    no_files: str = ""
    incomplete: str = ""
    conditions: str = ""
    price_basis: str = ""
    log_groups: str = ""
    layers: tuple[ReportLayer, ...] = ()
    suite: str = ""
    certify_carried: bool = False
    left_out: tuple[LeftOut, ...] = ()
    hypervisor: str = ""

    @property
    def machine_seconds(self) -> float:
        """Time of all machines of the proof."""
        return sum(host.machine_seconds for host in self.hosts)

    @property
    def cost_usd(self) -> float | None:
        """What they cost; None where a price is unknown or no machine was launched."""
        costs = [host.cost_usd for host in self.hosts if host.machine_seconds]
        return sum(cost for cost in costs if cost is not None) if costs and None not in costs else None

    @property
    def roles(self) -> list[str]:
        return self._planned("roles")

    @property
    def notes(self) -> list[str]:
        """The notes of the plan."""
        return self._planned("notes")

    def _planned(self, key: str) -> list[str]:
        values = self.plan.get(key)
        return [str(value) for value in values] if isinstance(values, list) else []

    @property
    def name(self) -> str:
        """What was proved, for a title: the image's name, the AMI, or `a host`."""
        return str(self.plan.get("image") or self.image or "a host")

    @property
    def verdict(self) -> Verdict:
        verdicts = {host.verdict(self.roles) for host in self.hosts}
        chosen = any(entry.part == left_out.Part.CHECKS for entry in self.left_out)  # also of image files alone
        if self.unproven_instance_types or self.incomplete or chosen or not verdicts:
            verdicts.add(UNPROVEN)
        return worst(verdicts)

    @property
    def exit_code(self) -> int:
        """0 all that was asked for passed, 1 a check failed or is missing, 4 it could not be judged, 5 no capacity.

        What a person left out on purpose: 0 if these are instance types (a shard), 7 for restarts and checks.
        """
        if self.verdict == UNPROVEN:
            if self.incomplete or any(host.is_disturbed for host in self.hosts):
                return 4
            if left_out.passed_as_asked(self):
                return left_out.EXIT_CODE if self.left_out else 0
            return 1
        return {PASS: 0, FAIL: 1, FLAKY: 1, UNAVAILABLE: 5}[self.verdict]

    @property
    def tiers(self) -> list[TierResult]:
        """Of each tier: its verdict over all machines, why it is no PASS, and what it does not prove even then.

        An image that is no node of a service has no tier TN.
        """
        is_node = any(role in self.roles for role in NODE_SERVICES)
        return [self._tier(tier) for tier in TIERS if is_node or tier.name != NODE]

    def _tier(self, tier: Tier) -> TierResult:
        name = tier.name
        hosts = [host for host in self.hosts if host.offline is (name == "T0")]
        verdicts = {host.tier_verdict(name, self.roles) for host in hosts}
        absent = () if name == "T0" else self.unproven_instance_types
        if absent or not hosts or self.incomplete:
            verdicts.add(UNPROVEN)
        verdict = worst(verdicts)
        return {
            "name": name,
            "title": tier.title,
            "proves": tier.proves,
            "does_not_prove": tier.does_not_prove,
            "verdict": str(verdict),
            "reason": self._tier_reason(name, verdict, hosts),
            "checks": sum(len(host.of_tier(name)) for host in hosts),
        }

    def _tier_reason(self, name: str, verdict: Verdict, hosts: Sequence[HostReport]) -> str:
        if verdict == PASS:
            return ""
        if name in OWN_PASSES and not any(host.of_tier(name) for host in hosts):
            return OWN_PASSES[name]
        if name == "T0" and not hosts:
            return self.no_files or "the image's files were not checked"
        if not hosts:
            return "no machine was checked"
        unexplained = next((host.not_accounted for host in hosts if host.not_accounted), "")
        if name == "T0" and verdict == UNPROVEN and unexplained:
            return f"not accounted: {unexplained}"
        where = [host.name for host in hosts if host.tier_verdict(name, self.roles) == verdict]
        where += self.unproven_instance_types if verdict == UNPROVEN and name != "T0" else ()
        if name in OWN_PASSES and verdict == UNPROVEN:
            lines = [line for host in hosts for line in host.open_of(name)]
            where = [f"{where[0]}, not shown: {'; '.join(dict.fromkeys(lines))}"] if where and lines else where
        drill = name == "T2" and any(host.lacks_kernel_xid(self.roles) for host in hosts) and verdict == UNPROVEN
        reason = f"on {', '.join(where)}" if where else self.incomplete
        return f"{reason}: only a drill was seen, no Xid of the kernel driver (--provoke-xid)" if drill else reason

    @property
    def carried(self) -> list[tuple[HostReport, CheckRecord]]:
        """Checks that did not run on this image: an earlier proof has them."""
        return [(host, check) for host in self.hosts for check in host.checks if check.carried]

    def failures(self) -> list[tuple[HostReport, CheckRecord]]:
        """Checks that failed or were flaky and that no waiver covers, with their machines."""
        return [
            (host, check)
            for host in self.hosts
            for check in host.checks
            if check.verdict in (FAIL, FLAKY, ERROR) and not check.waived
        ]

    def to_json(self) -> dict[str, object]:
        """The document report.json; verdicts and tiers follow from the rest and are there for readers."""
        content = results.plain_fields(self)
        hosts = [results.plain_fields(host) | {"verdict": str(host.verdict(self.roles))} for host in self.hosts]
        return {"schema": SCHEMA, "verdict": str(self.verdict), "tiers": self.tiers} | content | {"hosts": hosts}

    @classmethod
    def from_json(cls, data: object, where: str = REPORT_FILE) -> Self:
        """Reads what `to_json` wrote. Raises InvalidRecord with the place of the mistake."""
        return results.construct(
            cls,
            _without(data, "schema", "verdict", "tiers"),
            where,
            hosts=lambda value: results.each(value, HostReport, f"{where}: hosts"),
            stages=lambda value: results.each(value, Stage, f"{where}: stages"),
            unproven_instance_types=tuple,
            layers=lambda value: results.each(value, ReportLayer, f"{where}: layers"),
            left_out=lambda value: results.each(value, LeftOut, f"{where}: left_out"),
        )


def _without(data: object, *derived: str) -> object:
    return {key: value for key, value in data.items() if key not in derived} if isinstance(data, dict) else data


def load(path: Path) -> Report:
    """Reads report.json. UsageError: no such file, not JSON, another schema, or a content that `write` never writes."""
    data = read_document(path, SCHEMA, "validate")
    rewrite = "`gpu-ami validate` writes a new one"
    try:
        report = Report.from_json(data, str(path))
    except InvalidRecord as error:
        raise UsageError(str(error), hint=rewrite) from error
    try:
        report.to_json()  # all that is derived: the plan in it, facts and events have no types of their own
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        text = f"{path}: a content that `gpu-ami validate` never writes: {type(error).__name__}: {error}"
        raise UsageError(text, hint=rewrite) from error
    return report
