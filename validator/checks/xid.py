"""An Xid arrives in CloudWatch Logs once and unchanged, and a drill is labelled as one."""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
from dataclasses import dataclass
from typing import Any

import pytest

from validator.checks.event_parser import require_parser
from validator.cloudwatch import CloudWatch, LogEvent
from validator.observe import Observe, unproven
from validator.pci import PCI_LIST
from validator.plan_document import PlanDocument
from validator.probes import MachineUnderTest, hardware, nvidia_smi, pci_address, xid_injection
from validator.probes.agent import config as agent_config
from validator.probes.agent import log as agent_log
from validator.probes.agent import way_out

pytestmark = [pytest.mark.live, pytest.mark.tier("T2")]

_CODE = 31  # an application's MMU fault: common, and no GPU needs a repair after it
_PID, _PROCESS = 4242, "gpu-ami-proof"
_FILE_SECONDS = 20.0
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


@dataclass(frozen=True)
class Injection:
    """An injected Xid: GPU, nonce, and the times at which the host's raw and JSON logs had it."""

    nonce: str
    pci: str
    started: float
    raw: float
    json: float


class Xids:
    """Injects Xids on a host and follows them."""

    def __init__(self, host: Any, plan: PlanDocument, machine: MachineUnderTest, cloudwatch: CloudWatch) -> None:
        self.host, self.plan, self.machine, self.cloudwatch = host, plan, machine, cloudwatch
        self.raw_log, self.json_log = plan["event_parser"]["raw_log"], plan["event_parser"]["json_log"]
        telemetry = plan["telemetry"]
        self.stream = telemetry["log_stream"].replace("{instance_id}", machine.instance_id)
        self.raw_group, self.json_group = telemetry["raw_log_group"], telemetry["json_log_group"]
        self.drill: Injection | None = None  # the line that was written to /dev/kmsg

    def kernel_files(self) -> list[str]:
        """Files through which the simulated driver prints an Xid; none on a real GPU."""
        return sorted(self.host.run("ls -1 /proc/driver/nvidia/gpus/*/xid 2>/dev/null").stdout.split())

    def from_kernel(self, file: str, observe: Observe) -> Injection:
        pci = pci_address(file.split("/")[-2])
        nonce = f"nonce={secrets.token_hex(8)}"
        text = f"{_CODE}, pid={_PID}, name={_PROCESS}, Ch 00000010, intr 00000000. MMU Fault: {nonce}"
        return self._inject(file, text, nonce, pci, observe)

    def from_userland(self, pci: str, observe: Observe) -> Injection:
        nonce = f"nonce={secrets.token_hex(8)}"
        body = f"{_CODE}, pid={_PID}, name={_PROCESS}, Ch 00000010, intr 00000000. MMU Fault: {nonce}"
        # Without a newline the kernel does not publish the record before the next one.
        return self._inject("/dev/kmsg", f"<4>NVRM: Xid (PCI:{pci[:-2]}): {body}\n", nonce, pci, observe)

    def _inject(self, file: str, text: str, nonce: str, pci: str, observe: Observe) -> Injection:
        words = " ".join(shlex.quote(word) for word in (file, text, nonce, self.raw_log, self.json_log))
        done = self.host.run(f"sh -c {shlex.quote(_INJECT)} inject {words}", timeout=_FILE_SECONDS + 30)
        times = [float(line.split()[1]) for line in done.stdout.splitlines()]
        if done.rc != 0:
            unproven(f"{file} does not accept an Xid: {done.stderr.strip()}")
        if len(times) < 3:
            where = self.raw_log if len(times) == 1 else self.json_log
            observe.fail(f"Xid written to {file} ({nonce}): not in {where} within {_FILE_SECONDS:.0f} s")
        return Injection(nonce, pci, *times)

    def arrived(self, group: str, nonce: str) -> list[LogEvent] | None:
        """The events with a nonce; None if there are none yet."""
        events = self.cloudwatch.events(group, self.stream, self.machine.first_boot_time - 60) or []
        return [event for event in events if nonce in event.message] or None

    def wait(self, group: str, nonce: str, observe: Observe) -> list[LogEvent]:
        events = self.cloudwatch.wait(lambda: self.arrived(group, nonce), self.cloudwatch.arrival_seconds)
        if events is None:
            agent_log.raise_if_refused(self.host)
            way_out.raise_if_dropped(self.host, "logs", self.cloudwatch.region, self.plan)
            seconds = self.cloudwatch.arrival_seconds
            observe.fail(f"{nonce} did not reach group {group}, stream {self.stream} within {seconds:.0f} s")
        return events


