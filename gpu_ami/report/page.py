"""report.html: the report on one self-contained page, for the person who decides about a release.

Verdict and level first, what was not proven right below, then each machine. The page loads nothing, and no text of a
report becomes part of it: templates/ escape every value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gpu_ami.files import write_text
from gpu_ami.report import certificate as certificates
from gpu_ami.report import templating
from gpu_ami.report.certificate import Certificate
from gpu_ami.report.document import (
    ERROR,
    FAIL,
    FLAKY,
    PASS,
    UNAVAILABLE,
    UNPROVEN,
    Report,
)
from gpu_ami.report.page_machine import Bar, MachineView, bar
from validator.results import Verdict, WaiverRecord

PAGE_FILE = "report.html"

# Each verdict as sign, and as what it says of the image.
VERDICTS = {
    PASS: ("✓", "All required checks passed."),
    FAIL: ("✗", "The image failed: a check failed."),
    FLAKY: ("≈", "A check passed only at a later attempt, which does not count as passed."),
    ERROR: ("!", "A check could not run."),
    UNAVAILABLE: ("∅", "There was no capacity to launch a machine. The image was not judged."),
    UNPROVEN: ("?", "A required check did not run or did not complete, which does not count as passed."),
}
_LEVELS = {
    certificates.CERTIFIED: "Proven on real hardware with the vendors' own packages.",
    certificates.REHEARSED: "Proven on simulated hardware or with replica packages: not a statement about real GPUs.",
    certificates.NONE: "No certificate was issued.",
}
# Sentences of the certificate that differ in one part only are shown as one list: pattern of the sentence, heading.
_GROUPS = (
    (re.compile("the vendor's own package of (.+): a replica was installed instead"), "Packages replaced by a replica"),
    (re.compile("(.+): planned, installed by no role of this image"), "Planned, installed by no role of this image"),
    (re.compile("noted in the plan: (.+)"), "Noted in the plan"),
    (re.compile("(tier .+: a PASS does not prove .+)"), "What a PASS of a tier does not prove"),
    (re.compile(f"({'|'.join(map(re.escape, certificates.NOT_COVERED))})"), "In no certificate"),
)
_SENTENCE = 50  # characters: shorter entries are joined to one sentence


@dataclass(frozen=True)
class _Group:
    """Lines of "Not proven" under one heading. Those that every report has are folded."""

    heading: str
    lines: Sequence[str]

    @property
    def in_one_sentence(self) -> bool:
        return bool(self.heading) and all(len(line) < _SENTENCE for line in self.lines)

    @property
    def folded(self) -> bool:
        return bool(self.heading)


@dataclass(frozen=True)
class _Red:
    """What a reader has to look at, with a link to where it is."""

    verdict: Verdict
    waived: bool
    anchor: str
    text: str


@dataclass(frozen=True)
class _Link:
    href: str
    name: str


@dataclass(frozen=True)
class _Evidence:
    """Links by folder, and the folders below evidence/ that belong to no machine of this report."""

    folders: dict[str, list[_Link]]
    unrelated: Sequence[str]


def page(report: Report, issued: Certificate | None, evidence: Sequence[str]) -> str:
    """The page of one proof.

    issued: the certificate beside the report. One of another report, or one that claims more than this report does, is
    not shown, and the page says so. evidence: paths of files, relative to the folder of the page.
    """
    expected = certificates.certify(report)
    foreign = issued is not None and _binding(issued) != _binding(expected)
    statement = expected if issued is None or foreign else issued
    machines = [MachineView(host, report, f"m{number}") for number, host in enumerate(report.hosts, 1)]
    return templating.render(
        "page.html.j2",
        report=report,
        statement=statement,
        level=certificates.NONE if issued is None or foreign else issued.level,
        levels=_LEVELS,
        verdicts=VERDICTS,
        foreign=foreign,
        red=[entry for machine in machines for entry in _red(machine)],
        replicas=certificates.replica_count(statement.replicas),
        not_proven=_groups(statement.not_proven),
        machines=machines,
        waivers=_waivers(report),
        stages=_stages(report),
        stages_have_starts=any(stage.start is not None for stage in report.stages),
        hop_table=_hop_table(report),
        evidence=_evidence(report, [path for path in evidence if not (foreign and path.startswith("certificate."))]),
    )


def write(report: Report, issued: Certificate | None, folder: Path) -> Path:
    """Writes report.html beside report.json, with links to the evidence that is there."""
    beside = [folder / name for name in ("report.json", "junit.xml", "certificate.json", "certificate.md")]
    files = [*beside, *sorted((folder / "evidence").rglob("*"))]
    evidence = [path.relative_to(folder).as_posix() for path in files if path.is_file() and not path.is_symlink()]
    path = folder / PAGE_FILE
    write_text(path, page(report, issued, evidence))
    return path


def _binding(certificate: Certificate) -> tuple[str, ...]:
    """What a certificate must have in common with the one that follows from a report, to be that report's."""
    return certificate.report_sha256, certificate.verdict, certificate.level


