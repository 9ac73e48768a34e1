"""An Xid makes its whole way: kernel, file, agent, CloudWatch; once, unchanged, and a drill is never taken for one."""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
from dataclasses import dataclass
from typing import Any

import pytest

from validator import oracle, provoke, smi
from validator.checks.event_parser import require_parser
from validator.cloudwatch import CloudWatch, LogEvent
from validator.machine import MachineUnderTest
from validator.observe import Observe, unproven
from validator.smi import pci_address

pytestmark = [pytest.mark.live, pytest.mark.tier("T2")]

_CODE = 31  # an application's MMU fault: real boards print it often, and it asks nobody for a repair
_PID, _PROCESS = 4242, "gpu-ami-proof"
_FILE_SECONDS = 20.0
# Writes $2 to $1; says when (host's clock, seconds), then when $3 stood in each of the files $4 and $5.
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
    """An Xid that was asked for: where, with which nonce, and when the host had it in its raw and its JSON log."""

    nonce: str
    pci: str
    started: float
    raw: float
    json: float


class Xids:
    """Asks a host for Xids and follows them."""

    def __init__(self, host: Any, plan: Any, machine: MachineUnderTest, cloudwatch: CloudWatch) -> None:
        self.host, self.plan, self.machine, self.cloudwatch = host, plan, machine, cloudwatch
        self.raw_log, self.json_log = plan["event_parser"]["raw_log"], plan["event_parser"]["json_log"]
        telemetry = plan["telemetry"]
        self.stream = telemetry["log_stream"].replace("{instance_id}", machine.instance_id)
        self.raw_group, self.json_group = telemetry["raw_log_group"], telemetry["json_log_group"]
        self.drill: Injection | None = None  # what was written to /dev/kmsg, once it was

    def kernel_files(self) -> list[str]:
        """Where the driver takes orders for an Xid; none on a real board."""
        return sorted(self.host.run("ls -1 /proc/driver/nvidia/gpus/*/xid 2>/dev/null").stdout.split())

    def from_kernel(self, file: str, observe: Observe) -> Injection:
        pci = pci_address(file.split("/")[-2])
        nonce = f"nonce={secrets.token_hex(8)}"
        text = f"{_CODE}, pid={_PID}, name={_PROCESS}, Ch 00000010, intr 00000000. MMU Fault: {nonce}"
        return self._inject(file, text, nonce, pci, observe)

    def from_userland(self, pci: str, observe: Observe) -> Injection:
        nonce = f"nonce={secrets.token_hex(8)}"
        body = f"{_CODE}, pid={_PID}, name={_PROCESS}, Ch 00000010, intr 00000000. MMU Fault: {nonce}"
        # Without the newline the kernel keeps the record open, and shows it to nobody, until the next one comes.
        return self._inject("/dev/kmsg", f"<4>NVRM: Xid (PCI:{pci[:-2]}): {body}\n", nonce, pci, observe)

    def _inject(self, file: str, text: str, nonce: str, pci: str, observe: Observe) -> Injection:
        words = " ".join(shlex.quote(word) for word in (file, text, nonce, self.raw_log, self.json_log))
        done = self.host.run(f"sh -c {shlex.quote(_INJECT)} inject {words}", timeout=_FILE_SECONDS + 30)
        times = [float(line.split()[1]) for line in done.stdout.splitlines()]
        if done.rc != 0:
            unproven(f"{file} takes no Xid: {done.stderr.strip()}")
        if len(times) < 3:
            where = self.raw_log if len(times) == 1 else self.json_log
            observe.fail(f"an Xid by {file} ({nonce}) did not reach {where} within {_FILE_SECONDS:.0f} s")
        return Injection(nonce, pci, *times)

    def arrived(self, group: str, nonce: str) -> list[LogEvent] | None:
        """The events with a nonce, once there is one."""
        events = self.cloudwatch.events(group, self.stream, self.machine.first_boot_time - 60) or []
        return [event for event in events if nonce in event.message] or None

    def wait(self, group: str, nonce: str, observe: Observe) -> list[LogEvent]:
        found = self.cloudwatch.wait(lambda: self.arrived(group, nonce), self.cloudwatch.arrival_seconds)
        if found is None:
            seconds = self.cloudwatch.arrival_seconds
            observe.fail(f"{nonce} did not reach group {group}, stream {self.stream} within {seconds:.0f} s")
        return found


@pytest.fixture(scope="module")
def xids(host: Any, plan: Any, machine: MachineUnderTest, cloudwatch: CloudWatch) -> Xids:
    return Xids(host, plan, machine, cloudwatch)


