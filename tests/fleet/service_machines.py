"""Machines in service for `gpu-ami fleet`: managed by the region, with systemd and packages as shell programs.

The programs keep what a unit does in `<root>/units`. The parser's unit writes its status as the parser does; nothing of
this host is touched.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_ami.cloud import ApiAccess, Cloud, Place
from gpu_ami.cloud.place import Credentials
from gpu_ami.plan import Plan, make_plan
from gpu_ami.recipes import find_recipe
from tests.localregion.conftest import World
from tests.localregion.managed_machines import ManagedMachine

GROUP = "/ec2/accelerated/accel-event-json"
SYSTEMCTL = """#!/bin/sh
units=$GPU_AMI_ROOT/units; mkdir -p "$units"
verb=$1; shift; now=
for word; do case $word in --now) now=yes ;; --*) ;; *) unit=$word ;; esac; done
status() {
  [ "$unit" = aws-hw-monitor.service ] || return 0
  mkdir -p "$GPU_AMI_ROOT/run/gpu-ami" "$GPU_AMI_ROOT/var/lib/gpu-ami/event-parser" "$GPU_AMI_ROOT/var/log"
  echo {} >>"$GPU_AMI_ROOT/var/log/gpuevent.jsonl"
  python3 -c 'import json, sys, time; print(json.dumps({"heartbeat_monotonic_s": time.monotonic(),
    "heartbeat_period_s": 60, "backlog_bytes": 0}))' >"$GPU_AMI_ROOT/run/gpu-ami/event-parser.json"
}
case $verb in
  restart | start) echo active >"$units/$unit"; status ;;
  stop) rm -f "$units/$unit" ;;
  disable) [ -z "$now" ] || rm -f "$units/$unit" ;;
  is-active) cat "$units/$unit" 2>/dev/null || { echo inactive; exit 3; } ;;
esac
"""
CTL = """#!/bin/sh
parts=$GPU_AMI_ROOT/opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.d; mkdir -p "$parts"
while [ $# -gt 0 ]; do
  case $1 in -a) action=$2; shift ;; -c) from=$2; shift ;; -m) shift ;; -s) restart=yes ;; esac; shift
