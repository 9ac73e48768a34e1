"""Checks that a change cannot have touched: carried over from an earlier proof of the same recipe (docs/layers.md).

A check belongs to the layer of its role. It is carried over if that layer has the digest that it had in the earlier
proof, which is over the layers below it, too. Checks of no role of a layer (boot, hygiene, files, metrics, logs, Xids)
always run; restarts do unless every layer is the same. What cannot be shown to be untouched is proven anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpu_ami.errors import UsageError, counted
from gpu_ami.files import read_json
from gpu_ami.plan import value_differences
from gpu_ami.report import COMES_BACK, PASS, HostReport, Report, ReportLayer
from gpu_ami.report import certificate as certificates
from gpu_ami.report import document as reports
from validator.results import CarriedOver, CheckRecord

# Keys of a plan that name it, and say nothing of the image.
_NAMES = ("digest", "schema", "recipe", "description", "sources", "notes")
_TELEMETRY = "telemetry"  # read by roles of the last layer, and by checks that always run
_FUTURE = timedelta(minutes=10)


@dataclass(frozen=True)
class Earlier:
    """An accepted earlier proof. source: how it was named."""

    report: Report
    digest: str
    source: str


@dataclass(frozen=True)
class Carried:
    """Records of an earlier proof by host and restart ("" for none); notes: what was carried over, and why not more."""

    records: Mapping[tuple[str, str], tuple[CheckRecord, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of(self, host: str, after: str = "") -> tuple[CheckRecord, ...]:
        """Those of a host, after a restart."""
        return self.records.get((host, after), ())


NOTHING = Carried()


def find(text: str, runs: Path = Path("out")) -> Path:
    """The folder of an earlier proof: of its report or certificate, the folder itself, or that of an AMI under out/."""
    path = Path(text)
    folder = path.parent if path.is_file() else path
    if text.startswith("ami-") and not path.exists():
        found = (
            file.parent for file in sorted(runs.glob(f"*/{reports.REPORT_FILE}")) if reports.load(file).image == text
        )
        folder = next(found, folder)
    if not (folder / reports.REPORT_FILE).is_file():
        raise _refused(
            text, "missing", f"no {reports.REPORT_FILE} of it", "name a report.json, its folder, or a proven AMI"
        )
    return folder


def load(source: str, folder: Path, *, image: str, simulated: bool, max_age: timedelta) -> Earlier:
    """The earlier proof in a folder. UsageError names the refusal: it was changed, is of another image, or is no proof.

    image: the plan's name of the image to be proven. max_age: since the end of that proof.
    """
    report = reports.load(folder / reports.REPORT_FILE)
    digest = certificates.report_digest(read_json(folder / reports.REPORT_FILE) or {})
    for name, problem, hint in _problems(report, digest, folder, image, simulated, max_age):
        raise _refused(source, name, problem, hint)
    return Earlier(report, digest, source)


def _problems(
    report: Report, digest: str, folder: Path, image: str, simulated: bool, max_age: timedelta
) -> Iterator[tuple[str, str, str]]:
    """Why an earlier proof is not accepted: name, sentence, what to do."""
    again = "prove the image without --changed"
    if not (folder / certificates.CERTIFICATE_FILE).is_file():
        yield "no-certificate", f"no {certificates.CERTIFICATE_FILE} is beside it", "`gpu-ami certify` writes one"
        return
    certificate = certificates.load(folder / certificates.CERTIFICATE_FILE)
    if certificate.report_sha256 != digest:
        text = f"its certificate is of a report {certificate.report_sha256}, this one is {digest}"
        yield "changed-report", text, "it was changed after it was certified: get it again from its publisher"
    if certificates.level_of(report) != certificate.level or report.verdict != PASS:
        yield "verdict", f"it is {report.verdict}, its certificate says {certificate.level}", again
    if report.plan.get("image") != image:
        yield "other-image", f"it is of {report.name}, not of {image}", "name a proof of the same recipe"
    if report.simulated is not simulated:
        kinds = {True: "simulated", False: "real"}
        text = f"its hardware was {kinds[report.simulated]}, now it is {kinds[simulated]}"
        yield "other-hardware", text, "name a proof of the same place"
    if not report.layers or not report.suite:
        yield "no-layers", "it does not say which layers its image has", again
    age = _age(report.finished)
    if age is None or age > max_age:
        text = f"it ended on {report.finished}, at most {max_age.days} days ago were expected"
        yield "too-old", text, again
    elif age < -_FUTURE:
        yield "future", f"it ended on {report.finished}, which is to come", "set this clock right"


def _refused(source: str, name: str, text: str, hint: str) -> UsageError:
    return UsageError(f"--since {source}: refused: {name}: {text}", hint=hint)


def _age(finished: str) -> timedelta | None:
    try:
        ended = datetime.fromisoformat(finished)
    except ValueError:
        return None
    return datetime.now(UTC) - (ended if ended.tzinfo else ended.replace(tzinfo=UTC))


def carry_over(
    earlier: Earlier,
    plan: Mapping[str, object],
    layers: Sequence[ReportLayer],
    suite: str,
    max_age: timedelta,
) -> Carried:
    """What need not run on the image of a plan. layers: of the image. suite: digest of the checks."""
    before = earlier.report
    if suite != before.suite:
        return Carried(notes=(f"the checks are others than those of {earlier.source}: all of them run",))
    changed = _changed_keys(before.plan, plan)
    known = {*_NAMES, _TELEMETRY, *(role for layer in layers for role in layer.roles)}
    if changed - known:
        names = ", ".join(sorted(changed - known))
        return Carried(notes=(f"the plan differs in {names}, which is of no layer: all checks run",))
    same = _same_layers(before.layers, layers, telemetry=_TELEMETRY in changed)
    whole = len(same) == len(layers) == len(before.layers) and not changed - {*_NAMES}
    records: dict[tuple[str, str], tuple[CheckRecord, ...]] = {}
    for host in before.hosts:
        records[(host.name, "")] = tuple(_records(host, earlier, same, max_age))
        for restart in host.restarts if whole else ():
            records[(host.name, restart)] = _after(host, restart, earlier, layers, max_age)
    return Carried(records, (_note(earlier, same, layers, records),))


def _changed_keys(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    differences = value_differences(dict(before), dict(after), "")
    return {path.partition(".")[0].partition("[")[0] for path, _, _ in differences}


def _same_layers(before: Sequence[ReportLayer], layers: Sequence[ReportLayer], *, telemetry: bool) -> list[ReportLayer]:
    """The layers that have the digest and the roles that they had. telemetry: the plan's section differs."""
    old = {layer.name: layer for layer in before}
    candidates = layers[:-1] if telemetry else layers
    return [layer for layer in candidates if old.get(layer.name) == layer]


