"""The proof of an AMI: what is checked again after restarts, what is green, and what is on disk when it is cut."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud import Capacity, Login, Place
from gpu_ami.errors import CloudError, MachineError, UsageError
from gpu_ami.progress import Progress
from gpu_ami.report import certificate, document, writer
from gpu_ami.report.document import COMES_BACK, CORE, HostReport, Report
from gpu_ami.validate import image_proof, recorder
from gpu_ami.validate.machines import login
from gpu_ami.validate.machines.machine import Machine
from gpu_ami.validate.machines.restarts import REBOOT, RESTARTS, STOP_START
from gpu_ami.validate.proof import Proof, ProofOptions, assemble
from gpu_ami.validate.recorder import HostRecord
from gpu_ami.validate.validator_process import Target
from tests.validate.conftest import World, a_boot, a_machine
from tests.validate.scripted_proof import (
    PLAN,
    ROLES,
    RUN,
    TYPES,
    Ec2,
    Scripted,
    a_plain_proof,
    a_proof,
    a_report,
    prove_ami,
    verdicts,
    wait_for,
)
from validator.results import HostResults


def prove(world: World, scripted: Scripted, gone: bool = False, joining: Any = None) -> HostReport:
    boot = a_boot(world)
    host = HostRecord(HostReport("g5.12xlarge", "i-1", restarts=RESTARTS))
    if gone:
        boot.follow = lambda *_: (_ for _ in ()).throw(MachineError("i-1: SSH login failed"))  # type: ignore[method-assign,assignment]
    else:
        boot.follow = lambda *_: a_machine()  # type: ignore[method-assign]
    image_proof.prove_host(scripted, boot, host, None, joining)
    return host.report


@pytest.fixture(autouse=True)
def _ready_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each restart finds the host up, as another boot than the one before."""
    real = image_proof.restart

    def once_more(boot: Any, before: Machine, how: str) -> Machine:
        boot.cloud.restarted = False
        boot.cloud.way_back = boot.cloud.way_back or ["new"]
        return real(boot, before, how)

    monkeypatch.setattr(image_proof, "restart", once_more)


