"""A real fault's way, once green and once red for each thing that can go wrong on it."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from tests.validator.checks.conftest import METADATA, PLAN, FakeMachine, Judge, Judgement
from tests.validator.checks.test_xid import PCI, World
from validator.checks import xid
from validator.cloudwatch import LogEvent
from validator.plan import as_plan
from validator.probes import xid_injection
from validator.probes.agent import injected_lines
from validator.results import Hop

XML = f'<nvidia_smi_log><gpu id="0000{PCI.upper()}"><product_name>NVIDIA A10G</product_name>%s</gpu></nvidia_smi_log>'
BUSY = (
    "<processes><process_info><pid>7</pid><type>C</type><process_name>train</process_name></process_info></processes>"
)
REAL, SIMULATED = "0x10de 0x2237 0x030200 nvidia", "0x1af4 0x1110 0x050000 nvidia"
FAULT = f"NVRM: Xid (PCI:{PCI[:-2]}): 31, pid=977, name=gpu-ami-provoke, Ch 00000008, intr 00000000. MMU Fault: ENGINE"
CLEANUP = f"NVRM: Xid (PCI:{PCI[:-2]}): 43, pid=977, name=gpu-ami-provoke, Ch 00000008"


class FaultWorld(World):
    """A host with a GPU that faults. What the driver prints: `lines`; how far it gets: the flags."""

    def __init__(self, **broken: Any) -> None:
        super().__init__(**broken)
        self.records = ["6,400,1000000,-;NVRM: loading NVIDIA UNIX Open Kernel Module"]
        self.runs: list[list[str]] = []
        self.host.backend.script = {
            "for d in*": f"{PCI} {broken.get('bus', REAL)}\n" if broken.get("bus", REAL) else "",
            "nvidia-smi -q -x": XML % broken.get("inside", ""),
            "ps -eo comm=": broken.get("processes", "systemd\nsshd\n"),
            "dd if=/dev/kmsg bs=8192 iflag=nonblock 2>/dev/null": lambda _: "\n".join(self.records) + "\n",
            "python3 -IS*": self.on_gpu,
            "cat /proc/sys/kernel/random/boot_id": "boot-1\n",
            "tail -n 2000*": lambda _: "".join(f"{line}\n" for line in self.json),
            "grep -caF* /var/log/gpuevent.log": self.count_raw,
            **self.host.backend.script,
        }

    def on_gpu(self, text: str) -> tuple[int, str]:
        words = shlex.split(text)[5:]
        self.runs.append(words)
        said = {"pid": 977, "name": "gpu-ami-provoke", "outcome": "faulted", "message": "", "stored": 100.0}
        if words[1:] == ["work"]:
            return 0, json.dumps(said | {"outcome": "worked"} | self.broken.get("afterwards", {}))
        said |= self.broken.get("said", {})
        if said["outcome"] == "faulted":
            for seq, line in enumerate(self.broken.get("lines", [FAULT, CLEANUP]), 458):
                self.print(seq, line)
        return 0, json.dumps(said)

    def print(self, seq: int, line: str) -> None:
        self.records.append(f"{self.broken.get('priority', 4)},{seq},104666670,-;{line}")
        (record,) = xid_injection.xids(f"4,{seq},1,-;{line}", 0, PCI) or [None]
        if record is None or self.broken.get("deaf"):
            return
        self.raw += [f"[  104.666670] {line}"] * self.broken.get("written", 1)
        event = {**record.fields(), "seq": seq, "boot_id": "boot-1", "message": "MMU Fault"}
        self.json.append(json.dumps(event | self.broken.get("fields", {})))

    def count_raw(self, text: str) -> str:
        needle = shlex.split(text)[3]
        return f"{sum(needle in line for line in self.raw)}\n"

    def events(self, group: str, stream: str, since: float = 0.0) -> list[LogEvent] | None:
        found = super().events(group, stream, since) or []
        return found[: self.broken["json_streamed"]] if group == "json" and "json_streamed" in self.broken else found


def prove(judge: Judge, world: FaultWorld, version: str = "550.163.01") -> Judgement:
    machine = FakeMachine(METADATA, first_boot_time=90.0)
    plan = as_plan(PLAN | {"nvidia_driver": PLAN["nvidia_driver"] | {"version": version}})
    xids = injected_lines.Xids(world.host, plan, machine, world)  # type: ignore[arg-type]
    return judge(xid.test_real_fault_arrives, {}, xids=xids, machine=machine, host=world.host)


def test_events_arrive_everywhere(judge: Judge) -> None:
    world = FaultWorld()
    found = prove(judge, world)
    assert found.verdict == "PASS", found
    assert [words[0] for words in world.runs] == [PCI, PCI]
    assert [words[1:] for words in world.runs] == [[], ["work"]], "the GPU is asked to work after its fault"
    assert found.check.event is not None and found.check.event["pid"] == 977
    assert found.check.hops == (Hop("store on the GPU → CloudWatch Logs (raw)", 10.0),)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"state": "dead"}, "the parser is not running: see event_parser::test_parser_is_running_and_enabled"),
        ({"bus": ""}, "the machine has no GPU"),
        ({"bus": SIMULATED}, "the GPUs are simulated and cannot have a real fault"),
        ({"inside": BUSY}, f"no GPU is idle: GPU {PCI} is used by 7 train (C)"),
        ({"processes": "systemd\nnvidia-cuda-mps\n"}, "MPS runs on this machine"),
        (
            {"said": {"outcome": "no libcuda", "message": "libcuda.so.1: cannot open"}},
            "the CUDA driver library is not installed (libcuda.so.1: cannot open)",
        ),
    ],
)
def test_fault_that_cannot_be_caused_is_unproven(judge: Judge, broken: dict[str, Any], message: str) -> None:
    world = FaultWorld(**broken)
    found = prove(judge, world)
    assert (found.verdict, message in found.message) == ("UNPROVEN", True), found
    assert bool(world.runs) == ("said" in broken), "nothing runs on a GPU that is not ours to try"


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            {"said": {"outcome": "refused", "message": "cuInit returned 802 CUDA_ERROR_SYSTEM_NOT_READY"}},
            f"no fault could be caused on GPU {PCI}: cuInit returned 802 CUDA_ERROR_SYSTEM_NOT_READY",
        ),
        (
            {"said": {"outcome": "not refused", "message": "was not refused"}},
            "no fault could be caused on GPU 0000:00:1b.0: was not refused",
        ),
        ({"lines": []}, "the kernel printed no Xid 31 or 13 within 20 s, only nothing"),
        ({"lines": [CLEANUP]}, "31 or 13 within 20 s, only ['NVRM: Xid (PCI:0000:00:1b): 43"),
        ({"priority": 12}, "the kernel printed no Xid"),
        ({"deaf": True}, "did not reach group raw"),
        ({"written": 2}, "'/var/log/gpuevent.log': 2"),
        ({"delivered": 2}, "'json': 2"),
        ({"json_streamed": 0}, "did not reach group json"),
        ({"fields": {"origin": "userland"}}, "'origin': 'userland'"),
        ({"fields": {"pid": 1}}, "'pid': 1"),
        ({"fields": {"pci": "0000:00:1c.0"}}, "'pci': '0000:00:1c.0'"),
        ({"fields": {"boot_id": "boot-0"}}, "'json': 0"),
        (
            {"lines": [FAULT.replace("977", "978")]},
            "'pid': 977, 'process': 'gpu-ami-provoke'}, got {'code': 31, 'pid': 978,",
        ),
        (
            {"lines": [FAULT.replace("gpu-ami-provoke", "python3")]},
            "'process': 'python3'}: NVRM: Xid (PCI:0000:00:1b): 31, pid=977,",
        ),
        (
            {"lines": [FAULT.replace("pid=977, name=gpu-ami-provoke, ", "")]},
            "'pid': None, 'process': None}: NVRM: Xid (PCI:0000:00:1b): 31,",
        ),
        (
            {"afterwards": {"outcome": "refused", "message": "cuCtxCreate_v2 returned 46"}},
            f"GPU {PCI} is not usable after the fault: cuCtxCreate_v2 returned 46",
        ),
    ],
)
def test_failures(judge: Judge, broken: dict[str, Any], message: str) -> None:
    found = prove(judge, FaultWorld(**broken))
    assert (found.verdict, message in found.message) == ("FAIL", True), found


def test_driver_from_570_may_omit_the_process(judge: Judge) -> None:
    world = FaultWorld(lines=[FAULT.replace("pid=977, name=gpu-ami-provoke, ", "")])
    found = prove(judge, world, "570.124.06")
    assert (found.verdict, "this driver branch may name no process" in found.check.planned) == ("PASS", True), found
