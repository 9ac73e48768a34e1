"""The rows of the table of measurements: limits, groups, and GPUs that lack one."""

from __future__ import annotations

from typing import Any

import pytest

from validator import measurement
from validator.measurement import BY_NAME, MEASUREMENTS, Group, Lacks

BOARD: Any = {
    "memory_mib": 24576, "power_limit_w": 300.0, "pcie_gen": 4, "pcie_width": 16,
    "max_clock_mhz": {"graphics": 1710, "sm": 1710, "memory": 6251, "video": 1635},
}  # fmt: skip


@pytest.mark.parametrize("name", BY_NAME)
def test_limits_of_a_board_leave_room(name: str) -> None:
    row = BY_NAME[name]
    assert row.least < row.most(BOARD, {}) and row.paths


def test_limits_are_those_of_the_board() -> None:
    assert BY_NAME["power_draw"].most(BOARD, {}) == pytest.approx(330.0)
    assert BY_NAME["clocks_current_memory"].most(BOARD, {}) == 6251
    assert (
        BY_NAME["memory_used"].most(BOARD, {}) == 24576 and BY_NAME["memory_used"].most(BOARD, {"memory_total": 1}) == 1
    )


def test_names_stand_once_and_every_group_shows_some() -> None:
    assert len(BY_NAME) == len(MEASUREMENTS)
    assert [group for group, _ in measurement.grouped(list(BY_NAME))] == list(Group)
    assert dict(measurement.grouped(["memory_used", "of_a_site"])) == {Group.MEMORY: ["memory_used"]}


def test_gpus_that_lack_some() -> None:
    assert measurement.lacking(Lacks.WITH_MIG) == {"utilization_gpu", "utilization_memory"}
    assert measurement.lacking(Lacks.EVERY) == {"fan_speed"}
    absent_of_a_fraction = {"power_draw", "temperature_gpu", "pcie_link_gen_current", "pcie_link_width_current"}
    assert measurement.lacking(Lacks.OF_A_FRACTION) == absent_of_a_fraction
    assert not measurement.lacking(*Lacks) & {"memory_total", "clocks_current_sm"}
