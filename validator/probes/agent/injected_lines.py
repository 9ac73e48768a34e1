"""Lines (Xids among them) that a proof injects into a kernel log, and their way to CloudWatch Logs: once, unchanged.

A line that a process writes to /dev/kmsg is a drill: the kernel gives it the facility of a user's record, the event
parser the origin userland.
"""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from validator.cloudwatch import CloudWatch, LogEvent
from validator.observe import Observe, unproven
from validator.plan_document import PlanDocument
from validator.probes import MachineUnderTest, pci_address
from validator.probes.agent import config as agent_config
from validator.probes.agent import delivery

KMSG = "/dev/kmsg"
FILE_SECONDS = 20.0
# Writes $2 to $1; prints when (host's clock, seconds), then when $3 appeared in each of the files $4 and $5.
_INJECT = r"""
printf 'start %s\n' "$(date +%s.%N)"
printf '%s' "$2" >"$1" || exit 3
n=$3; shift 3; read -r up rest </proc/uptime; end=$((${up%.*} + 20))
for file; do
  until grep -qaF -- "$n" "$file" 2>/dev/null; do
    read -r up rest </proc/uptime; [ ${up%.*} -lt $end ] || break 2; sleep 0.05
  done
  printf 'seen %s\n' "$(date +%s.%N)"
done
"""


def nonce(name: str = "nonce") -> str:
    """A member of a line that no other line has: `nonce=0123456789abcdef`."""
    return f"{name}={secrets.token_hex(8)}"


@dataclass(frozen=True)
class Injection:
    """An injected line. device: as the event names it; raw, json: when the host's raw and JSON log had it."""

    nonce: str
    device: str
    started: float
    raw: float
    json: float


