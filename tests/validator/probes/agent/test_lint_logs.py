"""The linter's rules for logs: each seen once, with the limits of CloudWatch Logs."""

from __future__ import annotations

from typing import Any

import pytest

from validator.probes.agent.lint import logs_findings

FILE = {
    "file_path": "/var/log/gpuevent.jsonl", "log_group_name": "/ec2/json", "log_stream_name": "{instance_id}",
    "retention_in_days": 90, "timestamp_format": "%Y", "timezone": "UTC",
}  # fmt: skip
FILES = {"/var/log/gpuevent.jsonl", "/b"}
ENTRY = "logs.logs_collected.files.collect_list[0]"
SECOND = "logs.logs_collected.files.collect_list[1]"
JOURNAL = "logs.logs_collected.journald.collect_list[0]"


def logs(*entries: dict[str, Any], **section: Any) -> dict[str, Any]:
    return {"logs_collected": {"files": {"collect_list": list(entries)}}} | section


def log_file(**others: Any) -> dict[str, Any]:
    return logs({key: value for key, value in (FILE | others).items() if value is not None})


def journald(**entry: Any) -> dict[str, Any]:
    return {"logs_collected": {"journald": {"collect_list": [entry]}}}


def test_correct_sections_have_no_findings() -> None:
    longest = {"log_group_name": "g" * 512, "log_stream_name": "s" * 493 + "{instance_id}"}
    for section in (log_file(), log_file(**longest), log_file(timezone="Local", log_group_class="STANDARD")):
        assert list(logs_findings(section, FILES)) == []
    other = FILE | {"file_path": "/b", "log_stream_name": "{instance_id}-b"}
    assert list(logs_findings(logs(FILE, other, force_flush_interval=5), FILES)) == []
    assert list(logs_findings(logs(FILE, {**other, "retention_in_days": -1}), FILES)) == []
    inline = {"type": "include", "expression": "NVRM(?i:xid)"}
    assert list(logs_findings(log_file(filters=[inline], encoding="utf-16"), FILES)) == []
    assert list(logs_findings(journald(log_group_name="k", priority="err", units=["a.service"]), None)) == []


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"logs_collected": {"files": {"collect_list": 5}}},
            "logs.logs_collected.files.collect_list: expected a list, got int",
        ),
        ({}, "error: logs.logs_collected: missing or empty"),
        ({"logs_collected": {"files": {"collect_list": []}}}, "files.collect_list: missing or empty"),
        ({"logs_collected": {"journald": {}}}, "journald.collect_list: missing or empty"),
        (log_file(encoding="klingon"), f"{ENTRY}.encoding: expected a character encoding, as in utf-8, got 'klingon'"),
        (log_file(multi_line_start_pattern="("), f"{ENTRY}.multi_line_start_pattern: not a regular expression"),
        (
            log_file(filters=[{"type": "include", "expression": "(?!x)y"}]),
            f"{ENTRY}.filters[0].expression: expected a regular expression of Go (RE2), which has no (?!",
        ),
        (
            logs(
                FILE | {"log_group_class": "STANDARD"},
                FILE | {"file_path": "/b", "log_stream_name": "b", "log_group_class": "INFREQUENT_ACCESS"},
            ),
            f"error: {SECOND}.log_group_class: group /ec2/json: expected 'STANDARD' as in {ENTRY}",
        ),
        ({"logs_collected": {"journald": []}}, "logs.logs_collected.journald: expected an object, got list"),
        (log_file(file_path="gpuevent.log"), f"{ENTRY}.file_path: expected an absolute path, got 'gpuevent.log'"),
        (log_file(file_path="/var/log/gpuevents.jsonl"), "nothing on the image writes /var/log/gpuevents.jsonl; did"),
        (log_file(log_group_name=None), f"warning: {ENTRY}.log_group_name: missing"),
        (
            log_file(log_group_name="/ec2/gpu log:1"),
            "name: expected letters, digits and . - _ / #, got ' ' ':'",
        ),
        (log_file(log_group_name="g" * 513), f"{ENTRY}.log_group_name: expected 1 to 512 characters, got 513"),
        (log_file(log_group_name="aws/gpu"), f"{ENTRY}.log_group_name: names that start with aws/ are reserved"),
        (log_file(log_group_name=7), f"{ENTRY}.log_group_name: expected a string, got int"),
        (log_file(log_stream_name="a:b*"), "expected any characters except : and *, got '*' ':'"),
        (log_file(log_stream_name=""), f"{ENTRY}.log_stream_name: expected 1 to 512 characters, got 0"),
        (log_file(log_stream_name="s" * 500 + "{instance_id}"), "expected 1 to 512 characters, got 519"),
        (log_file(log_stream_name="{instanceid}"), "got {instanceid}; did you mean {instance_id}?"),
        (log_file(retention_in_days=31), f"error: {ENTRY}.retention_in_days: expected one of -1, 1, 3, 5, 7,"),
        (log_file(retention_in_days="90"), "3653, got '90'"),
        (log_file(timestamp_format=None), f"warning: {ENTRY}: no timestamp_format"),
        (
            log_file(timezone="Europe/Berlin"),
            f"error: {ENTRY}.timezone: expected Local or LOCAL or UTC, got 'Europe/Berlin'",
        ),
        (log_file(timezone="utc"), f"error: {ENTRY}.timezone: expected Local or LOCAL or UTC, got 'utc'"),
        (log_file(time_zone="UTC"), f"error: {ENTRY}.time_zone: unknown key; did you mean timezone?"),
        (log_file(log_group_class="CHEAP"), f"{ENTRY}.log_group_class: expected STANDARD or INFREQUENT_ACCESS, got"),
        (log_file(filters={}), f"{ENTRY}.filters: expected a list, got dict"),
        (log_file(filters=[{"type": "drop"}]), f"{ENTRY}.filters[0].type: expected include or exclude, got 'drop'"),
        (log_file(filters=[{"type": "include"}]), f"{ENTRY}.filters[0].expression: expected a regular expression"),
        (journald(log_group_name="k", priority="warn"), f"error: {JOURNAL}.priority: expected one of emerg,"),
        (log_file() | {"log_stream_name": "a*"}, "error: logs.log_stream_name: expected any characters except"),
        (
            logs(FILE, FILE | {"file_path": "/b"}),
            f"{SECOND}: duplicate stream /ec2/json/{{instance_id}}, already",
        ),
        (
            logs(*[{"file_path": "/b", "log_group_name": "g"}] * 2, log_stream_name="s"),
            f"error: {SECOND}: duplicate stream g/s",
        ),
        (
            logs(FILE, FILE | {"file_path": "/b", "log_stream_name": "b", "retention_in_days": 7}),
            f"error: {SECOND}.retention_in_days: group /ec2/json: expected 90 as in {ENTRY}, got 7",
        ),
        ({"logs_collected": []}, "error: logs.logs_collected: expected an object, got list"),
    ],
)
def test_each_rule(section: dict[str, Any], message: str) -> None:
    findings = [str(finding) for finding in logs_findings(section, FILES)]
    assert any(message in finding for finding in findings), findings
