"""Proofs: what is checked again after restarts, what is green, and what is on disk when a proof is cut."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.errors import CapacityError, CloudError, GpuAmiError, MachineError, UsageError
from gpu_ami.progress import Progress
from gpu_ami.report import certificate, document, writer
from gpu_ami.report.document import COMES_BACK, CORE, HostReport, Report
from gpu_ami.validate import machine, proof, recorder, validator_process, watch
from gpu_ami.validate import restarts as restart
from gpu_ami.validate.machine import Machine
from gpu_ami.validate.proof import Proof
from gpu_ami.validate.recorder import HostRecord
from gpu_ami.validate.restarts import REBOOT, RESTARTS, STOP_START
from gpu_ami.validate.validator_process import Target
from tests.report.examples import a_check
from tests.validate.conftest import World, a_boot, a_machine
from validator.results import HostResults


class Scripted(Proof):
    """A proof whose validator finds what the test says: `finds[after]` are the roles whose check is not a PASS."""

    finds: dict[str, dict[str, str]]

    def check(self, target: Target, after: str = "", *_: Any, **__: Any) -> HostResults:
        verdicts = self.finds.get(after, {})
        checks = [a_check(role, verdicts.get(role, "PASS"), after=after) for role in CORE]
        named = tuple(replace(check, id=f"{check.id}@{after}") if after else check for check in checks)
        return HostResults(target.url, named, facts={"boot_id": after})


ROLES = ["nvidia_driver", "cloudwatch_agent", "event_parser"]


def a_proof(tmp_path: Path, restarts: tuple[str, ...] = RESTARTS, **finds: dict[str, str]) -> Scripted:
    made = Scripted({"roles": ROLES}, None, None, tmp_path, Progress("quiet"), restarts=restarts)
    made.finds = {name.replace("_", "-").removeprefix("first"): found for name, found in finds.items()}
    return made


def prove(world: World, wanted: Scripted, gone: bool = False) -> HostReport:
    boot = a_boot(world)
    host = HostRecord(HostReport("g5.12xlarge", "i-1", restarts=RESTARTS))
    if gone:
        boot.follow = lambda *_: (_ for _ in ()).throw(MachineError("i-1: SSH login failed"))  # type: ignore[method-assign,assignment]
    else:
        boot.follow = lambda *_: a_machine()  # type: ignore[method-assign]
    proof._prove_host(wanted, boot, host)
    return host.report


@pytest.fixture(autouse=True)
def _ready_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each restart finds the host up, as another boot than the one before."""
    real = restart.restart

    def once_more(boot: Any, before: Machine, how: str) -> Machine:
        boot.cloud.restarted = False
        boot.cloud.way_back = boot.cloud.way_back or ["new"]
        return real(boot, before, how)

    monkeypatch.setattr(proof.restarting, "restart", once_more)


def verdicts(host: HostReport) -> dict[str, str]:
    return {check.id: str(check.verdict) for check in host.checks}


def a_report(host: HostReport) -> Report:
    times = ("2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z")
    return Report({"roles": ROLES}, "ami-1", "aws", "us-east-1", False, "run", *times, (host,))


