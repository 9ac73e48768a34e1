"""Progress: nested stages with times, for people and for machines."""

from __future__ import annotations

import io
import json

import pytest

from gpu_ami.log import Progress


def played(mode: str) -> tuple[Progress, list[str]]:
    stream = io.StringIO()
    progress = Progress(mode, stream)
    with pytest.raises(ValueError), progress.stage("outer"):
        progress.note("news")
        with progress.stage("inner"):
            pass
        raise ValueError
    return progress, stream.getvalue().splitlines()


def test_plain_lines_are_indented_and_timed() -> None:
    progress, lines = played("plain")
    assert lines[:3] == ["▸ outer", "  · news", "  ▸ inner"]
    assert lines[3].startswith("  ✓ inner  (") and lines[4].startswith("✗ outer  (")
    assert [(one["stage"], one["outcome"]) for one in progress.times] == [("inner", "done"), ("outer", "failed")]


def test_json_lines() -> None:
    events = [json.loads(line) for line in played("json")[1]]
    assert [one["event"] for one in events] == ["start", "note", "start", "done", "failed"]
    assert events[3]["seconds"] >= 0 and "seconds" not in events[0]


def test_quiet_still_keeps_the_times() -> None:
    progress, lines = played("quiet")
    assert lines == [] and len(progress.times) == 2


def test_terminal_has_colour() -> None:
    assert "\x1b[32m" in played("terminal")[1][3]
