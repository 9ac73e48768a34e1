"""Restarts in a proof, with a host and a cloud that follow a script: what is seen, what is blamed, what is green."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami import certificate, machine, proof, report, restart
from gpu_ami.aws import Cloud
from gpu_ami.errors import CapacityError, CloudError, GpuAmiError, MachineError, UsageError
from gpu_ami.log import Progress
from gpu_ami.machine import Boot, Machine
from gpu_ami.proof import Proof, Target
from gpu_ami.report import COMES_BACK, CORE, HostReport, Report
from gpu_ami.restart import REBOOT, RESTARTS, STOP_START
from validator import ssh
from validator.ssh import CommandExpired, ConnectionDropped, Finished, HostKeyChanged, HostRefused

PANIC = "[    2.1] Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)\n"


@dataclass
class World:
    """A host and the EC2 around it. way_back: what each attempt to reach it finds after the order to restart."""

    way_back: list[str] = field(default_factory=lambda: ["old", "refused", "new"])
    key: str = "ssh-ed25519 AAAAfirst"
    next_key: str = "ssh-ed25519 AAAAfirst"
    order: tuple[int, str] | None = (0, "")  # exit status and output of `systemctl reboot`; None: the line drops
    console_text: str = "[ 0.0] Linux\n"
    dies: bool = False
    calls: list[str] = field(default_factory=list)
    targets: list[ssh.Target] = field(default_factory=list)
    fails: dict[str, GpuAmiError] = field(default_factory=dict)
    restarted: bool = False

    # EC2

    place = SimpleNamespace(ssh_port=22, ssh_interface="public_ip")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]

    def stop(self, instance_id: str) -> None:
        self._call("stop")

    def start(self, instance_id: str) -> None:
        self._call("start")
        self.restarted = True

    def wait_for_state(self, instance_id: str, wanted: str, *_: Any) -> dict[str, str]:
        self._call(wanted)
        return {"InstanceId": instance_id, "PublicIpAddress": "192.0.2.2" if "start" in self.calls else "192.0.2.1"}

    def console(self, instance_id: str) -> str:
        return self.console_text + (PANIC if self.dies and self.restarted else "")

    # SSH

    def connect(self, target: ssh.Target) -> Any:
        self.targets.append(target)
        step = "old"
        if self.restarted:
            step = self.way_back[0]
            self.way_back[:] = self.way_back[1:] or self.way_back
        if step == "refused":
            raise HostRefused("192.0.2.1:22 refuses connections")
        key = self.next_key if step == "new" else self.key
        if " " in target.host_key and target.host_key != key:
            raise HostKeyChanged("root@192.0.2.1:22 shows another host key")
        return Line(self, step, key)


@dataclass
class Line:
    """A connection to one boot."""

    world: World
    boot: str
    host_key: str

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None: ...
    def close(self) -> None: ...

    def run(self, command: str, timeout: float) -> Finished:
        if "boot_id" in command:
            return Finished(0, f"boot-{self.boot}\n".encode(), b"", 0.0)
        if "systemctl reboot" in command:
            self.world.calls.append("reboot")
            if self.world.order is None:
                self.world.restarted = True
                raise ConnectionDropped("it ended the connection")
            rc, said = self.world.order
            self.world.restarted = rc == 0
            return Finished(rc, b"", said.encode(), 0.0)
        return Finished(0, b"running\n", b"", 0.0)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World()
    monkeypatch.setattr(ssh, "connect", lambda target: made.connect(target))
    monkeypatch.setattr(machine, "_POLL_SECONDS", 0.0)
    yield made


def a_machine(known_hosts: Path = Path("/dev/null")) -> Machine:
    where = ("i-1", "g5.12xlarge", "192.0.2.1", 22, "admin", Path("key"), known_hosts)
    return Machine(*where, {"ssh": 60.0}, "boot-old", "ssh-ed25519 AAAAfirst")


def a_boot(world: World) -> Boot:
    return Boot(world, SimpleNamespace(), "admin", Progress("quiet"), threading.Event())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "asked"),
    [("reboot", (REBOOT,)), ("stop-start, reboot", RESTARTS), ("none", ()), ("stop-start", (STOP_START,))],
)
def test_what_may_be_asked_for(text: str, asked: tuple[str, ...]) -> None:
    assert restart.parse(text) == asked


@pytest.mark.parametrize("text", ["", "off", "none,reboot", "reboot,hibernate"])
def test_what_may_not(text: str) -> None:
    with pytest.raises(UsageError, match="expected reboot,stop-start, one of them, or none"):
        restart.parse(text)


@pytest.mark.parametrize("order", [(0, ""), None])
def test_reboot_is_seen_by_another_boot_id(world: World, order: tuple[int, str] | None) -> None:
    world.order = order
    world.way_back = ["old", "old", "refused", "new"]
    after = restart.restart(a_boot(world), a_machine(), REBOOT)
    assert (after.boot_id, list(after.stages)) == ("boot-new", ["ssh", "systemd"])
    assert [target.host_key for target in world.targets] == ["ssh-ed25519 AAAAfirst"] * 5  # the order, then four looks
    told = restart.came_back(REBOOT, {"ssh": 80.0, "systemd": 92.5}, "boot-old", after.boot_id, after.url)
    assert (told["id"], told["verdict"], told["after"]) == (f"{COMES_BACK}@reboot", "PASS", REBOOT)
    assert told["hops"] == [{"hop": "reboot → ssh", "seconds": 80.0}, {"hop": "ssh → systemd", "seconds": 12.5}]


def test_stop_and_start_may_lead_to_another_address(world: World) -> None:
    world.way_back = ["refused", "new"]
    after = restart.restart(a_boot(world), a_machine(), STOP_START)
    assert world.calls == ["stop", "stopped", "start", "running"]
    assert (after.url, after.boot_id) == ("ssh://admin@192.0.2.2:22", "boot-new")
    assert list(after.stages) == ["stopped", "running", "ssh", "systemd"]
    assert world.targets[-1].host_key == "ssh-ed25519 AAAAfirst"  # a new address is no reason to trust a new key


def test_key_is_written_down_where_it_was_seen(world: World, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text("192.0.2.1 ssh-ed25519 AAAAfirst\n")
    world.way_back = ["new"]
    restart.restart(a_boot(world), a_machine(known), STOP_START)
    wanted = "192.0.2.1 ssh-ed25519 AAAAfirst\n192.0.2.2 ssh-ed25519 AAAAfirst\n"
    assert known.read_text() == wanted
    world.restarted, world.way_back = False, ["new"]
    restart.restart(a_boot(world), a_machine(known), REBOOT)
    assert known.read_text() == wanted  # once


def break_key(world: World) -> None:
    world.next_key = "ssh-ed25519 AAAAother"


def break_boot(world: World) -> None:
    world.dies, world.way_back = True, ["refused"]


def stay_up(world: World) -> None:
    world.way_back = ["old"]


def stay_silent(world: World) -> None:
    world.way_back = ["refused"]


def refuse_order(world: World) -> None:
    world.order = (1, "sudo: a password is required")


def no_capacity(world: World) -> None:
    world.fails["start"] = CapacityError("starting i-1: InsufficientInstanceCapacity")


def no_permission(world: World) -> None:
    world.fails["stop"] = CloudError("stopping i-1: UnauthorizedOperation")


BROKEN: list[tuple[Callable[[World], None], str, str, str]] = [
    (break_key, REBOOT, "FAIL", "i-1 (g5.12xlarge) is not the machine that it was"),
    (break_key, STOP_START, "FAIL", "shows another host key"),
    (break_boot, REBOOT, "FAIL", "died while it booted: [    2.1] Kernel panic - not syncing"),
    (break_boot, STOP_START, "FAIL", "died while it booted"),
    (stay_up, REBOOT, "FAIL", "last answer: boot boot-old is still up"),
    (stay_silent, REBOOT, "FAIL", "last answer: 192.0.2.1:22 refuses connections"),
    (refuse_order, REBOOT, "UNPROVEN", "sudo: a password is required"),
    (no_capacity, STOP_START, "UNAVAILABLE", "InsufficientInstanceCapacity"),
    (no_permission, STOP_START, "UNPROVEN", "UnauthorizedOperation"),
]


@pytest.mark.parametrize(("broken", "how", "verdict", "message"), BROKEN)
def test_who_is_to_blame(
    world: World, monkeypatch: pytest.MonkeyPatch, broken: Any, how: str, verdict: str, message: str
) -> None:
    monkeypatch.setattr(restart, "BOOT_SECONDS", 0.2 if broken in (stay_up, stay_silent) else 30.0)
    broken(world)
    with pytest.raises(GpuAmiError) as caught:
        restart.restart(a_boot(world), a_machine(), how)
    told = restart.not_back(how, caught.value)
    assert (told["verdict"], message in told["message"]) == (verdict, True), told


def test_panic_of_the_boot_before_is_not_this_ones(world: World) -> None:
    world.console_text += PANIC
    assert restart.restart(a_boot(world), a_machine(), REBOOT).boot_id == "boot-new"


class Busy:
    """A machine that answers what the script says."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)

    def run(self, command: str, timeout: float) -> Finished:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Finished(0, answer.encode(), b"", 0.0)