def distinct_boots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second restart must not find the boot id of the first one."""
    numbers = iter(range(100))
    monkeypatch.setattr(machine, "_boot_id", lambda line: "boot-old" if line.boot == "old" else f"b{next(numbers)}")


def test_both_restarts_and_all_checks_again(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distinct_boots(monkeypatch)
    host = prove(world, a_proof(tmp_path))
    found = verdicts(host)
    assert set(found.values()) == {"PASS"} and len(found) == 3 * len(CORE) + 3 + 2
    assert host.verdict(ROLES) == "PASS" and host.unproven_restarts(ROLES) == []
    assert host.facts["after reboot"]["boot_id"] == REBOOT
    assert (tmp_path / "evidence" / "g5.12xlarge" / "after-stop-start" / "console.log").exists()


def test_what_passed_first_and_fails_after_the_reboot_is_a_failure(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distinct_boots(monkeypatch)
    host = prove(world, a_proof(tmp_path, reboot={"event_parser": "FAIL"}))
    found = verdicts(host)
    assert found["event_parser::test_it"] == "PASS" and found["event_parser::test_it@reboot"] == "FAIL"
    assert host.verdict(ROLES) == "FAIL"
    assert f"{COMES_BACK}@stop-start" in found


def test_failure_before_does_not_spare_the_restarts(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distinct_boots(monkeypatch)
    found = verdicts(prove(world, a_proof(tmp_path, first={"metrics": "FAIL"})))
    assert found[f"{COMES_BACK}@reboot"] == "PASS" and found["metrics::test_it@reboot"] == "PASS"


def test_machine_that_is_gone_is_not_restarted(world: World, tmp_path: Path) -> None:
    host = prove(world, a_proof(tmp_path), gone=True)
    assert world.calls == []
    assert verdicts(host)[f"{COMES_BACK}@reboot"] == "UNPROVEN"
    assert host.checks[0].message == "not tried: i-1: SSH login failed"
    assert host.verdict(ROLES) == "UNPROVEN"


def test_nothing_is_restarted_once_the_run_is_cancelled(world: World, tmp_path: Path) -> None:
    wanted = a_proof(tmp_path)
    wanted.cancelled.set()
    prove(world, wanted)
    assert world.calls == []


def test_machine_that_does_not_come_back_is_a_failure_and_not_stopped(world: World, tmp_path: Path) -> None:
    world.dies, world.way_back = True, ["refused"]
    host = prove(world, a_proof(tmp_path))
    found = verdicts(host)
    assert found[f"{COMES_BACK}@reboot"] == "FAIL" and found[f"{COMES_BACK}@stop-start"] == "UNPROVEN"
    assert host.checks[-1].message == "not tried: reboot did not bring the machine back"
    assert found["boot::test_console_shows_no_panic@reboot"] == "FAIL"
    assert "stop" not in world.calls and host.verdict(ROLES) == "FAIL"


@pytest.mark.parametrize("restarts", [(), (REBOOT,), (STOP_START,)])
def test_restart_that_was_not_asked_for_is_named_and_not_green(
    world: World, tmp_path: Path, restarts: tuple[str, ...]
) -> None:
    host = prove(world, a_proof(tmp_path, restarts))
    assert host.verdict(ROLES) == "UNPROVEN"
    named = certificate.certify(a_report(host)).not_proven
    left_out = [one for one in RESTARTS if one not in restarts]
    for how in left_out:
        assert named.count(f"g5.12xlarge: {how}: UNPROVEN: not requested (--restarts)") == 1
    assert sum("not requested" in one for one in named) == len(left_out)


def test_checks_that_could_not_run_again_are_not_green(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distinct_boots(monkeypatch)
    host = prove(world, a_proof(tmp_path, stop_start={"xid": "UNPROVEN"}))
    assert host.verdict(ROLES) == "UNPROVEN"
    assert host.unproven_restarts(ROLES) == ["xid after stop-start: no check of it passed"]
    assert "g5.12xlarge: xid after stop-start: no check of it passed" in certificate.not_proven(a_report(host), [])


def test_validator_that_dies_after_a_restart_hides_no_failure(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = a_proof(tmp_path, first={"xid": "FAIL"})
    real = wanted.check

    def check(target: Target, after: str = "", *_: Any, **__: Any) -> HostResults:
        if after:
            raise MachineError("the validator left no results")
        return real(target, after)

    monkeypatch.setattr(wanted, "check", check)
    host = prove(world, wanted)
    assert host.error == "the validator left no results" and host.verdict(ROLES) == "FAIL"


def prove_somebody_elses(tmp_path: Path, *restarts: str, **finds: dict[str, str]) -> HostReport:
    target = Target("ssh://admin@192.0.2.1", "g5.12xlarge")
    return proof.prove_host(a_proof(tmp_path, restarts, **finds), RUN, target).hosts[0]


def test_host_that_is_not_ours_is_left_running_unless_asked(world: World, tmp_path: Path) -> None:
    host = prove_somebody_elses(tmp_path)
    found = verdicts(host)
    assert world.calls == [] and host.verdict(ROLES) == "PASS"
    assert (found[f"{COMES_BACK}@reboot"], found[f"{COMES_BACK}@stop-start"]) == ("UNPROVEN", "UNPROVEN")
    named = "\n".join(certificate.not_proven(a_report(host), []))
    assert "did not launch this machine (--reboot reboots it)" in named
    assert "does not stop a machine that it did not launch" in named


def test_host_that_is_not_ours_is_rebooted_on_request(world: World, tmp_path: Path) -> None:
    host = prove_somebody_elses(tmp_path, REBOOT, reboot={"logs": "FAIL"})
    found = verdicts(host)
    assert world.calls == ["reboot"] and found[f"{COMES_BACK}@reboot"] == "PASS"
    assert found["logs::test_it@reboot"] == "FAIL" and found[f"{COMES_BACK}@stop-start"] == "UNPROVEN"


def test_report_with_restarts_survives_its_file(world: World, tmp_path: Path) -> None:
    report = a_report(prove(world, a_proof(tmp_path, ())))
    assert document.load(writer.write(report, tmp_path)) == report


# How a proof can be cut, and what is on disk then


class Ec2:
    """EC2 with machines that boot at once. refuses: calls that fail, with their errors."""

    def __init__(self, **refuses: GpuAmiError) -> None:
        self.refuses, self.calls = refuses, list[str]()
        self.place = SimpleNamespace(tags={}, ssh_interface="public_ip", ssh_port=22)
        self.states: dict[str, dict[str, Any]] = {}

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name.partition(" ")[0] in self.refuses:
            raise self.refuses[name.partition(" ")[0]]

    def import_key(self, *_: Any) -> None:
        self._call("import_key")

    def delete_key(self, name: str) -> None:
        self._call("delete_key")

    def launch(self, wanted: Any) -> str:
        self._call(f"launch {wanted.instance_type}")
        return f"i-{wanted.instance_type}"

    def terminate(self, ids: list[str]) -> None:
        self._call(f"terminate {ids[0]}")

    def instance(self, instance_id: str) -> dict[str, Any]:
        return self.states.get(instance_id, {"InstanceId": instance_id, "State": {"Name": "running"}})

    def console(self, instance_id: str) -> str:
        return "[    0.0] Linux"


TYPES = ["g5.12xlarge", "p4d.24xlarge"]
RUN: Any = SimpleNamespace(id="run-1", started="2026-01-01T00:00:00Z", tags=lambda **_: {}, folder=Path("/nowhere"))


@pytest.fixture
def booted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Machines that are there as soon as they are launched."""

    def follow(_: Any, instance_id: str, instance_type: str) -> Machine:
        return replace(a_machine(), instance_id=instance_id, instance_type=instance_type)

    monkeypatch.setattr(machine, "make_key", lambda run: "ssh-ed25519 AAAA")
    monkeypatch.setattr(RUN, "folder", tmp_path)
    monkeypatch.setattr(machine.Boot, "follow", follow)


