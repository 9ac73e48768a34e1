"""Injected lines: what is written where, and when. The tests of xid and neuron_error follow them further."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.validator.checks.conftest import METADATA, PLAN, FakeMachine
from validator.observe import Observe
from validator.plan import as_plan
from validator.probes.agent import injected_lines
from validator.results import CheckRecord, RunningCheck, Verdict


class LocalHost:
    """Runs a command on this machine."""

    def run(self, command: str, timeout: float) -> Any:
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=timeout, check=False)
        return SimpleNamespace(rc=done.returncode, stdout=done.stdout, stderr=done.stderr)


@pytest.fixture
def observe() -> Observe:
    return Observe(RunningCheck(CheckRecord("a::b", "a", "T2", "", Verdict.PASS)))


def lines(raw: Path, structured: Path) -> injected_lines.InjectedLines:
    parser = PLAN["event_parser"] | {"raw_log": str(raw), "json_log": str(structured)}
    plan = as_plan(PLAN | {"event_parser": parser})
    return injected_lines.InjectedLines(LocalHost(), plan, FakeMachine(METADATA), None)  # type: ignore[arg-type]


def test_a_nonce_is_a_member_of_the_line() -> None:
    made = {injected_lines.nonce("serial-num") for _ in range(10)}
    assert len(made) == 10 and all(re.fullmatch(r"serial-num=[0-9a-f]{16}", one) for one in made)


def test_line_is_written_and_found_in_both_logs(tmp_path: Path, observe: Observe) -> None:
    """Here the file is both the kernel's log and the parser's."""
    file = tmp_path / "log"
    sent = lines(file, file).inject(str(file), "it's 100 % nonce=1\n", "nonce=1", "neuron0", observe)
    assert file.read_text() == "it's 100 % nonce=1\n"
    assert (sent.device, sent.started <= sent.raw <= sent.json) == ("neuron0", True)


def test_refusal_is_unproven_and_names_the_file(tmp_path: Path, observe: Observe) -> None:
    with pytest.raises(pytest.skip.Exception, match=f"{tmp_path} does not accept a line: .*irectory"):
        lines(tmp_path, tmp_path).inject(str(tmp_path), "x", "nonce=1", "", observe)


def test_drill_is_a_whole_record_of_the_kernel_log(tmp_path: Path, observe: Observe) -> None:
    injected, written = lines(tmp_path, tmp_path), []
    injected.inject = lambda *given: written.append(given)  # type: ignore[method-assign,assignment]
    injected.inject_drill("NEURON_HW_ERR=X", "nonce=1", "neuron0", observe)
    assert written == [("/dev/kmsg", "<4>NEURON_HW_ERR=X\n", "nonce=1", "neuron0", observe)]
