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
from gpu_ami.local.images import ssm_agent
from gpu_ami.local.mirror import mirror
from gpu_ami.plan import PLAN_FILE, make_plan
from gpu_ami.plan.document import with_digest
from gpu_ami.progress import Progress
from gpu_ami.recipes import find_recipe
from tests.machine.guest import BUILT, DEBIAN, GPU_TYPE, Guest, Machine, debian_region, launched, newest_image

pytestmark = pytest.mark.machine

TYPE = "m5.xlarge"
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
    with launched(cloud, newest_image(cloud, image), instance_type, progress, ssm_agent.user_data()) as machine:
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