def prove_ami(wanted: Proof, cloud: Ec2, types: list[str] = TYPES) -> Report:
    wanted.plan = {"roles": ROLES, "os": {"ssh_user": "admin"}, "instance_types": []}
    return proof.prove_image(wanted, cloud, RUN, "ami-1", types)  # type: ignore[arg-type]


def test_machine_ends_when_its_own_proof_has_ended(booted: None, tmp_path: Path) -> None:
    """The other one may need an hour longer, at tens of dollars."""
    cloud = Ec2()
    on_disk: list[Report] = []

    class Slow(Scripted):
        def check(self, target: Target, after: str = "", *_: Any, **__: Any) -> HostResults:
            deadline = time.monotonic() + 60
            while target.instance_type == "p4d.24xlarge" and not on_disk and time.monotonic() < deadline:
                if "terminate i-g5.12xlarge" in cloud.calls:
                    on_disk.append(document.load(tmp_path / "report.json"))
                time.sleep(0.01)
            return super().check(target, after)

    wanted = Slow({}, None, None, tmp_path, Progress("quiet"))
    wanted.finds = {}
    report = prove_ami(wanted, cloud)
    (meanwhile,) = on_disk
    assert [len(host.checks) > 0 for host in meanwhile.hosts] == [True, False], "on disk before it was terminated"
    assert meanwhile.incomplete == recorder.RUNNING and meanwhile.exit_code == 4
    assert not report.incomplete and document.load(tmp_path / "report.json") == report
    assert cloud.calls[-2:] == ["terminate i-p4d.24xlarge", "delete_key"]


@pytest.mark.parametrize("call", ["terminate", "delete_key"])
def test_refused_clean_up_costs_no_report(booted: None, tmp_path: Path, call: str) -> None:
    cloud = Ec2(**{call: CloudError(f"{call}: RequestLimitExceeded")})
    report = prove_ami(a_proof(tmp_path, ()), cloud, TYPES[:1])
    assert len(report.hosts[0].checks) > len(CORE) and not report.incomplete
    assert (call in report.hosts[0].left_behind) is (call == "terminate")
    assert (tmp_path / "left-behind").exists(), "`gpu-ami sweep` finds it"


