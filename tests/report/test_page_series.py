"""The sparklines of report.html: a path for each GPU and boot, gaps, dots, ranges with units."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpu_ami.report.page_series import sparklines
from tests.report.examples import a_check, a_host
from validator.results import MetricSeries


def series(name: str, gpu: int | None, *values: Any, start: float = 600.0) -> MetricSeries:
    return MetricSeries(f"nvidia_smi_{name}", gpu, start, 60, values)


def drawn(*entries: MetricSeries) -> Any:
    return sparklines(a_host("g5.12xlarge", a_check("metrics", series=entries)))


def test_a_line_for_each_gpu_on_common_axes() -> None:
    (line,) = drawn(series("power_draw", 0, 50.0, 60.0), series("power_draw", 1, 55.0, 50.5))
    assert line.paths == ["M2.0 22.0L98.0 2.0", "M2.0 12.0L98.0 21.0"]
    assert (line.name, line.range, line.is_constant) == ("power_draw", "50 to 60 W", False)
    assert line.title == "power_draw of g5.12xlarge: 50 to 60 W; 2 GPUs, 4 datapoints"


def test_a_restart_leaves_a_gap() -> None:
    before, after = series("temperature_gpu", 0, 30.0, 31.0), series("temperature_gpu", 0, 40.0, start=1200.0)
    (line,) = drawn(before, after)
    assert line.paths == ["M2.0 22.0L11.6 20.0", "M98.0 2.0h.01"]
    assert "1 GPU, 3 datapoints" in line.title


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, "12"])
def test_what_is_no_number_is_a_gap(missing: object) -> None:
    (line,) = drawn(series("utilization_gpu", 0, 1.0, missing, 3.0))
    assert len(line.paths) == 2 and line.range == "1 to 3 %"


def test_constant_values_are_said_as_such() -> None:
    (line,) = drawn(series("memory_total", 0, 23028.0), series("memory_total", 1, 23028.0))
    assert line.is_constant and line.range == "23028 MiB"
    assert set(line.paths) == {"M50.0 12.0h.01"}


def test_a_metric_of_all_gpus_is_shown_where_there_is_none_by_gpu() -> None:
    lines = drawn(series("power_draw", None, 1.0), series("power_draw", 0, 2.0), series("odd_metric", None, 3.0))
    assert [(line.name, line.range) for line in lines] == [("power_draw", "2 W"), ("odd_metric", "3")]


def test_a_machine_without_datapoints_has_no_sparklines() -> None:
    assert sparklines(a_host()) == [] == drawn(series("power_draw", 0))
