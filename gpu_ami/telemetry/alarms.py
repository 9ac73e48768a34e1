"""The table of alarms (variables/alarms.yml), which events raise which alarm, and runbooks.

An alarm of events counts log events of the event parser by a metric filter, an alarm of an instance compares its
metrics. `description` is what a person who is paged reads: what it means, what to do first, where the rest is.

A runbook says what to do for an alarm, an Xid or an SXid: meaning, first step, commands, when to call AWS Support,
sources. An alarm's text is in variables/alarms.yml. What a code means and which action it needs is in the
event catalogue; its commands are those of the alarm that the action raises.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from gpu_ami.errors import UsageError
from gpu_ami.events import catalogue
from gpu_ami.files import data_dir, read_yaml
from gpu_ami.recipes import URGENCIES, AlarmText, SiteAlarm
from validator.schema import did_you_mean

EVENTS, INSTANCE, NEURON = "events", "instance", "neuron"
DESCRIPTION_CHARACTERS = 1024  # limit of AlarmDescription (CloudWatch API reference, PutMetricAlarm)
# Lines that the driver caused. A drill has the origin userland; a snapshot of nvidia-smi at boot has no origin.
_NOT_A_DRILL = '($.origin = "kernel" || $.kind = "recovery")'


@dataclass(frozen=True)
class Alarm(AlarmText):
    """One alarm. kind: EVENTS, INSTANCE, NEURON; actions: of the event catalogue; codes: further Xids that raise it."""

    kind: str
    actions: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()

    @property
    def metric(self) -> str:
        """The metric that the filter of an EVENTS alarm counts into: GpuResetEvents."""
        return "".join(word.capitalize() for word in self.name.split("-")) + "Events"

    @property
    def pattern(self) -> str:
        """The metric filter's pattern for log events of the JSON log: those of the driver, never a drill."""
        terms = [f'$.action = "{action}"' for action in self.actions]
        terms += [f'($.kind = "xid" && $.code = {code})' for code in self.codes]
        return f"{{ {_NOT_A_DRILL} && ({' || '.join(terms)}) }}"

    def description(self, log_group: str) -> str:
        """AlarmDescription: the runbook in short."""
        parts = [self.meaning, f"First: {self.first}"]
        if self.kind == EVENTS:
            parts.append(f"Which instance and Xid: {self.find_command(log_group)}")
        return "\n".join([*parts, f"Runbook: gpu-ami runbook {self.name}"])

    def find_command(self, log_group: str) -> str:
        """Lists the events that raised an EVENTS alarm: the stream's name is the instance ID."""
        words = f"gpu-ami runbook {self.name} --pattern"
        return f'aws logs filter-log-events --log-group-name {log_group} --filter-pattern "$({words})"'


@functools.cache
def load_alarms() -> tuple[Alarm, ...]:
    """All alarms, in the order of the table."""
    table = read_yaml(data_dir("variables", "alarms.yml"), "it belongs to gpu-ami: reinstall it")
    return tuple(_alarm(name, kind, row) for kind in (EVENTS, INSTANCE, NEURON) for name, row in table[kind].items())


def _alarm(name: str, kind: str, row: dict[str, Any]) -> Alarm:
    return Alarm(name=name, kind=kind, **{key: _frozen(value) for key, value in row.items()})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def alarm_of_action(action: str, code: int | str | None = None) -> Alarm | None:
    """The alarm that an event with this action of the catalogue raises; None where nobody has to do anything.

    code: of an Xid.
    """
    return next((alarm for alarm in of_kind(EVENTS) if action in alarm.actions or code in alarm.codes), None)


def first_step(explanation: catalogue.Explanation) -> str:
    """What the runbook of a code says to do first, after the code's own meaning; "" where no alarm is raised."""
    alarm = alarm_of_action(explanation.action, explanation.code if explanation.kind == "xid" else None)
    return alarm.first if alarm else ""


def of_kind(kind: str) -> Sequence[Alarm]:
    return [alarm for alarm in load_alarms() if alarm.kind == kind]


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
    urgency: Annotated[str, (*URGENCIES, "")]
    notes: Sequence[str] = ()


def find_runbook(word: str, log_group: str, driver: str | None = None, of_site: Sequence[SiteAlarm] = ()) -> Runbook:
    """`word`: 79, Xid 79, an SXid of five digits, an alarm's name, or its name in CloudWatch with a prefix.

    log_group: of the JSON events. of_site: alarms of a site's own. UsageError: there is no such alarm or code.
    """
    own = own_named(word, of_site)
    if own is not None:
        return _of_site_alarm(own)
    alarm = named(word)
    if alarm is not None:
        return _of_alarm(alarm, _commands(alarm, log_group))
    if any(character.isdigit() for character in word):
        return _of_code(catalogue.explain(word, driver), log_group)
    names = [*(alarm.name for alarm in load_alarms()), *(alarm.name for alarm in of_site)]
    near = did_you_mean(word, names)
    text = f"{word!r} is neither an alarm nor an Xid{near}"
    raise UsageError(text, details=names, hint="gpu-ami runbook lists the alarms")


