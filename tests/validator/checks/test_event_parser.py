"""Each parser check, once green and once red with its message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.validator.checks.conftest import REAL_DRIVER, REPLICA, Judge
from validator.checks import event_parser as parser

UNIT = {
    "ActiveState": "active", "SubState": "running", "MainPID": "512", "UnitFileState": "enabled", "NRestarts": "0",
    "Before": "shutdown.target amazon-cloudwatch-agent.service multi-user.target",
    "FragmentPath": "/etc/systemd/system/aws-hw-monitor.service", "Restart": "always",
}  # fmt: skip


def unit(**others: str) -> dict[str, Any]:
    return {"systemctl show*": "".join(f"{key}={value}\n" for key, value in (UNIT | others).items())}


PATHS = "/etc/systemd/system/aws-hw-monitor.service.d/paths.conf"


def over(paths: str, reload: str) -> dict[str, Any]:
    return {"systemctl show -p DropInPaths*": f"DropInPaths={paths}\nNeedDaemonReload={reload}\n"}


def status(age: float) -> str:
    return json.dumps({"heartbeat_monotonic_s": 1000.0 - age, "heartbeat_period_s": 60.0}) + "\n1000.00\n"


POLICY_READ = '{"policy_errors": []}'
FILES = (
    "root 644 /etc/systemd/system/aws-hw-monitor.service\nroot 644 /var/log/gpuevent.log\n"
    "root 644 /var/log/gpuevent.jsonl\nroot 755 /opt/aws/cloudwatch/nvidia/aws-hwaccel-event-parser.py\n"
)
ROTATED = "considering log /var/log/gpuevent.log\nconsidering log /var/log/gpuevent.jsonl\n"
RULES = (Path(__file__).parents[3] / "roles/event_parser/files/gpu-ami-events.logrotate").read_text()
INSTALLED = "aws-hwaccel-event-parser.py\nhwevents/kmsg.py\n//\n./aws-hwaccel-event-parser.py\n./hwevents/kmsg.py\n//\n"
BANNER = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  550.163.01"

LISTED = "GPU 0: NVIDIA A10G (UUID: GPU-0)\nGPU 1: NVIDIA A10G (UUID: GPU-1)\n"


def diagnosis(**probes: Any) -> dict[str, Any]:
    """What gpu-ami-diagnose prints of two GPUs, and nvidia-smi -L beside it."""
    names = ("gpus", "remapped_rows", "nvlink", "events", "parser", "agent")
    answers = {name: {"status": "read", "data": [{}, {}]} for name in names} | probes
    finding = {"level": "action", "subject": "GPU 0", "text": "a row remap is pending"}
    printed = json.dumps({"findings": [finding], "probes": answers, "exit_code": 1})
    return {"gpu-ami-diagnose --json*": (1, printed), "nvidia-smi -L": LISTED}


CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (parser.test_parser_is_running_and_enabled, unit(), "PASS", ""),
    (
        parser.test_parser_is_running_and_enabled,
        unit(SubState="exited", MainPID="0"),
        "FAIL",
        "'SubState': 'exited'",
    ),
    (parser.test_parser_is_running_and_enabled, unit(UnitFileState="disabled"), "FAIL", "'UnitFileState': 'disabled'"),
    (
        parser.test_parser_is_running_and_enabled,
        unit(MainPID="0"),
        "FAIL",
        "aws-hw-monitor.service has no main process",
    ),
    (parser.test_parser_does_not_restart, unit(), "PASS", ""),
    (
        parser.test_parser_does_not_restart,
        unit(NRestarts="4") | {"journalctl*": "aws-hw-monitor.service: Failed with result 'watchdog'.\n" * 4},
        "FAIL",
        "was restarted 4 times in this boot; results of its runs: watchdog, watchdog, watchdog and 1 more",
    ),
    (
        parser.test_parser_does_not_restart,
        unit(Restart="no"),
        "FAIL",
        "aws-hw-monitor.service: Restart: expected always or on-failure, got no",
    ),
    (parser.test_unit_has_no_override, over("", "no"), "PASS", ""),
    (
        parser.test_unit_has_no_override,
        over(f"{PATHS} /usr/lib/systemd/system/service.d/x.conf", "no"),
        "PASS",
        "",
    ),
    (
        parser.test_unit_has_no_override,
        over(f"{PATHS} /run/systemd/system/aws-hw-monitor.service.d/zz.conf", "no"),
        "FAIL",
        "drop-ins that the role did not install: /run/systemd/system/aws-hw-monitor.service.d/zz.conf",
    ),
    (
        parser.test_unit_has_no_override,
        over(PATHS, "yes"),
        "FAIL",
        "aws-hw-monitor.service was changed on disk after systemd loaded it (NeedDaemonReload)",
    ),
    (parser.test_parser_reads_the_kernel_log, unit() | {"readlink*": "/dev/null\n/dev/kmsg\n"}, "PASS", ""),
    (
        parser.test_parser_reads_the_kernel_log,
        unit() | {"readlink*": "/dev/null\n/var/log/dmesg\n"},
        "FAIL",
        "process 512 of aws-hw-monitor.service has not opened /dev/kmsg; open files: /dev/null, /var/log/dmesg",
    ),
    (
        parser.test_parser_reads_the_kernel_log,
        unit(MainPID="0"),
        "UNPROVEN",
        "the parser is not running: see event_parser::test_parser_is_running_and_enabled",
    ),
    (
        parser.test_parser_has_a_heartbeat,
        unit(SubState="dead"),
        "UNPROVEN",
        "the parser is not running: see event_parser::test_parser_is_running_and_enabled",
    ),
    (parser.test_parser_has_a_heartbeat, unit() | {"cat*": status(30)}, "PASS", ""),
    (
        parser.test_parser_has_a_heartbeat,
        unit() | {"cat*": status(600)},
        "FAIL",
        "last heartbeat was 600 s ago, expected within 125 s",
    ),
    (
        parser.test_parser_has_a_heartbeat,
        unit() | {"cat*": (1, "", "No such file")},
        "FAIL",
        "the parser's status cannot be read: No such file",
    ),
    (parser.test_policy_is_understood, unit() | {"cat /run*": POLICY_READ, "cat /etc*": '{"xid": {}}'}, "PASS", ""),
    (parser.test_policy_is_understood, unit() | {"cat /run*": POLICY_READ, "cat /etc*": (1, "")}, "PASS", ""),
    (
        parser.test_policy_is_understood,
        unit() | {"cat /run*": POLICY_READ.replace("[]", '["x: not JSON"]'), "cat /etc*": "{"},
        "FAIL",
        "the parser rejected its policy: x: not JSON",
    ),
    (
        parser.test_policy_is_understood,
        unit() | {"cat /run*": POLICY_READ, "cat /etc*": '{"xid": {"79": {"severity": "info"}, "8": {"note": "x"}}}'},
        "UNPROVEN",
        "/etc/gpu-ami/xid-policy.json differs from the catalogue: xid 79: info",
    ),
    (
        parser.test_policy_is_understood,
        unit(SubState="dead"),
        "UNPROVEN",
        "the parser is not running: see event_parser::test_parser_is_running_and_enabled",
    ),
    (parser.test_parser_starts_before_the_agent, unit(), "PASS", ""),
    (
        parser.test_parser_starts_before_the_agent,
        unit(Before="shutdown.target"),
        "FAIL",
        "aws-hw-monitor.service: Before: expected amazon-cloudwatch-agent.service, got shutdown.target",
    ),
    (parser.test_files_are_writable_by_root_only, unit() | {"stat*": FILES}, "PASS", ""),
    (
        parser.test_files_are_writable_by_root_only,
        unit() | {"stat*": FILES.replace("755", "777")},
        "FAIL",
        "not owned by root, or writable by others: /opt/aws/cloudwatch/nvidia/aws-hwaccel-event-parser.py (root, 777)",
    ),
    (
        parser.test_files_are_writable_by_root_only,
        unit() | {"stat*": FILES.replace("root 644 /var/log/gpuevent.log\n", "admin 644 /var/log/gpuevent.log\n")},
        "FAIL",
        "/var/log/gpuevent.log (admin, 644)",
    ),
    (
        parser.test_files_are_writable_by_root_only,
        unit() | {"stat*": (1, "", "stat: cannot statx '/var/log/gpuevent.log': No such file or directory")},
        "FAIL",
        "missing: stat: cannot statx '/var/log/gpuevent.log'",
    ),
    (parser.test_parser_files_are_unchanged, {"cd*": INSTALLED}, "PASS", ""),
    (
        parser.test_parser_files_are_unchanged,
        {"cd*": (1, INSTALLED + "hwevents/kmsg.py: FAILED\nsha256sum: WARNING: 1 computed checksum did NOT match\n")},
        "FAIL",
        "changed since the installation: hwevents/kmsg.py: FAILED; sha256sum: WARNING: 1",
    ),
    (
        parser.test_parser_files_are_unchanged,
        {"cd*": INSTALLED.replace("./hwevents", "./hwevents/json.py\n./hwevents")},
        "FAIL",
        "hwevents/json.py",
    ),
    (
        parser.test_parser_files_are_unchanged,
        {"cd*": (1, "")},
        "FAIL",
        "/opt/aws/cloudwatch/nvidia/SHA256SUMS is unusable: ''",
    ),
    (parser.test_diagnosis_answers, diagnosis(), "PASS", ""),
    (
        parser.test_diagnosis_answers,
        diagnosis(events={"status": "timeout", "why": "no answer"}, efa={"status": "absent", "why": "no EFA"}),
        "FAIL",
        "probes of gpu-ami-diagnose without an answer: events: no answer",
    ),
    (
        parser.test_diagnosis_answers,
        REAL_DRIVER | diagnosis(gpus={"status": "failed", "why": "nvidia-smi: exit status 9"}),
        "UNPROVEN",
        "the 1 boards are simulated",
    ),
    (
        parser.test_diagnosis_answers,
        REPLICA | diagnosis(gpus={"status": "failed", "why": "nvidia-smi: exit status 9"}),
        "FAIL",
        "without an answer: gpus: nvidia-smi: exit status 9",
    ),
    (
        parser.test_diagnosis_answers,
        REAL_DRIVER | diagnosis(gpus={"status": "failed", "why": "9"}, parser={"status": "failed", "why": "gone"}),
        "FAIL",
        "without an answer: parser: gone; gpus: 9",
    ),
    (
        parser.test_diagnosis_answers,
        diagnosis(gpus={"status": "read", "data": [{}]}),
        "FAIL",
        "GPUs in the diagnosis: expected 2, got 1",
    ),
    (
        parser.test_diagnosis_answers,
        {"gpu-ami-diagnose*": (127, "", "sh: gpu-ami-diagnose: not found")},
        "FAIL",
        "gpu-ami-diagnose exited with status 127 and printed no JSON: sh: gpu-ami-diagnose: not found",
    ),
    (parser.test_logs_are_rotated, {"logrotate*": ROTATED, "cat*": RULES}, "PASS", ""),
    (
        parser.test_logs_are_rotated,
        {"logrotate*": ROTATED, "cat*": RULES.replace("missingok", "copytruncate")},
        "FAIL",
        "/var/log/gpuevent.log is rotated with copytruncate: lines written between copy and truncation are lost",
    ),
    (
        parser.test_logs_are_rotated,
        {"logrotate*": ROTATED.splitlines()[0]},
        "FAIL",
        "no logrotate rule for /var/log/gpuevent.jsonl",
    ),
    (
        parser.test_logs_are_rotated,
        {"logrotate*": (127, "logrotate: not found")},
        "FAIL",
        "logrotate exited with status 127: 'logrotate:",
    ),
    (parser.test_kernel_ring_is_large_enough, {"cat*": "root=/dev/vda1 ro log_buf_len=4M quiet\n"}, "PASS", ""),
    (
        parser.test_kernel_ring_is_large_enough,
        {"cat*": "root=vda ro\n"},
        "FAIL",
        "expected '4M', got 'not set'",
    ),
    (
        parser.test_drivers_own_lines_are_in_the_raw_log,
        {"dmesg*": f"{BANNER}\n", "cat*": f"[    4.1] {BANNER}\n"},
        "PASS",
        "",
    ),
    (
        parser.test_drivers_own_lines_are_in_the_raw_log,
        {"dmesg*": f"{BANNER}\n", "cat*": ""},
        "FAIL",
        f"1 of 1 kernel messages are not in /var/log/gpuevent.log, the first: {BANNER}",
    ),
    (
        parser.test_drivers_own_lines_are_in_the_raw_log,
        {"dmesg*": (1, "")},
        "UNPROVEN",
        "the driver has logged no message in this boot",
    ),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_event_parser(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table)
    assert (found.verdict, message in found.message) == (verdict, True), found
