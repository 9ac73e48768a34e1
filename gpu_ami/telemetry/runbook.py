"""What to do for an alarm, an Xid or an SXid: meaning, first step, commands, when to call AWS Support, sources.

An alarm's text is in variables/alarms.yml. What a code means and which action it needs is the event catalogue's; its
commands are those of the alarm that the action raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_ami.errors import UsageError
from gpu_ami.events import catalogue
from gpu_ami.telemetry import alarms
from gpu_ami.telemetry.alarms import Alarm

_NOTHING = "Nothing: the event is recorded, and raises no alarm."


@dataclass(frozen=True)
class Runbook:
    """subject: the alarm's name, or the code as `Xid 79`. alarm, urgency: "" for an event that raises no alarm."""

    subject: str
    title: str
    meaning: str
    first: str
    commands: Sequence[str]
    support: str
    sources: Sequence[str]
    alarm: str
    urgency: str
    notes: Sequence[str] = ()


def find_runbook(word: str, log_group: str, driver: str | None = None) -> Runbook:
    """`word`: 79, Xid 79, an SXid of five digits, an alarm's name, or its name in CloudWatch with a prefix.

    log_group: of the JSON events. UsageError: there is no such alarm or code.
    """
    alarm = named(word)
    if alarm is not None:
        return _of_alarm(alarm, log_group)
    if any(character.isdigit() for character in word):
        return _of_code(catalogue.explain(word, driver), log_group)
    names = [alarm.name for alarm in alarms.load_alarms()]
    raise UsageError(f"{word!r} is neither an alarm nor an Xid", details=names, hint="gpu-ami runbook lists the alarms")


def named(word: str) -> Alarm | None:
    """The alarm with this name; in CloudWatch the stack's name and a hyphen stand before it."""
    candidates = [alarm for alarm in alarms.load_alarms() if word == alarm.name or word.endswith(f"-{alarm.name}")]
    return max(candidates, key=lambda alarm: len(alarm.name), default=None)


def _of_alarm(alarm: Alarm, log_group: str) -> Runbook:
    return Runbook(
        alarm.name, alarm.title, alarm.meaning, alarm.first, _commands(alarm, log_group), alarm.support,
        [alarm.source], alarm.name, alarm.urgency,
    )  # fmt: skip


def _of_code(explanation: catalogue.Explanation, log_group: str) -> Runbook:
    kind = "Xid" if explanation.kind == "xid" else "SXid"
    alarm = alarms.alarm_of_action(explanation.action, explanation.code if kind == "Xid" else None)
    causes = ", ".join(explanation.causes) or "not published"
    meaning = f"Severity: {explanation.severity}. Possible cause: {causes}."
    sources = list(dict.fromkeys(explanation.sources.values()))
    return Runbook(
        f"{kind} {explanation.code}", explanation.name, meaning,
        f"{explanation.ec2_meaning}." if alarm else _NOTHING,
        _commands(alarm, log_group) if alarm else (), alarm.support if alarm else "",
        [*sources, *([alarm.source] if alarm else [])],
        alarm.name if alarm else "", alarm.urgency if alarm else "", explanation.notes,
    )  # fmt: skip


def _commands(alarm: Alarm, log_group: str) -> Sequence[str]:
    find = [alarm.find_command(log_group)] if alarm.kind == alarms.EVENTS else []
    return [*find, *alarm.commands]


def as_text(runbook: Runbook) -> str:
    """The runbook as text."""
    alarm = f"{runbook.alarm} ({runbook.urgency})" if runbook.alarm else "none"
    parts = [
        f"{runbook.subject}: {runbook.title}",
        _paragraph("What it means", runbook.meaning, *(f"Note: {note}" for note in runbook.notes)),
        _paragraph("What to do first", runbook.first),
        _paragraph("Commands", *runbook.commands),
        _paragraph("When to call AWS Support", runbook.support),
        _paragraph("Alarm", alarm),
        _paragraph("Sources", *runbook.sources),
    ]
    return "\n\n".join(part for part in parts if part)


def _paragraph(heading: str, *lines: str) -> str:
    shown = [f"  {line}" for line in lines if line]
    return "\n".join([heading, *shown]) if shown else ""


def listing() -> str:
    """One line an alarm: name, urgency, title."""
    width = max(len(alarm.name) for alarm in alarms.load_alarms())
    return "\n".join(f"{alarm.name:<{width}}  {alarm.urgency:<6}  {alarm.title}" for alarm in alarms.load_alarms())
