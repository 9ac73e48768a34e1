"""Notices that are played to the installed drain hook: what a good one does, and that bad ones are told apart."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.onhost.drain_hook.programs import ALL, ROOT, Installed
from validator import remote

KINDS = ALL.split(",")
FAULTS = {
    fault["id"]: fault
    for fault in yaml.safe_load((ROOT / "gpu_ami/faults/definitions/drain_hook.yml").read_text(encoding="utf-8"))
}


def play(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """As the check does it, with python3 of this machine."""
    command = remote.python(
        "interruption_drill", f"{folder}/opt/drain/gpu-ami-drain-hook.py", f"{folder}/opt/drain/drill.d", *kinds
    )
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120, check=True)
    looks: list[dict[str, Any]] = json.loads(done.stdout)
    return looks


def test_each_notice_runs_the_probe_once(tmp_path: Path) -> None:
    Installed(tmp_path)
    looks = play(tmp_path, *KINDS)
    assert [look["status"] for look in looks] == [0, 0, 0]
    assert [look["drained"] for look in looks] == [{}, {kind: {"probe": "ok"} for kind in KINDS}, {}]
    assert (
        "drill: spot-interruption, terminate of i-00000000000000000 in drill, " in play(tmp_path, KINDS[0])[1]["output"]
    )


@pytest.mark.parametrize(
    ("fault", "drained"),
    [
        ("drain-hook-does-not-know-spot", [{}, {}, {}]),
        (
            "drain-hook-repeats-its-scripts",
            [{}, {"spot-interruption": {"probe": "ok"}}, {"spot-interruption": {"probe": "ok"}}],
        ),
    ],
)
def test_a_fault_of_the_program_is_seen(tmp_path: Path, fault: str, drained: list[Any]) -> None:
    """With the edits of the fault definitions."""
    Installed(tmp_path)
    [edit] = re.findall(r"sed -i '[^']+' /opt/aws/cloudwatch/\S+", FAULTS[fault]["inject"])
    subprocess.run(["sh", "-c", edit.replace("/opt/aws/cloudwatch", f"{tmp_path}/opt")], check=True, timeout=60)
    assert [look["drained"] for look in play(tmp_path, "spot-interruption")] == drained


def test_a_program_that_does_not_start_is_told(tmp_path: Path) -> None:
    Installed(tmp_path)
    (tmp_path / "opt/drain/drain_hook/service.py").write_text("raise SystemExit('broken')\n")
    looks = play(tmp_path, "spot-interruption")
    assert [(look["status"], look["output"]) for look in looks] == [(1, "broken\n")] * 3
