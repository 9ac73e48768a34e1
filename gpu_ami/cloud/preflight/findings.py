"""What a preflight found: one statement about the account or the place, with what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from gpu_ami.cloud import Cloud, Place, aws_errors
from gpu_ami.errors import ForeignAnswer, GpuAmiError, UsageError
from validator.plan_document import InstanceType, PlanDocument

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


class Level(StrEnum):
    """ERROR: a run cannot succeed. WARNING: it may fail, or something could not be examined."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """subject: the key of the --where file or the AWS resource. refused: AWS refused, or would refuse, a call."""

    level: Level
    subject: str
    found: str
    expected: str = ""
    remedy: str = ""
    refused: bool = False

    def __str__(self) -> str:
        expected = f"; expected {self.expected}" if self.expected else ""
        remedy = f"\n        → {self.remedy}" if self.remedy else ""
        return f"{self.level:8}{self.subject}: {self.found}{expected}{remedy}"


def ok(subject: str, found: str) -> Finding:
    return Finding(Level.OK, subject, found)


def warning(subject: str, found: str, expected: str = "", remedy: str = "", *, refused: bool = False) -> Finding:
    return Finding(Level.WARNING, subject, found, expected, remedy, refused)


def error(subject: str, found: str, expected: str = "", remedy: str = "", *, refused: bool = False) -> Finding:
    return Finding(Level.ERROR, subject, found, expected, remedy, refused)


def examined(name: str, check: Callable[[], Iterable[Finding]], *, decisive: bool = False) -> list[Finding]:
    """The findings of one check. A refused look-up is one, too: a warning, or an error where it is decisive.

    decisive: every run makes that call, and ends where AWS refuses it.
    """
    findings: list[Finding] = []
    try:
        with aws_errors.translated(f"looking up {name}"):
            findings.extend(check())
    except UsageError as wrong:  # no credentials, no such profile, no such source AMI
        findings.append(error(name, _sentence(wrong), remedy=wrong.hint))
    except GpuAmiError as refusal:
        make = error if decisive or isinstance(refusal, ForeignAnswer) else warning
        findings.append(make(name, f"not examined: {_sentence(refusal)}", remedy=refusal.hint, refused=True))
    return findings


def _sentence(wrong: GpuAmiError) -> str:
    return ": ".join([wrong.message, *wrong.details])


def yes() -> bool:
    return True


SourceAmi = Callable[[Cloud, PlanDocument], Mapping[str, str]]


@dataclass(frozen=True)
class Scope:
    """What a preflight examines: a place's API, a plan's document if there is one, how its source AMI is looked up.

    nodes: machines of one type that are to work together. sets_imds_v2: whether the installed Packer launches a builder
    that requires IMDSv2 (1.6.6 cannot). join: the cluster that they are to join, "" for the place's or an own one;
    None: not asked.
    """

    cloud: Cloud
    plan: PlanDocument | None = None
    source_ami: SourceAmi | None = None
    nodes: int = 1
    sets_imds_v2: Callable[[], bool] = yes
    join: str | None = None

    @property
    def place(self) -> Place:
        return self.cloud.place

    @property
    def ec2(self) -> EC2Client:
        return self.cloud.ec2

    @property
    def builder(self) -> str:
        """The builder's instance type; "" without a plan."""
        return self.plan["build"]["instance_type"] if self.plan else ""

    @property
    def proven(self) -> Sequence[InstanceType]:
        """The plan's instance types: each boots the AMI once, all at the same time."""
        return self.plan["instance_types"] if self.plan else []

    @property
    def instance_types(self) -> list[str]:
        """Every instance type that a run launches, the builder's first."""
        return list(dict.fromkeys([self.builder, *(row["name"] for row in self.proven)])) if self.plan else []
