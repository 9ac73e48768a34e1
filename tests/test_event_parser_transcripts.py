"""The grammar against transcripts: every branch behind every prefix, stories, and no event from a quotation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami.events import parser_module

TRANSCRIPTS = Path(__file__).parent / "transcripts"
XIDS = yaml.safe_load((TRANSCRIPTS / "xids.yml").read_text(encoding="utf-8"))
STORIES = yaml.safe_load((TRANSCRIPTS / "stories.yml").read_text(encoding="utf-8"))
NEGATIVES = yaml.safe_load((TRANSCRIPTS / "negatives.yml").read_text(encoding="utf-8"))
WANTED_BRANCHES = {
    f"R{branch}"
    for branch in (304, 340, 396, 418, 440, 450, 455, 470, 510, 515, 525, 530, 535, 545, 550, 560, 565, 570, 575, 580)
} | {"R590", "R595", "R610"}


def json_line(**members: str) -> Callable[[str], str]:
    key = members.pop("key")
    return lambda text: json.dumps({key: text, **members})


# name → (how a text stands behind the prefix, whose line it then is)
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
    "CR at the end": (lambda text: f"[12345.678901] {text}\r", "unknown"),
}  # fmt: skip


CATALOGUE = parser_module("catalogue").Catalogue(policy_path=None)


def events_of(*lines: str) -> list[dict[str, Any]]:
    parser = parser_module("textlog").TextParser(CATALOGUE)
    found = [event for line in lines for event in parser.feed(line.encode() + b"\n")]
    return found + list(parser.finish())


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
            continue  # journald takes the first of the two away
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
    assert {case["branch"].split()[0].rstrip(",") for case in XIDS} >= WANTED_BRANCHES
    assert all(case["source"] for case in XIDS + STORIES)


def test_there_are_enough_negatives() -> None:
    assert len({case["line"] for case in NEGATIVES}) >= 40


@pytest.mark.parametrize("case", NEGATIVES, ids=lambda case: f"{case['why']}: {case['line'][:40]}")
def test_no_event(case: dict[str, str]) -> None:
    assert events_of(case["line"]) == []


def test_negatives_in_one_file_stay_none() -> None:
    assert events_of(*(case["line"] for case in NEGATIVES)) == []


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story["name"])
def test_story(story: dict[str, Any]) -> None:
    events = events_of(*story["lines"])
    assert [(event["line"], event["code"]) for event in events] == [
        (one["line"], one["code"]) for one in story["expect"]
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


def test_own_log_is_read_back() -> None:
    [event] = events_of("[1.0] NVRM: Xid (PCI:0000:00:1e): 31, a")
    assert events_of("noise", json.dumps(event)) == [event | {"line": 2}]


def test_utc_time_only_where_the_stamp_has_a_zone() -> None:
    text = "NVRM: Xid (PCI:0000:00:1e): 31, a"
    [zoned] = events_of(f"2024-01-03T12:00:00.5+01:00 gpu kernel: {text}")
    [local] = events_of(f"Jan  3 12:00:00 gpu kernel: {text}")
    [named] = events_of(f"Tue 2024-01-03 12:00:00 CET gpu kernel: {text}")
    [hours] = events_of(f"Tue 2024-01-03 12:00:00 -03 gpu kernel: {text}")
    [german] = events_of(f"Okt 06 12:00:00 gpu kernel: {text}")
    assert zoned["time"] == "2024-01-03T11:00:00.500000Z"
    assert (named["time"], named["stamp"]) == (None, "2024-01-03 12:00:00 CET")  # nobody knows what CET or IST is
    assert hours["time"] == "2024-01-03T15:00:00.000000Z"
    assert (german["time"], german["stamp"]) == (None, "Okt 06 12:00:00")
    assert (local["time"], local["stamp"]) == (None, "Jan  3 12:00:00")


@pytest.mark.parametrize("stamp", ["9999-99-99T99:99:99Z", "2024-13-45T25:61:61+99:99"])
def test_impossible_time_costs_the_time_not_the_event(stamp: str) -> None:
    [event] = events_of(f"{stamp} gpu kernel: NVRM: Xid (PCI:0000:00:1e): 31, a")
    assert event["code"] == 31
