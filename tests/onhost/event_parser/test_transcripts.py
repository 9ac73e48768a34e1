"""Transcripts: the lines of every driver branch behind every prefix, sequences of lines, and quotations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami.events.reader import parser_module

TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"
XIDS = yaml.safe_load((TRANSCRIPTS / "xids.yml").read_text(encoding="utf-8"))
STORIES = [
    story
    for name in ("stories.yml", "initialisation.yml", "programs.yml", "field.yml")
    for story in yaml.safe_load((TRANSCRIPTS / name).read_text(encoding="utf-8"))
]
NEGATIVES = yaml.safe_load((TRANSCRIPTS / "negatives.yml").read_text(encoding="utf-8"))
WITHOUT_BOARD = ("nvidia_driver_without_board.yml", "nvidia_driver_without_board_550.yml")
EXPECTED_BRANCHES = {
    f"R{branch}"
    for branch in (304, 340, 396, 418, 440, 450, 455, 470, 510, 515, 525, 530, 535, 545, 550, 560, 565, 570, 575, 580)
} | {"R590", "R595", "R610"}


def json_line(**members: str) -> Callable[[str], str]:
    key = members.pop("key")
    return lambda text: json.dumps({key: text, **members})


# name → (the line with that prefix, the origin of the event)
PREFIXES: dict[str, tuple[Callable[[str], str], str]] = {
    "bare": (lambda text: text, "unknown"),
    "dmesg": (lambda text: f"[12345.678901] {text}", "unknown"),
    "dmesg, early": (lambda text: f"[    1.678901] {text}", "unknown"),
    "dmesg -T": (lambda text: f"[Wed Jan  3 12:00:00 2024] {text}", "unknown"),
    "dmesg -x": (lambda text: f"kern  :warn  : [12345.678901] {text}", "kernel"),
    "dmesg -x, userland": (lambda text: f"user  :notice: [12345.678901] {text}", "userland"),
    "dmesg -x --time-format iso": (lambda text: f"kern  :err   : 2025-01-25T10:34:54,859532+00:00 {text}", "kernel"),
    "dmesg --raw": (lambda text: f"<4>[12345.678901] {text}", "kernel"),
    "dmesg --raw, userland": (lambda text: f"<12>[12345.678901] {text}", "userland"),
    "dmesg -H": (lambda text: f"[Jan 3 12:00] {text}", "unknown"),
    "dmesg -H, next": (lambda text: f"[  +0.000012] {text}", "unknown"),
    "dmesg --color": (lambda text: f"\x1b[32m[12345.678901] \x1b[0m\x1b[33m{text}\x1b[0m", "unknown"),
    "printk caller": (lambda text: f"[12345.678901][ T1234] {text}", "unknown"),
    "journalctl": (lambda text: f"Jan 03 12:00:00 gpu-01 kernel: {text}", "kernel"),
    "journalctl, injected": (lambda text: f"Jan 03 12:00:00 gpu-01 {text}", "userland"),
    "journalctl short-iso": (lambda text: f"2024-01-03T12:00:00+0100 gpu-01 kernel: {text}", "kernel"),
    "journalctl short-full": (lambda text: f"Wed 2024-01-03 12:00:00 UTC gpu-01 kernel: {text}", "kernel"),
    "journalctl short-monotonic": (lambda text: f"[12345.678901] gpu-01 kernel: {text}", "kernel"),
    "journalctl short-unix": (lambda text: f"1704279600.123456 gpu-01 kernel: {text}", "kernel"),
    "Ubuntu's /var/log/dmesg": (lambda text: f"[12345.678901] kernel: {text}", "kernel"),
    "syslog": (lambda text: f"Jul 20 16:33:31 ip-10-0-59-41 kernel: [12345.678901] {text}", "kernel"),
    "syslog without uptime": (lambda text: f"Jul 20 16:33:31 ip-10-0-59-41 kernel: {text}", "kernel"),
    "syslog, kernel[0]": (lambda text: f"Jul 20 16:33:31 gpu kernel[0]: {text}", "kernel"),
    "syslog, facility and level": (lambda text: f"Jul 20 16:33:31 gpu kern.err kernel: [   55.1] {text}", "kernel"),
    "syslog, level marker": (lambda text: f"Jul 20 16:33:31 gpu kernel: <4>[   55.123456] {text}", "kernel"),
    "no stamp": (lambda text: f"ip-10-0-59-41 kernel: {text}", "kernel"),
    "no stamp, facility": (lambda text: f"gpu kern.err kernel: {text}", "kernel"),
    "rsyslog ISO": (lambda text: f"2024-01-03T12:00:00.123456+01:00 gpu-01 kernel: {text}", "kernel"),
    "rsyslog ISO and uptime": (lambda text: f"2024-01-03T12:00:00.123Z gpu-01 kernel: [ 55.123456] {text}", "kernel"),
    "RFC 5424": (lambda text: f"<4>1 2024-01-03T12:00:00.123456Z gpu-01 kernel - - - {text}", "kernel"),
    "raw kmsg": (lambda text: f"4,12345,678901234,c;{text}", "kernel"),
    "raw kmsg, caller": (lambda text: f"4,12345,678901234,-,caller=T1234;{text}", "kernel"),
    "raw kmsg, userland": (lambda text: f"12,12345,678901234,-;{text}", "userland"),
    "Docker JSON": (lambda text: json.dumps({"log": f"[12345.6] {text}\n", "stream": "stdout"}), "unknown"),
    "fluent-bit JSON": (json_line(key="log", date="1704279600.0"), "unknown"),
    "fluent-bit kmsg": (lambda text: json.dumps({"priority": 4, "sequence": 7, "sec": 5, "msg": text}), "unknown"),
    "CloudWatch export": (json_line(key="message", timestamp="1704279600000"), "unknown"),
    "journal JSON": (json_line(key="MESSAGE", _TRANSPORT="kernel", SYSLOG_FACILITY="0"), "kernel"),
    "CRI": (lambda text: f"2024-01-03T12:00:00.123456789Z stdout F [12345.678901] {text}", "unknown"),
    "dmesg --time-format delta": (lambda text: f"[<    0.000012>] {text}", "unknown"),
    "dmesg -T, German": (lambda text: f"[Mi Okt  6 17:59:27 2026] {text}", "unknown"),
    "dmesg -T, Chinese": (lambda text: f"[\u4e8c 10\u6708  6 17:59:27 2026] {text}", "unknown"),
    "journalctl, German": (lambda text: f"M\u00e4r 05 23:33:35 gpu-01 kernel: {text}", "kernel"),
    "journalctl, French": (lambda text: f"f\u00e9vr. 05 23:33:35 gpu-01 kernel: {text}", "kernel"),
    "journalctl, Japanese": (lambda text: f"10\u6708 06 17:59:27 gpu-01 kernel: {text}", "kernel"),
    "journalctl short-full, CEST": (lambda text: f"Di 2026-10-06 17:59:27 CEST gpu-01 kernel: {text}", "kernel"),
    "journalctl short-full, +03": (lambda text: f"Sal 2026-10-06 17:59:27 +03 gpu-01 kernel: {text}", "kernel"),
    "short-full, injected, PDT": (lambda text: f"Tue 2026-10-06 17:59:27 PDT gpu-01 {text}", "userland"),
    "syslog, day without padding": (lambda text: f"Jul 2 16:33:31 gpu kernel: {text}", "kernel"),
    "placeholder for the time": (lambda text: f"[...] {text}", "unknown"),
    "whole seconds": (lambda text: f"[123] {text}", "unknown"),
    "dmesg -x -T": (lambda text: f"kern  :warn  : [Wed Jan  3 12:00:00 2024] {text}", "kernel"),
    "dmesg through rsyslog, colours escaped": (lambda text: f"#033[32m[12345.678901] #033[0m{text}#033[0m", "unknown"),
    "journalctl short-delta": (lambda text: f"[12345.678901 <    0.000001 >] gpu-01 kernel: {text}", "kernel"),
    "talosctl dmesg": (lambda text: f"192.168.11.119: kern: warning: [2026-04-22T21:30:51.5264Z]: {text}", "kernel"),
    "level before the tag": (lambda text: f"2024-01-15T09:23:40Z CRIT  kernel[1]: {text}", "kernel"),
    "kernel without a colon": (lambda text: f"gpu kernel {text}", "kernel"),
    "relayed syslog": (lambda text: f"Jan  3 12:00:00 10.0.0.5 gpu-01 kernel: {text}", "kernel"),
    "facility before the host": (lambda text: f"2024-01-03T12:00:00 kern.warn gpu01 kernel: [ 1.2] {text}", "kernel"),
    "RFC 5424, structured data": (
        lambda text: f'<4>1 2024-01-03T12:00:00.1Z gpu-01 kernel - - [timeQuality tzKnown="1"] \ufeff{text}', "kernel"),
    "serial console": (lambda text: f"ip-10-0-0-1 login: [ 1234.567890] {text}", "unknown"),
    "VMkernel": (lambda text: f"2024-01-03T12:00:00.123Z cpu14:2098437){text}", "kernel"),
    "grep in several files": (lambda text: f"/var/log/messages:Jan  5 10:00:00 gpu kernel: {text}", "kernel"),
    "grep -n": (lambda text: f"1234:[12345.678901] {text}", "unknown"),
    "pdsh": (lambda text: f"node01: [12345.678901] {text}", "unknown"),
    "docker compose": (lambda text: f"gpu-mon-1  | [12345.678901] {text}", "unknown"),
    "docker compose, no time": (lambda text: f"gpu-mon-1  | {text}", "unknown"),
    "kubectl logs --prefix": (lambda text: f"[pod/dmesg-abcde/dmesg] [12345.678901] {text}", "unknown"),
    "aws logs tail": (lambda text: f"2024-01-03T12:00:00.123+00:00 i-0123456789abcdef0 [  12.3] {text}", "unknown"),
    "aws logs tail, no uptime": (lambda text: f"2024-01-03T12:00:00+00:00 i-0123456789abcdef0 {text}", "unknown"),
    "aws logs --output text": (lambda text: f"EVENTS\t3888012345\t1704279600123\t[  12.3] {text}", "unknown"),
    "logcli": (lambda text: f'2024-01-03T12:00:00Z {{host="gpu", transport="kernel"}} {text}', "kernel"),
    "Kibana": (lambda text: f"Jan 3, 2024 @ 12:00:00.000 gpu-01 kernel: {text}", "kernel"),
    "CSV of Logs Insights": (
        lambda text: '2024-01-03 12:00:00.000,"' + f"[  12.3] {text}".replace('"', '""') + '"', "unknown"),
    "CSV, all quoted": (
        lambda text: '"2024-01-03 12:00:00.000","gpu-01","' + text.replace('"', '""') + '","x"', "unknown"),
    "Kubernetes metadata": (
        lambda text: json.dumps({"log": f"[12345.6] {text}", "kubernetes": {"pod_name": "a", "labels": {"app": "b"}}}),
        "unknown"),
    "fluent-bit journal": (json_line(key="MESSAGE", TRANSPORT="kernel", SYSLOG_FACILITY="0"), "kernel"),
    "fluent-bit stdout": (
        lambda text: f'[0] kmsg.0: [[1704279600.123, {{}}], {{"msg"=>{json.dumps(text)}, "fac"=>"kern"}}]', "kernel"),
    "fluentd stdout": (
        lambda text: "2024-01-03 12:00:00.000000000 +0000 kernel.log: " + json.dumps({"message": text}), "unknown"),
    "Talos KmsgLogConfig": (
        lambda text: json.dumps({"msg": text, "talos-level": "warn", "facility": "kern", "seq": 7}), "kernel"),
    "filebeat": (lambda text: json.dumps({"message": text, "log": {"syslog": {"appname": "kernel"}}}), "kernel"),
    "Vector": (json_line(key="message", appname="kernel", facility="kern", severity="warning"), "kernel"),
    "GELF": (json_line(key="short_message", version="1.1", host="gpu", facility="kern"), "kernel"),
    "Google Cloud": (
        lambda text: json.dumps({"jsonPayload": {"MESSAGE": text, "_TRANSPORT": "kernel"}, "severity": "WARNING"}),
        "kernel"),
    "Elasticsearch hit": (lambda text: json.dumps({"_source": {"message": f"[ 1.2] {text}"}}), "unknown"),
    "Loki": (lambda text: json.dumps({"stream": {"host": "a"}, "values": [["1704279600123456789", text]]}), "unknown"),
    "Splunk": (json_line(key="event", sourcetype="linux:kernel"), "unknown"),
    "JSON in JSON": (lambda text: json.dumps({"message": json.dumps({"log": f"[12345.6] {text}"})}), "unknown"),
    "JSON after a stamp": (lambda text: "2024-01-03T12:00:00Z gpu-01 " + json.dumps({"log": text}), "unknown"),
    "CRI with JSON": (lambda text: "2024-01-03T12:00:00.1Z stdout F " + json.dumps({"log": text}), "unknown"),
    "a member of a document": (lambda text: f'    "message": {json.dumps(text)},', "unknown"),
    "journalctl -o export | grep": (lambda text: f"MESSAGE={text}", "unknown"),
    "journalctl -o verbose | grep": (lambda text: f"    MESSAGE={text}", "unknown"),
    "printk caller after a space": (lambda text: f"[12345.678901] [ T1234] {text}", "unknown"),
    "tag before dmesg -T": (lambda text: f"gpu kernel: [Wed Jan  3 12:00:00 2024] {text}", "kernel"),
    "year first": (lambda text: f"2024 Jan  3 12:00:00 gpu-01 kernel: {text}", "kernel"),
    "year in the middle": (lambda text: f"Jan  3 2024 12:00:00 gpu-01 kernel: {text}", "kernel"),
    "kernel.warning": (lambda text: f"2024-01-03T12:00:00Z gpu-01 kernel.warning: {text}", "kernel"),
    "pdsh, dmesg -T": (lambda text: f"node01: [Wed Jan  3 12:00:00 2024] {text}", "unknown"),
    "pdsh, dmesg --time-format iso": (lambda text: f"node01: 2024-01-03T12:00:00,123456+00:00 {text}", "unknown"),
    "kubectl logs --timestamps": (lambda text: f"2024-01-03T12:00:00.123456789Z [12345.6] {text}", "unknown"),
    "CR at the end": (lambda text: f"[12345.678901] {text}\r", "unknown"),
}  # fmt: skip


CATALOGUE = parser_module("catalogue").Catalogue(policy_path=None)


def events_of(*lines: str, quoted: bool = False) -> list[dict[str, Any]]:
    parser = parser_module("textlog").TextParser(CATALOGUE, quoted=quoted)
    events = [event for line in lines for event in parser.feed(line.encode() + b"\n")]
    return events + list(parser.finish())


def assert_holds(event: dict[str, Any], expected: dict[str, Any]) -> None:
    for key, value in expected.items():
        if key == "follow_ups":
            assert len(event["follow_ups"]) == value
        elif (
            key in ("incident", "count")
            or (key == "details" and "matched" in value)
            or (key == "details" and "head_lost" in value)
        ):
            assert {name: event[key][name] for name in value} == value, event[key]
        else:
            assert event[key] == value, f"{key}: {event[key]!r} instead of {value!r}"


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_branch_behind_every_prefix(prefix: str) -> None:
    wrap, origin = PREFIXES[prefix]
    for case in XIDS:
        if prefix == "journalctl, injected" and case["text"].startswith("NVRM: NVRM"):
            continue  # journald removes the first of the two
        [event] = events_of(wrap(case["text"]))
        expected = {
            "kind": "xid",
            "line": 1,
            "origin": origin,
            "pid": None,
            "process": None,
            "mig_gi": None,
            "mig_ci": None,
        }
        assert_holds(event, expected | case["expect"])


def test_transcripts_cover_the_driver_branches() -> None:
    assert {case["branch"].split()[0].rstrip(",") for case in XIDS} >= EXPECTED_BRANCHES
    assert all(case["source"] for case in XIDS + STORIES)


def test_lines_from_the_field_are_many() -> None:
    field = yaml.safe_load((TRANSCRIPTS / "field.yml").read_text(encoding="utf-8"))
    assert sum(len(story["expect"]) for story in field if "composed" not in story["source"]) >= 50


def test_there_are_enough_negatives() -> None:
    assert len({case["line"] for case in NEGATIVES}) >= 40


@pytest.mark.parametrize("case", NEGATIVES, ids=lambda case: f"{case['why']}: {case['line'][:40]}")
def test_no_event(case: dict[str, str]) -> None:
    assert events_of(case["line"]) == []


def test_negatives_in_one_file_are_no_events() -> None:
    assert events_of(*(case["line"] for case in NEGATIVES)) == []


@pytest.mark.parametrize("name", WITHOUT_BOARD)
def test_driver_without_a_board_is_no_event(name: str) -> None:
    lines = yaml.safe_load((TRANSCRIPTS / name).read_text(encoding="utf-8"))["kernel"]
    assert any("No NVIDIA GPU found" in line for line in lines)
    assert events_of(*(f"[   12.345678] {line}" for line in lines)) == []


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story["name"])
def test_story(story: dict[str, Any]) -> None:
    events = events_of(*story["lines"], quoted=story.get("pasted", False))
    assert [(event["line"], event["code"]) for event in events] == [
        (expected["line"], expected.get("code", event["code"]))
        for expected, event in zip(story["expect"], events, strict=True)
    ]
    for event, expected in zip(events, story["expect"], strict=True):
        assert_holds(event, expected)


def test_line_numbers_count_every_line() -> None:
    lines = [
        "noise",
        "",
        "[1.0] NVRM: Xid (PCI:0000:00:1e): 31, a",
        "x" * 200000,
        "[2.0] NVRM: Xid (PCI:0000:00:1e): 13, b",
    ]
    assert [(event["line"], event["code"]) for event in events_of(*lines)] == [(3, 31), (5, 13)]


def test_events_of_our_own_log_are_read() -> None:
    [event] = events_of("[1.0] NVRM: Xid (PCI:0000:00:1e): 31, a")
    assert events_of("noise", json.dumps(event)) == [event | {"line": 2}]


def test_utc_time_needs_a_time_zone() -> None:
    text = "NVRM: Xid (PCI:0000:00:1e): 31, a"
    [zoned] = events_of(f"2024-01-03T12:00:00.5+01:00 gpu kernel: {text}")
    [local] = events_of(f"Jan  3 12:00:00 gpu kernel: {text}")
    [named] = events_of(f"Tue 2024-01-03 12:00:00 CET gpu kernel: {text}")
    [hours] = events_of(f"Tue 2024-01-03 12:00:00 -03 gpu kernel: {text}")
    [german] = events_of(f"Okt 06 12:00:00 gpu kernel: {text}")
    assert zoned["time"] == "2024-01-03T11:00:00.500000Z"
    assert (named["time"], named["stamp"]) == (None, "2024-01-03 12:00:00 CET")  # CET, IST: ambiguous
    assert hours["time"] == "2024-01-03T15:00:00.000000Z"
    assert (german["time"], german["stamp"]) == (None, "Okt 06 12:00:00")
    assert (local["time"], local["stamp"]) == (None, "Jan  3 12:00:00")


@pytest.mark.parametrize("stamp", ["9999-99-99T99:99:99Z", "2024-13-45T25:61:61+99:99"])
def test_event_with_an_impossible_time_is_kept(stamp: str) -> None:
    [event] = events_of(f"{stamp} gpu kernel: NVRM: Xid (PCI:0000:00:1e): 31, a")
    assert event["code"] == 31
