"""Joins the reports of shards (parts of one proof, each on some of the plan's instance types) into one report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gpu_ami.errors import UsageError
from gpu_ami.files import write_bytes
from gpu_ami.report import document
from gpu_ami.report.document import HostReport, Report, Stage
from validator import foreign_names, inputs

EVIDENCE = "evidence"
# Beside a report: the same in every shard of one image, and read by `gpu-ami certify`.
_SHARED_FILES = ("plan.json", "build.json", "base-inventory.jsonl.gz", "written-files.json")
_FOREIGN = "take the artifact from the job that made it; a shard holds files alone"
_ONE_AMI = "shards of one certificate prove the same AMI: build once, then `gpu-ami validate OUT --instance-type TYPE`"


@dataclass(frozen=True)
class Shard:
    """A part of a proof: the folder of its report.json, and the report."""

    folder: Path
    report: Report


def load_shards(folders: Sequence[Path]) -> list[Shard]:
    """The shards in these folders. UsageError names every folder without a report, or with one that cannot be read."""
    shards, mistakes = [], []
    for folder in dict.fromkeys(path.resolve() for path in folders):
        try:
            shards.append(Shard(folder, document.load(folder / document.REPORT_FILE)))
        except UsageError as error:
            mistakes.append(error.message)
    if mistakes:
        hint = "every shard uploads its whole folder, also when it fails; run a shard that left nothing again"
        raise UsageError(f"{len(mistakes)} of {len(folders)} shards cannot be read", details=mistakes, hint=hint)
    return shards


def merge(shards: Sequence[Shard]) -> Report:
    """One report of all machines of all shards.

    UsageError, with every reason at once: shards of different plans, AMIs, regions or conditions; an instance type in
    two shards, or in none; an instance type that the plan does not have.
    """
    if not shards:
        raise UsageError("expected at least one shard")
    mistakes = [*_foreign(shards), *_doubled(shards)]
    if mistakes:
        raise UsageError("these shards are not of one proof", details=mistakes, hint=_ONE_AMI)
    missing = _missing(shards)
    if missing:
        raise UsageError(
            f"no shard has a report of {', '.join(missing)}",
            details=[f"{shard.folder}: {', '.join(_types(shard.report)) or 'no machine'}" for shard in shards],
            hint="run `gpu-ami validate OUT --instance-type TYPE` for each, and merge again",
        )
    return _joined(shards)


def copy_files(shards: Sequence[Shard], merged: Report, out: Path) -> None:
    """Copies plan, build record and the evidence of every machine of the merged report into `out`. OSError.

    UsageError: a shard has links, or names that lead elsewhere; nothing was written then.
    """
    others = [shard for shard in shards if shard.folder != out.resolve()]
    try:
        copies = [copy for shard in others for copy in _copies(shard, merged, out)]
    except foreign_names.NameRefused as error:
        raise UsageError(f"a shard is not one that gpu-ami wrote: {error}", hint=_FOREIGN) from error
    out.mkdir(parents=True, exist_ok=True)
    for source, target in copies:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, foreign_names.read_bytes(source, inputs.LARGEST))
    if (out / EVIDENCE).is_dir():
        (out / EVIDENCE).chmod(0o700)


def _copies(shard: Shard, merged: Report, out: Path) -> Iterator[tuple[Path, Path]]:
    """Source and target of each file of a shard."""
    for name in _SHARED_FILES:
        source = foreign_names.join(shard.folder, name)
        if source.is_file():
            yield source, foreign_names.join(out, name)
    for host in shard.report.hosts:
        folder = foreign_names.join(shard.folder, EVIDENCE, host.evidence)
        if host in merged.hosts and folder.is_dir():
            for file in foreign_names.files_below(folder):
                yield folder / file, foreign_names.join(out, EVIDENCE, host.evidence, *file.parts)


def _types(report: Report) -> list[str]:
    """The instance types that a shard's report has a machine of, whatever came of it."""
    return [host.instance_type for host in report.hosts if not host.offline]


