"""A host that gpu-ami did not launch: what is checked, and that it is rebooted only on request."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest

from gpu_ami.report import certificate, document
from gpu_ami.report.document import COMES_BACK, HostReport
from gpu_ami.validate import host_proof
from gpu_ami.validate.machines.restarts import REBOOT
from gpu_ami.validate.validator_process import Target
from tests.validate.conftest import World
from tests.validate.scripted_proof import ROLES, RUN, a_plain_proof, a_proof, a_report, verdicts, wait_for


def prove_somebody_elses(tmp_path: Path, *restarts: str, **finds: dict[str, str]) -> HostReport:
    target = Target("ssh://admin@192.0.2.1", "g5.12xlarge")
    return host_proof.prove_host(a_proof(tmp_path, restarts, **finds), RUN, target).hosts[0]


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


def test_ctrl_c_at_a_host_by_address_leaves_what_was_judged(world: World, waiting: None, tmp_path: Path) -> None:
    def press() -> None:
        wait_for(tmp_path / "evidence" / "192.0.2.1" / "checks.jsonl")
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=press, daemon=True).start()
    with contextlib.ExitStack() as undone, pytest.raises(KeyboardInterrupt):
        undone.callback(signal.signal, signal.SIGINT, before)
        host_proof.prove_host(a_plain_proof(tmp_path), RUN, Target("ssh://admin@192.0.2.1"))
    report = document.load(tmp_path / "report.json")
    assert report.incomplete == "the run was interrupted" and report.exit_code == 4
    assert [check.id for check in report.hosts[0].checks] == ["boot::test_it"]
