"""summary.md: a report as people read it on the page of a CI job. Written for every report, also one that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_ami.files import write_text
from gpu_ami.report import left_out, templating
from gpu_ami.report.certificate import Certificate
from gpu_ami.report.document import HostReport, Report, counts

SUMMARY_FILE = "summary.md"
_FAILURES = 40  # GitHub refuses a summary of more than 1 MiB; report.html has all of them
_MESSAGE_LINES = 12


@dataclass(frozen=True)
class _Machine:
    """A row of the table of machines."""

    name: str
    verdict: str
    checks: str
    error: str


@dataclass(frozen=True)
class _Failure:
    """A check that failed. message: its first lines."""

    machine: str
    verdict: str
    id: str
    promise: str
    message: tuple[str, ...]


def markdown(report: Report, certificate: Certificate) -> str:
    """The summary: verdict, machines, failures, and what is missing for a PASS or for the certificate's next level."""
    failures = [
        _Failure(host.name, str(check.verdict), check.id, check.promise, tuple(_lines(check.message)))
        for host, check in report.failures()
    ]
    return templating.render(
        "job_summary.md.j2",
        report=report,
        certificate=certificate,
        machines=[_machine(host, report.roles) for host in report.hosts],
        failures=failures[:_FAILURES],
        more_failures=max(0, len(failures) - _FAILURES),
        not_proven=certificate.not_proven,
        passed_as_asked=left_out.passed_as_asked(report),
        left_out=left_out.lines(report),
    )


def write(report: Report, certificate: Certificate, folder: Path) -> Path:
    """Writes summary.md beside report.json. OSError: the old file is kept."""
    path = folder / SUMMARY_FILE
    write_text(path, markdown(report, certificate))
    return path


def _machine(host: HostReport, roles: Sequence[str]) -> _Machine:
    return _Machine(host.name, str(host.verdict(roles)), counts(host.checks) or "none", host.error.partition("\n")[0])


def _lines(message: str) -> list[str]:
    lines = message.splitlines()
    rest = len(lines) - _MESSAGE_LINES
    return [*lines[:_MESSAGE_LINES], *([f"({rest} more lines in report.html)"] if rest > 0 else [])]