@pytest.mark.parametrize(
    ("error", "verdict", "exit_code"),
    [
        (CapacityError("launching: InsufficientInstanceCapacity"), "UNAVAILABLE", 5),
        (CloudError("launching: UnauthorizedOperation"), "UNPROVEN", 4),
        (CloudError("launching: RequestLimitExceeded"), "UNPROVEN", 4),
    ],
)
def test_refused_launch_does_not_blame_the_image(
    booted: None, tmp_path: Path, error: GpuAmiError, verdict: str, exit_code: int
) -> None:
    report = prove_ami(a_proof(tmp_path, ()), Ec2(launch=error), TYPES[:1])
    assert (report.verdict, report.exit_code) == (verdict, exit_code)
    assert str(error) in report.hosts[0].error


def test_interface_that_the_proof_cannot_use_is_refused_before_a_launch(tmp_path: Path) -> None:
    cloud = Ec2()
    cloud.place.ssh_interface = "session_manager"
    with pytest.raises(UsageError, match="session_manager: Packer can build with it"):
        prove_ami(a_proof(tmp_path, ()), cloud)
    assert cloud.calls == []


JUDGED = json.dumps(a_check("boot").to_json())
# A validator that has judged one check and then waits for what never comes.
WAITS = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "checks.jsonl").write_text(sys.argv[2] + chr(10))
print(flush=True)
time.sleep(600)
"""


@pytest.fixture
def waiting(booted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def command_line(target: Target, folder: Path, *_: Any) -> list[str]:
        return [sys.executable, "-c", WAITS, str(folder), JUDGED]

    monkeypatch.setattr(validator_process, "command_line", command_line)


def a_plain_proof(tmp_path: Path) -> Proof:
    return Proof({}, None, None, tmp_path, Progress("quiet"), restarts=RESTARTS)


def wait_for(path: Path) -> None:
    """Until the journal has the first verdict: it exists before that."""
    while not path.exists() or "boot::test_it" not in path.read_text():
        time.sleep(0.01)


def test_ctrl_c_leaves_what_was_judged(waiting: None, tmp_path: Path) -> None:
    """A validator may wait for CloudWatch for a quarter of an hour: Ctrl-C waits for nobody, and loses no verdict."""
    cloud = Ec2()

    def press() -> None:
        for name in TYPES:
            wait_for(tmp_path / "evidence" / name / "checks.jsonl")
        os.kill(os.getpid(), signal.SIGINT)

    # A shell's background job, which may be what runs the tests, is started with Ctrl-C ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=press, daemon=True).start()
    started = time.monotonic()
    with contextlib.ExitStack() as undone, pytest.raises(KeyboardInterrupt):
        undone.callback(signal.signal, signal.SIGINT, before)
        prove_ami(a_plain_proof(tmp_path), cloud)
    assert time.monotonic() - started < 300  # and not the validators' 600
    assert sorted(cloud.calls[-3:]) == ["delete_key", "terminate i-g5.12xlarge", "terminate i-p4d.24xlarge"]
    report = document.load(tmp_path / "report.json")
    assert report.incomplete == "the run was interrupted" and (report.verdict, report.exit_code) == ("UNPROVEN", 4)
    assert [host.checks[0].id for host in report.hosts] == ["boot::test_it"] * 2


def test_second_ctrl_c_while_the_report_is_written_ends_the_machines_too(
    booted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that wait for a login must not keep the process, nor the machines, after an impatient user."""
    cloud, interrupted = Ec2(), a_plain_proof(tmp_path)
    waited: list[bool] = []
    ready = threading.Barrier(len(TYPES) + 1, timeout=60)

    def wait_for_login(proof: Proof, *_: object) -> None:
        ready.wait()
        waited.append(proof.cancelled.wait(60))

    def impatient(*_: object) -> None:
        raise KeyboardInterrupt

    def press() -> None:
        ready.wait()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(proof, "_prove_host", wait_for_login)
    monkeypatch.setattr(recorder.Recorder, "interrupted", impatient)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=press, daemon=True).start()
    with contextlib.ExitStack() as undone, pytest.raises(KeyboardInterrupt):
        undone.callback(signal.signal, signal.SIGINT, before)
        prove_ami(interrupted, cloud)
    assert waited == [True] * len(TYPES)
    assert sorted(cloud.calls[-3:]) == ["delete_key", "terminate i-g5.12xlarge", "terminate i-p4d.24xlarge"]


