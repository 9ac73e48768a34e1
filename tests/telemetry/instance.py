"""An instance as CloudWatch sees it: what its agent and its event parser send, minute by minute.

The agent flushes once a minute, so the data of a minute is there when the next one is evaluated.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpu_ami.events.reader import parser_module
from tests.localregion.alarms.conftest import Account

GROUP = "/ec2/accelerated/accel-event-json"
GPUS = 4  # of g5.12xlarge
FULL_CLOCK, MEMORY = 1710, 23028
# After a public capture (NVIDIA/k8s-test-infra, test data).
LOST = b"""<nvidia_smi_log><gpu id="00000000:00:1E.0"><product_architecture>Ampere</product_architecture>
<fb_memory_usage><total>GPU is lost</total></fb_memory_usage><remapped_rows>GPU is lost</remapped_rows>
</gpu></nvidia_smi_log>"""
emf, snapshot, details = parser_module("emf"), parser_module("snapshot"), parser_module("details")


@dataclass(frozen=True)
class Minute:
    """What the instance sends in a minute. events: lines of the event parser; late: minutes until they arrive."""

    heartbeat: bool = True
    gpus: int = GPUS
    load: float = 95.0
    clock: float = FULL_CLOCK
    parser: Mapping[str, float] = field(default_factory=dict)
    events: Sequence[str] = ()
    late: int = 0


HEALTHY = Minute()
SILENT = Minute(heartbeat=False, gpus=0)


class Instance:
    """Sends minutes to an account's region, and remembers which alarms changed."""

    def __init__(
        self, aws: Account, instance_id: str = "i-0123456789abcdef0", dimensions: Mapping[str, str] | None = None
    ):
        self.aws, self.id = aws, instance_id
        self.more = dict(dimensions or {})
        self.held: list[tuple[int, str, datetime.datetime]] = []

    def send(self, minute: Minute) -> None:
        """The data of the minute before the one that is evaluated next."""
        when = self.aws.now - datetime.timedelta(seconds=30)
        self._put_metrics(minute, when)
        lines = [self.heartbeat(minute, when)] if minute.heartbeat else []
        self.held = [(wait - 1, line, at) for wait, line, at in self.held]
        self.held += [(minute.late, line, when) for line in minute.events]
        due = [(line, at) for wait, line, at in self.held if wait <= 0]
        self.held = [one for one in self.held if one[0] > 0]
        self._put_lines([(line, when) for line in lines] + due)

    def _put_metrics(self, minute: Minute, when: datetime.datetime) -> None:
        values = {"memory_total": MEMORY, "utilization_gpu": minute.load, "clocks_current_sm": minute.clock}
        own = {"InstanceId": self.id}
        data = [
            {"MetricName": f"nvidia_smi_{name}", "Value": value, "Timestamp": when, "Dimensions": named(dimensions)}
            for index in range(minute.gpus)
            for dimensions in (own, {**own, **self.more, "index": str(index), "name": "NVIDIA A10G", "arch": "Ampere"})
            for name, value in values.items()
        ]
        if data:
            self.aws("cloudwatch").put_metric_data(Namespace="CWAgent", MetricData=data)

    def heartbeat(self, minute: Minute, when: datetime.datetime) -> str:
        fields = {"Heartbeat": 1, "RecordsLost": 0, "EventsDropped": 0, "LagSeconds": 0.1, **minute.parser}
        units = {name: "Seconds" if name == "LagSeconds" else "Count" for name in fields}
        return self.document("heartbeat", fields, units, when)

    def document(self, kind: str, fields: dict[str, Any], units: dict[str, str], when: datetime.datetime) -> str:
        microseconds = int(when.replace(tzinfo=datetime.UTC).timestamp() * 1e6)
        made = emf.report_document(kind, microseconds, {"InstanceId": self.id}, fields, units)
        return str(emf.to_line(made), "ascii")

    def recovery(self, action: str, pending: int, failed: int) -> str:
        """A GPU's line of the snapshot at boot."""
        fields = {"action": action, "RowRemapPending": pending, "RowRemapFailure": failed, "RecoveryUnknown": 0}
        units = dict.fromkeys(("RowRemapPending", "RowRemapFailure", "RecoveryUnknown"), "Count")
        return self.document("recovery", fields, units, self.aws.now - datetime.timedelta(seconds=30))

    def lost(self) -> str:
        """The line of a GPU that is lost at boot, as the parser makes it of what nvidia-smi prints then."""
        (board,), _ = snapshot.boards(LOST)
        fields, units = snapshot.with_metrics(board)
        fields["severity"], fields["action"] = details.board_advice(fields)
        return self.document("recovery", fields, units, self.aws.now - datetime.timedelta(seconds=30))

    def unanswered(self) -> str:
        """The line of an nvidia-smi that failed at boot."""
        fields, units = snapshot.unanswered("nvidia-smi: exit status 9")
        return self.document("recovery", fields, units, self.aws.now - datetime.timedelta(seconds=30))

    def _put_lines(self, lines: Sequence[tuple[str, datetime.datetime]]) -> None:
        logs = self.aws("logs")
        if not logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=self.id)["logStreams"]:
            logs.create_log_stream(logGroupName=GROUP, logStreamName=self.id)
        events = [
            {"timestamp": int(at.replace(tzinfo=datetime.UTC).timestamp() * 1000), "message": line}
            for line, at in sorted(lines, key=lambda one: one[1])
        ]
        if events:
            logs.put_log_events(logGroupName=GROUP, logStreamName=self.id, logEvents=events)

    def live(self, minutes: int, minute: Minute = HEALTHY) -> list[tuple[str, str]]:
        """Sends and evaluates so many minutes; returns the changes."""
        changes = []
        for _ in range(minutes):
            self.send(minute)
            changes += self.aws.step()
        return changes


def named(dimensions: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Name": name, "Value": value} for name, value in dimensions.items()]


def raised(changes: Sequence[tuple[str, str]]) -> set[str]:
    return {name for name, state in changes if state == "ALARM"}


def with_events(minute: Minute, *lines: str) -> Minute:
    return replace(minute, events=lines)
