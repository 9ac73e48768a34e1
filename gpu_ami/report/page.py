"""report.html: the report on one self-contained page, for the person who decides about a release.

Verdict and level first, what is missing for the next level right below, then when everything ran, each machine, and
what the image is made of. The page loads nothing, and no text of a report becomes part of it: templates/ escape every
value. Without scripts it is complete; its only script is the search, which the page's own policy names by its digest.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from gpu_ami.files import write_text
from gpu_ami.report import certificate as certificates
from gpu_ami.report import page_machine, templating
from gpu_ami.report.certificate import Certificate
from gpu_ami.report.document import ERROR, FAIL, FLAKY, PASS, UNAVAILABLE, UNPROVEN, Report, Stage
from gpu_ami.report.page_machine import Bar, MachineView, Materials, bar
from validator.results import Verdict, WaiverRecord

if TYPE_CHECKING:
    from gpu_ami.release import comparison as comparisons

RUN = "run"  # the lane of what is of no machine
# The first word of a stage's name → what it does; colour and legend follow from that.
_KINDS = {
    "build": "build", "launch": "boot", "boot": "boot", "reboot": "boot", "stop-start": "boot", "connect": "boot",
    "check": "check",
}  # fmt: skip
_LEGEND = {"prepare": "preparation", "build": "build", "boot": "launch and restarts", "check": "checks"}
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800)  # seconds between two ticks
_TICKS = 6
_ROUNDING = 0.05  # s; times are recorded in hundredths


@dataclass(frozen=True)
class Tick:
    """A time on the axis; left in per cent, as CSS."""

    label: str
    left: str


@dataclass(frozen=True)
class Lane:
    """The stages of one machine, or of the run: in rows, so that none covers another. text: the same in words."""

    name: str
    rows: Sequence[Sequence[Bar]]
    text: str


@dataclass(frozen=True)
class Timeline:
    """All lanes on one axis. legend: kinds of stages that are there, with what they are called.

    hypervisor: of the machines, since a stage's seconds depend on it; "" on AWS.
    """

    lanes: Sequence[Lane]
    ticks: Sequence[Tick]
    legend: Mapping[str, str]
    hypervisor: str = ""


@dataclass(frozen=True)
class HopPanel:
    """One hop on every machine and after every restart, on a scale of its own."""

    hop: str
    bars: Sequence[Bar]


def timeline(report: Report) -> Timeline | None:
    """None where the report does not say when its stages began."""
    known = [stage for stage in report.stages if stage.start is not None]
    total = max((_end(stage) for stage in known), default=0.0)
    if not total:
        return None
    names = dict.fromkeys(["", *(host.name for host in report.hosts), *(stage.machine for stage in known)])
    stages = {name: [stage for stage in known if stage.machine == name] for name in names}
    kinds = {_kind(stage) for stage in known}
    return Timeline(
        [_lane(name, entries, total) for name, entries in stages.items() if entries],
        _ticks(total),
        {kind: text for kind, text in _LEGEND.items() if kind in kinds},
        report.hypervisor,
    )


def _end(stage: Stage) -> float:
    return (stage.start or 0.0) + stage.seconds


def _kind(stage: Stage) -> str:
    return _KINDS.get(stage.stage.partition(" ")[0], "prepare")


def _lane(name: str, stages: Sequence[Stage], total: float) -> Lane:
    ordered = sorted(stages, key=lambda stage: (stage.start or 0.0, stage.level))
    text = "; ".join(f"{stage.stage}: {_label(stage)}" for stage in ordered)
    return Lane(name or RUN, [[_bar(stage, total) for stage in row] for row in _rows(ordered)], text)


def _rows(stages: Iterable[Stage]) -> list[list[Stage]]:
    """Each stage, in order of their starts, in the first row in which the one before it has ended."""
    rows: list[list[Stage]] = []
    for stage in stages:
        free = (row for row in rows if _end(row[-1]) <= (stage.start or 0.0) + _ROUNDING)
        row = next(free, None)
        if row is None:
            rows.append([stage])
        else:
            row.append(stage)
    return rows


def _label(stage: Stage) -> str:
    start = f" from {templating.seconds(stage.start)}" if stage.start is not None else ""
    return f"{'failed after ' if stage.outcome == 'failed' else ''}{templating.seconds(stage.seconds)}{start}"


def _bar(stage: Stage, total: float) -> Bar:
    kind = f"{_kind(stage)}{' FAIL' if stage.outcome == 'failed' else ''}"
    name = " ".join(stage.stage.replace(stage.machine, "").split()) if stage.machine else stage.stage
    name = f"✗ {name}" if stage.outcome == "failed" else name
    return bar(name, _label(stage), stage.start or 0.0, _end(stage), total, kind=kind)


def _ticks(total: float) -> list[Tick]:
    step = next((step for step in _STEPS if total / step < _TICKS), 86400)
    return [Tick(_clock(at), bar("", "", at, at, total).left) for at in range(0, int(total) + 1, step)]


def _clock(seconds: int) -> str:
    if seconds % 60:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds else "0"


def hop_panels(report: Report) -> list[HopPanel]:
    """A panel for each hop, in the order in which the first machine has them; of several events, the slowest."""
    panels: dict[str, dict[str, float]] = {}
    for host in report.hosts:
        for check in host.checks:
            name = f"{host.name} after {check.after}" if check.after else host.name
            for hop in check.hops:
                slowest = panels.setdefault(hop.hop, {})
                slowest[name] = max(hop.seconds, slowest.get(name, hop.seconds))
    return [HopPanel(hop, _panel_bars(slowest)) for hop, slowest in panels.items()]


def _panel_bars(slowest: Mapping[str, float]) -> list[Bar]:
    total = max(slowest.values())
    return [bar(name, templating.seconds(seconds, 2), 0.0, seconds, total) for name, seconds in slowest.items()]


def stage_bars(report: Report) -> list[Bar]:
    """Every stage with its duration, in the order in which they ended."""
    total = max((_end(stage) for stage in report.stages), default=0.0)
    bars = []
    for stage in report.stages:
        failed = stage.outcome == "failed"
        label = f"{'failed after ' if failed else ''}{templating.seconds(stage.seconds)}"
        kind = f"in{min(stage.level, 3)}{' FAIL' if failed else ''}"
        bars.append(bar(stage.stage, label, stage.start or 0.0, _end(stage), total, kind=kind))
    return bars


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
# What keeps a report from the next level, by the level that it has: heading, and the sentence where nothing does.
_MISSING = {
    certificates.NONE: ("Missing for a certificate", "The checks that did not pass, above."),
    certificates.REHEARSED: ("Missing for the level certified", "A machine that was launched from an AMI."),
    certificates.CERTIFIED: ("", "At this level nothing is missing."),
}
_REAL_GPUS, _REPLICAS = "real GPUs: ", "Packages replaced by a replica"
# Sentences of the certificate that differ in one part only are shown as one list: pattern of the sentence, heading.
_GROUPS = (
    (re.compile("the vendor's own package of (.+): a replica was installed instead"), _REPLICAS),
    (re.compile(r"(.+: \S+::\S+: (?:[A-Z]+, waived by .+|UNPROVEN: .+))"), "Checks without a verdict, or waived"),
    (re.compile(r"((?:.+: )?waiver of .+ is \w+)"), "Waivers that did nothing"),
    (re.compile("(tier .+: [A-Z]+: .+: nothing shows that .+)"), "Tiers that were not reached"),
    (re.compile("(.+): planned, installed by no role of this image"), "Planned, installed by no role of this image"),
    (re.compile("noted in the plan: (.+)"), "Noted in the plan"),
    (re.compile("(tier .+: a PASS does not prove .+)"), "What a PASS of a tier does not prove"),
    (re.compile(f"({'|'.join(map(re.escape, certificates.NOT_COVERED))})"), "In no certificate"),
)
_SENTENCE = 50  # characters: shorter entries are joined to one sentence


@dataclass(frozen=True)
class _Group:
    """Lines of "Not proven" under one heading, folded."""

    heading: str
    lines: Sequence[str]

    @property
    def count(self) -> int:
        return len(self.lines)

    @property
    def in_one_sentence(self) -> bool:
        return all(len(line) < _SENTENCE for line in self.lines)


@dataclass(frozen=True)
class _NotProven:
    """What is missing for the next level, under its heading, and all else that was not proven."""

    heading: str
    missing: Sequence[str]
    nothing: str
    groups: Sequence[_Group]


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


@dataclass(frozen=True)
class Beside:
    """What the page shows beside the report: the bill of materials, and how the image differs from one before it."""

    materials: Materials | None = None
    comparison: comparisons.Comparison | None = None


def page(report: Report, issued: Certificate | None, evidence: Sequence[str], beside: Beside | None = None) -> str:
    """The page of one proof.

    issued: the certificate beside the report. One of another report, or one that claims more than this report does, is
    not shown, and the page says so. evidence: paths of files, relative to the folder of the page.
    """
    expected = certificates.certify(report)
    foreign = issued is not None and not _is_of(issued, expected)
    statement = expected if issued is None or foreign else issued
    machines = [MachineView(host, report, f"m{number}") for number, host in enumerate(report.hosts, 1)]
    search = hashlib.sha256(templating.render("search.js").encode()).digest()
    return templating.render(
        "page.html.j2",
        report=report,
        statement=statement,
        level=certificates.NONE if issued is None or foreign else issued.level,
        levels=_LEVELS,
        verdicts=VERDICTS,
        foreign=foreign,
        red=[entry for machine in machines for entry in _red(machine)],
        replicas=certificates.replica_count(statement),
        not_proven=_not_proven(statement),
        machines=machines,
        waivers=_waivers(report),
        timeline=timeline(report),
        stages=stage_bars(report),
        hop_panels=hop_panels(report),
        planned_versions=page_machine.planned_versions(report),
        beside=beside or Beside(),
        search_digest=base64.b64encode(search).decode(),
        evidence=_evidence(report, [path for path in evidence if not (foreign and path.startswith("certificate."))]),
    )


def write(
    report: Report, issued: Certificate | None, folder: Path, comparison: comparisons.Comparison | None = None
) -> Path:
    """Writes report.html beside report.json, with links to the evidence that is there.

    comparison: with the image before this one.
    """
    names = ("report.json", "junit.xml", "certificate.json", "certificate.md", page_machine.BOM_FILE)
    files = [*(folder / name for name in names), *sorted((folder / "evidence").rglob("*"))]
    evidence = [path.relative_to(folder).as_posix() for path in files if path.is_file() and not path.is_symlink()]
    path = folder / PAGE_FILE
    write_text(path, page(report, issued, evidence, Beside(page_machine.load(folder), comparison)))
    return path


def _is_of(issued: Certificate, expected: Certificate) -> bool:
    """Whether a certificate is of the report that `expected` follows from, and claims no more than that."""
    levels = (certificates.NONE, certificates.REHEARSED, certificates.CERTIFIED)
    same = (issued.report_sha256, issued.verdict) == (expected.report_sha256, expected.verdict)
    return same and issued.level in levels[: levels.index(expected.level) + 1]


def _red(machine: MachineView) -> Iterable[_Red]:
    if machine.host.error:
        text = f"{machine.name}: {machine.host.error.splitlines()[0]}"
        yield _Red(machine.verdict, False, machine.anchor, text)
    for check in machine.checks:
        if check.record.verdict in (FAIL, FLAKY, ERROR):
            waived = check.record.waived is not None
            yield _Red(check.record.verdict, waived, check.anchor, f"{machine.name}: {check.record.id}")


def _not_proven(statement: Certificate) -> _NotProven:
    groups: dict[str, list[str]] = {heading: [] for heading in ("", *(heading for _, heading in _GROUPS))}
    for line in statement.not_proven:
        matches = ((heading, match[1]) for pattern, heading in _GROUPS if (match := pattern.fullmatch(line)))
        heading, entry = next(matches, ("", line))
        groups[heading].append(entry)
    missing = groups.pop("")
    if statement.level == certificates.REHEARSED and groups[_REPLICAS]:
        packages = templating.plural(len(groups[_REPLICAS]), "package")
        missing.append(f"{packages} of the vendors: a replica was installed instead")
    elif statement.level == certificates.NONE:  # of the level after the next one
        groups["Real hardware"] = [line for line in missing if line.startswith(_REAL_GPUS)]
        missing = [line for line in missing if not line.startswith(_REAL_GPUS)]
    folded = [_Group(heading, entries) for heading, entries in groups.items() if entries]
    heading, nothing = _MISSING[statement.level]
    return _NotProven(heading, missing, nothing, folded)


def _waivers(report: Report) -> list[tuple[str, WaiverRecord]]:
    """Every waiver with its state, also one that nothing needed; a machine's own list, or what its checks carry."""
    entries: list[tuple[str, WaiverRecord]] = []
    for host in report.hosts:
        carried = [check.waived for check in host.checks if check.waived]
        for waiver in host.waivers or carried:
            if (host.name, waiver) not in entries:
                entries.append((host.name, waiver))
    return entries


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