def _foreign(shards: Sequence[Shard]) -> list[str]:
    """What differs between shards and must not."""
    of: Mapping[str, Callable[[Report], object]] = {
        "plan": lambda report: report.plan.get("digest"),
        "AMI": lambda report: report.image,
        "place": lambda report: report.place,
        "region": lambda report: report.region,
        "simulated hardware": lambda report: report.simulated,
        "conditions": lambda report: report.conditions or "none",
    }
    first, mistakes = shards[0], []
    for shard in shards:
        if not shard.report.image or not shard.report.plan:
            mistakes.append(f"{shard.folder}: its report is not of an AMI that was built from a plan")
            continue
        mistakes += [
            f"{shard.folder}: {name} {value(shard.report)}; that of {first.folder} is {value(first.report)}"
            for name, value in of.items()
            if value(shard.report) != value(first.report)
        ]
    return mistakes


def _doubled(shards: Sequence[Shard]) -> list[str]:
    by_type: dict[str, list[Path]] = {}
    for shard in shards:
        for name in _types(shard.report):
            by_type.setdefault(name, []).append(shard.folder)
    planned = _planned(shards[0].report)
    doubled = [
        f"{name}: in {len(folders)} shards: {', '.join(map(str, folders))}"
        for name, folders in by_type.items()
        if len(folders) > 1
    ]
    return doubled + [
        f"{name}: not in the plan ({folders[0]})" for name, folders in by_type.items() if name not in planned
    ]


def _planned(report: Report) -> list[str]:
    """Names of the plan's instance types."""
    rows = report.plan.get("instance_types")
    return [str(row["name"]) for row in rows] if isinstance(rows, list) else []


def _missing(shards: Sequence[Shard]) -> list[str]:
    present = {name for shard in shards for name in _types(shard.report)}
    return [name for name in _planned(shards[0].report) if name not in present]


def _joined(shards: Sequence[Shard]) -> Report:
    reports = [shard.report for shard in shards]
    first = min(reports, key=lambda report: report.started)
    order = _planned(first)
    machines = [host for report in reports for host in report.hosts if not host.offline]
    machines.sort(key=lambda host: order.index(host.instance_type))
    files = _image_files(reports)
    incomplete = [f"{shard.folder.name}: {shard.report.incomplete}" for shard in shards if shard.report.incomplete]
    reasons = [report.no_files for report in reports if report.no_files]
    return replace(
        first,
        run=", ".join(dict.fromkeys(report.run for report in reports)),
        finished=max(report.finished for report in reports),
        hosts=(*files, *machines),
        stages=tuple(stage for report in reports for stage in _stages(report, first.started)),
        unproven_instance_types=(),
        left_out=tuple(dict.fromkeys(part for report in reports for part in report.left_out)),
        no_files="" if files else next(iter(reasons), ""),
        incomplete="; ".join(incomplete),
        layers=_common(reports, "layers"),
        suite=_common(reports, "suite"),
        certify_carried=all(report.certify_carried for report in reports),
    )


def _common(reports: Sequence[Report], name: str) -> Any:
    """The value that all reports have; an empty one where they differ, from which nothing is carried over."""
    values = [getattr(report, name) for report in reports]
    return values[0] if all(value == values[0] for value in values) else type(values[0])()


def _image_files(reports: Sequence[Report]) -> list[HostReport]:
    """The image's files: each shard may have judged them; the worst verdict counts, as nothing excuses it."""
    offline = [host for report in reports for host in report.hosts if host.offline]
    roles = reports[0].roles
    worst = document.worst({host.verdict(roles) for host in offline})
    return [host for host in offline if host.verdict(roles) == worst][:1]


def _stages(report: Report, since: str) -> list[Stage]:
    """A shard's stages, with their start counted from the first shard's."""
    offset = (datetime.fromisoformat(report.started) - datetime.fromisoformat(since)).total_seconds()
    return [
        stage if stage.start is None else replace(stage, start=round(stage.start + offset, 3))
        for stage in report.stages
    ]
