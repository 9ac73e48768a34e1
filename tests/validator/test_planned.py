"""Checks of a component that the plan lacks are left out; without a plan nobody knows, so they stay."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKS = """
import pytest
pytestmark = pytest.mark.planned("efa")
def test_of_efa(host): ...
@pytest.mark.planned("nccl")
def test_of_both(host): ...
@pytest.mark.planned("efa.mode")
def test_of_its_mode(host): ...
"""


@pytest.mark.parametrize(
    ("sections", "collected"),
    [
        ({}, set()),
        ({"nccl": {"mode": "full"}}, set()),
        ({"efa": {"version": "1"}}, {"test_of_efa"}),
        ({"efa": {"mode": []}}, {"test_of_efa"}),
        ({"efa": {"mode": "full"}}, {"test_of_efa", "test_of_its_mode"}),
        ({"efa": {"version": "1"}, "nccl": {"mode": "full"}}, {"test_of_efa", "test_of_both"}),
        (None, {"test_of_efa", "test_of_both", "test_of_its_mode"}),
    ],
)
def test_what_the_plan_lacks_is_left_out(tmp_path: Path, sections: dict[str, Any] | None, collected: set[str]) -> None:
    (tmp_path / "test_given.py").write_text(CHECKS)
    options = []
    if sections is not None:
        plan = {"schema": "gpu-ami/plan/1"} | sections
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        options = [f"--plan={tmp_path / 'plan.json'}"]
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "validator.plugin", "-p", "no:cacheprovider", "--collect-only", "-q",
            f"--rootdir={tmp_path}", "--hosts=ssh://nobody@127.0.0.1:9", *options, str(tmp_path / "test_given.py"),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    names = {line.rpartition("::")[2].partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    assert names == collected, done.stdout + done.stderr
