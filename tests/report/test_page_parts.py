"""Parts of the report's page: series, bill of materials.

What was asked for and passed is told apart from a failure of the image; neither gets a certificate.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import pipeline
from gpu_ami.report import certificate, left_out, page_machine, writer
from gpu_ami.report.document import COMES_BACK, HostReport, Report
from gpu_ami.report.left_out import LeftOut, Part
from gpu_ami.report.page_machine import Origin, sparklines
from tests.release import examples
from tests.report.examples import a_check, a_host, a_report, core_checks, offline
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
    materials = page_machine.load(tmp_path)
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
    assert page_machine.load(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [
        {}, {"components": 3, "metadata": []}, {"components": [1, {"type": "library", "properties": [7]}]},
        {"metadata": {"component": {"pedigree": {"ancestors": ["x"]}}}},
    ],
)  # fmt: skip
def test_a_bill_of_another_form_is_no_error(content: object, tmp_path: Path) -> None:
    (tmp_path / page_machine.BOM_FILE).write_text(json.dumps(content))
    materials = page_machine.load(tmp_path)
    assert materials and materials.base == "" and not materials.modules


def test_versions_of_installed_components_and_of_the_kernel() -> None:
    plan = {
        "nvidia_driver": {"version": "580.1"},
        "cuda": {"version": "13.0"},
        "kernel": {"version": "6.1"},
        "node": {},
    }
    assert page_machine.planned_versions(a_report(**plan)) == [("nvidia_driver", "580.1"), ("kernel", "6.1")]


REBOOT = LeftOut(Part.RESTART, "reboot", "--restarts")
STOP = LeftOut(Part.RESTART, "stop-start", "--restarts")
STOP_OF_G5 = LeftOut(Part.RESTART, "stop-start of g5.12xlarge", "no_stop_start of the place")
CHECKS = LeftOut(Part.CHECKS, "", "-k 'boot'")
KERNEL_XID = LeftOut(Part.KERNEL_XID, "", "without --provoke-xid")


def not_done(how: str) -> HostReport:
    """A machine on which everything passed, and one restart was not tried."""
    return replace(a_host(), restarts=(how,)).with_checks(a_check("boot", "UNPROVEN", id=f"{COMES_BACK}@{how}"))


def selected(*checks: object) -> HostReport:
    return HostReport("g5.12xlarge", checks=checks, facts={"hardware": "real"})  # type: ignore[arg-type]


def drill() -> HostReport:
    checks = [check for check in core_checks() if check.role != "xid"]
    xid = a_check("xid", tier="T2", event={"kind": "xid", "origin": "userland"})
    return HostReport("g5.12xlarge", checks=(*checks, xid), facts={"hardware": "real"})


def leaving(report: Report, *parts: LeftOut) -> Report:
    return replace(report, left_out=parts)


@pytest.mark.parametrize(
    ("report", "exit_code"),
    [
        (a_report(a_host(), unproven=("p4d.24xlarge",)), 0),
        (leaving(a_report(not_done("reboot")), REBOOT), 7),
        (leaving(a_report(not_done("reboot"), unproven=("p4d.24xlarge",)), REBOOT), 7),
        (leaving(a_report(not_done("stop-start")), STOP_OF_G5), 7),
        (leaving(a_report(selected(a_check("boot"))), CHECKS), 7),
        (leaving(a_report(selected(a_check("boot")), offline()), CHECKS), 7),
        (leaving(a_report(drill()), KERNEL_XID), 7),
        # Something else is missing, too.
        (leaving(a_report(not_done("stop-start")), REBOOT), 1),
        (leaving(a_report(not_done("stop-start")), replace(STOP_OF_G5, what="stop-start of p5.48xlarge")), 1),
        (a_report(not_done("reboot")), 1),
        (leaving(a_report(drill()), REBOOT), 1),
        (leaving(a_report(a_host(metrics="UNPROVEN"), unproven=("p4d.24xlarge",)), STOP), 1),
        # Nothing matched -k: nothing was proven.
        (leaving(a_report(selected()), CHECKS), 1),
        # What failed stays red, whatever was left out.
        (leaving(a_report(selected(a_check("boot", "FAIL"))), CHECKS), 1),
        (leaving(a_report(selected(a_check("boot", "FLAKY"))), CHECKS), 1),
        (leaving(a_report(a_host(), incomplete="the run was interrupted"), REBOOT), 4),
        (leaving(a_report(selected(a_check("boot"), a_check("mine", "ERROR"))), CHECKS), 4),
    ],
)
def test_exit_code(report: Report, exit_code: int) -> None:
    assert report.exit_code == exit_code
    assert left_out.passed_as_asked(report) is (exit_code in (0, 7))
    assert report.verdict != "PASS" and not certificate.certify(report).is_issued


def test_restart_that_was_asked_for_has_to_bring_the_machine_back() -> None:
    back = a_check("boot", "FAIL", id=f"{COMES_BACK}@reboot")
    report = leaving(a_report(replace(selected(a_check("boot")), restarts=("reboot",)).with_checks(back)), CHECKS)
    assert report.exit_code == 1


def test_what_was_left_out_is_named(tmp_path: Path) -> None:
    report = leaving(a_report(not_done("reboot"), unproven=("p4d.24xlarge",)), REBOOT)
    statement = certificate.certify(report)
    text = writer.summary_text(report, statement, tmp_path)
    assert "left out on purpose: instance type p4d.24xlarge (--instance-type)" in text
    assert "left out on purpose: restart reboot (--restarts)" in text
    assert "All that was asked for passed; no certificate, for parts of the proof were left out (exit code 7)" in text
    assert "UNPROVEN, no certificate" in text
    assert "Left out on purpose: instance type p4d.24xlarge" in writer.markdown(report, statement)
    shard = a_report(a_host(), unproven=("p4d.24xlarge",))
    assert "this is a shard, and gpu-ami merge joins it" in writer.summary_text(shard, None, tmp_path)
    failed = a_report(a_host(xid="FAIL"), unproven=("p4d.24xlarge",))
    assert "All that was asked for passed" not in writer.summary_text(failed, None, tmp_path)