@pytest.fixture(scope="module")
def xids(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, cloudwatch: CloudWatch, log_group_suffix: str
) -> Xids:
    """UNPROVEN where an injected Xid would reach production's log groups although the proof has groups of its own."""
    if log_group_suffix:
        agent_config.require_group_suffix(agent_config.in_use(host), log_group_suffix)
    return Xids(host, plan, machine, cloudwatch)


@pytest.mark.planned("nvidia_driver")
@pytest.mark.survives
def test_kernel_xid_arrives_once(xids: Xids, machine: MachineUnderTest, observe: Observe) -> None:
    """An Xid printed by the driver arrives in both logs and both streams exactly once, with origin kernel."""
    machine.require_clock()
    require_parser(xids.host)
    files = xids.kernel_files()
    if not files:
        unproven(
            "this driver cannot inject Xids (no /proc/driver/nvidia/gpus/*/xid): see test_drill_is_labelled;"
            " --provoke-xid causes a real one"
        )
    sent = xids.from_kernel(files[0], observe)
    _require_kernel_origin(xids, sent, observe)
    raw = xids.wait(xids.raw_group, sent.nonce, observe)
    structured = xids.wait(xids.json_group, sent.nonce, observe)
    _report_hops(sent, raw[0], structured[0], observe)
    # When the second Xid has arrived, every duplicate of the first has arrived too.
    fence = xids.from_kernel(files[-1], observe)
    with contextlib.suppress(pytest.fail.Exception):  # test_drill_is_labelled reports a lost drill
        xids.drill = xids.from_userland(sent.pci, observe)
    for group in (xids.raw_group, xids.json_group):
        xids.wait(group, fence.nonce, observe)
    _require_once(xids, sent, observe)
    _require_fields(xids, sent, "kernel", observe)


def _require_kernel_origin(xids: Xids, sent: Injection, observe: Observe) -> None:
    # dd reads /dev/kmsg record by record and exits instead of waiting.
    kmsg = "dd if=/dev/kmsg bs=8192 iflag=nonblock 2>/dev/null | grep -aF -- %s"
    records = xids.host.run(kmsg, sent.nonce).stdout.splitlines()
    heads = [record.partition(";")[0] for record in records]
    if len(records) != 1:
        observe.fail(f"kernel log records with {sent.nonce}: expected 1, got {len(records)}")
    if int(heads[0].split(",")[0]) >> 3 != 0:
        observe.fail(f"the record does not have the facility kern: {records[0]}")


def _report_hops(sent: Injection, raw: LogEvent, structured: LogEvent, observe: Observe) -> None:
    observe.hop("kernel → raw log", sent.raw - sent.started)
    observe.hop("kernel → JSON log", sent.json - sent.started)
    observe.hop("raw log → agent", raw.time - sent.raw)
    observe.hop("agent → CloudWatch Logs", raw.ingested - raw.time)
    observe.hop("kernel → CloudWatch Logs (raw)", raw.ingested - sent.started)
    observe.hop("kernel → CloudWatch Logs (JSON)", structured.ingested - sent.started)


def _require_once(xids: Xids, sent: Injection, observe: Observe) -> None:
    counts = {
        path: int(xids.host.run("grep -caF -- %s %s", sent.nonce, path).stdout.strip() or 0)
        for path in (xids.raw_log, xids.json_log)
    }
    for group in (xids.raw_group, xids.json_group):
        counts[group] = len(xids.arrived(group, sent.nonce) or [])
    observe.same(counts, dict.fromkeys(counts, 1), f"occurrences of {sent.nonce}")


