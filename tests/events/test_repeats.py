"""One fault once: the same lines in several logs, and other faults with the same text (gpu_ami.events.repeats)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.events.test_archives import (
    DMESG,
    DMESG_ISO,
    DMESG_T,
    JOURNAL,
    SYSLOG,
    UTC_LOG,
    XID_31,
    XID_79,
    bug_report,
    codes,
    own_log,
    read,
    tar,
)  # fmt: skip


@pytest.mark.parametrize(
    "sections",
    [
        (SYSLOG, JOURNAL), (SYSLOG, DMESG), (JOURNAL, DMESG), (DMESG, JOURNAL), (JOURNAL, DMESG_T), (DMESG, DMESG_T),
        (SYSLOG, JOURNAL, DMESG), (SYSLOG, SYSLOG), (DMESG, DMESG), (JOURNAL, DMESG_ISO), (UTC_LOG, JOURNAL, DMESG),
        (UTC_LOG, DMESG_T), (DMESG_ISO, DMESG, JOURNAL), (own_log(DMESG), DMESG, JOURNAL), (JOURNAL, own_log(DMESG)),
        (DMESG_ISO, DMESG, own_log(DMESG)), (own_log(DMESG), SYSLOG), (own_log(DMESG), own_log(DMESG)),
    ],
)  # fmt: skip
def test_what_several_logs_have_is_one_event(
    sections: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other in a file, under headings, and as members of an archive."""
    for number, content in enumerate((
        "".join(sections).encode(), bug_report(*((f"part{i}", text) for i, text in enumerate(sections))).encode(),
        tar(**{f"log{i}": text for i, text in enumerate(sections)}),
    )):  # fmt: skip
        events, left_out = read(tmp_path / f"log{number}", content, capsys)
        assert codes(events) == [79, 31], number
        assert events[0]["incident"]["id"] != events[1]["incident"]["id"]
        assert sum(line["count"] for line in left_out["lines"] if line["why"] == "repeated") == 2 * len(sections) - 2
        assert not left_out["may_hide_events"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # The next boot, the same uptime; the next day; another host; a log that was rotated.
        (SYSLOG, SYSLOG.replace("Mar  3", "Mar  4"), 4),
        (JOURNAL, JOURNAL.replace("Mar 03", "Mar 04"), 4),
        (SYSLOG, SYSLOG.replace("node7", "node8"), 4),
        (JOURNAL, JOURNAL.replace("10:16:41", "10:16:42").replace("10:20:03", "10:20:04"), 4),
        (DMESG, DMESG.replace("250011", "250951").replace("1203", "1204"), 3),
        # The journal has one fault more than the ring buffer.
        (JOURNAL, DMESG + f"[ 1300.000100] {XID_31}\n", 3),
        (DMESG, JOURNAL + f"Mar 03 11:45:03 node7 kernel: {XID_31}\n", 3),
        # The ring buffer is of another boot: nothing of the journal.
        (SYSLOG, f"[ 5001.000001] {XID_79}\n", 3),
    ],
)
def test_other_faults_with_the_same_text_count(
    first: str, second: str, expected: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events, _ = read(tmp_path / "log", tar(one=first, two=second), capsys)
    assert len(events) == expected


def test_lines_of_one_log_in_one_second_count_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    burst = f"Mar 03 10:20:03 node7 kernel: {XID_31}\n" * 3
    assert len(read(tmp_path / "log", burst.encode(), capsys)[0]) == 3
    events, _ = read(tmp_path / "log", tar(one=burst, two=burst), capsys)
    assert len(events) == 3


def test_cut_copy_of_a_line_is_that_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = f"Mar 03 10:20:03 node7 kernel: {XID_31}"[:96] + ">\n"
    assert codes(read(tmp_path / "log", tar(one=JOURNAL, two=cut), capsys)[0]) == [79, 31]


def test_failed_initialisation_in_bundle_and_report_is_one_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (
        "NVRM: GPU 0000:5e:00.0: RmInitAdapter failed! (0x62:0x40:1860)",
        "NVRM: GPU 0000:5e:00.0: rm_init_adapter failed, device minor number 3",
    )
    dmesg = "".join(f"[   {20 + i}.000{i}00] {line}\n" for i, line in enumerate(lines * 3))
    journal = "".join(f"Mar 03 10:00:{20 + i} node7 kernel: {line}\n" for i, line in enumerate(lines * 3))
    [event], _ = read(tmp_path / "log", tar(one=journal, two=dmesg, three=DMESG[:0]), capsys)
    own = json.dumps(event | {"time": "2025-03-03T08:00:20Z", "file": None})
    for members in ((own, dmesg, journal), (journal, own), (dmesg, journal, own)):
        events, _ = read(tmp_path / "log", tar(**{f"m{i}": text for i, text in enumerate(members)}), capsys)
        assert len(events) == 1, members


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


STYLES: dict[str, Callable[[float, str], str]] = {
    "dmesg": lambda seconds, text: f"[{seconds:12.6f}] {text}",
    "syslog, uptime": lambda seconds, text: f"Jun 10 {_clock(seconds + 36000)} gpu kernel: [{seconds:12.6f}] {text}",
    "syslog": lambda seconds, text: f"Jun 10 {_clock(seconds + 36000)} gpu kernel: {text}",
    "dmesg -T": lambda seconds, text: f"[Wed Jun 10 {_clock(seconds + 36001)} 2026] {text}",
    "another zone": lambda seconds, text: (
        f"2026-06-10T{_clock(seconds + 43200)}.{round(seconds * 1e6) % 1000000:06d}+02:00 gpu kernel: {text}"
    ),
}


def _storm(style: str, first: int = 0, texts: int = 7) -> str:
    rows = ((1000 + number * 0.011, 0x18 + number % 2, number % texts) for number in range(1300))
    lines = [
        STYLES[style](seconds, f"NVRM: Xid (PCI:0000:{bus:02x}:00): 95, pid={4000 + text}, name=p, Ch {text:08x}")
        for seconds, bus, text in rows
    ]
    return "\n".join(lines[first:]) + "\n"


@pytest.mark.parametrize(
    ("one", "other", "first", "texts"),
    [
        ("dmesg", "syslog, uptime", 0, 7), ("syslog, uptime", "dmesg", 900, 1), ("dmesg", "syslog", 0, 7),
        ("syslog", "another zone", 0, 7), ("syslog, uptime", "dmesg -T", 0, 1), ("dmesg -T", "syslog", 0, 7),
        ("another zone", "dmesg -T", 0, 1),
    ],
)  # fmt: skip
def test_storm_in_two_logs_counts_once(
    one: str, other: str, first: int, texts: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of more lines than one compares: by text and time. first: of the other log, which was rotated."""
    content = tar(a__log=_storm(one, 0, texts), b__log=_storm(other, first, texts))
    events, left_out = read(tmp_path / "a.tar", content, capsys)
    assert len(events) == 1300 and [row["count"] for row in left_out["lines"]] == [1300 - first]
