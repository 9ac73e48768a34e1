"""The program on the machine, without Systems Manager: what it refuses, and what it leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from validator import remote

PROGRAM = remote.PROGRAMS / "telemetry_attachment.py"
PLAN = {"plan": "sha256:1", "image": "x", "archive": "0" * 64, "parts": 1, "logs": ["/var/log/a.log"]}


def run(root: Path, verb: str) -> tuple[int, Any, str]:
    (root / "bin").mkdir(exist_ok=True)
    (root / "bin" / "systemctl").write_text("#!/bin/sh\n[ $1 != is-active ] || echo inactive\n")
    (root / "bin" / "systemctl").chmod(0o755)
    environment = {"PATH": f"{root / 'bin'}:{os.environ['PATH']}", "GPU_AMI_ROOT": str(root)}
    command = [sys.executable, "-IS", str(PROGRAM), verb, json.dumps(PLAN)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr.strip()


def test_a_machine_of_an_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "opt/aws/cloudwatch/nvidia").mkdir(parents=True)
    code, _, said = run(tmp_path, "prepare")
    assert code == 1 and "has the event parser of its image" in said
    assert run(tmp_path, "status")[1]["origin"] == "image"


def test_parts_that_did_not_arrive_or_are_others_are_refused(tmp_path: Path) -> None:
    assert run(tmp_path, "install")[2] == "nothing was prepared on this machine"
    assert run(tmp_path, "prepare")[0] == 0
    assert run(tmp_path, "install")[2] == "part 1 of 1 did not arrive: No such file or directory"
    parts = tmp_path / "var/lib/gpu-ami-fleet/parts"
    parts.mkdir()
    (parts / "1").write_text("QUJD")
    assert "are not those of plan sha256:1" in run(tmp_path, "install")[2]
    assert not (tmp_path / "opt").exists()


def test_a_policy_that_the_operator_changed_stays(tmp_path: Path) -> None:
    run(tmp_path, "prepare")
    policy = tmp_path / "etc/gpu-ami/xid-policy.json"
    policy.parent.mkdir(parents=True)
    policy.write_text("mine")
    code, answer, _ = run(tmp_path, "detach")
    assert (code, answer["kept"]) == (0, ["/etc/gpu-ami/xid-policy.json"])
    run(tmp_path, "clean")
    assert policy.read_text() == "mine" and not (tmp_path / "var/lib/gpu-ami-fleet").exists()


def test_detach_without_an_attachment_does_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "detach")[1] == {"agent": "kept", "attached": False}


@pytest.mark.parametrize("word", ["{{", "}}"])
def test_the_program_has_nothing_that_systems_manager_takes_for_a_parameter(word: str) -> None:
    assert word not in PROGRAM.read_text()


def test_logs_that_were_there_stay(tmp_path: Path) -> None:
    log = tmp_path / "var/log/a.log"
    log.parent.mkdir(parents=True)
    log.touch()
    run(tmp_path, "prepare")
    run(tmp_path, "detach")
    assert log.exists()


def test_logs_that_came_go_with_their_rotated_parts(tmp_path: Path) -> None:
    run(tmp_path, "prepare")
    folder = tmp_path / "var/log"
    folder.mkdir(parents=True)
    for name in ("a.log", "a.log.1.gz", "b.log"):
        (folder / name).touch()
    run(tmp_path, "detach")
    assert [path.name for path in folder.iterdir()] == ["b.log"]


def diagnoses(root: Path, text: str) -> Any:
    """The diagnosis of `status` where the installed program prints this."""
    program = root / "opt/aws/cloudwatch/nvidia/gpu-ami-diagnose"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"print({text!r})\n")
    return run(root, "status")[1]["diagnosis"]


def test_status_says_what_the_diagnosis_found(tmp_path: Path) -> None:
    finding = {"level": "action", "subject": "GPU 2", "text": "fallen " * 60, "kind": "stop_start", "do": "stop it"}
    probes = {"gpus": {"status": "read"}, "agent": {"status": "timeout", "why": "no answer"}}
    printed = {"findings": [finding] * 25, "probes": probes, "exit_code": 1}
    told = diagnoses(tmp_path, json.dumps(printed))
    assert (told["exit_code"], told["count"], len(told["findings"])) == (1, 25, 20)
    assert told["why"] == "agent: no answer"
    first = told["findings"][0]
    assert (first["level"], first["kind"], len(first["text"])) == ("action", "stop_start", 240)
    assert first["text"].startswith("GPU 2: fallen")


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        ("", "gpu-ami-diagnose printed no diagnosis: no output"),
        ("Traceback", "gpu-ami-diagnose printed no diagnosis: Traceback"),
        ("[]", "gpu-ami-diagnose printed no diagnosis: []"),
        ('{"findings": []}', 'gpu-ami-diagnose printed no diagnosis: {"findings": []}'),
    ],
)
def test_a_missing_diagnosis_is_never_a_good_one(tmp_path: Path, printed: str, why: str) -> None:
    unknown = {"exit_code": None, "findings": [], "count": 0}
    assert run(tmp_path, "status")[1]["diagnosis"] == {**unknown, "why": "gpu-ami-diagnose is not installed"}
    assert diagnoses(tmp_path, printed) == {**unknown, "why": why}


def test_an_attachment_that_stopped_is_incomplete_and_can_be_taken_back(tmp_path: Path) -> None:
    """Before the agent's package: nothing is left for the step that removes it, nor for what follows that."""
    run(tmp_path, "prepare")
    assert run(tmp_path, "status")[1]["origin"] == "incomplete"
    assert run(tmp_path, "detach")[1] == {"agent": "absent", "attached": True, "kept": []}
    assert run(tmp_path, "status")[1]["origin"] == "" and not (tmp_path / "var/lib/gpu-ami-fleet").exists()
