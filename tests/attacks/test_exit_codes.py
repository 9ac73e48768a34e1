"""Attempt 10: no traceback, and exit codes that do not blame the image for the disk, the terminal or a damaged file."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.conftest import GpuAmi
from tests.report.examples import a_host, a_report

pytestmark = pytest.mark.slow
DEEP = "[" * 100_000
WRONG: dict[str, Any] = {
    "hosts is a text": {"hosts": "x"},
    "a host's facts are a number": {"hosts": [{"instance_type": "x", "facts": 5}]},
    "a check's id is a list": {"hosts": [{"instance_type": "x", "checks": [{"id": []}]}]},
    "plan is a list": {"plan": []},
    "instance types are numbers": {"plan": {"instance_types": [1], "roles": [1], "notes": 5}},
    "seconds are text": {"stages": [{"stage": "x", "level": 0, "seconds": "y", "outcome": "done"}]},
    "started is no date": {"started": 5},
}


def report_with(changes: dict[str, Any]) -> str:
    return json.dumps({**a_report(a_host()).to_json(), **changes})


@pytest.mark.parametrize("name", WRONG)
def test_wrong_types_of_a_report_are_named(name: str, gpu_ami: GpuAmi, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/report.json").write_text(report_with(WRONG[name]))
    done = gpu_ami("certify", "out")
    assert b"Traceback" not in done.stderr and done.returncode in (0, 2, 4), done.stderr


def test_json_that_is_nested_deeply_is_named(gpu_ami: GpuAmi, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(DEEP)
    (tmp_path / "plan.json").write_text(DEEP)
    for words in (("certify", "."), ("build", "."), ("verify", "."), ("diff", ".", ".")):
        done = gpu_ami(*words)
        assert b"Traceback" not in done.stderr and done.returncode == 2, (words, done.stderr)


def test_a_folder_that_cannot_be_made_is_named(gpu_ami: GpuAmi, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    recipe = Path(__file__).parents[2] / "variables/recipes/debian12-gpu.yml"
    for out, named in (("file/below", b"file"), ("file", b"file"), ("/proc/none", b"/proc/none")):
        done = gpu_ami("plan", recipe, "-o", out)
        assert done.returncode in (2, 4) and named in done.stderr and b"Traceback" not in done.stderr, done.stderr


def test_streams_that_cannot_be_written(gpu_ami: GpuAmi) -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        done = gpu_ami("checks", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 4 and b"No space left on device" in done.stderr and b"Traceback" not in done.stderr
    program = str(Path(sys.executable).with_name("gpu-ami"))
    script = "$0 checks | true; $0 checks >&-; echo $?; $0 checks 2>&1 >/dev/full | true"
    closed = subprocess.run(["sh", "-c", script, program], capture_output=True, timeout=120)
    assert closed.stderr == b"" and closed.stdout.split()[-1:] in ([b"0"], [b"4"])
    ascii_only = gpu_ami("checks", env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"})
    assert (ascii_only.returncode, ascii_only.stderr) == (0, b"")


def test_a_second_run_in_one_folder_is_refused(gpu_ami: GpuAmi, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(report_with({}))
    with (tmp_path / ".lock").open("w+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        json.dump({"pid": 4711, "since": 0}, lock)
        lock.flush()
        done = gpu_ami("certify", ".")
        assert done.returncode == 2 and b"another gpu-ami writes to this folder: pid 4711, for " in done.stderr
        held = os.environ | {"GPU_AMI_OUT_HELD": str(tmp_path)}
        assert gpu_ami("certify", ".", env=held).returncode == 0  # what the holder itself starts
    assert gpu_ami("certify", ".").returncode == 0  # a lock of a process that was killed
