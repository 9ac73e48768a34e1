"""`gpu-ami fleet` on booted machines, through Systems Manager.

    pytest -m machine -s tests/machine/test_fleet_live.py

A machine that no recipe built (the plain Debian base image, without a GPU) gets telemetry, is proven, and loses it; at
the end every path, account and unit of it is as it was. A machine with GPUs, of the newest image of debian12-gpu that
was built here, is proven as it is. Both are emulated; their SSM Agent (the region's replica) comes by user data.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud import Cloud, Place
from gpu_ami.files import home_dir, read_json, write_json
from gpu_ami.plan import PLAN_FILE, make_plan
from gpu_ami.plan.document import with_digest
from gpu_ami.progress import Progress
from gpu_ami.recipes import find_recipe
from localregion.images import source_ami
from localregion.mirror import mirror
from tests.machine.guest import (
    BUILT,
    DEBIAN,
    GPU_TYPE,
    Guest,
    Machine,
    debian_region,
    launched,
    launched_together,
    newest_image,
)

pytestmark = pytest.mark.machine

TYPE = "m5.xlarge"
DRIVER_ALONE = "gpu-ami-layer_driver_"  # the image of a layer: no role of telemetry ran
_GPU_SECTIONS = (
    "nvidia_driver", "fabric_manager", "cuda", "cudnn", "nccl", "efa", "ofi_nccl", "mkl", "tuning", "kernel", "hygiene",
)  # fmt: skip
# Paths that change by themselves, or that the package manager keeps of every package that it ever had.
_PATHS = (
    r"find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/tmp"
    r" -o -path /var/log/journal -o -path /var/cache -o -path /var/lib/systemd -o -path /home \) -prune"
    r" -o -printf '%p %y %m %u %g %l\n' | grep -v -e /var/lib/dpkg/ -e '^/etc/[a-z]*- ' -e __pycache__"
    r" -e '^/var/log/dpkg.log ' | sort"
)
_ACCOUNTS = "getent passwd | sort; getent group | sort"
_UNITS = "systemctl list-unit-files --no-legend --no-pager | awk '{print $1, $2}' | sort"


@dataclass
class Live:
    """The machine, and the folder with the plan."""

    machine: Machine
    out: Path

    @property
    def guest(self) -> Guest:
        return self.machine.guest

    def fleet(self, verb: str, *words: str) -> tuple[int, Any]:
        """Exit code and JSON of `gpu-ami fleet VERB`."""
        command = [sys.executable, "-m", "gpu_ami", "fleet", verb, str(self.out)]
        command += ["--instance-id", self.machine.instance_id, *words, "--json"]
        begun = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1700)
        print(f"\nfleet {verb}: exit code {done.returncode} after {time.monotonic() - begun:.0f} s")
        print(f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.returncode, json.loads(done.stdout)

    def assert_proven(self) -> None:
        self.guest.correct_clock()
        code, proof = self.fleet("prove", "-i", str(self.machine.key_file))
        assert (code, [row["verdict"] for row in proof["machines"]]) == (0, ["PASS"]), proof

    def inventory(self) -> dict[str, list[str]]:
        return {command: self.guest.sudo(command, timeout=300).splitlines() for command in (_PATHS, _ACCOUNTS, _UNITS)}


def telemetry_plan(place: Place, out: Path) -> None:
    """The plan of a recipe with its telemetry alone: a machine without a GPU has nothing else of it."""
    document: dict[str, Any] = dict(make_plan(find_recipe(Path("debian12-gpu")), place).document)
    for section in _GPU_SECTIONS:
        document.pop(section, None)
    document["roles"] = ["cloudwatch_agent", "event_parser"]
    document["cloudwatch_agent"] = {**document["cloudwatch_agent"], "gpu_config": {}}
    document.pop("digest")
    write_json(out / PLAN_FILE, with_digest(document))  # type: ignore[arg-type]


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Live]:
    progress = Progress("plain")
    mirror.ensure(home_dir(), plan=None, progress=progress)
    with debian_region(progress) as place:
        telemetry_plan(place, tmp_path)
        mirror.ensure(home_dir(), plan=read_json(tmp_path / PLAN_FILE), progress=progress)
        with managed(place, DEBIAN, TYPE, progress) as machine:
            yield Live(machine, tmp_path)


@pytest.fixture
def with_gpus(tmp_path: Path) -> Iterator[Live]:
    progress = Progress("plain")
    with debian_region(progress) as place:
        write_json(tmp_path / PLAN_FILE, make_plan(find_recipe(Path("debian12-gpu")), place).document)
        with managed(place, BUILT, GPU_TYPE, progress) as machine:
            yield Live(machine, tmp_path)


@contextmanager
def managed(place: Place, image: str, instance_type: str, progress: Progress) -> Iterator[Machine]:
    """A machine of the newest such image, with an SSM Agent."""
    cloud = Cloud(place)
    with launched(cloud, newest_image(cloud, image), instance_type, progress, source_ami.user_data()) as machine:
        yield machine


def test_telemetry_comes_and_goes(plain: Live) -> None:
    plain.guest.until(
        "the SSM Agent runs", lambda: plain.fleet("attach", "--dry-run")[1]["dry_run"][-1].endswith("attach"), 300
    )
    plain.guest.correct_clock()
    before = plain.inventory()
    code, done = plain.fleet("attach")
    assert (code, [row["status"] for row in done["machines"]]) == (0, ["Success"])
    code, status = plain.fleet("status")
    assert (code, [(row["state"], row["agent"], row["parser"]) for row in status["machines"]]) == (
        0, [("ok", "active", "active")],
    )  # fmt: skip
    time.sleep(60)  # a heartbeat
    plain.assert_proven()
    code, done = plain.fleet("detach")
    assert (code, [row["status"] for row in done["machines"]]) == (0, ["Success"])
    after = plain.inventory()
    assert {command: sorted(set(after[command]) ^ set(lines)) for command, lines in before.items()} == {
        command: [] for command in before
    }


def test_machine_with_gpus_is_proven(with_gpus: Live) -> None:
    def states() -> list[tuple[str, str, str]]:
        _, status = with_gpus.fleet("status")
        return [(row["state"], row["agent"], row["parser"]) for row in status["machines"]]

    with_gpus.guest.until("telemetry is active", lambda: states() == [("ok", "active", "active")], 300)
    with_gpus.assert_proven()


@dataclass
class Pair:
    """Two machines with NVIDIA's driver; the second one is stopped and started."""

    cloud: Cloud
    machines: list[Machine]
    out: Path

    def fleet(self, verb: str, *words: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, rows by instance id, and the text for people."""
        command = [sys.executable, "-m", "gpu_ami", "fleet", verb, str(self.out)]
        for machine in self.machines:
            command += ["--instance-id", machine.instance_id]
        begun = time.monotonic()
        done = subprocess.run([*command, *words, "--json"], capture_output=True, text=True, check=False, timeout=1700)
        print(
            f"\nfleet {verb}: exit code {done.returncode} after {time.monotonic() - begun:.0f} s\n{done.stdout[-4000:]}"
        )
        rows = json.loads(done.stdout)["machines"]
        return done.returncode, {row["instance_id"]: row for row in rows}, done.stderr

    def of_both(self, rows: dict[str, Any], key: str) -> list[Any]:
        return [rows[machine.instance_id][key] for machine in self.machines]

    def stop(self, machine: Machine) -> None:
        self.cloud.ec2.stop_instances(InstanceIds=[machine.instance_id])
        self.cloud.ec2.get_waiter("instance_stopped").wait(InstanceIds=[machine.instance_id])

    def start(self, machine: Machine) -> None:
        self.cloud.ec2.start_instances(InstanceIds=[machine.instance_id])
        machine.guest.until("it is online", lambda: self.is_online(machine), 600)
        machine.guest.correct_clock()

    def is_online(self, machine: Machine) -> bool:
        wanted = {"Key": "InstanceIds", "Values": [machine.instance_id]}
        found = self.cloud.client("ssm").describe_instance_information(Filters=[wanted])
        running = self.cloud.instance(machine.instance_id)["State"]["Name"] == "running"
        return running and [row["PingStatus"] for row in found["InstanceInformationList"]] == ["Online"]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    progress = Progress("plain")
    with debian_region(progress) as place:
        plan = make_plan(find_recipe(Path("debian12-gpu")), place)
        write_json(tmp_path / PLAN_FILE, plan.document)
        mirror.ensure(home_dir(), plan=plan.document, progress=progress)
        cloud = Cloud(place)
        image = newest_image(cloud, DRIVER_ALONE)
        with launched_together(cloud, image, GPU_TYPE, progress, source_ami.user_data(), count=2) as machines:
            yield Pair(cloud, machines, tmp_path)


def test_two_machines_with_gpus_one_of_them_off(pair: Pair) -> None:
    """What one machine misses while it is off, the same command does when it is back; findings are shown by machine."""
    first, second = pair.machines
    for machine in pair.machines:
        machine.guest.until("it is online", lambda each=machine: pair.is_online(each), 600)
        machine.guest.correct_clock()
    pair.stop(second)
    code, rows, _ = pair.fleet("attach")
    assert (code, pair.of_both(rows, "status")) == (4, ["Success", "Silent"])
    assert rows[second.instance_id]["text"].endswith("the instance is stopped")
    pair.start(second)
    code, rows, _ = pair.fleet("status")
    assert (code, pair.of_both(rows, "state")) == (0, ["ok", "other plan"])
    code, rows, _ = pair.fleet("attach")
    assert (code, pair.of_both(rows, "status")) == (0, ["Success", "Success"])

    first.guest.xid("79, GPU has fallen off the bus.")
    first.guest.until("the parser wrote it", lambda: bool(first.guest.documents('"kind":"xid"')), 120)
    code, rows, _ = pair.fleet("status")
    assert (code, pair.of_both(rows, "state")) == (0, ["ok", "ok"])
    found = {
        name: [each["text"] for each in row["diagnosis"]["findings"] if each["level"] == "action"]
        for name, row in rows.items()
    }
    assert [text for text in found[first.instance_id] if "79" in text], found
    assert found[second.instance_id] == []

    time.sleep(60)  # a heartbeat of the second
    code, rows, _ = pair.fleet("prove", "-i", str(first.key_file))
    assert (code, pair.of_both(rows, "verdict")) == (0, ["PASS", "PASS"]), rows

    pair.stop(second)
    code, rows, _ = pair.fleet("prove", "-i", str(first.key_file))
    assert (code, pair.of_both(rows, "verdict")) == (4, ["PASS", "UNPROVEN"]), rows
    code, rows, _ = pair.fleet("detach")
    assert (code, pair.of_both(rows, "status")) == (4, ["Success", "Silent"])
    pair.start(second)
    code, rows, _ = pair.fleet("detach")
    assert (code, pair.of_both(rows, "status")) == (0, ["Success", "Success"])
    code, rows, _ = pair.fleet("status")
    assert pair.of_both(rows, "reason") == ["nothing is attached to it"] * 2
    left = "ls -d /opt/aws/cloudwatch/nvidia /var/lib/gpu-ami-fleet /opt/aws/amazon-cloudwatch-agent 2>/dev/null; true"
    assert [machine.guest.sudo(left) for machine in pair.machines] == ["", ""]
