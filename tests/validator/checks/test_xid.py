"""The Xid's way, once green and once red for each thing that can go wrong on it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.scripted_host import table_host
from tests.validator.checks.conftest import INSTANCE, METADATA, PLAN, FakeMachine, Judge, Judgement
from validator.checks import xid
from validator.cloudwatch import LogEvent
from validator.plan import as_plan
from validator.probes.agent import injected_lines
from validator.probes.nvidia_smi import Gpu

PCI = "0000:00:1b.0"
KERNEL_FILE = f"/proc/driver/nvidia/gpus/{PCI}/xid"


class World:
    """A host with driver, parser and agent, and the CloudWatch behind it. The flags are what is broken."""

    arrival_seconds = 30.0
    region = "us-east-1"

    def __init__(self, **broken: Any) -> None:
        self.broken = broken
        self.raw: list[str] = []
        self.json: list[str] = []
        self.kmsg: list[str] = []
        self.host = table_host(
            {
                "ls -1 /proc/driver*": "" if broken.get("no_orders") else f"{KERNEL_FILE}\n",
                "sh -c*": self.inject,
                "dd if=/dev/kmsg*": self.read_kmsg,
                "grep -caF*gpuevent.log": lambda text: self.count(self.raw, text),
                "grep -caF*gpuevent.jsonl": lambda text: self.count(self.json, text),
                "cat *amazon-cloudwatch-agent.log": "",
                "python3 -c*": "",  # a connection to CloudWatch gets through
                "cat /run/gpu-ami*": lambda _: json.dumps(self.status()),
                "systemctl show*": f"SubState={broken.get('state', 'running')}\nMainPID=366\n",
            }
        )

    def inject(self, text: str) -> tuple[int, str, str]:
        match = re.search(r"nonce=[0-9a-f]{16}", text)
        assert match
        nonce, kernel = match[0], KERNEL_FILE in text
        assert kernel or "\n'" in text, "a record without newline is shown to nobody"
        if self.broken.get("refused"):
            return 3, "start 100.0\n", "Permission denied"
        body = f"31, pid=4242, name=gpu-ami-proof, Ch 00000010, intr 00000000. MMU Fault: {nonce}"
        named = re.search(r"Xid \(PCI:([0-9a-f:.]+)\)", text)  # a drill names its board; a driver is one
        pci = f"{named[1]}.0" if named else PCI
        line = f"NVRM: Xid (PCI:{pci[:-2]}): {body}"
        facility = "4" if kernel and not self.broken.get("spoofed") else "12"
        self.kmsg.append(f"{facility},458,104666670,c;{line}")
        if self.broken.get("deaf") or (self.broken.get("deaf_to_drills") and not kernel):
            return 0, "start 100.0\n", ""
        self.raw += [f"[  104.666670] {line}"] * self.broken.get("written", 1)
        origin = "kernel" if kernel or self.broken.get("believes_drills") else "userland"
        event = {"kind": "xid", "code": 31, "pci": pci, "pid": 4242, "process": "gpu-ami-proof", "origin": origin}
        event |= {"message": "", "rest": body} if self.broken.get("cut") else {"message": body.split(", ", 3)[3]}
        self.json.append(json.dumps(event | self.broken.get("fields", {})))
        return 0, "start 100.0\nseen 100.2\nseen 100.3\n", ""

    def read_kmsg(self, text: str) -> str:
        nonce = text.split("-- ")[1].strip("'")
        return "".join(f"{record}\n" for record in self.kmsg if nonce in record)

    @staticmethod
    def count(lines: list[str], text: str) -> str:
        nonce = text.split("-- ")[1].split()[0]
        return f"{sum(nonce in line for line in lines)}\n"

    def status(self) -> dict[str, Any]:
        lost = self.broken.get("lost", 0)
        return {"pid": 366, "source": "/dev/kmsg", "records_lost": lost, "sink_errors": 0, "events_dropped": 0}

    def events(self, group: str, stream: str, since: float = 0.0) -> list[LogEvent] | None:
        assert stream == INSTANCE
        if group == self.broken.get("silent_group"):
            return None
        lines = {"raw": self.raw, "json": self.json}[group]
        return [LogEvent(100.5, 110.0, line) for line in lines for _ in range(self.broken.get("delivered", 1))]

    def wait(self, look: Callable[[], Any], seconds: float, *, parked: bool = False) -> Any:
        return look()


def prove(judge: Judge, check: Any, world: World) -> Judgement:
    gpu = Gpu(0, "NVIDIA A10G", "Ampere", "GPU-0", PCI, {})
    machine = FakeMachine(METADATA, first_boot_time=90.0, gpus=(gpu,))
    xids = injected_lines.Xids(world.host, as_plan(PLAN), machine, world)  # type: ignore[arg-type]
    return judge(check, {}, xids=xids, machine=machine, host=world.host)


def test_events_arrive_everywhere(judge: Judge) -> None:
    outcome = prove(judge, xid.test_kernel_xid_arrives_once, World())
    assert outcome.verdict == "PASS", outcome
    assert {hop.hop: hop.seconds for hop in outcome.check.hops} == {
        "kernel → raw log": 0.2,
        "kernel → JSON log": 0.3,
        "raw log → agent": 0.3,
        "agent → CloudWatch Logs": 9.5,
        "kernel → CloudWatch Logs (raw)": 10.0,
        "kernel → CloudWatch Logs (JSON)": 10.0,
    }


@pytest.mark.parametrize(
    ("broken", "verdict", "message"),
    [
        (
            {"state": "dead"},
            "UNPROVEN",
            "the parser is not running: see event_parser::test_parser_is_running_and_enabled",
        ),
        ({"no_orders": True}, "UNPROVEN", "this driver cannot inject Xids (no"),
        ({"refused": True}, "UNPROVEN", f"{KERNEL_FILE} does not accept an Xid: Permission denied"),
        ({"deaf": True}, "FAIL", "not in /var/log/gpuevent.log within 20 s"),
        ({"spoofed": True}, "FAIL", "the record does not have the facility kern: 12,458,104666670,c;NVRM: Xid"),
        ({"silent_group": "raw"}, "FAIL", f"did not reach group raw, stream {INSTANCE} within 30 s"),
        ({"silent_group": "json"}, "FAIL", f"did not reach group json, stream {INSTANCE} within 30 s"),
        ({"written": 2}, "FAIL", "'/var/log/gpuevent.log': 2"),
        ({"delivered": 2}, "FAIL", "'raw': 2, 'json': 2"),
        ({"fields": {"code": 13}}, "FAIL", "'code': 13"),
        ({"fields": {"pci": "0000:00:1c.0"}}, "FAIL", "'pci': '0000:00:1c.0'"),
        ({"fields": {"origin": "userland"}}, "FAIL", "'origin': 'userland'"),
        ({"cut": True}, "FAIL", "the event's message does not contain the driver's text: ''"),
        ({"deaf_to_drills": True}, "PASS", ""),
    ],
)
def test_failures(judge: Judge, broken: dict[str, Any], verdict: str, message: str) -> None:
    outcome = prove(judge, xid.test_kernel_xid_arrives_once, World(**broken))
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome


@pytest.mark.parametrize(
    ("broken", "verdict", "message"),
    [
        ({}, "PASS", ""),
        ({"believes_drills": True}, "FAIL", "'origin': 'kernel'"),
        ({"deaf_to_drills": True}, "FAIL", "Xid written to /dev/kmsg (nonce="),
    ],
)
def test_drill(judge: Judge, broken: dict[str, Any], verdict: str, message: str) -> None:
    outcome = prove(judge, xid.test_drill_is_labelled, World(**broken))
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome


def test_drill_on_an_image_without_nvidia_s_driver(judge: Judge) -> None:
    """Nobody asks nvidia-smi there, which is not installed."""
    world = World()
    machine = NoBoards({"instance-type": "m5.xlarge"})
    plan = as_plan({name: section for name, section in PLAN.items() if name != "nvidia_driver"})
    xids = injected_lines.Xids(world.host, plan, machine, world)  # type: ignore[arg-type]
    outcome = judge(xid.test_drill_is_labelled, {}, xids=xids, machine=machine, host=world.host)
    assert outcome.verdict == "PASS", outcome


class NoBoards(FakeMachine):
    @property
    def gpus(self) -> tuple[Gpu, ...]:  # type: ignore[override]
        raise AssertionError("nvidia-smi was asked")

    @gpus.setter
    def gpus(self, gpus: tuple[Gpu, ...]) -> None: ...


@pytest.mark.parametrize(("lost", "verdict"), [(0, "PASS"), (3, "FAIL")])
def test_parser_after_all(judge: Judge, lost: int, verdict: str) -> None:
    outcome = prove(judge, xid.test_parser_survives_the_proof, World(lost=lost))
    assert outcome.verdict == verdict
    assert ("'records_lost': 3" in outcome.message) == (lost > 0)


def test_no_xid_is_injected_into_production_groups() -> None:
    """Metric filters on those groups alarm people."""
    sent: list[str] = []
    config = json.dumps(PLAN["cloudwatch_agent"]["config"])
    world = World()
    world.host.backend.script = {
        "systemctl show*": "77\n",
        "cd /proc/77/root/opt/*": f"file_base.json\n{config}\x1e",
        "*": lambda text: sent.append(text) or "",
    }
    make = inspect.unwrap(xid.xids)
    machine = FakeMachine(METADATA)
    with pytest.raises(pytest.skip.Exception, match="the agent sends to json, raw"):
        make(world.host, as_plan(PLAN), machine, world, "-proof/20260101-000000-0a1b2c")
    assert sent == []
    assert make(world.host, as_plan(PLAN), machine, world, "").raw_group == "raw"
