"""What the rehearsal of a recipe found: out/rehearsals/<image>/rehearsal.json.

The results of a run: a table for a terminal, Markdown for a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from gpu_ami.errors import BuildError, GpuAmiError, counted
from gpu_ami.files import read_json, write_json
from gpu_ami.report import HostReport, Report, document
from validator.probes import hardware
from validator.results import Converters, InvalidRecord, Record, plain_fields

SCHEMA = "gpu-ami/rehearsal/1"
RESULT_FILE = "rehearsal.json"
# Results of a recipe that was not judged; the others are verdicts of its report.
NO_BASE_IMAGE = "NO BASE IMAGE"
NOT_BUILT = "NOT BUILT"
LEFT_OUT = "LEFT OUT"
# The worst first: the recipe, its build, its image; then the place, where another attempt may succeed.
_EXIT_CODES = (2, 3, 1, 4, 5, 0)


@dataclass(frozen=True)
class Rehearsal(Record):
    """One recipe of a run.

    result: the verdict on what was asked for, NOT_BUILT, ERROR (not judged, for another reason), NO_BASE_IMAGE or
    LEFT_OUT. exit_code: what this recipe contributes; 0 without a base image, for what was left out, and for a real
    driver that has no GPU here. base_image: of the local region. source_ami: id. seconds: from the plan to the
    verdict. checks: how many have each verdict. simulated: what stood in for the original: the system, families of
    replicas, the accelerators of a booted machine.
    replicas: `package version`. failed: ids of red checks. differences: of the image, observed without its plan, from
    its recipe. reason: why it is no PASS. instance_type: that was booted,
    without restarts; "" for files alone. inputs: digest (candidates.inputs_digest). finished: RFC 3339, UTC.
    unchanged: an earlier run found it of the same inputs. kept: the image was not removed.
    """

    image: str
    recipe: str
    architecture: str
    result: str
    exit_code: int
    base_image: str = ""
    source_ami: str = ""
    seconds: float = 0.0
    checks: str = ""
    simulated: tuple[str, ...] = ()
    replicas: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    reason: str = ""
    instance_type: str = ""
    inputs: str = ""
    finished: str = ""
    unchanged: bool = False
    kept: bool = False
    _convert: ClassVar[Converters] = {
        "simulated": tuple,
        "replicas": tuple,
        "failed": tuple,
        "differences": tuple,
    }

    @property
    def is_judged(self) -> bool:
        """Whether the image was built and its checks ran: another run of the same inputs finds the same."""
        return bool(self.checks) and self.exit_code in (0, 1)

    def failing(self, error: GpuAmiError) -> Rehearsal:
        """The recipe was not judged because of an error."""
        result = NOT_BUILT if isinstance(error, BuildError) else str(document.ERROR)
        return replace(self, result=result, exit_code=error.exit_code, reason=error.message)

    def judged(self, report: Report) -> Rehearsal:
        """With the verdict of a report on what was asked: neither restarts nor other instance types are missed."""
        hosts = tuple(replace(host, restarts=()) for host in report.hosts)
        asked = replace(report, hosts=hosts, unproven_instance_types=(), left_out=())
        checks = [check for host in hosts for check in host.checks]
        failures = asked.failures()
        reasons = [f"{host.name}: {host.error.splitlines()[0]}" for host in hosts if host.error]
        reasons += [f"{host.name} {check.id}: {check.first_line}" for host, check in failures]
        reasons += [f"{host.name}: {line}" for host in hosts if not host.error for line in host.unproven(asked.roles)]
        reasons += [f"incomplete: {asked.incomplete}"] if asked.incomplete else []
        # Here nothing more can be proven of a real driver, whatever the image is like.
        limits = [_limit_of(host) for host in hosts if host.unproven(asked.roles)]
        is_limit = (asked.verdict, asked.exit_code) == (document.UNPROVEN, 1) and bool(limits) and all(limits)
        reasons += limits if is_limit else []
        replicas = {f"{entry.package} {entry.version}".strip() for host in hosts for entry in host.replicas}
        return replace(
            self,
            result=str(asked.verdict),
            exit_code=0 if is_limit else asked.exit_code,
            checks=document.counts(checks),
            replicas=tuple(sorted(replicas)),
            failed=tuple(sorted({check.id for _, check in failures})),
            reason="; ".join(dict.fromkeys(reasons)),
        )

    def observed(self, differences: Sequence[str]) -> Rehearsal:
        """With what `observe` found of the image without its plan: a difference from the recipe is a failure.

        Either the image is not what its recipe says, or `observe` misreads it.
        """
        if not differences:
            return self
        reasons = [self.reason] if self.reason else []
        reasons += [f"observed without its plan: {line}" for line in differences]
        return replace(
            self,
            result=str(document.FAIL) if self.result in (str(document.PASS), str(document.UNPROVEN)) else self.result,
            exit_code=self.exit_code or 1,
            differences=tuple(differences),
            reason="; ".join(reasons),
        )

    def to_json(self) -> dict[str, object]:
        """The row of `gpu-ami rehearse --json`."""
        return plain_fields(self)

    def write(self, folder: Path) -> None:
        write_json(folder / RESULT_FILE, {"schema": SCHEMA, **self.to_json()})


def _limit_of(host: HostReport) -> str:
    """Why checks were UNPROVEN: the driver is a real one, and the GPUs are simulated. "" where none was for that."""
    lines = (check.first_line for check in host.checks if check.verdict == document.UNPROVEN)
    return next((line for line in lines if line.startswith(hardware.NO_BOARD)), "")


def load(folder: Path) -> Rehearsal | None:
    """What the last run found; None where nothing is there that this version wrote: it is rehearsed again."""
    data = read_json(folder / RESULT_FILE)
    if data is None or data.pop("schema", None) != SCHEMA:
        return None
    try:
        return Rehearsal.from_json(data)
    except InvalidRecord:
        return None


def worst_exit_code(rows: Iterable[Rehearsal]) -> int:
    """The exit code of a run: that of its worst recipe."""
    codes = {row.exit_code for row in rows}
    return next((code for code in _EXIT_CODES if code in codes), 0)


def by_result(rows: Sequence[Rehearsal]) -> Mapping[str, list[Rehearsal]]:
    """The recipes of each result."""
    groups: dict[str, list[Rehearsal]] = {}
    for row in rows:
        groups.setdefault(row.result, []).append(row)
    return groups


_HEADER = ("recipe", "base image", "source AMI", "seconds", "verdict", "checks", "simulated")
_MOST = 140  # characters of a reason in a line of the terminal; rehearsal.json has all


def text(rows: Sequence[Rehearsal]) -> str:
    """A line for each recipe, the reason of each that is no PASS, and how many have each result."""
    cells = [_HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADER) - 1)]
    lines = ["  ".join([*map(str.ljust, line, widths), line[-1]]).rstrip() for line in cells]
    reasons = list(_reasons(rows))
    return "\n".join([*lines, *([""] * bool(reasons)), *reasons, "", summary(rows)])


def _reasons(rows: Sequence[Rehearsal]) -> Iterator[str]:
    """A line for each reason, with the recipes that have it."""
    images: dict[str, list[str]] = {}
    for row in rows:
        if row.reason:
            images.setdefault(f"{row.result}: {_shortened(row.reason)}", []).append(row.image)
    return (f"{', '.join(names)}: {reason}" for reason, names in images.items())


def markdown(rows: Sequence[Rehearsal]) -> str:
    """A table with the same columns, for docs/recipes.md or a job's page."""
    columns = [*_HEADER, "reason"]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        cells = [" ".join(cell.split()).replace("|", "\\|") for cell in (*_cells(row), row.reason)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", summary(rows)])


def summary(rows: Sequence[Rehearsal]) -> str:
    """`31 recipes: 20 PASS, 1 FAIL, 10 NO BASE IMAGE`, and how many an earlier run had judged."""
    groups = ", ".join(f"{len(members)} {result}" for result, members in by_result(rows).items())
    unchanged = sum(row.unchanged for row in rows)
    earlier = f"; {unchanged} judged by an earlier run, unchanged since (--fresh judges them again)" * bool(unchanged)
    return f"{counted(len(rows), 'recipe')}: {groups}{earlier}"


def _cells(row: Rehearsal) -> tuple[str, ...]:
    verdict = f"{row.result} on {row.instance_type}" if row.instance_type and row.checks else row.result
    seconds = f"{row.seconds:.0f}" if row.seconds else "-"
    return (
        row.image,
        row.base_image or "-",
        row.source_ami or "-",
        seconds,
        verdict,
        row.checks or "-",
        ", ".join(row.simulated) or "-",
    )


def _shortened(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= _MOST else f"{line[: _MOST - 1]}…"
