"""docs/conditions.md promises a verdict and an exit code for each condition: a proof under each alone, in process.

Launch, boot, restarts, CloudWatch and clean-up are the product's own calls to the region; machine and checks are stood
in for. Sleeping moves the region's clock.
"""

from __future__ import annotations

import re
import shlex
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud import ApiAccess, Cloud, Login, Network, Place, login, runs
from gpu_ami.cloud.place import Credentials
from gpu_ami.progress import Progress
from gpu_ami.report import document
from gpu_ami.report.document import CORE, Report
from gpu_ami.validate import image_proof
from gpu_ami.validate.machines import restarts as restart
from gpu_ami.validate.machines.machine import Boot, Machine
from gpu_ami.validate.proof import Proof, ProofOptions
from gpu_ami.validate.validator_process import Target
from localregion.api import conditions
from localregion.backends import cloudwatch as metrics_backend
from localregion.backends import ec2_groups
from localregion.loopback import API_ADDRESS
from localregion.machines.firewall import CALLER, Firewall
from localregion.machines.qemu import Exit, MachineSpec
from tests.localregion.conftest import BASE_ID, PUBLIC_KEY, SSH_PORT, Region, World
from tests.report.examples import a_check
from tests.scripted_host import table_host
from tests.validate.conftest import a_machine
from validator.cloudwatch import ApiRefused, CloudWatch
from validator.probes.agent import delivery
from validator.results import ERROR, CheckRecord, HostResults

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).parents[2] / "docs" / "conditions.md"
ROLES = ["nvidia_driver", "cloudwatch_agent", "event_parser"]
GROUP = "/ec2/accelerated/accel-event-log"
GUEST_PLAN: Any = {"cloudwatch_agent": {"config": {"logs": {"endpoint_override": f"http://{API_ADDRESS}"}}}}
SLOW_CHECKS = 240.0  # seconds of a pass; three of them outlast credentials of ten minutes


def promised() -> dict[str, tuple[str, int]]:
    """Condition → verdict and exit code, as the document has them."""
    rows = re.findall(r"^\| (`[a-z`, -]+`) \|.*\| ([A-Z]+), ([0-9])[^|]*\|$", DOCUMENT.read_text(), re.MULTILINE)
    names = {name: (verdict, int(code)) for cell, verdict, code in rows for name in re.findall(r"`([a-z-]+)`", cell)}
    assert names
    return names


def test_the_document_lists_every_condition() -> None:
    assert sorted(promised()) == conditions.names()


def guest_host(world: World) -> Any:
    """A guest of the region as the probe for a way out sees it: QEMU drops what no relay of its machine takes."""
    (instance, *_) = world.ec2.instances()
    spec = MachineSpec(instance.id, "", Path(), "127.99.4.4", 0, "", 0, 0, False, relays=((API_ADDRESS, "to-api"),))
    relays = dict(Firewall(world.ec2).before_power_on(spec).relays)
    return table_host(lambda command: "" if shlex.split(command)[-2] in relays else "dropped\tgpu-ami-local\n")


