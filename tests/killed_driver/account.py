"""The region that killed drivers talk to: when one is killed, and what it leaves that costs money or misleads."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import boto3

from gpu_ami.cloud import ApiAccess, Cloud, Place, log_groups, resources, runs
from localregion.api import Api
from localregion.api.protocol import read_service_call
from localregion.machines.qemu import Exit
from tests.killed_driver import SPEED
from tests.localregion.conftest import World

_READS = ("Describe", "Get", "List")
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Moment:
    """When a driver is killed: at its nth change of the account, before it gets the answer or so long after it.

    The change may be Packer's, which the driver started. action: the nth of this one; "": of any. signal: SIGINT is
    Ctrl-C in a terminal.
    """

    number: int
    seconds: float | None = None  # None: before the answer
    action: str = ""
    signal: signal.Signals = signal.SIGKILL

    def is_now(self, changes: list[str]) -> bool:
        """Whether the last of these changes is the one."""
        if not self.action:
            return len(changes) == self.number
        return changes[-1] == self.action and changes.count(self.action) == self.number

    def __str__(self) -> str:
        return f"{self.action or 'change'} {self.number}, " + (
            "before the answer" if self.seconds is None else f"{self.seconds:.2f} s after it"
        )


def draw(seed: int, changes: int, moments: int) -> list[Moment]:
    """Moments of a whole run that makes so many changes, one in each of its parts of the same length.

    Drawn as parts of the run: one that makes a change more or less has almost the same moments.
    """
    chosen = random.Random(seed)
    parts = [(part + chosen.random()) / moments for part in range(moments)]
    return [
        Moment(1 + int(part * (changes - 1)), chosen.choice([None, 0.0, chosen.uniform(0.0, 0.4)])) for part in parts
    ]


@dataclass
class Drivers:
    """Runs commands in processes of their own, of which one is killed at a moment. changes: of the last run.

    folder, environment: of these processes.
    """

    folder: Path
    environment: dict[str, str]
    changes: list[str] = field(default_factory=list)
    moment: Moment | None = None
    pid: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def run(self, line: str, moment: Moment | None = None) -> int:
        """The exit code of the first command that has another one than 0; -9 where the driver was killed."""
        process = _forks_drivers()
        assert process.stdin and process.stdout
        self.changes, self.moment = [], moment
        try:
            asked = {"line": line, "folder": str(self.folder), "environment": self.environment}
            process.stdin.write(f"{json.dumps(asked)}\n")
            process.stdin.flush()
            self.pid = int(process.stdout.readline())
            return int(process.stdout.readline())
        except BaseException:  # the next one would read this one's answer
            process.kill()
            process.wait()
            _forks_drivers.cache_clear()
            raise
        finally:
            self.pid = 0

    def note(self, action: str) -> None:
        """A change has been made, and is not answered yet."""
        with self._lock:
            self.changes.append(action)
            moment, pid = self.moment, self.pid
            if moment is None or not pid or not moment.is_now(self.changes):
                return
        if moment.seconds is None:
            os.kill(pid, moment.signal)
        else:
            threading.Timer(moment.seconds, self._kill, [pid, moment.signal]).start()

    def _kill(self, pid: int, number: signal.Signals) -> None:
        if self.pid == pid:
            os.kill(pid, number)


@functools.cache
def _forks_drivers() -> subprocess.Popen[str]:
    """One process for all accounts: to import what commands need takes it 2 s of CPU. It ends with its input."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.killed_driver.commands"], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


class Observer(Protocol):
    """Notes the changes of a driver. pid: of the one that runs; 0: none."""

    pid: int

    def note(self, action: str) -> None: ...


@contextlib.contextmanager
def observed(drivers: Observer) -> Iterator[None]:
    """Every change that the region's API carries out is the driver's, or of what it has started."""
    answer = Api.__call__

    def call(api: Api, environ: Any, start_response: Any) -> Iterable[bytes]:
        asked, status = read_service_call(environ), ""

        def start(line: str, *rest: Any) -> Any:
            nonlocal status
            status = line
            return start_response(line, *rest)

        body = answer(api, environ, start)
        if asked and not asked.action.startswith(_READS) and status.startswith("200") and drivers.pid:
            drivers.note(asked.action)
        return body

    Api.__call__ = call  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Api.__call__ = answer  # type: ignore[method-assign]


@contextlib.contextmanager
def ticking(world: World) -> Iterator[None]:
    """The region's clock runs SPEED times faster; a machine that is told to stop has done so a moment later."""
    ended, started = threading.Event(), time.monotonic()

    def tick() -> None:
        while not ended.wait(0.05):
            world.clock.now = (time.monotonic() - started) * SPEED
            for machine in world.machines.started:
                if machine.ended is None and "power_down" in machine.told:
                    machine.ended = Exit("shutdown")
            world.settle(1)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join()


def services(endpoint: str, region: str, service: str) -> Any:
    return boto3.client(
        service, endpoint_url=endpoint, region_name=region, aws_access_key_id="test", aws_secret_access_key="test"
    )


def left(endpoint: str, home: Path) -> dict[str, list[str]]:
    """What is there of any run, by kind, without images that are complete and their snapshots."""
    cloud = Cloud(Place("seen", "us-east-1", api=ApiAccess(endpoint=endpoint)))
    ec2 = cloud.ec2
    instances = [row for each in ec2.describe_instances()["Reservations"] for row in each["Instances"]]
    groups = ec2.describe_security_groups()["SecurityGroups"]
    names = {
        "instances": [row["InstanceId"] for row in instances if row["State"]["Name"] != "terminated"],
        "key pairs": [str(row["KeyName"]) for row in ec2.describe_key_pairs()["KeyPairs"]],
        "groups": [row["GroupName"] for row in groups if row["GroupName"].startswith("packer_")],
        "volumes": [found.id for found in resources.tagged(cloud, runs.TAG_RUN) if found.kind == "volume"],
        "log groups": log_groups.of_proofs(cloud),
        "schedules": [row["Name"] for row in cloud.client("scheduler").list_schedules()["Schedules"]],
        "records": [record.id for record in runs.records(home)],
        "processes": processes_below(home),
    }
    return {kind: found for kind, found in names.items() if found}


def images(endpoint: str, region: str) -> list[dict[str, Any]]:
    """The account's images there, each with its tags as a mapping."""
    rows = services(endpoint, region, "ec2").describe_images(Owners=["self"])["Images"]
    return [{**row, "Tags": {tag["Key"]: tag["Value"] for tag in row.get("Tags", [])}} for row in rows]


def snapshots(endpoint: str, region: str) -> set[str]:
    """Snapshots that images of the account were made of, whether these are there still or not."""
    rows = services(endpoint, region, "ec2").describe_snapshots(OwnerIds=["self"])["Snapshots"]
    return {row["SnapshotId"] for row in rows if "CreateImage" in row["Description"] or row.get("Tags")}


def of_images(found: Iterable[dict[str, Any]]) -> set[str]:
    return {device["Ebs"]["SnapshotId"] for row in found for device in row["BlockDeviceMappings"]}


def processes_below(home: Path) -> list[str]:
    """Processes whose environment names a folder of a run in this home."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"={home}/runs/".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found