def settle(*answers: str | Exception, seconds: float = 30.0) -> list[str]:
    marked: list[str] = []
    until = time.monotonic() + seconds
    machine.settle(Busy(*answers), "i-1", (machine.SYSTEMD,), until, threading.Event(), marked.append)  # type: ignore[arg-type]
    return marked


def test_slow_answer_is_no_end(world: World) -> None:
    slow = CommandExpired("systemctl is-system-running", 60)
    assert settle("starting", slow, "degraded") == ["systemd"]  # how it ended is for the checks to judge


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (("starting",), "i-1: systemd did not come to an end\n  $ systemctl is-system-running\n  starting"),
        ((CommandExpired("systemctl is-system-running", 60),), "did not end within 60 s"),
        ((ConnectionDropped("it ended the connection"),), "i-1 was lost while it booted\n  it ended the connection"),
    ],
)
def test_boot_without_an_end_says_where_it_stopped(world: World, answers: Any, message: str) -> None:
    with pytest.raises(MachineError) as caught:
        settle(*answers, seconds=-1.0)
    assert message in str(caught.value)


# The proof around them


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


@pytest.mark.parametrize(
    ("code", "kind"), [("Server.InsufficientInstanceCapacity", CapacityError), ("Server.InternalError", CloudError)]
)
def test_start_that_falls_back_to_stopped(code: str, kind: type[GpuAmiError], monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Cloud(SimpleNamespace())  # type: ignore[arg-type]
    state = {"State": {"Name": "stopped"}, "StateReason": {"Code": code, "Message": f"{code}: no room"}}
    monkeypatch.setattr(cloud, "instance", lambda _: state)
    with pytest.raises(kind, match="i-1 is stopped while we waited for running"):
        cloud.wait_for_state("i-1", "running", 30)


def test_stopped_by_us_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Cloud(SimpleNamespace())  # type: ignore[arg-type]
    reason = {"Code": "Client.UserInitiatedShutdown", "Message": "User initiated shutdown"}
    states = iter([{"State": {"Name": "stopped"}, "StateReason": reason}, {"State": {"Name": "running"}}])
    monkeypatch.setattr(cloud, "instance", lambda _: next(states))
    monkeypatch.setattr("gpu_ami.aws._POLL_SECONDS", 0)
    assert cloud.wait_for_state("i-1", "running", 30)["State"]["Name"] == "running"
