"""One pass of the checks on a host, and the report: errors, a lost machine, a deadline, machine time.

What pytest itself prints, read while it runs.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.errors import CapacityError, CloudError, GpuAmiError
from gpu_ami.report import HostReport, certificate, document
from gpu_ami.report.document import COMES_BACK
from gpu_ami.validate import validator_process
from gpu_ami.validate.machines import console, machine
from gpu_ami.validate.machines.restarts import RESTARTS
from gpu_ami.validate.proof import IMAGE_FILES, CheckOutput, MachineLost, ProofOptions, check_files, record_error
from gpu_ami.validate.recorder import HostRecord
from gpu_ami.validate.validator_process import Target
from tests import forked_pytest
from tests.validate.scripted_proof import TYPES, Ec2, a_plain_proof, a_proof, prove_ami, wait_for
from validator.results import HostResults


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


@pytest.mark.parametrize(
    ("options", "restarts", "left_out"),
    [
        ((), RESTARTS, []),
        ((), ("reboot",), ["restart stop-start (--restarts)"]),
        (("-k", "boot"), (), ["checks (-k 'boot')", "restart reboot (--restarts)", "restart stop-start (--restarts)"]),
    ],
)
def test_what_the_command_line_leaves_out_is_in_the_report(
    booted: None, tmp_path: Path, options: tuple[str, ...], restarts: tuple[str, ...], left_out: list[str]
) -> None:
    wanted = a_proof(tmp_path, restarts)
    wanted.options = replace(wanted.options, validator_options=options)
    report = prove_ami(wanted, Ec2(), TYPES[:1])
    assert [str(part) for part in report.left_out] == left_out
    assert document.load(tmp_path / "report.json") == report


def test_machine_time_and_cost_are_in_the_report(booted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow = machine.Boot.follow

    def follow_slowly(*words: Any) -> Any:
        time.sleep(0.01)  # the report has milliseconds, and these machines are there in less
        return follow(*words)

    monkeypatch.setattr(machine.Boot, "follow", follow_slowly)
    report = prove_ami(a_proof(tmp_path, ()), Ec2())
    assert all(host.machine_seconds > 0 and host.cost_usd is not None for host in report.hosts)
    assert report.cost_usd is not None and report.price_basis.startswith("On-Demand, us-east-1")
    assert document.load(tmp_path / "report.json") == report
    assert certificate.certify(report).cost_usd == pytest.approx(report.cost_usd, abs=0.01)


PAUSED = {"State": {"Name": "running"}, "StateReason": {"Code": "Server.Paused", "Message": "paused: no space left"}}


TAKEN = {"State": {"Name": "terminated"}, "StateReason": {"Message": "Server.SpotInstanceTermination"}}


@pytest.mark.parametrize(
    ("state", "reason"),
    [(PAUSED, "does not run: paused: no space left"), (TAKEN, "is terminated: Server.SpotInstanceTermination")],
)
def test_machine_that_is_lost_is_seen_at_once(
    waiting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr(console, "POLL_SECONDS", 0.05)
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


@pytest.mark.slow  # it waits in real time
def test_validator_that_exceeds_its_deadline_leaves_what_it_judged(
    waiting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validator_process, "HOST_SECONDS", 5.0)
    wanted = replace(a_plain_proof(tmp_path), options=ProofOptions())
    report = prove_ami(wanted, Ec2(), TYPES[:1])
    assert "did not complete within 5 s" in report.hosts[0].error and report.hosts[0].checks[0].id == "boot::test_it"
    assert report.exit_code == 4


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The validator's command of each pass of checks, none of which runs."""
    given: list[list[str]] = []

    def run_checks(command: list[Any], *_: Any, **__: Any) -> HostResults:
        given.append([str(word) for word in command])
        return HostResults("host")

    monkeypatch.setattr(validator_process, "run_checks", run_checks)
    return given


@pytest.mark.parametrize(("files", "passed_on"), [(HostReport(""), True), (HostReport("", error="no disk"), False)])
def test_machines_know_what_was_judged_of_the_images_files(
    tmp_path: Path, commands: list[list[str]], files: HostReport, passed_on: bool
) -> None:
    """Only once the pass over the files is complete, and only at the first boot."""
    wanted = a_plain_proof(tmp_path)
    machine = Target("ssh://admin@10.0.0.4", TYPES[0])
    wanted.check(machine)
    check_files(wanted, HostRecord(files), lambda: files)
    wanted.check(Target("image://x", name=IMAGE_FILES))
    wanted.check(machine, "reboot")
    assert not any(word.startswith("--image-files") for command in commands for word in command)
    wanted.check(machine)
    assert (f"--image-files={tmp_path}/evidence/image-files" in commands[-1]) is passed_on


@pytest.mark.parametrize(
    ("join", "seconds"), [(None, []), ("", ["--connect-timeout=60"]), ("c", ["--connect-timeout=60"])]
)
def test_a_node_of_a_cluster_may_answer_later(
    tmp_path: Path, commands: list[list[str]], join: str | None, seconds: list[str]
) -> None:
    """It runs kubelet and containers beside the checks; a user's own option still wins."""
    proof = replace(
        a_plain_proof(tmp_path), options=ProofOptions(join=join, validator_options=["--connect-timeout=90"])
    )
    proof.check(Target("ssh://admin@10.0.0.4", TYPES[0]))
    found = [word for word in commands[0] if word.startswith("--connect-timeout")]
    assert found == [*seconds, "--connect-timeout=90"]


_CHECKS = """
import pytest

def test_holds(): pass
def test_red(): assert False
def test_skipped(): pytest.skip("not here")
@pytest.fixture
def broken(): raise ValueError
def test_error(broken): pass
@pytest.mark.parametrize("name", ["FAILED [ 10%]", "b"])
def test_many(name): pass
def test_deselected(): pass
"""


@pytest.mark.slow
def test_counts_are_pytests_own(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(_CHECKS)
    options = ["-p", "no:cacheprovider", "-vv", "-k", "not deselected", str(tmp_path)]
    output = forked_pytest.run(options, cwd=tmp_path).stdout
    read = CheckOutput()
    for line in output.splitlines():
        read.line(line)
    assert (read.done, read.total, read.red) == (6, 6, 2), output


@pytest.mark.parametrize("line", ["collected 7 items", "collected 9 items / 2 deselected / 7 selected"])
def test_total_is_what_was_selected(line: str) -> None:
    read = CheckOutput()
    read.line(line)
    assert read.total == 7


@pytest.mark.parametrize(
    ("code", "verdict", "advice"),
    [
        ("Server.SpotInstanceTermination", "UNAVAILABLE", "add on-demand to its ways"),
        ("Server.InsufficientInstanceCapacity", "UNAVAILABLE", "another Availability Zone"),
        ("Client.UserInitiatedShutdown", "UNPROVEN", "somebody, or a `gpu-ami sweep` elsewhere"),
        ("Server.InternalError", "UNPROVEN", "try again"),
        ("", "UNPROVEN", ""),
    ],
)
def test_a_machine_that_ec2_took_back_was_not_available(code: str, verdict: str, advice: str) -> None:
    """A Spot interruption during the checks is a lack of capacity, as it is before them and at a builder."""
    host = HostRecord(HostReport("g5.12xlarge"))
    record_error(host, MachineLost("g5.12xlarge", "instance i-1 is shutting-down: said EC2", code))
    assert host.report.error_verdict == verdict
    assert host.report.error.startswith("g5.12xlarge: instance i-1 is shutting-down: said EC2")
    assert advice in host.report.error