def distinct_boots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second restart must not find the boot id of the first one."""
    numbers = iter(range(100))
    monkeypatch.setattr(login, "read_boot_id", lambda line: "boot-old" if line.boot == "old" else f"b{next(numbers)}")


@pytest.mark.parametrize(("returns", "passes"), [(True, [REBOOT, STOP_START]), (False, [])])
def test_a_node_joins_its_cluster_again_after_each_restart(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returns: bool, passes: list[str]
) -> None:
    distinct_boots(monkeypatch)
    asked: list[str] = []

    def check(_proof: Any, _host: Any, _target: Any, machines: Any, after: str) -> None:
        assert len(machines) == 1
        asked.append(after)

    prove(world, a_proof(tmp_path), joining=SimpleNamespace(service=SimpleNamespace(returns=returns), check=check))
    assert asked == passes


def test_both_restarts_and_all_checks_again(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distinct_boots(monkeypatch)
    host = prove(world, a_proof(tmp_path))
    by_check = verdicts(host)
    assert set(by_check.values()) == {"PASS"} and len(by_check) == 3 * len(CORE) + 3 + 2
    assert host.verdict(ROLES) == "PASS" and host.unproven_restarts(ROLES) == []
    assert host.facts["after reboot"]["boot_id"] == REBOOT
    assert (tmp_path / "evidence" / "g5.12xlarge" / "after-stop-start" / "console.log").exists()


def test_stages_of_a_machine_carry_its_name(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distinct_boots(monkeypatch)
    proof = a_proof(tmp_path)
    host = prove(world, proof)
    stages = [(str(row["stage"]).partition(" ")[0], row["machine"]) for row in proof.progress.times]
    order = ["boot", "check", "reboot", "check", "stop-start", "check"]
    assert stages == [(name, host.name) for name in order]


def test_what_passed_first_and_fails_after_the_reboot_is_a_failure(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distinct_boots(monkeypatch)
    host = prove(world, a_proof(tmp_path, reboot={"event_parser": "FAIL"}))
    by_check = verdicts(host)
    assert by_check["event_parser::test_it"] == "PASS" and by_check["event_parser::test_it@reboot"] == "FAIL"
    assert host.verdict(ROLES) == "FAIL"
    assert f"{COMES_BACK}@stop-start" in by_check


def test_failure_before_does_not_spare_the_restarts(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distinct_boots(monkeypatch)
    by_check = verdicts(prove(world, a_proof(tmp_path, first={"metrics": "FAIL"})))
    assert by_check[f"{COMES_BACK}@reboot"] == "PASS" and by_check["metrics::test_it@reboot"] == "PASS"


def test_machine_that_is_gone_is_not_restarted(world: World, tmp_path: Path) -> None:
    host = prove(world, a_proof(tmp_path), gone=True)
    assert world.calls == []
    assert verdicts(host)[f"{COMES_BACK}@reboot"] == "UNPROVEN"
    assert host.checks[0].message == "not tried: i-1: SSH login failed"
    assert host.verdict(ROLES) == "UNPROVEN"


def test_a_spot_instance_is_not_stopped(world: World, tmp_path: Path) -> None:
    world.unstoppable = "a Spot Instance cannot be stopped"
    host = prove(world, a_proof(tmp_path))
    assert verdicts(host)[f"{COMES_BACK}@stop-start"] == "UNPROVEN" and "stop" not in world.calls
    assert "not tried: a Spot Instance cannot be stopped" in [check.message for check in host.checks]


def test_nothing_is_restarted_once_the_run_is_cancelled(world: World, tmp_path: Path) -> None:
    proof = a_proof(tmp_path)
    proof.options.cancelled.set()
    prove(world, proof)
    assert world.calls == []


def test_machine_that_does_not_come_back_is_a_failure_and_not_stopped(world: World, tmp_path: Path) -> None:
    world.dies, world.way_back = True, ["refused"]
    host = prove(world, a_proof(tmp_path))
    by_check = verdicts(host)
    assert by_check[f"{COMES_BACK}@reboot"] == "FAIL" and by_check[f"{COMES_BACK}@stop-start"] == "UNPROVEN"
    assert host.checks[-1].message == "not tried: reboot did not bring the machine back"
    assert by_check["boot::test_console_shows_no_panic@reboot"] == "FAIL"
    assert "stop" not in world.calls and host.verdict(ROLES) == "FAIL"


@pytest.mark.parametrize("restarts", [(), (REBOOT,), (STOP_START,)])
def test_restart_that_was_not_asked_for_is_named_and_not_green(
    world: World, tmp_path: Path, restarts: tuple[str, ...]
) -> None:
    host = prove(world, a_proof(tmp_path, restarts))
    assert host.verdict(ROLES) == "UNPROVEN"
    named = certificate.certify(a_report(host)).not_proven
    left_out = [how for how in RESTARTS if how not in restarts]
    for how in left_out:
        assert named.count(f"g5.12xlarge: {how}: UNPROVEN: not requested (--restarts)") == 1
    assert sum("not requested" in line for line in named) == len(left_out)


def test_stop_start_is_left_out_where_the_place_says_so(world: World, tmp_path: Path) -> None:
    """A p5 that was stopped may not come back for days; its owner decides, and the certificate says so."""
    place = Place("aws", "us-east-1", capacity=Capacity(no_stop_start=("g5*",)))
    world.place = place
    made = a_proof(tmp_path)
    made.place = place
    host = prove(world, made)
    assert "stop" not in world.calls and verdicts(host)[f"{COMES_BACK}@stop-start"] == "UNPROVEN"
    assert verdicts(host)[f"{COMES_BACK}@reboot"] == "PASS"
    report = assemble(made, RUN, "ami-1", [host])
    assert [str(part) for part in report.left_out if part.part == "restart"] == [
        "restart stop-start of g5.12xlarge (no_stop_start of the place)"
    ]
    named = certificate.certify(report).not_proven
    assert "g5.12xlarge: stop-start: UNPROVEN: not requested (no_stop_start of the place)" in named


@pytest.mark.parametrize(
    ("kinds", "capacity", "requested", "named"),
    [
        (["g5.12xlarge", "p5.48xlarge", "p4d.24xlarge"], Capacity(), RESTARTS, "p5.48xlarge, p4d.24xlarge"),
        (["p5.48xlarge"], Capacity(no_stop_start=("p5*",)), RESTARTS, ""),
        (["p5.48xlarge"], Capacity({"p5*": ("capacity-block:cr-00000001",)}), RESTARTS, ""),
        (["p5.48xlarge"], Capacity(), (REBOOT,), ""),
        (["g5.12xlarge"], Capacity(), RESTARTS, ""),
    ],
)
def test_stops_of_scarce_machines_are_warned_of(
    kinds: list[str], capacity: Capacity, requested: tuple[str, ...], named: str
) -> None:
    warning = image_proof.warn_of_stops(Place("aws", "us-east-1", capacity=capacity), kinds, requested)
    assert warning.startswith(f"stop-start of {named}: EC2 may have no capacity") if named else not warning


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
    proof = a_proof(tmp_path, first={"xid": "FAIL"})
    real = proof.check

    def check(target: Target, after: str = "", *_: Any, **__: Any) -> HostResults:
        if after:
            raise MachineError("the validator left no results")
        return real(target, after)

    monkeypatch.setattr(proof, "check", check)
    host = prove(world, proof)
    assert host.error == "the validator left no results" and host.verdict(ROLES) == "FAIL"


def test_report_with_restarts_survives_its_file(world: World, tmp_path: Path) -> None:
    report = a_report(prove(world, a_proof(tmp_path, ())))
    assert document.load(writer.write(report, tmp_path)) == report


# How a proof can be cut, and what is on disk then


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

    proof = Slow(PLAN, None, None, tmp_path, Progress("quiet"))
    proof.finds = {}
    report = prove_ami(proof, cloud)
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


def test_interface_that_the_proof_cannot_use_is_refused_before_a_launch(tmp_path: Path) -> None:
    cloud = Ec2()
    cloud.place = replace(cloud.place, login=Login(ssh_interface="carrier_pigeon"))
    with pytest.raises(UsageError, match="carrier_pigeon: Packer can build with it"):
        prove_ami(a_proof(tmp_path, ()), cloud)
    assert cloud.calls == []


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


def test_ctrl_c_while_a_thread_is_started_ends_its_machine_too(
    booted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool does not wait for a thread whose start was interrupted; the proof does."""
    cloud, start = Ec2(), threading.Thread.start
    workers: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("ThreadPoolExecutor"):
            workers.append(thread)
            if len(workers) == len(TYPES):
                wait_for_calls(cloud, [f"launch {name}" for name in TYPES])
                raise KeyboardInterrupt

    def wait_for_login(proof: Proof, *_: object) -> None:
        proof.options.cancelled.wait(60)
        if threading.current_thread() in workers[1:]:
            time.sleep(1.0)  # its machine is still there when a proof that does not wait for it has ended

    monkeypatch.setattr(image_proof, "prove_host", wait_for_login)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prove_ami(a_plain_proof(tmp_path), cloud)
    assert sorted(cloud.calls[-3:]) == ["delete_key", "terminate i-g5.12xlarge", "terminate i-p4d.24xlarge"]


