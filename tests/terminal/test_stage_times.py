"""What a stage took is kept for the next run's forecast."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.progress import Expected, Progress
from gpu_ami.terminal.stage_times import FILE, StageTimes


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
