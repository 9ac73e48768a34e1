"""Live output in a terminal."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from gpu_ami.progress import Stage
from gpu_ami.terminal import LiveDisplay, clock

# The live rows of running stages: state, red checks, elapsed time.


def rows(*stages: Stage, width: int = 100) -> list[str]:
    """The rows as a terminal of this width shows them."""
    display = LiveDisplay(io.StringIO(), width=width)
    display.stages.extend(stages)
    shown = io.StringIO()
    Console(file=shown, width=width, color_system=None).print(display.table())
    return [" ".join(line.split()) for line in shown.getvalue().splitlines()]


def ago(seconds: float) -> float:
    return time.monotonic() - seconds


def test_machines_stand_side_by_side() -> None:
    first = Stage("check g5.12xlarge", 0, ago(65), "checks", 12, 188, 2)
    second = Stage("boot p4d.24xlarge", 0, ago(5))
    assert rows(first, second) == [
        "▸ check g5.12xlarge 12 of 188 checks 2 red 1:05",
        "▸ boot p4d.24xlarge 0:05",
    ]


@pytest.mark.parametrize(("total", "shown"), [(0, "3 Install the driver"), (58, "3 of 58 Install the driver")])
def test_steps_are_counted(total: int, shown: str) -> None:
    assert shown in rows(Stage("build x", 0, ago(1), "Install the driver", 3, total))[0]


def test_long_rows_are_cut_not_wrapped() -> None:
    stage = Stage("build x", 0, ago(1), "Install " * 40, 1)
    (row,) = rows(stage, width=60)
    assert "…" in row and row.endswith("0:01")
    assert len(row) <= 56  # a terminal echoes ^C behind it


def test_clock() -> None:
    assert [clock(seconds) for seconds in (0.4, 65, 3725)] == ["0:00", "1:05", "1:02:05"]
