"""Proofs with restarts: what is checked again, and what is green."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami import certificate, machine, proof, report, restart
from gpu_ami.errors import MachineError
from gpu_ami.log import Progress
from gpu_ami.machine import Machine
from gpu_ami.proof import Proof, Target
from gpu_ami.report import COMES_BACK, CORE, HostReport, Report
from gpu_ami.restart import REBOOT, RESTARTS, STOP_START
from restarts.conftest import World, a_boot, a_machine


def a_check(role: str, verdict: str = "PASS", after: str = "") -> dict[str, Any]:
    return {
        "id": f"{role}::test_it{f'@{after}' if after else ''}", "role": role, "tier": "T1", "verdict": verdict,
        "promise": "", "observed": 1, "planned": 1, "message": "" if verdict == "PASS" else "observed 2, planned 1",
        "seconds": 0.1, "attempts": 1, "after": after, "hops": [],
    }  # fmt: skip


class Scripted(Proof):
    """A proof whose validator finds what the test says: `finds[after]` are the roles whose check is not a PASS."""

    finds: dict[str, dict[str, str]]

    def check(self, target: Target, after: str = "") -> HostReport:
        found = HostReport(target.instance_type, target.instance_id, target.url, facts={"boot_id": after})
        found.checks = [a_check(role, self.finds.get(after, {}).get(role, "PASS"), after) for role in CORE]
        return found


ROLES = ["nvidia_driver", "cloudwatch_agent", "event_parser"]


def a_proof(tmp_path: Path, restarts: tuple[str, ...] = RESTARTS, **finds: dict[str, str]) -> Scripted:
    made = Scripted({"roles": ROLES}, None, None, tmp_path, Progress("quiet"), restarts=restarts)
    made.finds = {name.replace("_", "-").removeprefix("first"): found for name, found in finds.items()}
    return made


def prove(world: World, wanted: Scripted, gone: bool = False) -> HostReport:
    boot = a_boot(world)
    host = HostReport("g5.12xlarge", "i-1", restarts=list(RESTARTS))
    if gone:
        boot.follow = lambda *_: (_ for _ in ()).throw(MachineError("i-1 did not let us in"))  # type: ignore[method-assign,assignment]
    else:
        boot.follow = lambda *_: a_machine()  # type: ignore[method-assign]
    proof._prove_host(wanted, boot, host)
    return host


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
    return {one["id"]: one["verdict"] for one in host.checks}


def a_report(host: HostReport) -> Report:
    times = ("2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z")
    return Report({"roles": ROLES}, "ami-1", "aws", "us-east-1", False, "run", *times, [host])


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
    assert host.checks[0]["message"] == "not tried: i-1 did not let us in"
    assert host.verdict(ROLES) == "ERROR"


def test_nothing_is_restarted_once_the_run_is_cancelled(world: World, tmp_path: Path) -> None:
    wanted = a_proof(tmp_path)
    wanted.cancelled.set()
    prove(world, wanted)
    assert world.calls == []


def test_ctrl_c_ends_validators_that_wait_and_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A validator may wait for CloudWatch for a quarter of an hour: nobody waits for it who has pressed Ctrl-C."""
    began, ended = threading.Event(), list[str]()
    monkeypatch.setattr(Proof, "_say_result", lambda *_: None)
    waits = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    monkeypatch.setattr(Proof, "_command", lambda *_: waits)

    @contextlib.contextmanager
    def launched(cloud: Any, ami: str, instance_type: str, *_: Any) -> Iterator[str]:
        try:
            yield f"i-{instance_type}"
        finally:
            ended.append(instance_type)

    monkeypatch.setattr(proof.machines, "launched", launched)
    monkeypatch.setattr(proof.machines, "temporary_key", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(proof.machines.Boot, "follow", lambda self, *_: began.set() or a_machine())
    monkeypatch.setattr(proof, "_keep_console", lambda *_: None)
    plan = {"os": {"ssh_user": "admin"}, "instance_types": []}
    wanted = Proof(plan, None, None, tmp_path, Progress("quiet"), restarts=RESTARTS)
    cloud: Any = SimpleNamespace(place=SimpleNamespace(tags={}))
    run: Any = SimpleNamespace(tags=lambda **_: {})

    def press() -> None:
        began.wait()
        while not list(tmp_path.glob("evidence/*/validator.log")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    # A shell's background job, which may be what runs the tests, is started with Ctrl-C ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=press, daemon=True).start()
    started = time.monotonic()
    with contextlib.ExitStack() as undone, pytest.raises(KeyboardInterrupt):
        undone.callback(signal.signal, signal.SIGINT, before)
        proof.prove_image(wanted, cloud, run, "ami-1", ["g5.12xlarge", "p4d.24xlarge"])
    assert time.monotonic() - started < 300  # and not the validators' 600
    assert sorted(ended) == ["g5.12xlarge", "p4d.24xlarge"]


def test_machine_that_does_not_come_back_is_a_failure_and_not_stopped(world: World, tmp_path: Path) -> None:
    world.dies, world.way_back = True, ["refused"]
    host = prove(world, a_proof(tmp_path))
    found = verdicts(host)
    assert found[f"{COMES_BACK}@reboot"] == "FAIL" and found[f"{COMES_BACK}@stop-start"] == "UNPROVEN"
    assert host.checks[-1]["message"] == "not tried: reboot did not bring the machine back"
    assert found["boot::test_console_shows_no_panic@reboot"] == "FAIL"
    assert "stop" not in world.calls and host.verdict(ROLES) == "FAIL"


@pytest.mark.parametrize("restarts", [(), (REBOOT,), (STOP_START,)])
def test_restart_that_was_not_asked_for_is_named_and_not_green(
    world: World, tmp_path: Path, restarts: tuple[str, ...]
) -> None:
    host = prove(world, a_proof(tmp_path, restarts))
    assert host.verdict(ROLES) == "UNPROVEN"
    named = certificate.certify(a_report(host)).content["not_proven"]
    left_out = [one for one in RESTARTS if one not in restarts]
    for how in left_out:
        assert named.count(f"g5.12xlarge: {how}: UNPROVEN: not asked for (--restarts)") == 1
    assert sum("not asked for" in one for one in named) == len(left_out)


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

    def check(target: Target, after: str = "") -> HostReport:
        if after:
            raise MachineError("the validator left no results")
        return real(target, after)

    monkeypatch.setattr(wanted, "check", check)
    host = prove(world, wanted)
    assert host.error == "the validator left no results" and host.verdict(ROLES) == "FAIL"


def test_host_that_is_not_ours_is_left_running_unless_asked(world: World, tmp_path: Path) -> None:
    target = Target("ssh://admin@192.0.2.1", "g5.12xlarge")
    host = proof.prove_host(a_proof(tmp_path, ()), target)
    found = verdicts(host)
    assert world.calls == [] and host.verdict(ROLES) == "PASS"
    assert (found[f"{COMES_BACK}@reboot"], found[f"{COMES_BACK}@stop-start"]) == ("UNPROVEN", "UNPROVEN")
    named = "\n".join(certificate.not_proven(a_report(host), []))
    assert "not ours (--reboot reboots it)" in named and "the machine is not ours to stop" in named


def test_host_that_is_not_ours_is_rebooted_on_request(world: World, tmp_path: Path) -> None:
    host = proof.prove_host(a_proof(tmp_path, (REBOOT,), reboot={"logs": "FAIL"}), Target("ssh://admin@192.0.2.1"))
    found = verdicts(host)
    assert world.calls == ["reboot"] and found[f"{COMES_BACK}@reboot"] == "PASS"
    assert found["logs::test_it@reboot"] == "FAIL" and found[f"{COMES_BACK}@stop-start"] == "UNPROVEN"


def test_waiver_that_one_pass_needed_was_needed() -> None:
    waiver = {"check": "logs::*", "owner": "o", "expires": "2027-01-01", "reason": "r"}
    host = HostReport("t", waivers=[waiver | {"state": "unused"}, {"check": "boot::x", "state": "unused"}])
    host.add(HostReport("t", checks=[a_check("logs")], waivers=[waiver | {"state": "used"}]))
    assert [(one["check"], one["state"]) for one in host.waivers] == [("boot::x", "unused"), ("logs::*", "used")]


def test_report_with_restarts_survives_its_file(world: World, tmp_path: Path) -> None:
    found = a_report(prove(world, a_proof(tmp_path, ())))
    assert report.load(found.write(tmp_path)).to_json() == found.to_json()