@dataclass(frozen=True)
class NodeSteps:
    """What a scheduler needs before and after an instance is out of service. instead: of the stop or reboot."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    source: str
    instead: str = ""


# NODE: the event's NodeName on EKS, and Slurm's name of the node.
NODES = {
    "eks": NodeSteps(
        ("kubectl cordon NODE && kubectl drain NODE --ignore-daemonsets --delete-emptydir-data --timeout=15m",),
        ("kubectl uncordon NODE   # once it is Ready; in a managed node group terminate the instance: it is replaced",),
        "https://kubernetes.io/docs/tasks/administer-cluster/safely-drain-node/",
    ),
    "ecs": NodeSteps(
        ("aws ecs update-container-instances-state --cluster CLUSTER --container-instances ID --status DRAINING",),
        ("aws ecs update-container-instances-state --cluster CLUSTER --container-instances ID --status ACTIVE",),
        "https://docs.aws.amazon.com/AmazonECS/latest/developerguide/container-instance-draining.html",
    ),
    "slurm": NodeSteps(
        ('scontrol update nodename=NODE state=drain reason="SUBJECT"   # running jobs end; squeue -w NODE lists them',),
        ("scontrol update nodename=NODE state=resume",),
        "https://slurm.schedmd.com/scontrol.html",
    ),
    "asg": NodeSteps(
        (),
        (),
        "https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-health-checks.html",
        "aws autoscaling terminate-instance-in-auto-scaling-group --instance-id INSTANCE"
        " --no-should-decrement-desired-capacity   # the group replaces it; a stopped one it would terminate, too",
    ),
}
_OUT_OF_SERVICE = re.compile(r"aws ec2 (stop|start|reboot)-instances|systemctl reboot|\breboot\b|gpu-reset")


def on_node(runbook: Runbook, node: str) -> Runbook:
    """The runbook with the steps of a scheduler around what takes the instance out of service; else as it is."""
    steps = NODES[node]
    places = [number for number, command in enumerate(runbook.commands) if _OUT_OF_SERVICE.search(command)]
    if not places:
        return runbook
    first, last = places[0], places[-1] + 1
    within = [steps.instead] if steps.instead else list(runbook.commands[first:last])
    before = [command.replace("SUBJECT", runbook.subject) for command in steps.before]
    commands = [*runbook.commands[:first], *before, *within, *steps.after, *runbook.commands[last:]]
    return replace(runbook, commands=commands, sources=[*runbook.sources, steps.source])


def named(word: str) -> Alarm | None:
    """The alarm with this name; in CloudWatch the stack's name and a hyphen stand before it."""
    candidates = [alarm for alarm in load_alarms() if word == alarm.name or word.endswith(f"-{alarm.name}")]
    return max(candidates, key=lambda alarm: len(alarm.name), default=None)


def own_named(word: str, of_site: Sequence[SiteAlarm]) -> SiteAlarm | None:
    """The alarm of a site with this name, as `named` finds one."""
    candidates = [alarm for alarm in of_site if word == alarm.name or word.endswith(f"-{alarm.name}")]
    return max(candidates, key=lambda alarm: len(alarm.name), default=None)


def _of_site_alarm(alarm: SiteAlarm) -> Runbook:
    find = []
    if alarm.logs:
        words = f"--log-group-name {alarm.logs.group} --filter-pattern {shlex.quote(alarm.logs.pattern)}"
        find = [f"aws logs filter-log-events {words}"]
    return _of_alarm(alarm, [*find, *alarm.commands])


def _of_alarm(alarm: AlarmText, commands: Sequence[str]) -> Runbook:
    return Runbook(
        alarm.name, alarm.title, alarm.meaning, alarm.first, commands, alarm.support,
        [alarm.source] if alarm.source else [], alarm.name, alarm.urgency,
    )  # fmt: skip


def _of_code(explanation: catalogue.Explanation, log_group: str) -> Runbook:
    label = {"xid": "Xid ", "sxid": "SXid "}.get(explanation.kind, "")
    alarm = alarm_of_action(explanation.action, explanation.code if explanation.kind == "xid" else None)
    causes = ", ".join(explanation.causes) or "not published"
    meaning = f"Severity: {explanation.severity}. Possible cause: {causes}."
    sources = list(dict.fromkeys(explanation.sources.values()))
    return Runbook(
        f"{label}{explanation.code}", explanation.name, meaning,
        f"{explanation.ec2_meaning}. {alarm.first}" if alarm else _NOTHING,
        _commands(alarm, log_group) if alarm else (), alarm.support if alarm else "",
        [*sources, *([alarm.source] if alarm else [])],
        alarm.name if alarm else "", alarm.urgency if alarm else "", explanation.notes,
    )  # fmt: skip


def _commands(alarm: Alarm, log_group: str) -> Sequence[str]:
    find = [alarm.find_command(log_group)] if alarm.kind == EVENTS else []
    return [*find, *alarm.commands]


def runbook_text(runbook: Runbook) -> str:
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


def listing(of_site: Sequence[SiteAlarm] = ()) -> str:
    """One line an alarm: name, urgency, title."""
    all_alarms: list[Alarm | SiteAlarm] = [*load_alarms(), *of_site]
    width = max(len(alarm.name) for alarm in all_alarms)
    return "\n".join(f"{alarm.name:<{width}}  {alarm.urgency:<6}  {alarm.title}" for alarm in all_alarms)
