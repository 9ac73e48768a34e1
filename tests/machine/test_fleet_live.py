"""Telemetry on a booted machine that no recipe built: attached, proven and taken back through Systems Manager.

    pytest -m machine tests/machine/test_fleet_live.py

One machine of the plain Debian base image, emulated, without a GPU; its SSM Agent (the region's replica) comes by user
data. What is compared at the end is every path, every account and every unit of the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud import runs
from gpu_ami.files import home_dir, write_json
from gpu_ami.plan import PLAN_FILE, make_plan
from gpu_ami.plan.document import with_digest
from gpu_ami.progress import Progress
from gpu_ami.recipes import find_recipe
from tests.machine.event_parser_machine import Guest, patiently
from validator.transport import ssh

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

    guest: Guest
    instance_id: str
    out: Path
    key: Path

    def fleet(self, verb: str, *words: str) -> tuple[int, Any]:
        """Exit code and JSON of `gpu-ami fleet VERB`."""
        command = [sys.executable, "-m", "gpu_ami", "fleet", verb, str(self.out), "--instance-id", self.instance_id]
        done = subprocess.run([*command, *words, "--json"], capture_output=True, text=True, check=False, timeout=1700)
        print(f"\nfleet {verb}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.returncode, json.loads(done.stdout)

    def inventory(self) -> dict[str, list[str]]:
        return {command: self.guest.sudo(command, timeout=300).splitlines() for command in (_PATHS, _ACCOUNTS, _UNITS)}


def telemetry_plan(place: Any, out: Path) -> None:
    """The plan of a recipe with its telemetry alone: a machine without a GPU has nothing else of it."""
    document: dict[str, Any] = dict(make_plan(find_recipe(Path("debian12-gpu")), place).document)
    for section in _GPU_SECTIONS:
        document.pop(section, None)
    document["roles"] = ["cloudwatch_agent", "event_parser"]
    document["cloudwatch_agent"] = {**document["cloudwatch_agent"], "gpu_config": {}}
    document.pop("digest")
    out.mkdir(parents=True)
    write_json(out / PLAN_FILE, with_digest(document))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    from gpu_ami.cloud import Cloud, Launch
    from gpu_ami.local import region
    from gpu_ami.local.images import source_ami, ssm_agent
    from gpu_ami.local.mirror import mirror
    from gpu_ami.validate.machines import launch, machine

    progress = Progress("plain")
    mirror.ensure(home_dir(), plan=None, progress=progress)
    place = region.up(embedded=True, progress=progress)
    region.publish_source_ami(source_ami.DEBIAN, progress=progress)
    out = tmp_path_factory.mktemp("fleet") / "out"
    telemetry_plan(place, out)
    mirror.ensure(home_dir(), plan=json.loads((out / PLAN_FILE).read_text()), progress=progress)
    try:
        with ExitStack() as stack:
            cloud = Cloud(place)
            run = stack.enter_context(runs.begin(home_dir(), "local"))
            tags = {"gpu-ami:run": run.id, "gpu-ami:expires": run.expires}
            images = cloud.ec2.describe_images()["Images"]
            (base,) = [image["ImageId"] for image in images if image["Name"].startswith("debian-12-amd64-")]
            key = stack.enter_context(launch.temporary_key(cloud, run, tags))
            identity = cloud.launch(Launch(base, TYPE, key, tags, ssm_agent.user_data()))
            stack.callback(lambda: cloud.terminate([identity]))
            boot = machine.Boot(cloud, run, "admin", progress, threading.Event())
            found = patiently(lambda: boot.follow(identity, TYPE))
            guest = Guest(ssh.parse_url(found.url, key_file=found.key_file, known_hosts=found.known_hosts))
            yield Live(guest, identity, out, run.key_file)
    finally:
        region.release()


def test_telemetry_comes_and_goes(live: Live) -> None:
    live.guest.until(
        "the SSM Agent runs", lambda: live.fleet("attach", "--dry-run")[1]["dry_run"][-1].endswith("attach"), 300
    )
    before = live.inventory()
    code, done = live.fleet("attach")
    assert (code, [row["status"] for row in done["machines"]]) == (0, ["Success"])
    code, status = live.fleet("status")
    assert (code, [(row["state"], row["agent"], row["parser"]) for row in status["machines"]]) == (
        0, [("ok", "active", "active")],
    )  # fmt: skip
    time.sleep(60)  # a heartbeat
    code, proof = live.fleet("prove", "-i", str(live.key))
    assert (code, [row["verdict"] for row in proof["machines"]]) == (0, ["PASS"]), proof
    code, done = live.fleet("detach")
    assert (code, [row["status"] for row in done["machines"]]) == (0, ["Success"])
    after = live.inventory()
    assert {command: sorted(set(after[command]) ^ set(lines)) for command, lines in before.items()} == {
        command: [] for command in before
    }
