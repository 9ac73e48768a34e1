"""gpu-ami-diagnose as a program: arguments, exit codes, its readings, and what it needs on a machine."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from onhost import diagnose as program
from tests.onhost.diagnosis_bench import ROOT, Bench, board, links, of, xml
from validator.remote import python as remote_python

PROGRAM = Path(program.__file__)


def test_a_tool_that_hangs_ends_nothing(bench: Bench) -> None:
    bench.tool("nvidia-smi", "sleep 60")
    bench.event()
    started = time.monotonic()
    document = bench.diagnose(1.0)
    assert time.monotonic() - started < 8
    assert document["probes"]["gpus"] | {"seconds": 0} == {
        "status": "timeout", "why": "nvidia-smi -q -x: no answer within 1 s", "seconds": 0,
    }  # fmt: skip
    assert document["exit_code"] == 1 and of(document, "events")


def test_missing_tools_are_said(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(bench.tools))
    for name in ("systemctl", "df"):
        (bench.tools / name).unlink()
    document = bench.diagnose()
    assert {name: answer["why"] for name, answer in document["probes"].items()} == {
        "driver": "the machine has no NVIDIA GPU", "units": "systemctl is not installed",
        "gpus": "nvidia-smi is not installed", "remapped_rows": "nvidia-smi is not installed",
        "nvlink": "nvidia-smi is not installed", "events": "the event parser is not installed: no events to read",
        "parser": "systemctl is not installed", "agent": "systemctl is not installed",
        "efa": "the instance has no EFA device, or its driver is not loaded", "disk": "df is not installed",
        "network": "the CloudWatch agent is not installed: nothing is sent",
    }  # fmt: skip
    assert document["probes"]["efa"]["status"] == "absent" and document["exit_code"] == 3


def test_nothing_to_do_is_exit_0(bench: Bench) -> None:
    case = 'case "$*" in *-x*) cat {0}/x;; *nvlink*) cat {0}/n;; *) echo "H100, 00000000:1B:00.0, No, No, 0, 0";; esac'
    (bench.tools / "x").write_text(xml({}))
    (bench.tools / "n").write_text(links("NVIDIA H100 80GB HBM3"))
    bench.tool("nvidia-smi", case.format(bench.tools))
    bench.event(ec2_action="none")
    bench.beats()
    document = bench.diagnose()
    assert (document["exit_code"], document["findings"]) == (0, []), document
    assert [answer.get("why") for answer in document["probes"].values() if answer["status"] == "read"] == [None] * 7
    shown = dict(line.split(maxsplit=1) for line in program.as_text(document).partition("Probes:\n")[2].splitlines())
    assert shown["gpus"] == "read     1 GPU, driver 580.95.05"
    assert shown["remapped_rows"] == shown["nvlink"] == "read     1 GPU"
    assert shown["events"] == "read     1 of this boot, 0 of earlier boots (/var/log/gpuevent.jsonl)"


def test_sent_to_a_host_it_brings_its_reader(tmp_path: Path) -> None:
    """A host without the event parser has no module hwevents."""
    command = remote_python("diagnose", "--json", "--seconds", "5")
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=60, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}
    )
    assert json.loads(done.stdout)["probes"]["gpus"]["status"] in ("missing", "failed"), done.stderr


def installed(folder: Path) -> Path:
    """The programs as the role installs them: in one folder, with a link to the command on the path."""
    names = yaml.safe_load((ROOT / "roles/event_parser/vars/main.yml").read_text())["__event_parser_diagnose"]
    home = folder / "home"
    home.mkdir()
    for source, name in names.items():
        (home / name).write_bytes((PROGRAM.parent / source).read_bytes())
    shutil.copytree(ROOT / "onhost/event_parser/hwevents", home / "hwevents")
    (folder / "gpu-ami-diagnose").symlink_to(home / "gpu-ami-diagnose")
    return folder / "gpu-ami-diagnose"


def test_the_command_as_installed(tmp_path: Path) -> None:
    command = [sys.executable, "-sSE", installed(tmp_path), "--seconds", "5", "--bundle", tmp_path / "b.tar.gz"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode in (1, 3) and "Probes:\n" in done.stdout, done.stderr
    assert f"bundle: {tmp_path}/b.tar.gz\n" in done.stderr and "nvidia-bug-report.log.gz: not installed" in done.stderr
    assert stat.S_IMODE((tmp_path / "b.tar.gz").stat().st_mode) == 0o600
    again = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert again.returncode == 2 and "the bundle cannot be written: [Errno 17] File exists" in again.stderr


def test_the_installed_command_computes(tmp_path: Path) -> None:
    """Without a driver the finding is the loader's error, and what to do."""
    command = [sys.executable, "-sSE", installed(tmp_path), "--seconds", "5", "--compute", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    document = json.loads(done.stdout)
    assert document["probes"]["compute"]["status"] == "read", document["probes"]["compute"]
    ((level, subject, text, kind),) = of(document, "compute")
    assert (level, subject, kind) == ("action", "CUDA", "repair_service")
    assert text.startswith("start: dlopen: libcuda.so.1: cannot open shared object file")
    (tmp_path / "home/compute_probe.py").unlink()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout)["probes"]["compute"]["status"] == "missing"