class InjectedLines:
    """Injects lines on a host and follows them. what: one of them, for messages: `an Xid`."""

    what = "a line"

    def __init__(self, host: Any, plan: PlanDocument, machine: MachineUnderTest, cloudwatch: CloudWatch) -> None:
        self.host, self.plan, self.machine, self.cloudwatch = host, plan, machine, cloudwatch
        self.raw_log, self.json_log = plan["event_parser"]["raw_log"], plan["event_parser"]["json_log"]
        telemetry = plan["telemetry"]
        self.stream = telemetry["log_stream"].replace("{instance_id}", machine.instance_id)
        self.raw_group, self.json_group = telemetry["raw_log_group"], telemetry["json_log_group"]
        self.drill: Injection | None = None  # the line that was written to /dev/kmsg

    @classmethod
    def of_proof(
        cls, host: Any, plan: PlanDocument, machine: MachineUnderTest, cloudwatch: CloudWatch, group_suffix: str
    ) -> Self:
        """UNPROVEN where a line would reach production's log groups although the proof has groups of its own."""
        if group_suffix:
            agent_config.require_group_suffix(agent_config.in_use(host), group_suffix)
        return cls(host, plan, machine, cloudwatch)

    def inject_drill(self, line: str, nonce: str, device: str, observe: Observe) -> Injection:
        # Without a newline the kernel does not publish the record before the next one.
        return self.inject(KMSG, f"<4>{line}\n", nonce, device, observe)

    def inject(self, file: str, text: str, nonce: str, device: str, observe: Observe) -> Injection:
        words = " ".join(shlex.quote(word) for word in (file, text, nonce, self.raw_log, self.json_log))
        done = self.host.run(f"sh -c {shlex.quote(_INJECT)} inject {words}", timeout=FILE_SECONDS + 30)
        times = [float(line.split()[1]) for line in done.stdout.splitlines()]
        if done.rc != 0:
            unproven(f"{file} does not accept {self.what}: {done.stderr.strip()}")
        if len(times) < 3:
            where = self.raw_log if len(times) == 1 else self.json_log
            observe.fail(f"{self.what} written to {file} ({nonce}): not in {where} within {FILE_SECONDS:.0f} s")
        return Injection(nonce, device, *times)

    def arrived(self, group: str, nonce: str) -> list[LogEvent] | None:
        """The events with a nonce; None if there are none yet."""
        events = self.cloudwatch.events(group, self.stream, self.machine.first_boot_time - 60) or []
        return [event for event in events if nonce in event.message] or None

    def wait(self, group: str, nonce: str, observe: Observe) -> list[LogEvent]:
        events = self.cloudwatch.wait(lambda: self.arrived(group, nonce), self.cloudwatch.arrival_seconds)
        if events is None:
            delivery.raise_if_refused(self.host)
            delivery.raise_if_dropped(self.host, "logs", self.cloudwatch.region, self.plan)
            seconds = self.cloudwatch.arrival_seconds
            observe.fail(f"{nonce} did not reach group {group}, stream {self.stream} within {seconds:.0f} s")
        return events

    def follow(self, sent: Injection, observe: Observe) -> None:
        """Waits for the line in both groups; the hops to there are the report's."""
        raw = self.wait(self.raw_group, sent.nonce, observe)[0]
        structured = self.wait(self.json_group, sent.nonce, observe)[0]
        observe.hop("kernel → raw log", sent.raw - sent.started)
        observe.hop("kernel → JSON log", sent.json - sent.started)
        observe.hop("raw log → agent", raw.time - sent.raw)
        observe.hop("agent → CloudWatch Logs", raw.ingested - raw.time)
        observe.hop("kernel → CloudWatch Logs (raw)", raw.ingested - sent.started)
        observe.hop("kernel → CloudWatch Logs (JSON)", structured.ingested - sent.started)

    def require_once(self, sent: Injection, observe: Observe) -> None:
        counts = {
            path: int(self.host.run("grep -caF -- %s %s", sent.nonce, path).stdout.strip() or 0)
            for path in (self.raw_log, self.json_log)
        }
        for group in (self.raw_group, self.json_group):
            counts[group] = len(self.arrived(group, sent.nonce) or [])
        observe.same(counts, dict.fromkeys(counts, 1), f"occurrences of {sent.nonce}")

    def event(self, sent: Injection, observe: Observe) -> dict[str, Any]:
        """The line's event in the JSON stream; the report has it, too."""
        event = self.wait(self.json_group, sent.nonce, observe)[0]
        fields: dict[str, Any] = json.loads(event.message)
        # `_aws` is for CloudWatch's embedded metric format only.
        observe.event({key: value for key, value in fields.items() if key != "_aws"})
        return fields

    def require_fields(
        self, fields: Mapping[str, Any], values: Mapping[str, Any], expected: Mapping[str, Any],
        sent: Injection, line: str, *, observe: Observe,
    ) -> None:  # fmt: skip
        """values: of the event, to compare; line: what the raw stream must have of it."""
        observe.same(values, expected, "fields of the event in the JSON stream")
        if sent.nonce not in str(fields.get("message", "")):
            observe.fail(f"the event's message does not contain the driver's text: {fields.get('message')!r}")
        raw = (self.arrived(self.raw_group, sent.nonce) or [])[0].message
        if line not in raw:
            observe.fail(f"the raw stream does not have the driver's line: {raw!r}")


_CODE = 31  # an application's MMU fault: common, and no GPU needs a repair after it
_PID, _PROCESS = 4242, "gpu-ami-proof"


class Xids(InjectedLines):
    """Injects Xids on a host and follows them."""

    what = "an Xid"

    def kernel_files(self) -> list[str]:
        """Files through which the simulated driver prints an Xid; none on a real GPU."""
        return sorted(self.host.run("ls -1 /proc/driver/nvidia/gpus/*/xid 2>/dev/null").stdout.split())

    def from_kernel(self, file: str, observe: Observe) -> Injection:
        unique = nonce()
        return self.inject(file, _body(unique), unique, pci_address(file.split("/")[-2]), observe)

    def from_userland(self, pci: str, observe: Observe) -> Injection:
        unique = nonce()
        return self.inject_drill(f"NVRM: Xid (PCI:{pci[:-2]}): {_body(unique)}", unique, pci, observe)


def _body(unique: str) -> str:
    return f"{_CODE}, pid={_PID}, name={_PROCESS}, Ch 00000010, intr 00000000. MMU Fault: {unique}"


def fields(sent: Injection, origin: str) -> dict[str, Any]:
    """What the event of an injected Xid must have."""
    expected = {"kind": "xid", "code": _CODE, "pci": sent.device, "pid": _PID, "process": _PROCESS}
    return expected | {"origin": origin}


def line_start(sent: Injection) -> str:
    """How the driver's line of an injected Xid starts."""
    return f"NVRM: Xid (PCI:{sent.device[:-2]}): {_CODE}, "
