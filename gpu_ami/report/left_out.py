"""Parts of a proof that a person left out on purpose, and whether all that was asked for passed.

What is left out issues no certificate. It is not a failure of the image either: a pipeline that proves each instance
type in a job of its own has to tell a good shard from a bad one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from validator import results
from validator.results import Verdict

if TYPE_CHECKING:
    from gpu_ami.report.document import HostReport, Report

# Nothing that was asked for failed, and the report can never be a PASS: checks or restarts were left out.
EXIT_CODE = 7


class Part(StrEnum):
    RESTART = "restart"
    CHECKS = "checks"
    KERNEL_XID = "Xid of the kernel driver"


@dataclass(frozen=True)
class LeftOut(results.Record):
    """A part of the proof that was not asked for.

    what: which of them: a restart, of all machines or `RESTART of INSTANCE-TYPE`. option: of the command line, or a key
    of the place.
    """

    part: Part
    what: str
    option: str
    _convert: ClassVar[results.Converters] = {"part": Part}

    def __str__(self) -> str:
        return f"{self.part}{f' {self.what}' if self.what else ''} ({self.option})"


def lines(report: Report) -> list[str]:
    """What was left out on purpose, a line each."""
    types = [f"instance type {name} (--instance-type)" for name in report.unproven_instance_types]
    return [*types, *map(str, report.left_out)]


def passed_as_asked(report: Report) -> bool:
    """Whether something was left out, and all else that a proof needs was done and passed."""
    if not lines(report) or report.incomplete:
        return False
    passed = any(check.verdict == Verdict.PASS for host in report.hosts for check in host.checks)
    return passed and all(_is_as_asked(host, report) for host in report.hosts)


def _is_as_asked(host: HostReport, report: Report) -> bool:
    if host.worst_of_its_checks != Verdict.PASS:
        return False
    parts = {entry.part for entry in report.left_out}
    restarts = {entry.what for entry in report.left_out if entry.part == Part.RESTART}
    for how in host.restarts:
        if not {how, f"{how} of {host.instance_type}"} & restarts and host.unproven_restart(
            how, [] if Part.CHECKS in parts else report.roles
        ):
            return False
    if Part.CHECKS in parts:
        return True
    lacks_xid = host.lacks_kernel_xid(report.roles) and Part.KERNEL_XID not in parts
    passed = any(check.verdict == Verdict.PASS for check in host.checks)
    return passed and not lacks_xid and not host.unproven_roles(report.roles)
