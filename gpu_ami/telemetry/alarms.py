"""The table of alarms (variables/alarms.yml), and which events raise which alarm.

An alarm of events counts log events of the event parser by a metric filter, an alarm of an instance compares its
metrics. `description` is what a person who is paged reads: what it means, what to do first, where the rest is.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu_ami.data import data_dir
from gpu_ami.files import read_yaml

EVENTS, INSTANCE, NEURON = "events", "instance", "neuron"
URGENCIES = ("page", "ticket")
DESCRIPTION_CHARACTERS = 1024  # limit of AlarmDescription (CloudWatch API reference, PutMetricAlarm)
# Lines that the driver caused. A drill has the origin userland; a snapshot of nvidia-smi at boot has no origin.
_NOT_A_DRILL = '($.origin = "kernel" || $.kind = "recovery")'


@dataclass(frozen=True)
class Alarm:
    """One alarm. kind: EVENTS, INSTANCE, NEURON; actions: of the event catalogue; codes: further Xids that raise it."""

    name: str
    kind: str
    title: str
    urgency: str
    meaning: str
    first: str
    commands: tuple[str, ...]
    support: str
    source: str
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


def alarm_of_action(action: str, code: int | None = None) -> Alarm | None:
    """The alarm that an event with this action of the catalogue raises; None where nobody has to do anything.

    code: of an Xid.
    """
    return next((alarm for alarm in of_kind(EVENTS) if action in alarm.actions or code in alarm.codes), None)


def of_kind(kind: str) -> Sequence[Alarm]:
    return [alarm for alarm in load_alarms() if alarm.kind == kind]