@pytest.mark.planned("nvidia_driver")
@pytest.mark.survives
def test_kernel_xid_arrives_once(xids: Xids, machine: MachineUnderTest, observe: Observe) -> None:
    """An Xid that the driver prints reaches both logs and both streams, exactly once, as a kernel's message."""
    machine.require_clock()
    require_parser(xids.host)
    files = xids.kernel_files()
    if not files:
        unproven(
            "this driver takes no orders for an Xid (/proc/driver/nvidia/gpus/*/xid): see test_drill_is_labelled;"
            " --provoke-xid makes a real one"
        )
    sent = xids.from_kernel(files[0], observe)
    _require_kernel_origin(xids, sent, observe)
    raw = xids.wait(xids.raw_group, sent.nonce, observe)
    structured = xids.wait(xids.json_group, sent.nonce, observe)
    _report_hops(sent, raw[0], structured[0], observe)
    # What comes after it in a stream is the fence: once that is there, whatever was delivered twice is there too.
    fence = xids.from_kernel(files[-1], observe)
    with contextlib.suppress(pytest.fail.Exception):  # a drill that goes astray is for its own check to tell
        xids.drill = xids.from_userland(sent.pci, observe)
    for group in (xids.raw_group, xids.json_group):
        xids.wait(group, fence.nonce, observe)
    _require_once(xids, sent, observe)
    _require_fields(xids, sent, "kernel", observe)


def _require_kernel_origin(xids: Xids, sent: Injection, observe: Observe) -> None:
    # dd reads /dev/kmsg record by record and ends where it would have to wait.
    kmsg = "dd if=/dev/kmsg bs=8192 iflag=nonblock 2>/dev/null | grep -aF -- %s"
    records = xids.host.run(kmsg, sent.nonce).stdout.splitlines()
    heads = [record.partition(";")[0] for record in records]
    if len(records) != 1:
        observe.fail(f"the kernel's log has {len(records)} records with {sent.nonce}, expected 1")
    if int(heads[0].split(",")[0]) >> 3 != 0:
        observe.fail(f"the record is not of the kernel's facility: {records[0]}")


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
    observe.same(counts, dict.fromkeys(counts, 1), f"times that {sent.nonce} was found")


def _require_fields(xids: Xids, sent: Injection, origin: str, observe: Observe) -> None:
    (event,) = xids.arrived(xids.json_group, sent.nonce) or []
    fields = json.loads(event.message)
    # What is there for CloudWatch's embedded metrics alone says nothing of the fault.
    observe.event({key: value for key, value in fields.items() if key != "_aws"})
    wanted = {"kind": "xid", "code": _CODE, "pci": sent.pci, "pid": _PID, "process": _PROCESS, "origin": origin}
    found = {key: fields.get(key) for key in wanted}
    found["pci"] = pci_address(str(found["pci"]))
    observe.same(found, wanted, "fields of the event in the JSON stream")
    if sent.nonce not in str(fields.get("message", "")):
        observe.fail(f"the event's message lacks what the driver printed: {fields.get('message')!r}")
    raw = (xids.arrived(xids.raw_group, sent.nonce) or [])[0].message
    if f"NVRM: Xid (PCI:{sent.pci[:-2]}): {_CODE}, " not in raw:
        observe.fail(f"the raw stream does not have the line as the driver prints it: {raw!r}")


@pytest.mark.survives
def test_drill_is_labelled(xids: Xids, machine: MachineUnderTest, observe: Observe) -> None:
    """A line that a process wrote to /dev/kmsg arrives as well, but labelled userland: a drill triggers no repair."""
    machine.require_clock()
    require_parser(xids.host)
    if xids.drill is None:
        boards = machine.gpus if "nvidia_driver" in xids.plan else ()
        # Without NVIDIA's boards it is still shown that what the kernel logs makes its way.
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
    """A store out of bounds on a real GPU arrives once as the driver's own Xid, 31 or 13, with the process that did it.

    The GPU takes work afterwards as before.
    """
    machine.require_clock()
    require_parser(xids.host)
    gpu = _idle_gpu(xids.host)
    before = provoke.last_seq(xids.host.run(provoke.KMSG).stdout)
    fault = _run_on_gpu(xids.host, gpu.pci)
    if fault["outcome"] == "no libcuda":
        unproven(f"CUDA's driver library is not installed ({fault['message']})")
    if fault["outcome"] != "faulted":
        observe.fail(f"no fault could be provoked on GPU {gpu.pci}: {fault['message']}")
    for record in _printed(xids, before, gpu.pci, observe):
        xids.wait(xids.raw_group, record.text, observe)
    printed = _printed(xids, before, gpu.pci, observe)  # others (43, 45) may have followed meanwhile
    fence = xids.from_userland(gpu.pci, observe)  # what comes after it in a stream says that all before it is there
    for group in (xids.raw_group, xids.json_group):
        xids.wait(group, fence.nonce, observe)
    _require_fault_everywhere(xids, fault, printed, observe)
    after = _run_on_gpu(xids.host, gpu.pci, only_work=True)
    if after["outcome"] != "worked":
        observe.fail(f"GPU {gpu.pci} takes no work after the fault: {after['message']}")