class TelemetryProof(Proof):
    """A proof whose validator takes its time and asks CloudWatch Logs for what the agent sent."""

    telemetry: CloudWatch
    world: World
    __setattr__ = object.__setattr__

    def check(self, target: Target, after: str = "", *_: Any, **__: Any) -> HostResults:
        time.sleep(SLOW_CHECKS)
        checks = [a_check(role, "PASS", after=after) for role in CORE if role != "logs"]
        try:
            arrived = self.telemetry.wait(lambda: self.telemetry.events(GROUP, "i-1") or None, 60)
            if not arrived:
                delivery.raise_if_dropped(guest_host(self.world), "logs", "us-east-1", GUEST_PLAN)
            checks.append(a_check("logs", "PASS" if arrived else "FAIL", after=after))
        except ApiRefused as refusal:  # as the plugin judges it
            checks.append(replace(a_check("logs", ERROR, after=after), message=str(refusal)))
        named: list[CheckRecord] = [replace(one, id=f"{one.id}@{after}") if after else one for one in checks]
        return HostResults(target.url, tuple(named), facts={"boot_id": after})


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[World]]:
    """Machines that answer as soon as EC2 says that they run; the list holds the region."""
    worlds: list[World] = []
    main, real_sleep = threading.main_thread(), time.sleep

    def sleep(seconds: float) -> None:
        if threading.current_thread() is main:  # it waits for the proof, and passes no time
            real_sleep(0.02)
            return
        worlds[0].clock.now += max(seconds, 0.5)
        worlds[0].settle()

    def follow(boot: Boot, instance_id: str, instance_type: str) -> Machine:
        boot.cloud.wait_for_state(instance_id, "running", 600)
        if worlds[0].rules:  # what answers is the firewall's listener, or nothing
            machine = replace(a_machine(), instance_id=instance_id, instance_type=instance_type)
            with boot.ingress_on_error(machine) as on_silence:
                if not ec2_groups.allows_ingress(
                    worlds[0].ec2.groups_of(worlds[0].ec2.instance(instance_id)), SSH_PORT, CALLER
                ):
                    on_silence()
        (worlds[0].layout.instance(instance_id) / "console.log").write_bytes(b"[    0.0] Linux")
        return replace(a_machine(), instance_id=instance_id, instance_type=instance_type)

    def restarted(boot: Boot, before: Machine, how: str) -> Machine:
        if how == restart.STOP_START:
            boot.cloud.stop(before.instance_id)
            worlds[0].settle()
            worlds[0].machine.ended = Exit("shutdown")
            boot.cloud.wait_for_state(before.instance_id, "stopped", 600)
            boot.cloud.start(before.instance_id)
            boot.cloud.wait_for_state(before.instance_id, "running", 600)
        return replace(before, boot_id=f"boot-{how}", stages={"ssh": 1.0})

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr(login, "make_key", lambda _: PUBLIC_KEY)
    monkeypatch.setattr(Boot, "follow", follow)
    monkeypatch.setattr("gpu_ami.validate.image_proof.restart", restarted)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    yield worlds


def _write_events() -> None:
    """What the agent has sent; it is not subject to conditions here."""
    from moto.core.models import DEFAULT_ACCOUNT_ID
    from moto.logs.models import logs_backends

    logs = logs_backends[DEFAULT_ACCOUNT_ID]["us-east-1"]
    logs.create_log_group(GROUP, {})
    logs.create_log_stream(GROUP, "i-1")
    logs.put_log_events(GROUP, "i-1", [{"timestamp": int(time.time() * 1000), "message": "NVRM: Xid"}])


def prove(
    region: Region, worlds: list[World], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[World, Report]:
    world, endpoint = region(name)
    worlds.append(world)
    start = time.time()
    monkeypatch.setattr(metrics_backend, "time", SimpleNamespace(monotonic=lambda: world.clock.now))
    monkeypatch.setattr("localregion.backends.logs.time", SimpleNamespace(time=lambda: start + world.clock.now))
    ours = SimpleNamespace(monotonic=lambda: world.clock.now, sleep=time.sleep)
    monkeypatch.setattr("validator.cloudwatch.time", ours)  # else a row without telemetry waits three real minutes
    if world.rules is None or world.rules.egress:
        _write_events()
    place = Place(
        "local",
        "us-east-1",
        api=ApiAccess(endpoint=endpoint, credentials=Credentials("local", "local")),
        network=Network(security_group_ids=(world.ec2.group_id,)),
        login=Login(ssh_port=SSH_PORT),
    )
    plan: Any = {"roles": ROLES, "os": {"ssh_user": "admin"}, "instance_types": []}
    telling = TelemetryProof(
        plan, None, place, tmp_path / "out", Progress("quiet"), ProofOptions(restarts=restart.RESTARTS)
    )
    telling.world = world
    telling.telemetry = CloudWatch("us-east-1", endpoint=endpoint)
    telling.telemetry.sleep = lambda seconds: time.sleep(seconds)
    with runs.begin(tmp_path / "driver", "local") as run:
        report = image_proof.prove_image(telling, Cloud(place), run, BASE_ID, ["g5.12xlarge"])
    return world, report


@pytest.mark.parametrize("name", conditions.names())
def test_each_condition_ends_as_the_document_promises(
    name: str, region: Region, stand_in: list[World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, report = prove(region, stand_in, name, tmp_path, monkeypatch)
    assert (str(report.verdict), report.exit_code) == promised()[name], [
        (host.error, [check for check in host.checks if check.verdict != "PASS"]) for host in report.hosts
    ]
    written = document.load(tmp_path / "out" / "report.json")
    assert replace(written, finished=report.finished) == report  # written a moment before the stage ended
    running = [unit.id for unit in world.reconciler.units.values() if unit.desired != "terminated"]
    if name == "expired-credentials":  # nobody may terminate it any more: its own guest does, and sweep
        assert report.hosts[0].left_behind and (tmp_path / "driver" / "runs").is_dir()
    else:
        assert running == [] and not report.hosts[0].left_behind