done
case $action in
  fetch-config) rm -f "$parts"/*; echo "$from" >"$parts/$(echo "$from" | tr : _)" ;;
  append-config) echo "$from" >"$parts/$(echo "$from" | tr : _)" ;;
esac
[ -z "$restart" ] || systemctl restart amazon-cloudwatch-agent.service
"""
DPKG = """#!/bin/sh
home=$GPU_AMI_ROOT/opt/aws/amazon-cloudwatch-agent
case $1 in
  -i) mkdir -p "$home/bin" "$GPU_AMI_ROOT/etc/amazon" && cp "$2" "$home/bin/amazon-cloudwatch-agent-ctl" &&
    chmod 0755 "$home/bin/amazon-cloudwatch-agent-ctl" && mkdir -p "$home/logs" && : >"$home/logs/log" ;;
  --purge) rm "$home/bin/amazon-cloudwatch-agent-ctl" ;;
esac
"""

# That every distribution has.
_FOLDERS = ("etc/systemd/system", "etc/logrotate.d", "opt", "run", "usr/bin", "var/lib", "var/log")


class Fleet:
    """The machines of one test, and how they are reached."""

    def __init__(self, world: World, endpoint: str, folder: Path) -> None:
        self.world, self.endpoint, self.folder = world, endpoint, folder
        self.cloud = Cloud(
            Place("local", "us-east-1", api=ApiAccess(endpoint=endpoint, credentials=Credentials("local", "local")))
        )
        self.machines: list[ManagedMachine] = []
        self.out = folder / "out"
        self.plan = write_plan(self.out)
        package = folder / "amazon-cloudwatch-agent.deb"
        package.write_text(CTL)
        world.packages = {"AmazonCloudWatchAgent": {"deb": package.as_uri()}}

    def add(self, *, agent: bool = False, gpu: bool = False, start: bool = True) -> ManagedMachine:
        instance = self.world.launch(tags={"instance": {"fleet": "train"}})
        self.world.settle()
        machine = ManagedMachine(self.endpoint, instance.id, self.folder / instance.id)
        for name, text in {"systemctl": SYSTEMCTL, "dpkg": DPKG, "userdel": "#!/bin/sh\n"}.items():
            machine.program(name, text)
        for folder in _FOLDERS:
            (machine.root / folder).mkdir(parents=True)
        if agent:
            self._old_agent(machine.root)
        if gpu:
            path = machine.root / "usr" / "bin" / "nvidia-smi"
            path.touch(0o755)
        self.machines.append(machine)
        if start:
            machine.start()
        return machine

    def _old_agent(self, root: Path) -> None:
        home = root / "opt" / "aws" / "amazon-cloudwatch-agent"
        (home / "etc" / "amazon-cloudwatch-agent.d").mkdir(parents=True)
        (home / "etc" / "amazon-cloudwatch-agent.d" / "file_mine.json").write_text("{}\n")
        (home / "bin").mkdir()
        (home / "bin" / "amazon-cloudwatch-agent-ctl").write_text(CTL)
        (home / "bin" / "amazon-cloudwatch-agent-ctl").chmod(0o755)
        (root / "units").mkdir()
        (root / "units" / "amazon-cloudwatch-agent.service").write_text("active\n")

    def pretend_attached(self, machine: ManagedMachine, digest: str) -> None:
        """What an attachment leaves on a machine, without the commands of one."""
        self._old_agent(machine.root)
        (machine.root / "opt" / "aws" / "cloudwatch" / "nvidia").mkdir(parents=True)
        (machine.root / "units" / "aws-hw-monitor.service").write_text("active\n")
        status = {"heartbeat_monotonic_s": time.monotonic(), "heartbeat_period_s": 60, "backlog_bytes": 0}
        manifest = {"plan": digest, "image": "debian12-gpu", "before": [], "accounts": [], "agent": "present"}
        for path, document in {
            "run/gpu-ami/event-parser.json": status,
            "var/lib/gpu-ami-fleet/attached.json": manifest,
        }.items():
            (machine.root / path).parent.mkdir(parents=True, exist_ok=True)
            (machine.root / path).write_text(json.dumps(document))

    def wait(self) -> None:
        """Until every agent that was started is online."""
        running = {machine.instance_id for machine in self.machines if machine.is_started}
        ends = time.monotonic() + 60
        while not running <= {name for name in running if self.world.systems_manager.nodes.is_online(name)}:
            assert time.monotonic() < ends, "an agent does not register"
            time.sleep(0.05)

    def heartbeat(self, machine: ManagedMachine, seconds_ago: float = 0.0) -> None:
        """An event of the machine's parser in CloudWatch Logs."""
        logs: Any = self.cloud.client("logs")
        for call, names in (
            (logs.create_log_group, {}),
            (logs.create_log_stream, {"logStreamName": machine.instance_id}),
        ):
            with contextlib.suppress(logs.exceptions.ResourceAlreadyExistsException):
                call(logGroupName=GROUP, **names)
        event = {"timestamp": int((time.time() - seconds_ago) * 1000), "message": '{"kind":"heartbeat"}'}
        logs.put_log_events(logGroupName=GROUP, logStreamName=machine.instance_id, logEvents=[event])

    def close(self) -> None:
        for machine in self.machines:
            machine.close()


@contextmanager
def fleet(world: World, endpoint: str, folder: Path) -> Iterator[Fleet]:
    made = Fleet(world, endpoint, folder)
    try:
        yield made
    finally:
        made.close()


def write_plan(out: Path, overrides: Sequence[str] = ()) -> Plan:
    """The plan of a recipe, as `gpu-ami plan` writes it."""
    place = Place("aws", "us-east-1")
    plan = make_plan(find_recipe(Path("debian12-gpu")), place, overrides)
    plan.write(out, place)
    return plan


def files(root: Path) -> dict[str, str]:
    """Path → content of everything on a machine, without the programs of the test."""
    return {
        path.relative_to(root).as_posix(): path.read_text(errors="replace") if path.is_file() else "folder"
        for path in sorted(root.rglob("*"))
        if path.relative_to(root).parts[0] not in ("bin", "units")
    }


def units(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "units").glob("*")) if (root / "units").is_dir() else []


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())