def _idle_gpu(host: Any) -> smi.Gpu:
    bus = [one for one in oracle.pci_devices(host.run(oracle.PCI_LIST).stdout) if one.is_gpu]
    if not bus:
        unproven("the machine has no GPU")
    if oracle.is_simulated(bus):
        unproven("the GPUs are simulated, and simulated hardware cannot fault")
    try:
        return provoke.choose(smi.read(host.run("nvidia-smi -q -x").stdout), host.run("ps -eo comm=").stdout.split())
    except (provoke.Unfit, ValueError) as reason:
        unproven(str(reason))


def _run_on_gpu(host: Any, pci: str, *, only_work: bool = False) -> dict[str, Any]:
    done = host.run(provoke.command(pci, only_work=only_work), timeout=provoke.SECONDS)
    return provoke.answer(done.rc, done.stdout, done.stderr)


def _printed(xids: Xids, before: int, pci: str, observe: Observe) -> list[provoke.Record]:
    def look() -> list[provoke.Record] | None:
        found = provoke.xids(xids.host.run(provoke.KMSG).stdout, before, pci)
        return found if any(record.code in provoke.CODES for record in found) else None

    found = xids.cloudwatch.wait(look, _FILE_SECONDS)
    if found is None:
        others = [record.text for record in provoke.xids(xids.host.run(provoke.KMSG).stdout, before, pci)]
        observe.fail(
            f"the process was told of its fault on GPU {pci}, but the kernel printed no Xid"
            f" {' or '.join(map(str, provoke.CODES))} within {_FILE_SECONDS:.0f} s, only {others or 'nothing'}"
        )
    return found


def _require_fault_everywhere(
    xids: Xids, fault: dict[str, Any], printed: list[provoke.Record], observe: Observe
) -> None:
    (boot_id,) = xids.host.run("cat /proc/sys/kernel/random/boot_id").stdout.split()
    since = float(fault["stored"]) - 60
    raw = xids.cloudwatch.events(xids.raw_group, xids.stream, since) or []
    streamed = xids.cloudwatch.events(xids.json_group, xids.stream, since) or []
    lines = xids.host.run("tail -n 2000 %s", xids.json_log).stdout.splitlines()
    for record in printed:
        by_place = {
            xids.json_log: provoke.events(lines, boot_id, record.seq),
            xids.json_group: provoke.events([event.message for event in streamed], boot_id, record.seq),
        }
        counts = {place: len(found) for place, found in by_place.items()}
        counts[xids.raw_log] = int(xids.host.run("grep -caF -- %s %s", record.text, xids.raw_log).stdout.strip() or 0)
        counts[xids.raw_group] = sum(record.text in event.message for event in raw)
        observe.same(counts, dict.fromkeys(counts, 1), f"times that {record.text!r} was found")
        (event,) = by_place[xids.json_group]
        wanted = record.fields()
        observe.same({key: event.get(key) for key in wanted}, wanted, f"fields of the event of {record.text!r}")
    culprit = next(record for record in printed if record.code in provoke.CODES)
    _require_culprit(xids, culprit, fault, observe)
    (event,) = provoke.events([one.message for one in streamed], boot_id, culprit.seq)
    observe.event({key: value for key, value in event.items() if key != "_aws"})
    arrived = next(one for one in raw if culprit.text in one.message)
    observe.hop("store on the GPU → CloudWatch Logs (raw)", arrived.ingested - float(fault["stored"]))


def _require_culprit(xids: Xids, culprit: provoke.Record, fault: dict[str, Any], observe: Observe) -> None:
    wanted = {"code": "31 or 13", "pid": fault["pid"], "process": fault["name"]}
    found = {"code": culprit.code, "pid": culprit.pid, "process": culprit.process}
    branch = int(str(xids.plan["nvidia_driver"]["version"]).partition(".")[0])
    if culprit.pid is None and culprit.process is None and branch >= provoke.PIDS_MAY_LACK:
        observe(found, f"{wanted}; this driver branch may name no process")
        return
    observe(found, wanted)
    if (culprit.pid, culprit.process) != (fault["pid"], fault["name"]):
        observe.fail(f"the driver's Xid names {found}, the fault was made by {wanted}: {culprit.text}")


def test_parser_is_alive_after_all(host: Any, observe: Observe) -> None:
    """After all that this proof provoked, the parser still reads /dev/kmsg and has lost nothing."""
    pid = require_parser(host)["MainPID"]
    status = host.run("cat /run/gpu-ami/event-parser.json")
    if status.rc != 0:
        observe.fail(f"the parser leaves no status: {status.stderr.strip()}")
    told = json.loads(status.stdout)
    kept = {key: told.get(key) for key in ("pid", "source", "records_lost", "sink_errors", "events_dropped")}
    wanted = {"pid": int(pid), "source": "/dev/kmsg", "records_lost": 0, "sink_errors": 0, "events_dropped": 0}
    observe.same(kept, wanted, "the parser's status")