def wait_for_calls(cloud: Ec2, calls: list[str]) -> None:
    deadline = time.monotonic() + 60
    while not set(calls) <= set(cloud.calls):
        assert time.monotonic() < deadline, cloud.calls
        time.sleep(0.02)


def test_second_ctrl_c_while_the_report_is_written_ends_the_machines_too(
    booted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that wait for a login must not keep the process, nor the machines, after an impatient user."""
    cloud, interrupted = Ec2(), a_plain_proof(tmp_path)
    waited: list[bool] = []
    ready = threading.Barrier(len(TYPES) + 1, timeout=60)

    def wait_for_login(proof: Proof, *_: object) -> None:
        ready.wait()
        waited.append(proof.options.cancelled.wait(60))

    def impatient(*_: object) -> None:
        raise KeyboardInterrupt

    def press() -> None:
        ready.wait()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(image_proof, "prove_host", wait_for_login)
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
    cloud, limited = Ec2(), replace(a_plain_proof(tmp_path), options=ProofOptions(max_cost=20.0))
    journals = [tmp_path / "evidence" / name / "checks.jsonl" for name in TYPES]

    def spent(_times: object) -> float:
        return 20.5 if all(path.exists() and "boot::test_it" in path.read_text() for path in journals) else 0.0

    monkeypatch.setattr(image_proof.cost, "spent_usd", spent)
    with pytest.raises(CloudError, match=r"--max-cost 20: the machines have cost 20\.50 USD"):
        prove_ami(limited, cloud)
    assert sorted(cloud.calls[-3:]) == ["delete_key", "terminate i-g5.12xlarge", "terminate i-p4d.24xlarge"]
    report = document.load(tmp_path / "report.json")
    assert "--max-cost 20" in report.incomplete and report.exit_code == 4
    assert [host.checks[0].id for host in report.hosts] == ["boot::test_it"] * 2