def _red(machine: MachineView) -> Iterable[_Red]:
    if machine.host.error:
        text = f"{machine.name}: {machine.host.error.splitlines()[0]}"
        yield _Red(machine.verdict, False, machine.anchor, text)
    for check in machine.checks:
        if check.record.verdict in (FAIL, FLAKY, ERROR):
            waived = check.record.waived is not None
            yield _Red(check.record.verdict, waived, check.anchor, f"{machine.name}: {check.record.id}")


def _groups(lines: Sequence[str]) -> list[_Group]:
    groups: dict[str, list[str]] = {heading: [] for heading in ("", *(heading for _, heading in _GROUPS))}
    for line in lines:
        matches = ((heading, match[1]) for pattern, heading in _GROUPS if (match := pattern.fullmatch(line)))
        heading, entry = next(matches, ("", line))
        groups[heading].append(entry)
    return [_Group(heading, entries) for heading, entries in groups.items() if entries]


def _waivers(report: Report) -> list[tuple[str, WaiverRecord]]:
    """Every waiver with its state, also one that nothing needed; a machine's own list, or what its checks carry."""
    entries: list[tuple[str, WaiverRecord]] = []
    for host in report.hosts:
        carried = [check.waived for check in host.checks if check.waived]
        for waiver in host.waivers or carried:
            if (host.name, waiver) not in entries:
                entries.append((host.name, waiver))
    return entries


def _stages(report: Report) -> list[Bar]:
    total = max(((stage.start or 0.0) + stage.seconds for stage in report.stages), default=0.0)
    bars = []
    for stage in report.stages:
        start, failed = stage.start or 0.0, stage.outcome == "failed"
        label = f"{'failed after ' if failed else ''}{templating.seconds(stage.seconds)}"
        kind = f"in{min(stage.level, 3)}{' FAIL' if failed else ''}"
        bars.append(bar(stage.stage, label, start, start + stage.seconds, total, kind))
    return bars


def _hop_table(report: Report) -> dict[str, list[float | None]]:
    """Seconds of each hop on each machine, where there is more than one machine."""
    if len(report.hosts) < 2:
        return {}
    table: dict[str, list[float | None]] = {}
    for column, host in enumerate(report.hosts):
        for check in host.checks:
            for hop in check.hops:
                row = table.setdefault(hop.hop, [None] * len(report.hosts))
                row[column] = hop.seconds if row[column] is None else row[column]
    return table


def _evidence(report: Report, paths: Sequence[str]) -> _Evidence:
    own = tuple(f"evidence/{host.evidence}/" for host in report.hosts)
    folders: dict[str, list[_Link]] = {}
    unrelated: set[str] = set()
    for path in paths:
        parts = path.split("/")
        if path.startswith("/") or ".." in parts or "" in parts:
            continue  # not below this page
        if parts[0] == "evidence" and len(parts) > 2 and not path.startswith(own):
            unrelated.add(parts[1])
        else:
            heading = "/".join(parts[:-1]).removeprefix("evidence/") or "This proof"
            folders.setdefault(heading, []).append(_Link(quote(path), parts[-1]))
    return _Evidence(folders, sorted(unrelated))