def test_help_has_the_exit_codes() -> None:
    done = subprocess.run([sys.executable, PROGRAM, "--help"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and "Exit codes: 0 nothing asks for an action" in done.stdout


def test_arguments_that_are_wrong_are_exit_2() -> None:
    assert subprocess.run([sys.executable, PROGRAM, "--nonsense"], capture_output=True, timeout=30).returncode == 2


@pytest.mark.parametrize("name", ["diagnose.py", "compute_probe.py", "support_bundle.py"])
def test_runs_on_python_3_7(name: str) -> None:
    vermin = [Path(sys.executable).with_name("vermin"), "--no-tips", "--violations", "-t=3.7-", PROGRAM.with_name(name)]
    done = subprocess.run(vermin, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_it_changes_nothing(bench: Bench) -> None:
    """Read-only: the machine's files are as before, with their times."""
    bench.event()
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in bench.root.rglob("*")}
    bench.diagnose()
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in bench.root.rglob("*")}
    assert os.access(bench.root, os.W_OK)


def test_healthy_machine_has_no_finding(bench: Bench) -> None:
    board(bench)
    document = bench.diagnose()
    assert (document["findings"], document["exit_code"]) == ([], 0), document
    assert program.health(document)[0] == program.HEALTHY


@pytest.mark.parametrize(
    ("changes", "words", "code", "line"),
    [
        ({}, (), 0, "healthy: 2 GPUs, driver 580.95.05"),
        ({"pending": "Yes"}, (), 1, "drain: GPU 00000000:1B:00.0: a row remap is pending (schedule_reboot)"),
        ({"pending": "Yes"}, ("schedule_reboot",), 0, "healthy: 2 GPUs, driver 580.95.05"),
        ({"temperature": "Unknown Error"}, (), 3, "unknown: GPU 00000000:1B:00.0: unknown: temperature/gpu_temp"),
    ],
)  # fmt: skip
def test_health_is_a_line_and_an_exit_code(
    bench: Bench, changes: dict[str, str], words: tuple[str, ...], code: int, line: str
) -> None:
    board(bench)
    (bench.tools / "x").write_text(xml({"bus": "1B"} | changes, {"bus": "1C"}))
    if "pending" in changes:
        (bench.tools / "r").write_text("H100, 00000000:1B:00.0, No, Yes, 0, 0\n")
    document = program.diagnose(program.Machine(str(bench.root), 10), names=program.HEALTH_PROBES)
    assert "parser" not in document["probes"] and "agent" not in document["probes"]
    found, shown = program.health(document, words)
    assert found == code and shown.startswith(line) and "\n" not in shown
    assert program.health(document, words, unknown_drains=True)[0] == (1 if code == 3 else code)


def test_the_file_alone_runs(tmp_path: Path) -> None:
    """python3 - < diagnose.py, on a machine without roles."""
    with PROGRAM.open("rb") as source:
        done = subprocess.run(
            [sys.executable, "-I", "-", "--json", "--seconds", "5"], stdin=source, capture_output=True, timeout=60,
            cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, check=False,
        )  # fmt: skip
    assert done.returncode in (0, 1, 3) and json.loads(done.stdout)["schema"] == "gpu-ami/diagnosis/1", done.stderr
    assert b"Traceback" not in done.stderr


def test_the_copy_of_the_readings_is_current(update_golden: bool) -> None:
    """diagnose.py runs alone; --update-golden copies readings.py into it."""
    text = PROGRAM.read_text(encoding="utf-8")
    head, rest = text.split("_READINGS = r'''\n", 1)
    copy, tail = rest.split("'''\n", 1)
    current = (PROGRAM.parent / "readings.py").read_text(encoding="utf-8")
    if update_golden and copy != current:
        PROGRAM.write_text(f"{head}_READINGS = r'''\n{current}'''\n{tail}", encoding="utf-8")
    assert copy == current or update_golden
