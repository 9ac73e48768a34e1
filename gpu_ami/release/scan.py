"""A scanner of the user's on the bill of materials: its verdict is a check, its output is in the evidence.

The command is the user's, without a shell: `grype sbom:{sbom} --fail-on high` names the scanner, its threshold and
where the bill goes. Exit code 0 is PASS, any other FAIL; a waiver of `scan::NAME` accepts a FAIL until its last day.
"""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami import process
from gpu_ami.errors import GpuAmiError, UsageError
from gpu_ami.files import write_text
from gpu_ami.release.statement import BOM_FILE
from validator import waivers
from validator.results import CheckRecord, Verdict

if TYPE_CHECKING:
    from gpu_ami.report import HostReport, Report

PLACEHOLDER = "{sbom}"
SECONDS = 900.0  # a scanner fetches its database at its first run
_LAST_LINES = 20


def parse(command: str) -> list[str]:
    """The words of --scan. UsageError: no {sbom} in it, or an open quote."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--scan {command}: {error}") from error
    if not any(PLACEHOLDER in word for word in words[1:]):
        hint = "for example: --scan 'grype sbom:{sbom} --fail-on high'"
        raise UsageError(f"--scan {command}: expected a program and {PLACEHOLDER} among its arguments", hint=hint)
    return words


def run(words: Sequence[str], folder: Path) -> CheckRecord:
    """Runs a scanner on the bill in a folder; its whole output goes to evidence/scan-NAME.txt.

    ERROR where it could not run: that says nothing about the image, and the report is UNPROVEN.
    """
    bom = (folder / BOM_FILE).resolve()
    command = [word.replace(PLACEHOLDER, str(bom)) for word in words]
    name = Path(words[0]).name
    record = CheckRecord(
        f"scan::{name}", "scan", "T0", "The scanner accepts the bill of materials.", planned="exit code 0"
    )
    if not bom.is_file():
        message = "there is no bill of materials: the evidence has no materials.json (the image needs python3)"
        return replace(record, verdict=Verdict.ERROR, message=message)
    try:
        done = process.run(command, timeout=SECONDS, check=False)
    except GpuAmiError as error:
        return replace(record, verdict=Verdict.ERROR, message=error.message, observed=shlex.join(words))
    lines = (done.stdout + done.stderr).splitlines()
    (folder / "evidence").mkdir(exist_ok=True)
    text = "\n".join([f"$ {shlex.join(words)}", *lines, f"exit code {done.returncode}", ""])
    write_text(folder / "evidence" / f"scan-{name}.txt", text)
    observed = f"exit code {done.returncode}"
    if done.returncode == 0:
        return replace(record, verdict=Verdict.PASS, message="", observed=observed)
    last = "\n".join(lines[-_LAST_LINES:])
    message = f"{shlex.join(words)}: exit code {done.returncode}\n{last}".rstrip()
    return replace(record, verdict=Verdict.FAIL, message=message, observed=observed)


def add(report: Report, host: HostReport, records: Sequence[CheckRecord], waiver_file: Path | None) -> Report:
    """The report with the scans among the checks of the host whose bill was scanned; earlier scans are replaced."""
    where = {"image": str(report.plan.get("image", "")), "instance_type": host.instance_type}
    listed = waivers.load(waiver_file) if waiver_file else []
    mine = [waiver for waiver in listed if any(waiver.names(record.id) for record in records)]
    judged, used = waivers.apply(mine, list(records), where, datetime.datetime.now(datetime.UTC).date())
    ids = {record.id for record in judged}
    kept = tuple(check for check in host.checks if check.id not in ids)
    checks = {waiver.check for waiver in used}
    others = tuple(waiver for waiver in host.waivers if waiver.check not in checks)
    updated = replace(host, checks=(*kept, *judged), waivers=(*others, *used))
    return replace(report, hosts=tuple(updated if entry is host else entry for entry in report.hosts))
