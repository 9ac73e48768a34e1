"""Progress: nested stages with times, for people and for machines."""

from __future__ import annotations

import io
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpu_ami.progress import Progress, Stage
from gpu_ami.terminal import LiveDisplay


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


def test_a_stage_names_the_one_that_it_waited_for() -> None:
    """Machines are side by side: each goes on from its own last stage, the first from what the run did before."""
    progress = Progress("json", io.StringIO())

    def machine(name: str) -> None:
        for verb in ("launch", "boot"):
            with progress.stage(f"{verb} {name}", name):
                pass

    for name in ("plan", "build"):
        with progress.stage(name), progress.stage(f"{name} first"):
            pass
    with progress.stage("prove"):
        with ThreadPoolExecutor(1) as pool:  # one thread for two machines: neither waits for the other's stages
            list(pool.map(machine, ("a", "b")))
        for name in ("remove", "sweep"):
            with progress.stage(name):
                pass
    waited = {str(row["stage"]): row["after"] for row in progress.times}
    assert waited == {
        "plan first": "", "plan": "", "build first": "", "build": "plan",
        "launch a": "build", "boot a": "launch a", "launch b": "build", "boot b": "launch b",
        "remove": "", "sweep": "remove", "prove": "build",
    }  # fmt: skip
    lines = [json.loads(line) for line in progress.stream.getvalue().splitlines()]  # type: ignore[attr-defined]
    start = next(line for line in lines if line["text"] == "boot b")
    assert start == {"event": "start", "text": "boot b", "level": 0, "machine": "b", "after": "launch b"}


def test_quiet_still_keeps_the_times() -> None:
    progress, lines = played("quiet")
    assert lines == [] and len(progress.times) == 2


def test_update_is_shown_on_a_terminal_alone() -> None:
    for mode in ("plain", "json", "quiet"):
        progress = Progress(mode, io.StringIO())
        with progress.stage("build"):
            before = progress.stream.getvalue()  # type: ignore[attr-defined]
            progress.update("Install the driver", step=3, total=9)
            assert progress.stream.getvalue() == before  # type: ignore[attr-defined]


class Shown:
    """A display that keeps every stage."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []

    def begin(self, stage: Stage) -> None:
        self.stages.append(stage)

    def end(self, stage: Stage) -> None: ...
    def line(self, text: str, kind: str) -> None: ...
    def close(self) -> None: ...


def test_update_belongs_to_the_stage_of_its_own_thread() -> None:
    shown = Shown()
    progress = Progress("terminal", display=lambda _stream: shown)

    def machine(name: str) -> None:
        with progress.stage(name):
            progress.update(step=len(name))

    with progress.stage("prove"):
        threads = [threading.Thread(target=machine, args=(name,)) for name in ("a", "bb")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        progress.update(step=7)
    assert {stage.name: stage.step for stage in shown.stages} == {"a": 1, "bb": 2, "prove": 7}
    assert [row["level"] for row in progress.times] == [0, 0, 0]


def test_stage_inside_a_machine_s_is_of_that_machine() -> None:
    progress = Progress("quiet")
    with progress.stage("prove"), progress.stage("check g5.12xlarge", "g5.12xlarge"), progress.stage("reboot"):
        pass
    machines = {row["stage"]: row["machine"] for row in progress.times}
    assert machines == {"prove": "", "check g5.12xlarge": "g5.12xlarge", "reboot": "g5.12xlarge"}


def test_terminal_shows_finished_lines_in_colour_and_ends_with_a_visible_cursor() -> None:
    stream = io.StringIO()
    progress = Progress("terminal", stream, display=LiveDisplay)
    with pytest.raises(KeyboardInterrupt), progress.stage("outer"):
        with progress.stage("inner"):
            pass
        raise KeyboardInterrupt
    progress.close()
    text = stream.getvalue()
    assert "\x1b[32m  ✓ inner" in text and "\x1b[31m✗ outer" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is hidden once and shown again
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_close_ends_the_display_of_a_stage_that_still_runs() -> None:
    stream = io.StringIO()
    progress = Progress("terminal", stream, display=LiveDisplay)
    stage = progress.stage("left running")
    stage.__enter__()
    progress.close()
    assert stream.getvalue().count("\x1b[?25h") == 1
    size = len(stream.getvalue())
    time.sleep(0.6)  # no thread of the display writes any more
    assert len(stream.getvalue()) == size