def _records(
    host: HostReport, earlier: Earlier, same: Sequence[ReportLayer], max_age: timedelta
) -> Iterator[CheckRecord]:
    """Checks of the first pass that passed, are of an untouched layer, and are not too old themselves."""
    by_role = {role: layer for layer in same for role in layer.roles}
    for check in host.checks:
        if check.role in by_role and not check.after and (record := _carry(check, earlier, by_role[check.role])):
            age = _age(record.carried.date) if record.carried else None
            if age is not None and age <= max_age:
                yield record


def _after(
    host: HostReport, restart: str, earlier: Earlier, layers: Sequence[ReportLayer], max_age: timedelta
) -> tuple[CheckRecord, ...]:
    """All checks after a restart, if each of them passed; else none, and the restart is done."""
    checks = [check for check in host.checks if check.after == restart or check.id == f"{COMES_BACK}@{restart}"]
    by_role = {role: layer for layer in layers for role in layer.roles}
    records = [_carry(check, earlier, by_role.get(check.role, layers[-1])) for check in checks]
    complete = any(check.id == f"{COMES_BACK}@{restart}" for check in checks) and None not in records
    ages = [_age(record.carried.date) for record in records if record and record.carried]
    young = all(age is not None and age <= max_age for age in ages)
    return tuple(record for record in records if record) if complete and young else ()


def _carry(check: CheckRecord, earlier: Earlier, layer: ReportLayer) -> CheckRecord | None:
    """The record as another image's; None where it did not pass. One that was carried over keeps its first proof."""
    if check.verdict != PASS or check.waived:
        return None
    report = earlier.report
    origin = check.carried or CarriedOver(report.finished, earlier.digest, report.image, layer.name, layer.digest)
    return replace(check, seconds=0.0, series=(), carried=origin)


def _note(
    earlier: Earlier,
    same: Sequence[ReportLayer],
    layers: Sequence[ReportLayer],
    records: Mapping[tuple[str, str], Sequence[CheckRecord]],
) -> str:
    count = sum(len(found) for found in records.values())
    names = ", ".join(layer.name for layer in same) or "none"
    changed = ", ".join(layer.name for layer in layers if layer not in same) or "none"
    return f"{counted(count, 'check')} carried over from {earlier.source}: same layers: {names}; changed: {changed}"
