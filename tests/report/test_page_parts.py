"""Parts of the report's page: series, bill of materials."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import pipeline
from gpu_ami.report import page_materials
from gpu_ami.report.page_materials import Origin
from gpu_ami.report.page_series import sparklines
from tests.release import examples
from tests.report.examples import a_check, a_host, a_report
from validator.results import MetricSeries

# The sparklines of report.html: a path for each GPU and boot, gaps, dots, ranges with units.


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


# The bill of materials as report.html shows it: by kind and origin, from any file that is JSON.


def test_components_of_a_real_bill_by_origin(tmp_path: Path) -> None:
    pipeline.certify_stage(examples.write_folder(tmp_path), tmp_path)
    materials = page_materials.load(tmp_path)
    assert materials
    assert materials.packages == [
        Origin("http://deb.debian.org/debian bookworm/main", [("libc6", "2:2.36-9+deb12u10")]),
        Origin("repository not recorded", [("nvidia-utils", "580.1")]),
    ]
    assert materials.modules == [Origin("DKMS module signing key", [("nvidia", "580.1")])]
    assert [(noun, count) for noun, count, _ in materials.kinds] == [("package", 1 + 1), ("kernel module", 1)]
    assert materials.serial.startswith("urn:uuid:")
    page = (tmp_path / "report.html").read_text()
    assert '<a href="bom.cdx.json">' in page and "2 packages" in page


def test_no_bill_is_said(tmp_path: Path) -> None:
    assert page_materials.load(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [
        {}, {"components": 3, "metadata": []}, {"components": [1, {"type": "library", "properties": [7]}]},
        {"metadata": {"component": {"pedigree": {"ancestors": ["x"]}}}},
    ],
)  # fmt: skip
def test_a_bill_of_another_form_is_no_error(content: object, tmp_path: Path) -> None:
    (tmp_path / page_materials.BOM_FILE).write_text(json.dumps(content))
    materials = page_materials.load(tmp_path)
    assert materials and materials.base == "" and not materials.modules


def test_versions_of_installed_components_and_of_the_kernel() -> None:
    plan = {
        "nvidia_driver": {"version": "580.1"},
        "cuda": {"version": "13.0"},
        "kernel": {"version": "6.1"},
        "node": {},
    }
    assert page_materials.planned_versions(a_report(**plan)) == [("nvidia_driver", "580.1"), ("kernel", "6.1")]