def _require_fields(xids: Xids, sent: Injection, origin: str, observe: Observe) -> None:
    (event,) = xids.arrived(xids.json_group, sent.nonce) or []
    fields = json.loads(event.message)
    # `_aws` is for CloudWatch's embedded metric format only.
    observe.event({key: value for key, value in fields.items() if key != "_aws"})
    expected = {"kind": "xid", "code": _CODE, "pci": sent.pci, "pid": _PID, "process": _PROCESS, "origin": origin}
    values = {key: fields.get(key) for key in expected}
    values["pci"] = pci_address(str(values["pci"]))
    observe.same(values, expected, "fields of the event in the JSON stream")
    if sent.nonce not in str(fields.get("message", "")):
        observe.fail(f"the event's message does not contain the driver's text: {fields.get('message')!r}")
    raw = (xids.arrived(xids.raw_group, sent.nonce) or [])[0].message
    if f"NVRM: Xid (PCI:{sent.pci[:-2]}): {_CODE}, " not in raw:
        observe.fail(f"the raw stream does not have the driver's line: {raw!r}")


@pytest.mark.survives
def test_drill_is_labelled(xids: Xids, machine: MachineUnderTest, observe: Observe) -> None:
    """A line that a process wrote to /dev/kmsg arrives with origin userland, so a drill triggers no repair."""
    machine.require_clock()
    require_parser(xids.host)
    if xids.drill is None:
        boards = machine.gpus if "nvidia_driver" in xids.plan else ()
        # Without an NVIDIA GPU the check still proves the path of kernel messages.
        xids.drill = xids.from_userland(boards[0].pci if boards else "0000:00:1e.0", observe)
    sent = xids.drill
    raw = xids.wait(xids.raw_group, sent.nonce, observe)
    structured = xids.wait(xids.json_group, sent.nonce, observe)
    _report_hops(sent, raw[0], structured[0], observe)
    _require_once(xids, sent, observe)
    _require_fields(xids, sent, "userland", observe)


@pytest.mark.planned("nvidia_driver")
@pytest.mark.asked("provoke_xid")
def test_real_fault_arrives(xids: Xids, machine: MachineUnderTest, observe: Observe) -> None:
    """An out-of-bounds store on a real GPU arrives once as the driver's Xid 31 or 13, with the process.

    The GPU is usable afterwards.
    """
    machine.require_clock()
    require_parser(xids.host)
    gpu = _idle_gpu(xids.host)
    before = xid_injection.last_seq(xids.host.run(xid_injection.KMSG).stdout)
    fault = _run_on_gpu(xids.host, gpu.pci)
    if fault.outcome == "no libcuda":
        unproven(f"the CUDA driver library is not installed ({fault.message})")
    if fault.outcome != "faulted":
        observe.fail(f"no fault could be caused on GPU {gpu.pci}: {fault.message}")
    for record in _printed(xids, before, gpu.pci, observe):
        xids.wait(xids.raw_group, record.text, observe)
    printed = _printed(xids, before, gpu.pci, observe)  # others (43, 45) may have followed
    fence = xids.from_userland(gpu.pci, observe)  # when it has arrived, all earlier events have arrived
    for group in (xids.raw_group, xids.json_group):
        xids.wait(group, fence.nonce, observe)
    _require_fault_everywhere(xids, fault, printed, observe)
    after = _run_on_gpu(xids.host, gpu.pci, only_work=True)
    if after.outcome != "worked":
        observe.fail(f"GPU {gpu.pci} is not usable after the fault: {after.message}")


def _idle_gpu(host: Any) -> nvidia_smi.Gpu:
    bus = [device for device in hardware.pci_devices(host.run(PCI_LIST).stdout) if device.is_gpu]
    if not bus:
        unproven("the machine has no GPU")
    if hardware.is_simulated(bus):
        unproven("the GPUs are simulated and cannot have a real fault")
    try:
        return xid_injection.choose(
            nvidia_smi.read(host.run("nvidia-smi -q -x").stdout), host.run("ps -eo comm=").stdout.split()
        )
    except (xid_injection.Unfit, ValueError) as reason:
        unproven(str(reason))


def _run_on_gpu(host: Any, pci: str, *, only_work: bool = False) -> xid_injection.Result:
    done = host.run(xid_injection.command(pci, only_work=only_work), timeout=xid_injection.SECONDS)
    return xid_injection.read_result(done.rc, done.stdout, done.stderr)


