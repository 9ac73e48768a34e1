"""The certificate: what was proven of an image, on what, and what was not. It never claims more than the report holds.

Levels: `rehearsed` (simulated hardware or a replica package took part) < `certified` (real hardware, vendor packages,
and an Xid of the kernel driver on each machine). A report that is not a PASS gets no certificate.

Schema gpu-ami/certificate/2 (docs/schemas/certificate.json).
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from gpu_ami import __version__
from gpu_ami.errors import UsageError
from gpu_ami.files import read_document, write_json, write_text
from gpu_ami.recipes import components
from gpu_ami.recipes.facts import fact_queries
from gpu_ami.report import templating
from gpu_ami.report.document import (
    COMES_BACK,
    FLAKY,
    NODE_SERVICES,
    OBSERVED_ROLE,
    PASS,
    UNPROVEN,
    HostReport,
    LaunchAttempt,
    Report,
    Stage,
    TierResult,
)
from validator import results, tried_on
from validator.results import CarriedOver, CheckRecord, InvalidRecord, Verdict, WaiverState
from validator.tiers import NODE

SCHEMA = "gpu-ami/certificate/2"
CERTIFICATE_FILE, MARKDOWN_FILE = "certificate.json", "certificate.md"
AS_PLANNED, AS_FOUND = "as planned", "as found"
NONE, REHEARSED, CERTIFIED = "none", "rehearsed", "certified"
# What no check of this suite covers. Named in every certificate.
NOT_COVERED = (
    "performance: no bandwidth, clock rate or throughput was measured",
    "endurance: the image ran for minutes",
)


@dataclass(frozen=True)
class CertifiedLayer(results.Record):
    """A layer that was not built with the image but came with a layer image. ami, created: of that image, if known."""

    name: str
    digest: str
    ami: str = ""
    created: str = ""


@dataclass(frozen=True)
class CertifiedImage:
    """The image that the statement is about. source_ami: what it was built on, with name and how that was found.

    layers: that came with a layer image; none for an image that was built from nothing.
    """

    ami: str
    name: str
    region: str
    place: str
    source_ami: str = ""
    layers: tuple[CertifiedLayer, ...] = ()


@dataclass(frozen=True)
class ReportOrigin:
    """What is known of who made a report. unsigned: why that is nothing; refused: why it gets no certificate."""

    unsigned: str = ""
    refused: str = ""


@dataclass(frozen=True)
class CertifiedHost:
    """One machine of the report with its verdict and checks. boot_seconds: from the launch to the end of each stage.

    attempts: to launch it, with what AWS answered.
    """

    name: str
    instance_type: str
    instance_id: str
    verdict: Verdict
    boot_seconds: Mapping[str, float]
    facts: Mapping[str, object]
    error: str
    checks: tuple[CheckRecord, ...]
    attempts: tuple[LaunchAttempt, ...] = ()

    @property
    def cluster(self) -> str:
        """The cluster that it was a node of, with its versions and nodes; "" without --join."""
        cluster = self.facts.get("cluster")
        if not isinstance(cluster, Mapping):
            return ""
        nodes = cluster.get("nodes")
        names = [str(name) for name in nodes] if isinstance(nodes, Sequence) else []
        kind = "a Slurm cluster of the proof's own machines"
        if cluster.get("service") != "ParallelCluster":
            kind = f"cluster {cluster.get('name')}{', made for the proof' if cluster.get('own') else ''}"
        what = f"{' '.join(filter(None, (str(cluster.get('service')), str(cluster.get('version') or ''))))}, {kind}"
        return f"{what}, {templating.plural(len(names), 'node')}: {', '.join(names)}"

    @classmethod
    def of(cls, host: HostReport, roles: Sequence[str]) -> Self:
        verdict = host.verdict(roles)
        identity = (host.name, host.instance_type, host.instance_id)
        checks = tuple(replace(check, series=()) for check in host.checks)  # of the report, whose digest is here
        return cls(*identity, verdict, host.boot, host.facts, host.error, checks, host.attempts)

    @classmethod
    def from_json(cls, data: object, where: str = "host") -> Self:
        """Raises InvalidRecord."""
        return results.construct(
            cls,
            data,
            where,
            verdict=Verdict,
            checks=lambda value: results.each(value, CheckRecord, f"{where}: checks"),
            attempts=lambda value: results.each(value, LaunchAttempt, f"{where}: attempts"),
        )


@dataclass(frozen=True)
class Certificate:
    """The statement. report_sha256: of the report's canonical JSON, which binds the statement to it.

    tried_on: the checks with a verdict by what their judgement was tried on (validator.tried_on). basis: AS_PLANNED, or
    AS_FOUND: no recipe promised anything of the image, so nothing of it was compared with one.
    """

    verdict: Verdict
    level: str
    image: CertifiedImage
    plan_digest: str
    report_sha256: str
    run: str
    started: str
    finished: str
    issued_by: str
    simulated_hardware: bool
    replicas: tuple[str, ...]
    proven_on: tuple[CertifiedHost, ...]
    tiers: tuple[TierResult, ...]
    not_proven: tuple[str, ...]
    planned_not_installed: tuple[str, ...]
    stages: tuple[Stage, ...]
    conditions: str = ""
    machine_seconds: float = 0.0
    cost_usd: float | None = None
    price_basis: str = ""
    log_groups: str = ""
    tried_on: Mapping[str, Sequence[str]] = field(default_factory=dict)
    basis: str = AS_PLANNED

    @property
    def is_issued(self) -> bool:
        """Whether this is a certificate: a report that is not a PASS gets none."""
        return self.level != NONE

    def to_json(self) -> dict[str, object]:
        """The document certificate.json."""
        return {"schema": SCHEMA} | results.plain_fields(self)

    @classmethod
    def from_json(cls, data: object, where: str = CERTIFICATE_FILE) -> Self:
        """Reads what `to_json` wrote. Raises InvalidRecord."""
        content = {key: value for key, value in data.items() if key != "schema"} if isinstance(data, dict) else data
        return results.construct(
            cls,
            content,
            where,
            verdict=Verdict,
            image=lambda value: results.construct(
                CertifiedImage,
                value,
                f"{where}: image",
                layers=lambda rows: results.each(rows, CertifiedLayer, f"{where}: image: layers"),
            ),
            proven_on=lambda value: results.each(value, CertifiedHost, f"{where}: proven_on"),
            stages=lambda value: results.each(value, Stage, f"{where}: stages"),
            replicas=tuple,
            tiers=tuple,
            not_proven=tuple,
            planned_not_installed=tuple,
        )

    def write(self, folder: Path) -> list[Path]:
        """Writes certificate.json and certificate.md. Without a certificate, removes those of an earlier report."""
        paths = [folder / CERTIFICATE_FILE, folder / MARKDOWN_FILE]
        if not self.is_issued:
            for path in paths:
                path.unlink(missing_ok=True)
            return []
        write_json(paths[0], self.to_json())
        write_text(paths[1], markdown(self))
        return paths


def load(path: Path) -> Certificate:
    """Reads certificate.json. UsageError: no such file, not JSON, another schema or content."""
    data = read_document(path, SCHEMA, "certify")
    try:
        return Certificate.from_json(data, str(path))
    except InvalidRecord as error:
        raise UsageError(str(error), hint="`gpu-ami certify` writes a new one") from error


_KNOWN_ORIGIN = ReportOrigin()


def certify(
    report: Report,
    remarks: Sequence[str] = (),
    source_ami: str = "",
    layers: Sequence[CertifiedLayer] = (),
    origin: ReportOrigin = _KNOWN_ORIGIN,
) -> Certificate:
    """The certificate of a report. Its level is `none` where the report is not a PASS.

    remarks: what else is not proven, a sentence each, as the record of the build says. source_ami, layers:
    of the image. origin: of the report; one that nobody signed is `rehearsed` at most.
    """
    replicas = _replicas(report)
    level = NONE if origin.refused else level_of(report)
    if origin.unsigned:
        remarks = [*remarks, f"who made the report: {origin.unsigned}"]
        level = REHEARSED if level == CERTIFIED else level
    return Certificate(
        verdict=report.verdict,
        level=level,
        image=CertifiedImage(
            report.image, str(report.plan.get("image", "")), report.region, report.place, source_ami, tuple(layers)
        ),
        plan_digest=str(report.plan.get("digest", "")),
        report_sha256=report_digest(report.to_json()),
        run=report.run,
        started=report.started,
        finished=report.finished,
        issued_by=f"gpu-ami {__version__}",
        simulated_hardware=report.simulated,
        replicas=tuple(replicas),
        proven_on=tuple(CertifiedHost.of(host, report.roles) for host in report.hosts),
        tiers=tuple(report.tiers),
        not_proven=(*not_proven(report, replicas), *remarks),
        planned_not_installed=tuple(_planned_only(report)),
        stages=report.stages,
        conditions=report.conditions,
        machine_seconds=round(report.machine_seconds, 1),
        cost_usd=None if report.cost_usd is None else round(report.cost_usd, 2),
        price_basis=report.price_basis,
        log_groups=report.log_groups,
        tried_on=tried_on.by_kind(_decided(report)),
        basis=AS_FOUND if OBSERVED_ROLE in report.roles else AS_PLANNED,
    )


def _decided(report: Report) -> Iterator[str]:
    """Checks that said something of the image."""
    for host in report.hosts:
        yield from (check.id for check in host.checks if check.verdict != UNPROVEN)


def _replicas(report: Report) -> list[str]:
    return sorted({f"{entry.package} {entry.version}".strip() for host in report.hosts for entry in host.replicas})


def report_digest(document: Mapping[str, object]) -> str:
    """`sha256:` and 64 hexadecimal digits over a report's canonical JSON.

    document: `Report.to_json()`, or the content of report.json as it is: another version's report has other keys.
    """
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return "sha256:" + hashlib.sha256(canonical.encode(errors="backslashreplace")).hexdigest()


def refusal(report: Report) -> str:
    """Why a PASS gets no certificate: a program that nobody named took part in the proof. "" where it may get one."""
    for host in report.hosts:
        unnamed = [f"{entry.kind} {entry.name} ({entry.digest})" for entry in host.programs if not entry.named]
        if unnamed:
            return f"{host.name}: {', '.join(unnamed)} took part in the proof, and the command line does not name it"
        if host.programs and not host.isolated:
            return f"{host.name}: its checks ran in pytest with the plugins and configuration of the caller"
    return ""


def _is_isolation_known(report: Report) -> bool:
    """Reports of version 0.2.0 and before do not list the programs; their certificates stay what they are."""
    return all(host.programs and host.isolated for host in report.hosts if host.checks)


def level_of(report: Report) -> str:
    """The level that a report supports: certified, rehearsed or none."""
    booted = [host for host in report.hosts if not host.offline]
    if report.verdict != PASS or not booted or refusal(report):  # files alone: nothing was booted
        return NONE
    # On real hardware a report is a PASS only with an Xid of the kernel driver: HostReport.lacks_kernel_xid.
    real = (
        not report.simulated and not _replicas(report) and all(host.facts.get("hardware") == "real" for host in booted)
    )
    whole = report.certify_carried or not report.carried
    return CERTIFIED if real and report.image and whole else REHEARSED


def _planned_only(report: Report) -> list[str]:
    """`component version` of what the plan names and no role installs."""
    promised = [name for name, component in components.components().items() if component.is_promised]
    sections = {name: report.plan.get(name) for name in promised if name not in report.roles}
    return [
        f"{name} {section.get('version', '')}".strip()
        for name, section in sections.items()
        if isinstance(section, Mapping) and section
    ]


def not_proven(report: Report, replicas: Sequence[str]) -> list[str]:
    """Everything that a reader might take for proven and that is not, a sentence each."""
    lines = [f"the proof is incomplete: {report.incomplete}"] if report.incomplete else []
    lines += as_found_lines(report)
    lines += [f"instance type {name}: not booted" for name in report.unproven_instance_types]
    lines += [f"left out on purpose: {part}" for part in report.left_out]
    lines += carried_lines(report)
    lines += [_tier_line(tier) for tier in report.tiers]
    lines += _cluster_lines(report)
    if not _is_isolation_known(report):
        lines.append("what took part in the proof beside the image's checks: the report does not list it")
    machines: dict[str, list[str]] = {}  # machines by sentence, so that each sentence stands once
    for host in report.hosts:
        for line in _open(host, report):
            machines.setdefault(line, []).append(host.name)
    lines += [f"{', '.join(dict.fromkeys(names))}: {line}" for line, names in machines.items()]
    if report.simulated:
        simulated = "the GPUs were simulated; results were computed by a simulated library"
        lines.append(f"real GPUs: {simulated}, and no real GPU has failed")
    lines += [f"the vendor's own package of {name}: a replica was installed instead" for name in replicas]
    lines += [f"{name}: planned, installed by no role of this image" for name in _planned_only(report)]
    lines += facts_lines(report)
    lines += [f"noted in the plan: {note}" for note in report.notes]
    return [*lines, *NOT_COVERED]


def facts_lines(report: Report) -> list[str]:
    """From when the facts of the plan are, on the day of the proof."""
    sources = report.plan.get("sources")
    rows = sources if isinstance(sources, list) else []
    dates = [str(row["date"]) for row in rows if isinstance(row, Mapping) and "date" in row]
    if not dates:
        return []
    age = fact_queries.age(dates, datetime.date.fromisoformat(report.finished[:10]))
    return [f"what was released since the facts were read: {age}"]


def as_found_lines(report: Report) -> list[str]:
    """Of an image without a recipe: what that leaves open, and the components whose checks are not applicable."""
    if OBSERVED_ROLE not in report.roles:
        return []
    observed = report.plan.get("observed")
    absent = observed.get("absent", []) if isinstance(observed, Mapping) else []
    by = " and ".join(observed.get("absent_by", [])) if isinstance(observed, Mapping) else ""
    lines = ["as found: no recipe promises anything of this image, so nothing of it was compared with a plan"]
    if absent:
        labels = {name: one.label or name for name, one in components.components().items()}
        shown = ", ".join(labels.get(str(name), str(name)) for name in absent)
        lines.append(f"not applicable, shown to be absent by {by}: {shown}")
    return lines


def carried_lines(report: Report) -> list[str]:
    """A sentence for each earlier proof and layer whose checks did not run on this image."""
    groups: dict[tuple[str, CarriedOver], int] = {}
    for host, check in report.carried:
        assert check.carried
        key = (host.name, check.carried)
        groups[key] = groups.get(key, 0) + 1
    return [
        f"{name}: {templating.plural(count, 'check')} of layer {earlier.layer} did not run on this image: proven on"
        f" {earlier.date[:10]} on {earlier.image} by report {earlier.report}, layer digest {earlier.digest}"
        for (name, earlier), count in groups.items()
    ]


def _cluster_lines(report: Report) -> list[str]:
    """Without --join, the node agents of an image run alone."""
    if any(host.of_tier(NODE) for host in report.hosts):
        return []  # its line is the tier's
    return [
        f"a node in a cluster: no {name} cluster was joined, and no pod, task or job of one ran"
        for role, name in NODE_SERVICES.items()
        if role in report.roles
    ]


def _tier_line(tier: TierResult) -> str:
    name = f"tier {tier['name']}, {tier['title']}"
    if tier["verdict"] == PASS:
        return f"{name}: a PASS does not prove {tier['does_not_prove']}"
    return f"{name}: {tier['verdict']}: {tier['reason']}: nothing shows that {tier['proves']}"


def _open(host: HostReport, report: Report) -> list[str]:
    """What the checks of one machine leave open."""
    lines = [host.error.splitlines()[0]] if host.error else host.unproven(report.roles)
    for check in host.checks:
        restart = check.id.startswith(f"{COMES_BACK}@") and check.after in host.restarts and not host.error
        if check.waived:
            until = f"waived by {check.waived.owner} until {check.waived.expires}"
            lines.append(f"{check.id}: {check.verdict}, {until}: {check.waived.reason}")
        elif check.verdict in (UNPROVEN, FLAKY) and not restart:  # a restart is among host.unproven already
            lines.append(f"{check.id}: {check.verdict}: {check.first_line}")
    return lines + [
        f"waiver of {waiver.check} is {waiver.state}" for waiver in host.waivers if waiver.state != WaiverState.USED
    ]


_MARKS = {"PASS": "✅", "FAIL": "❌", "FLAKY": "⚠️", "UNPROVEN": "◻️", "UNAVAILABLE": "⛔", "ERROR": "❗"}
_TITLES = {NONE: "No certificate", REHEARSED: "Rehearsal certificate", CERTIFIED: "Certificate"}


def replica_count(certificate: Certificate) -> str:
    """For the head of a page that names the replicas further down: how many, and how many packages the image has."""
    counts = [count for host in certificate.proven_on if isinstance(count := host.facts.get("packages"), int)]
    among = f"; {templating.plural(max(counts), 'package')} are installed" if counts else ""
    return f"{len(certificate.replicas)}, named below{among}" if certificate.replicas else f"none{among}"


def markdown(certificate: Certificate) -> str:
    """The certificate for people: verdict first, then each machine, then what was not proven."""
    return templating.render(
        "certificate.md.j2",
        certificate=certificate,
        title=_TITLES[certificate.level],
        replicas=replica_count(certificate),
        marks=_MARKS,
        tried_on=lambda check: tried_on.tried_with(check.id)[0],
        tried_summary=tried_on.summary(name for names in certificate.tried_on.values() for name in names),
        red=("FAIL", "FLAKY", "ERROR"),
    )