def test_a_proof_ends_when_its_machines_have_cost_the_limit(
    waiting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proof that hangs must not burn what it was not given; what it judged is in the report."""
    cloud, limited = Ec2(), a_plain_proof(tmp_path)
    limited.max_cost = 20.0
    journals = [tmp_path / "evidence" / name / "checks.jsonl" for name in TYPES]

    def spent(_times: object) -> float:
        return 20.5 if all(path.exists() and "boot::test_it" in path.read_text() for path in journals) else 0.0

    monkeypatch.setattr(proof.cost, "spent_usd", spent)
    with pytest.raises(CloudError, match=r"--max-cost 20: the machines have cost 20\.50 USD"):
        prove_ami(limited, cloud)
    assert sorted(cloud.calls[-3:]) == ["delete_key", "terminate i-g5.12xlarge", "terminate i-p4d.24xlarge"]
    report = document.load(tmp_path / "report.json")
    assert "--max-cost 20" in report.incomplete and report.exit_code == 4
    assert [host.checks[0].id for host in report.hosts] == ["boot::test_it"] * 2


def test_machine_time_and_cost_are_in_the_report(booted: None, tmp_path: Path) -> None:
    report = prove_ami(a_proof(tmp_path, ()), Ec2())
    assert all(host.machine_seconds > 0 and host.cost_usd is not None for host in report.hosts)
    assert report.cost_usd is not None and report.price_basis.startswith("On-Demand, us-east-1")
    assert document.load(tmp_path / "report.json") == report
    assert certificate.certify(report).cost_usd == pytest.approx(report.cost_usd, abs=0.01)


def test_ctrl_c_at_a_host_by_address_leaves_what_was_judged(world: World, waiting: None, tmp_path: Path) -> None:
    def press() -> None:
        wait_for(tmp_path / "evidence" / "192.0.2.1" / "checks.jsonl")
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=press, daemon=True).start()
    with contextlib.ExitStack() as undone, pytest.raises(KeyboardInterrupt):
        undone.callback(signal.signal, signal.SIGINT, before)
        proof.prove_host(a_plain_proof(tmp_path), RUN, Target("ssh://admin@192.0.2.1"))
    report = document.load(tmp_path / "report.json")
    assert report.incomplete == "the run was interrupted" and report.exit_code == 4
    assert [check.id for check in report.hosts[0].checks] == ["boot::test_it"]


PAUSED = {"State": {"Name": "running"}, "StateReason": {"Code": "Server.Paused", "Message": "paused: no space left"}}
TAKEN = {"State": {"Name": "terminated"}, "StateReason": {"Message": "Server.SpotInstanceTermination"}}


@pytest.mark.parametrize(
    ("state", "reason"),
    [(PAUSED, "does not run: paused: no space left"), (TAKEN, "is terminated: Server.SpotInstanceTermination")],
)
def test_machine_that_is_lost_is_seen_at_once(
    waiting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.05)
    cloud = Ec2()

    def lose() -> None:
        wait_for(tmp_path / "evidence" / TYPES[0] / "checks.jsonl")
        cloud.states["i-g5.12xlarge"] = {"InstanceId": "i-g5.12xlarge", **state}

    threading.Thread(target=lose, daemon=True).start()
    report = prove_ami(a_plain_proof(tmp_path), cloud, TYPES[:1])
    (host,) = report.hosts
    assert reason in host.error and (report.verdict, report.exit_code) == ("UNPROVEN", 4)
    assert host.checks[0].id == "boot::test_it", "what was judged before is kept"
    restarts = {check.first_line for check in host.checks if check.id.startswith(COMES_BACK)}
    assert restarts == {f"not tried: g5.12xlarge: instance i-g5.12xlarge {reason}"}


def test_validator_that_exceeds_its_deadline_leaves_what_it_judged(
    waiting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validator_process, "HOST_SECONDS", 5.0)
    wanted = a_plain_proof(tmp_path)
    wanted.restarts = ()
    report = prove_ami(wanted, Ec2(), TYPES[:1])
    assert "did not complete within 5 s" in report.hosts[0].error and report.hosts[0].checks[0].id == "boot::test_it"
    assert report.exit_code == 4
