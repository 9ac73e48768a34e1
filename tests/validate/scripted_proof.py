"""A proof whose validator and whose EC2 follow a script."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpu_ami.cloud import Place
from gpu_ami.errors import GpuAmiError
from gpu_ami.progress import Progress
from gpu_ami.report.document import CORE, HostReport, Report
from gpu_ami.validate import image_proof
from gpu_ami.validate.machines.restarts import RESTARTS
from gpu_ami.validate.proof import Proof, ProofOptions
from gpu_ami.validate.validator_process import Target
from tests.report.examples import a_check
from validator.results import HostResults


class Scripted(Proof):
    """A proof whose validator finds what the test says: `finds[after]` are the roles whose check is not a PASS."""

    finds: dict[str, dict[str, str]]
    __setattr__ = object.__setattr__  # a test changes what a proof has from the beginning

    def check(self, target: Target, after: str = "", *_: Any, **__: Any) -> HostResults:
        verdicts = self.finds.get(after, {})
        checks = [a_check(role, verdicts.get(role, "PASS"), after=after) for role in CORE]
        named = tuple(replace(check, id=f"{check.id}@{after}") if after else check for check in checks)
        return HostResults(target.url, named, facts={"boot_id": after})


ROLES = ["nvidia_driver", "cloudwatch_agent", "event_parser"]
PLAN: Any = {"roles": ROLES, "os": {"ssh_user": "admin"}, "instance_types": []}


def a_proof(tmp_path: Path, restarts: tuple[str, ...] = RESTARTS, **finds: dict[str, str]) -> Scripted:
    made = Scripted(PLAN, None, None, tmp_path, Progress("quiet"), ProofOptions(restarts=restarts))
    made.finds = {name.replace("_", "-").removeprefix("first"): verdicts for name, verdicts in finds.items()}
    return made


def verdicts(host: HostReport) -> dict[str, str]:
    return {check.id: str(check.verdict) for check in host.checks}


def a_report(host: HostReport) -> Report:
    times = ("2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z")
    return Report({"roles": ROLES}, "ami-1", "aws", "us-east-1", False, "run", *times, (host,))


class Ec2:
    """EC2 with machines that boot at once. refuses: calls that fail, with their errors."""

    def __init__(self, **refuses: GpuAmiError) -> None:
        self.refuses, self.calls, self.launches = refuses, list[str](), list[Any]()
        self.place = Place("aws", "us-east-1", log_groups="production")
        self.states: dict[str, dict[str, Any]] = {}
        self.unstoppable: dict[str, str] = {}

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name.partition(" ")[0] in self.refuses:
            raise self.refuses[name.partition(" ")[0]]

    def import_key(self, *_: Any) -> None:
        self._call("import_key")

    def delete_key(self, name: str) -> None:
        self._call("delete_key")

    def launch_all(self, launch: Any) -> list[str]:
        self._call(f"launch {launch.instance_type}")
        self.launches.append(launch)
        return [f"i-{launch.instance_type}", *(f"i-{launch.instance_type}-{index}" for index in range(1, launch.count))]

    def launched_at(self, _instance_id: str) -> float:
        return time.monotonic() - 1  # what follows may take less than the millisecond to which it is told

    def cannot_stop(self, instance_id: str) -> str:
        return self.unstoppable.get(instance_id, "")

    def terminate(self, ids: list[str]) -> None:
        self._call(f"terminate {ids[0]}")

    def instance(self, instance_id: str) -> dict[str, Any]:
        return self.states.get(instance_id, {"InstanceId": instance_id, "State": {"Name": "running"}})

    def console(self, instance_id: str) -> str:
        return "[    0.0] Linux"


TYPES = ["g5.12xlarge", "p4d.24xlarge"]


RUN: Any = SimpleNamespace(id="run-1", started="2026-01-01T00:00:00Z", tags=lambda **_: {}, folder=Path("/nowhere"))


def prove_ami(proof: Proof, cloud: Ec2, types: list[str] = TYPES) -> Report:
    return image_proof.prove_image(proof, cloud, RUN, "ami-1", types)  # type: ignore[arg-type]


JUDGED = json.dumps(a_check("boot").to_json())


# A validator that has judged one check and then waits for what never comes.
WAITS = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "checks.jsonl").write_text(sys.argv[2] + chr(10))
print(flush=True)
time.sleep(600)
"""


def a_plain_proof(tmp_path: Path) -> Proof:
    return Proof(PLAN, None, None, tmp_path, Progress("quiet"), ProofOptions(restarts=RESTARTS))


def wait_for(path: Path) -> None:
    """Until the journal has the first verdict: it exists before that."""
    while not path.exists() or "boot::test_it" not in path.read_text():
        time.sleep(0.01)
