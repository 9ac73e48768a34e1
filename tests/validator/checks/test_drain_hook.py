"""Each check of the drain hook, once green and once red with its message."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.onhost.drain_hook.programs import FakeMetadata, Installed
from tests.validator.checks.conftest import FakeMachine, Judge
from tests.waiting import until
from validator.checks import drain_hook
from validator.cloudwatch import LogEvent
from validator.plan import as_plan

LOG = "/var/log/gpu-ami-drain.jsonl"
KINDS = ["spot-interruption", "autoscaling-termination"]
PLANNED = {"notices": KINDS, "timeout_s": 100, "log": LOG, "log_group": "drain"}
PLAN = as_plan({"drain_hook": PLANNED, "telemetry": {"log_stream": "{instance_id}"}})
UNIT = "ActiveState=active\nSubState=running\nUnitFileState=enabled\nNRestarts=0\nRestart=always\n"
FAILED = "gpu-ami-drain-hook.service: Failed with result"
EXEC = (
    "[Service]\nExecStart=/usr/bin/python3 -sSE /opt/aws/cloudwatch/drain/gpu-ami-drain-hook.py"
    f" --notices {','.join(KINDS)} --timeout 100 --log {LOG}\n"
)
RULE = f"{LOG} {{\n rotate 4\n}}\n"
FOLDER = "d 755 0 /etc/gpu-ami/drain.d\n"
DRAINED = {"event": "drained", "notice": "drill", "scripts": [{"name": "probe", "outcome": "ok", "status": 0}]}
LINE = json.dumps(DRAINED)


def status(uptime: float, *problems: str) -> str:
    return f"{json.dumps({'look_monotonic_s': 100.0, 'problems': problems})}\n{uptime}\n"


def looks(*drained: dict[str, Any], code: int = 0) -> str:
    return json.dumps([{"status": code, "drained": each, "output": "said"} for each in drained])


ONCE = {kind: {"probe": "ok"} for kind in KINDS}
CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (drain_hook.test_hook_is_running_and_enabled, {"systemctl*": UNIT}, "PASS", ""),
    (drain_hook.test_hook_is_running_and_enabled, {"systemctl*": UNIT.replace("=active", "=failed")}, "FAIL", "failed"),
    # systemd 252: a start that did not become ready in time, then a program that raised an exception.
    (
        drain_hook.test_hook_is_running_and_enabled,
        {"systemctl*": UNIT.replace("=0", "=1"), "journalctl*": f"{FAILED} 'timeout'.\n"}, "FAIL",
        "gpu-ami-drain-hook.service was restarted once in this boot; results of its runs: timeout",
    ),
    (
        drain_hook.test_hook_is_running_and_enabled,
        {"systemctl*": UNIT.replace("=0", "=3"), "journalctl*": f"{FAILED} 'exit-code'.\n" * 3}, "FAIL",
        "was restarted 3 times in this boot; results of its runs: exit-code, exit-code, exit-code",
    ),
    (
        drain_hook.test_hook_is_running_and_enabled,
        {"systemctl*": UNIT.replace("=0", "=3"), "journalctl*": ""}, "FAIL",
        "was restarted 3 times in this boot; the journal has no failed run",
    ),
    (drain_hook.test_metadata_is_read, {"for*": status(104.0)}, "PASS", ""),
    (drain_hook.test_metadata_is_read, {"for*": status(400.0)}, "FAIL", "was 300 s ago, expected within 30 s"),
    (
        drain_hook.test_metadata_is_read, {"for*": status(104.0, "no answer from http://x: refused")}, "FAIL",
        "the instance metadata cannot be read: no answer from http://x: refused",
    ),
    (
        drain_hook.test_metadata_is_read, {"for*": (1, "", "No such file")}, "FAIL",
        "the drain hook has not polled since boot: No such file",
    ),
    (drain_hook.test_unit_is_the_planned_one, {"cat*": EXEC}, "PASS", ""),
    (drain_hook.test_unit_is_the_planned_one, {"cat*": EXEC.replace("100", "10")}, "FAIL", "--timeout 10 "),
    (drain_hook.test_unit_is_the_planned_one, {"cat*": "[Service]\n"}, "FAIL", "got []"),
    (drain_hook.test_scripts_would_run, {"find*": FOLDER}, "PASS", ""),
    (drain_hook.test_scripts_would_run, {"find*": f"{FOLDER}f 755 0 /etc/gpu-ami/drain.d/10 a\n"}, "PASS", ""),
    (
        drain_hook.test_scripts_would_run, {"find*": f"{FOLDER}f 644 0 /etc/gpu-ami/drain.d/10-a\n"}, "FAIL",
        "would not run at a notice: /etc/gpu-ami/drain.d/10-a: not executable (mode 0644)",
    ),
    (
        drain_hook.test_scripts_would_run, {"find*": f"{FOLDER}f 755 1000 /etc/gpu-ami/drain.d/10-a\n"}, "FAIL",
        "/etc/gpu-ami/drain.d/10-a: others than root can write it (owner 1000, mode 0755)",
    ),
    (drain_hook.test_scripts_would_run, {"find*": f"{FOLDER}d 755 0 /etc/gpu-ami/drain.d/x\n"}, "FAIL", "a regular"),
    (drain_hook.test_scripts_would_run, {"find*": FOLDER.replace("755", "777")}, "FAIL", "drain.d: others than root"),
    (
        drain_hook.test_log_is_rotated, {"logrotate*": f"considering log {LOG}\n", "cat*": RULE}, "PASS", "",
    ),
    (drain_hook.test_log_is_rotated, {"logrotate*": "", "cat*": RULE}, "FAIL", f"no logrotate rule for {LOG}"),
    (
        drain_hook.test_log_is_rotated,
        {"logrotate*": f"considering log {LOG}\n", "cat*": RULE.replace("rotate 4", "rotate 4\n copytruncate")},
        "FAIL", "copytruncate",
    ),
    (drain_hook.test_notice_runs_scripts_once, {"python3*": looks({}, ONCE, {})}, "PASS", ""),
    (
        drain_hook.test_notice_runs_scripts_once, {"python3*": looks({}, {}, {})}, "FAIL",
        "at a notice the hook ran nothing, expected {'spot-interruption': {'probe': 'ok'}",
    ),
    (
        drain_hook.test_notice_runs_scripts_once, {"python3*": looks({}, ONCE, ONCE)}, "FAIL",
        "at the same notice again the hook ran {'spot-interruption': {'probe': 'ok'}",
    ),
    (
        drain_hook.test_notice_runs_scripts_once, {"python3*": looks(ONCE, {}, {})}, "FAIL",
        "without a notice the hook ran {'spot",
    ),
    (
        drain_hook.test_notice_runs_scripts_once, {"python3*": looks({}, ONCE, {}, code=1)}, "FAIL",
        "without a notice the hook exited with status 1: said",
    ),
    (
        drain_hook.test_notice_runs_scripts_once, {"python3*": (1, "", "no room")}, "FAIL",
        "the notices could not be played: no room",
    ),
    (drain_hook.test_running_hook_runs_a_drill, {"sh -c*": f"{LINE}\n"}, "PASS", ""),
    (
        drain_hook.test_running_hook_runs_a_drill, {"sh -c*": f"{LINE.replace('ok', 'failed')}\n"}, "FAIL",
        "'outcome': 'failed'",
    ),
    (drain_hook.test_running_hook_runs_a_drill, {"sh -c*": (4, "")}, "FAIL", f"end is not in {LOG} within 30 s"),
    (
        drain_hook.test_running_hook_runs_a_drill, {"sh -c*": (3, "", "the unit has no main process")}, "FAIL",
        "no drill: the unit has no main process",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_drain_hook(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table, plan=PLAN)
    assert (found.verdict, message in found.message) == (verdict, True), found


class Cloud:
    """A log group with these messages in the stream of the instance."""

    region, arrival_seconds = "us-east-1", 1.0

    def __init__(self, *messages: str) -> None:
        self.messages = messages

    def events(self, group: str, stream: str, since: float = 0.0) -> list[LogEvent]:
        assert (group, stream) == ("drain", "i-0123456789abcdef0")
        return [LogEvent(time=2000.0, ingested=2001.0, message=message) for message in self.messages]

    def wait(self, look: Any, seconds: float) -> Any:
        return look()


@pytest.mark.parametrize(
    ("messages", "verdict", "message"),
    [
        (["start", LINE], "PASS", ""),
        ([LINE, LINE], "FAIL", "arrived 2 times in group drain"),
        (["start"], "FAIL", "is not in group drain, stream i-0123456789abcdef0, after 1 s"),
    ],
)
def test_log_of_a_drill_arrives(judge: Judge, messages: list[str], verdict: str, message: str) -> None:
    table = {"sh -c*": f"{LINE}\n", "*": ""}
    cloud = Cloud(*messages)
    given = {"plan": PLAN, "machine": FakeMachine({}), "cloudwatch": cloud, "log_group_suffix": ""}
    found = judge(drain_hook.test_log_of_a_drill_arrives, table, **given)
    assert (found.verdict, message in found.message) == (verdict, True), found


def test_the_last_look_of_the_real_hook_is_read(tmp_path: Path) -> None:
    """The shell program against the status that the hook writes, also where the metadata come up later."""
    hook = Installed(tmp_path)
    words = ["sh", "-c", drain_hook.LAST_LOOK.replace(drain_hook.STATUS, str(tmp_path / "status.json"))]
    with FakeMetadata() as imds:
        imds.status = 503
        running = hook.start(imds.address)
        reading = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        until(lambda: imds.asked)
        imds.status = 200
        shown, _ = reading.communicate(timeout=60)
        running.terminate()
        running.wait(30)
    document, uptime = shown.strip().rsplit("\n", 1)
    assert json.loads(document)["problems"] == []
    assert -0.01 <= float(uptime) - json.loads(document)["look_monotonic_s"] < 30


def test_the_program_of_a_drill_finds_the_line_of_the_running_hook(tmp_path: Path) -> None:
    """The shell program against the real hook; `systemctl` says its pid."""
    hook = Installed(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    with FakeMetadata() as imds:
        running = hook.start(imds.address, "--interval", "60")
        until(lambda: (tmp_path / "status.json").exists())
        (programs / "systemctl").write_text(f"#!/bin/sh\necho {running.pid}\n")
        (programs / "systemctl").chmod(0o755)
        words = ["sh", "-c", drain_hook.DRILL, "drill", str(hook.log), "unit", "20"]
        path = {"PATH": f"{programs}:/usr/bin:/bin"}
        for _ in range(2):
            done = subprocess.run(words, env=path, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done
            assert json.loads(done.stdout)["scripts"][0]["outcome"] == "ok"
        running.terminate()
        running.wait(30)
    (programs / "systemctl").write_text("#!/bin/sh\necho 0\n")
    done = subprocess.run(words, env=path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (3, "unit has no main process\n")