def _printed(xids: Xids, before: int, pci: str, observe: Observe) -> list[xid_injection.Record]:
    def look() -> list[xid_injection.Record] | None:
        records = xid_injection.xids(xids.host.run(xid_injection.KMSG).stdout, before, pci)
        return records if any(record.code in xid_injection.CODES for record in records) else None

    printed = xids.cloudwatch.wait(look, _FILE_SECONDS)
    if printed is None:
        others = [record.text for record in xid_injection.xids(xids.host.run(xid_injection.KMSG).stdout, before, pci)]
        observe.fail(
            f"CUDA reported the fault on GPU {pci}, but the kernel printed no Xid"
            f" {' or '.join(map(str, xid_injection.CODES))} within {_FILE_SECONDS:.0f} s, only {others or 'nothing'}"
        )
    return printed


def _require_fault_everywhere(
    xids: Xids, fault: xid_injection.Result, printed: list[xid_injection.Record], observe: Observe
) -> None:
    (boot_id,) = xids.host.run("cat /proc/sys/kernel/random/boot_id").stdout.split()
    since = fault.stored - 60
    raw = xids.cloudwatch.events(xids.raw_group, xids.stream, since) or []
    streamed = xids.cloudwatch.events(xids.json_group, xids.stream, since) or []
    lines = xids.host.run("tail -n 2000 %s", xids.json_log).stdout.splitlines()
    for record in printed:
        by_place = {
            xids.json_log: xid_injection.events(lines, boot_id, record.seq),
            xids.json_group: xid_injection.events([event.message for event in streamed], boot_id, record.seq),
        }
        counts = {place: len(events) for place, events in by_place.items()}
        counts[xids.raw_log] = int(xids.host.run("grep -caF -- %s %s", record.text, xids.raw_log).stdout.strip() or 0)
        counts[xids.raw_group] = sum(record.text in event.message for event in raw)
        observe.same(counts, dict.fromkeys(counts, 1), f"occurrences of {record.text!r}")
        (event,) = by_place[xids.json_group]
        expected = record.fields()
        observe.same({key: event.get(key) for key in expected}, expected, f"fields of the event of {record.text!r}")
    cause = next(record for record in printed if record.code in xid_injection.CODES)
    _require_cause(xids, cause, fault, observe)
    (event,) = xid_injection.events([entry.message for entry in streamed], boot_id, cause.seq)
    observe.event({key: value for key, value in event.items() if key != "_aws"})
    arrived = next(entry for entry in raw if cause.text in entry.message)
    observe.hop("store on the GPU → CloudWatch Logs (raw)", arrived.ingested - fault.stored)


def _require_cause(xids: Xids, cause: xid_injection.Record, fault: xid_injection.Result, observe: Observe) -> None:
    expected = {"code": "31 or 13", "pid": fault.pid, "process": fault.name}
    printed = {"code": cause.code, "pid": cause.pid, "process": cause.process}
    branch = int(str(xids.plan["nvidia_driver"]["version"]).partition(".")[0])
    if cause.pid is None and cause.process is None and branch >= xid_injection.PIDS_MAY_LACK:
        observe(printed, f"{expected}; this driver branch may name no process")
        return
    observe(printed, expected)
    if (cause.pid, cause.process) != (fault.pid, fault.name):
        observe.fail(f"the driver's Xid: expected {expected}, got {printed}: {cause.text}")


def test_parser_survives_the_proof(host: Any, observe: Observe) -> None:
    """After all injected Xids the parser still reads /dev/kmsg and has lost no record."""
    pid = require_parser(host)["MainPID"]
    status = host.run("cat /run/gpu-ami/event-parser.json")
    if status.rc != 0:
        observe.fail(f"the parser's status cannot be read: {status.stderr.strip()}")
    fields = json.loads(status.stdout)
    values = {key: fields.get(key) for key in ("pid", "source", "records_lost", "sink_errors", "events_dropped")}
    expected = {"pid": int(pid), "source": "/dev/kmsg", "records_lost": 0, "sink_errors": 0, "events_dropped": 0}
    observe.same(values, expected, "the parser's status")
