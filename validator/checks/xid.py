"""An Xid arrives in CloudWatch Logs once and unchanged, and a drill is labelled as one."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from validator.checks.event_parser import require_parser
from validator.cloudwatch import CloudWatch
from validator.observe import Observe, unproven
from validator.pci import PCI_LIST
from validator.plan_document import PlanDocument
from validator.probes import MachineUnderTest, base_driver, hardware, nvidia_smi, pci_address, xid_injection
from validator.probes.agent import injected_lines

pytestmark = [pytest.mark.live, pytest.mark.tier("T2"), pytest.mark.planned("event_parser")]


@pytest.fixture(scope="module")
def xids(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, cloudwatch: CloudWatch, log_group_suffix: str
) -> injected_lines.Xids:
    """UNPROVEN where an injected Xid would reach production's log groups although the proof has groups of its own."""
    return injected_lines.Xids.of_proof(host, plan, machine, cloudwatch, log_group_suffix)


@pytest.mark.needs("observed")
@pytest.mark.planned("nvidia_driver")
@pytest.mark.survives
def test_kernel_xid_arrives_once(xids: injected_lines.Xids, machine: MachineUnderTest, observe: Observe) -> None:
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
    xids.follow(sent, observe)
    # When the second Xid has arrived, every duplicate of the first has arrived too.
    fence = xids.from_kernel(files[-1], observe)
    with contextlib.suppress(pytest.fail.Exception):  # test_drill_is_labelled reports a lost drill
        xids.drill = xids.from_userland(sent.device, observe)
    for group in (xids.raw_group, xids.json_group):
        xids.wait(group, fence.nonce, observe)
    xids.require_once(sent, observe)
    _require_fields(xids, sent, "kernel", observe)


def _require_kernel_origin(xids: injected_lines.Xids, sent: injected_lines.Injection, observe: Observe) -> None:
    # dd reads /dev/kmsg record by record and exits instead of waiting.
    kmsg = "dd if=/dev/kmsg bs=8192 iflag=nonblock 2>/dev/null | grep -aF -- %s"
    records = xids.host.run(kmsg, sent.nonce).stdout.splitlines()
    heads = [record.partition(";")[0] for record in records]
    if len(records) != 1:
        observe.fail(f"kernel log records with {sent.nonce}: expected 1, got {len(records)}")
    if int(heads[0].split(",")[0]) >> 3 != 0:
        observe.fail(f"the record does not have the facility kern: {records[0]}")


def _require_fields(xids: injected_lines.Xids, sent: injected_lines.Injection, origin: str, observe: Observe) -> None:
    fields = xids.event(sent, observe)
    expected = injected_lines.fields(sent, origin)
    values = {key: fields.get(key) for key in expected}
    values["pci"] = pci_address(str(values["pci"]))
    xids.require_fields(fields, values, expected, sent, injected_lines.line_start(sent), observe=observe)


# Where no accelerator is planned, it still proves the path of kernel messages; Neuron has a drill of its own.
@pytest.mark.needs("observed")
@pytest.mark.without("neuron")
@pytest.mark.survives
def test_drill_is_labelled(xids: injected_lines.Xids, machine: MachineUnderTest, observe: Observe) -> None:
    """A line that a process wrote to /dev/kmsg arrives with origin userland, so a drill triggers no repair."""
    machine.require_clock()
    require_parser(xids.host)
    if xids.drill is None:
        boards = machine.gpus if "nvidia_driver" in xids.plan else ()
        xids.drill = xids.from_userland(boards[0].pci if boards else "0000:00:1e.0", observe)
    sent = xids.drill
    xids.follow(sent, observe)
    xids.require_once(sent, observe)
    _require_fields(xids, sent, "userland", observe)


@pytest.mark.needs("observed")
@pytest.mark.planned("nvidia_driver")
@pytest.mark.asked("provoke_xid")
def test_real_fault_arrives(xids: injected_lines.Xids, machine: MachineUnderTest, observe: Observe) -> None:
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


def _printed(xids: injected_lines.Xids, before: int, pci: str, observe: Observe) -> list[xid_injection.Record]:
    def look() -> list[xid_injection.Record] | None:
        records = xid_injection.xids(xids.host.run(xid_injection.KMSG).stdout, before, pci)
        return records if any(record.code in xid_injection.CODES for record in records) else None

    printed = xids.cloudwatch.wait(look, injected_lines.FILE_SECONDS)
    if printed is None:
        others = [record.text for record in xid_injection.xids(xids.host.run(xid_injection.KMSG).stdout, before, pci)]
        observe.fail(
            f"CUDA reported the fault on GPU {pci}, but the kernel printed no Xid"
            f" {' or '.join(map(str, xid_injection.CODES))} within {injected_lines.FILE_SECONDS:.0f} s,"
            f" only {others or 'nothing'}"
        )
    return printed


def _require_fault_everywhere(
    xids: injected_lines.Xids, fault: xid_injection.Result, printed: list[xid_injection.Record], observe: Observe
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


def _require_cause(
    xids: injected_lines.Xids, cause: xid_injection.Record, fault: xid_injection.Result, observe: Observe
) -> None:
    expected = {"code": "31 or 13", "pid": fault.pid, "process": fault.name}
    printed = {"code": cause.code, "pid": cause.pid, "process": cause.process}
    branch = int(base_driver.version(xids.plan, xids.machine).partition(".")[0])
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
