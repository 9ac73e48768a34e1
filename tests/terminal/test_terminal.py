"""Live output in a terminal, and how long stages take."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from gpu_ami.progress import Expected, Progress, Stage
from gpu_ami.terminal.live import LiveDisplay, clock
from gpu_ami.terminal.stage_times import FILE, StageTimes

# What a stage took is kept for the next run's forecast.


def ran(*stages: tuple[str, float, str], steps: dict[str, int] | None = None) -> Progress:
    progress = Progress("quiet")
    progress.times += [{"stage": name, "seconds": seconds, "outcome": outcome} for name, seconds, outcome in stages]
    progress.steps.update(steps or {})
    return progress


def test_next_run_expects_what_the_last_one_took(home: Path) -> None:
    StageTimes(home).keep(ran(("build x", 300.0, "done"), steps={"build x": 58}))
    StageTimes(home).keep(ran(("build x", 200.0, "done"), ("boot y", 9.0, "done"), steps={"build x": 57}))
    times = StageTimes(home)
    assert times.expected("build x") == Expected(200.0, 57)
    assert times.expected("boot y") == Expected(9.0, 0)
    assert times.expected("boot z") is None


def test_ids_are_no_part_of_the_name(home: Path) -> None:
    StageTimes(home).keep(ran(("prove ami-0123456789abcdef0 on g5.12xlarge", 60.0, "done")))
    assert StageTimes(home).expected("prove ami-0fedcba9876543210 on g5.12xlarge") == Expected(60.0)


def test_failed_and_short_stages_are_not_kept(home: Path) -> None:
    StageTimes(home).keep(ran(("build x", 300.0, "failed"), ("plan x", 0.2, "done")))
    assert not (home / FILE).exists()


@pytest.mark.parametrize("text", ["", "[]", '{"stages": 1}', '{"stages": {"build x": {"seconds": "long"}}}'])
def test_damaged_file_is_as_good_as_none(home: Path, text: str) -> None:
    (home / FILE).write_text(text)
    assert StageTimes(home).expected("build x") is None
    StageTimes(home).keep(ran(("build x", 3.0, "done")))
    assert StageTimes(home).expected("build x") == Expected(3.0)


# The live rows of running stages: state, red checks, elapsed and expected time.


def rows(*stages: Stage, width: int = 100) -> list[str]:
    """The rows as a terminal of this width shows them."""
    display = LiveDisplay(io.StringIO(), width=width)
    display._stages.extend(stages)
    shown = io.StringIO()
    Console(file=shown, width=width, color_system=None).print(display.table())
    return [" ".join(line.split()) for line in shown.getvalue().splitlines()]


def ago(seconds: float) -> float:
    return time.monotonic() - seconds


def test_machines_stand_side_by_side() -> None:
    first = Stage("check g5.12xlarge", 0, ago(65), Expected(130.0), "checks", 12, 188, 2)
    second = Stage("boot p4d.24xlarge", 0, ago(5))
    assert rows(first, second) == [
        "▸ check g5.12xlarge 12 of 188 checks 2 red 1:05 of about 2:10",
        "▸ boot p4d.24xlarge 0:05",
    ]


@pytest.mark.parametrize(
    ("step", "expected", "shown"),
    [
        (3, None, "3 Install the driver"),
        (3, Expected(60.0, 58), "3 of 58 Install the driver"),
        (60, Expected(60.0, 58), "60 of 60 Install the driver"),
    ],
)
def test_number_of_tasks_comes_from_the_last_run(step: int, expected: Expected | None, shown: str) -> None:
    assert shown in rows(Stage("build x", 0, ago(1), expected, "Install the driver", step))[0]


def test_long_rows_are_cut_not_wrapped() -> None:
    stage = Stage("build x", 0, ago(1), None, "Install " * 40, 1)
    (row,) = rows(stage, width=60)
    assert "…" in row and row.endswith("0:01")
    assert len(row) <= 56  # a terminal echoes ^C behind it


def test_clock() -> None:
    assert [clock(seconds) for seconds in (0.4, 65, 3725)] == ["0:00", "1:05", "1:02:05"]
