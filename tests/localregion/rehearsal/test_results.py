"""What a rehearsal found: the verdict on what was asked, the exit code of many, its file, the table of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami.errors import BuildError, CloudError, UsageError
from gpu_ami.report.document import HostReport
from gpu_ami.report.left_out import EXIT_CODE, LeftOut, Part
from localregion.rehearsal import results
from localregion.rehearsal.results import NO_BASE_IMAGE, Rehearsal, worst_exit_code
from tests.report.examples import a_host, a_report, offline
from validator.results import Replica

ROW = Rehearsal("training", "recipes/training.yml", "x86_64", "", 0, "al2023", inputs="sha256:1")


def machine(**verdicts: str) -> HostReport:
    return replace(a_host("g6.xlarge", **verdicts), restarts=("reboot", "stop-start"), facts={})


def test_files_without_a_red_check_pass() -> None:
    host = replace(offline(efa="PASS", inventory="UNPROVEN"), replicas=(Replica("libnccl", "2.1-1", "a replica"),))
    row = ROW.judged(a_report(host))
    assert (row.result, row.exit_code, row.checks) == ("PASS", 0, "1 UNPROVEN, 1 PASS")
    assert row.replicas == ("libnccl 2.1-1",) and row.reason == "" and row.is_judged


def test_a_red_check_fails_and_is_named() -> None:
    row = ROW.judged(a_report(offline(efa="FAIL", inventory="PASS")))
    assert (row.result, row.exit_code, row.failed) == ("FAIL", 1, ("efa::test_it",))
    assert row.reason == "image-files efa::test_it: efa: observed 2, planned 1"
    assert row.is_judged


def test_restarts_and_types_that_were_not_asked_for_are_not_missed() -> None:
    left_out = tuple(LeftOut(Part.RESTART, how, "--restarts") for how in ("reboot", "stop-start"))
    report = replace(a_report(offline(efa="PASS"), machine(), unproven=("p5.48xlarge",)), left_out=left_out)
    assert (report.verdict, report.exit_code) == ("UNPROVEN", EXIT_CODE)
    row = ROW.judged(report)
    assert (row.result, row.exit_code, row.reason) == ("PASS", 0, "")


def test_a_red_tier_is_red_although_restarts_were_left_out() -> None:
    report = replace(a_report(machine(xid="UNPROVEN")), left_out=(LeftOut(Part.RESTART, "reboot", "--restarts"),))
    assert ROW.judged(report).exit_code == 1


def test_a_machine_that_proves_too_little_is_unproven_with_the_reason() -> None:
    row = ROW.judged(a_report(machine(xid="UNPROVEN")))
    assert (row.result, row.exit_code) == ("UNPROVEN", 1)
    assert row.reason == "g6.xlarge: xid: no check of it passed"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("no NVIDIA GPU on the PCI bus: the 4 boards are simulated (1af4:1110), and the module is NVIDIA's own", 0),
        ("nothing arrived within 900 s", 1),
    ],
)
def test_real_driver_without_a_gpu_is_a_limit_of_the_region(message: str, code: int) -> None:
    host = machine(xid="UNPROVEN", metrics="UNPROVEN")
    checks = tuple(replace(one, message=message) if one.role == "xid" else one for one in host.checks)
    row = ROW.judged(a_report(replace(host, checks=checks)))
    assert (row.result, row.exit_code) == ("UNPROVEN", code)
    assert row.reason.startswith("g6.xlarge: metrics: no check of it passed")
    assert (message in row.reason) is (code == 0)


def test_real_driver_without_a_gpu_excuses_no_red_check() -> None:
    host = machine(xid="UNPROVEN", metrics="FAIL")
    checks = tuple(
        replace(one, message="no NVIDIA GPU on the PCI bus: …") if one.role == "xid" else one for one in host.checks
    )
    row = ROW.judged(a_report(replace(host, checks=checks)))
    assert (row.result, row.exit_code, row.failed) == ("FAIL", 1, ("metrics::test_it",))


def test_a_machine_that_was_not_reached_is_not_judged() -> None:
    host = replace(machine(), checks=(), error="no SSH within 600 s\nlast lines", error_verdict="UNPROVEN")
    row = ROW.judged(a_report(host))
    assert (row.result, row.exit_code, row.reason) == ("UNPROVEN", 4, "g6.xlarge: no SSH within 600 s")
    assert not row.is_judged


@pytest.mark.parametrize(
    ("error", "result", "code"),
    [
        (BuildError("Packer failed (exit code 1): efa"), "NOT BUILT", 3),
        (UsageError("no such release"), "ERROR", 2),
        (CloudError("no space"), "ERROR", 4),
    ],
)
def test_what_was_not_judged_has_the_code_of_its_error(error: BuildError, result: str, code: int) -> None:
    row = ROW.failing(error)
    assert (row.result, row.exit_code, row.reason) == (result, code, error.message)
    assert not row.is_judged


def test_exit_code_is_the_worst() -> None:
    codes = (0, 5, 4, 1, 3, 2)  # each is worse than those before it
    rows = [replace(ROW, exit_code=code) for code in codes]
    assert [worst_exit_code(rows[:count]) for count in range(7)] == [0, *codes]


def test_row_survives_its_file(tmp_path: Path) -> None:
    row = ROW.judged(a_report(offline(efa="FAIL")))
    row.write(tmp_path)
    assert results.load(tmp_path) == row


@pytest.mark.parametrize(
    "content", ["", "[]", '{"schema": "gpu-ami/rehearsal/0"}', '{"schema": "gpu-ami/rehearsal/1"}']
)
def test_a_file_of_another_version_is_no_result(tmp_path: Path, content: str) -> None:
    (tmp_path / results.RESULT_FILE).write_text(content)
    assert results.load(tmp_path) is None


def test_rows_by_result() -> None:
    rows = [ROW.judged(a_report(offline(efa=verdict))) for verdict in ("PASS", "FAIL", "PASS")]
    assert {name: len(group) for name, group in results.by_result(rows).items()} == {"PASS": 2, "FAIL": 1}


ROWS = [
    Rehearsal(
        "eks", "recipes/eks.yml", "x86_64", "PASS", 0, "al2023+eks-1.35", "ami-1", 61.26, "80 PASS",
        ("system (al2023+eks-1.35 on Debian 12)", "nvidia_driver"), unchanged=True,
    ),
    Rehearsal("gpu", "gpu.yml", "x86_64", "FAIL", 1, "debian12", "ami-2", 70.0, "1 FAIL", (), reason="efa: a|b\nc"),
    Rehearsal("arm", "recipes/arm.yml", "arm64", NO_BASE_IMAGE, 0, reason="no base image for amzn 2023 on arm64"),
]  # fmt: skip


def test_text_has_a_line_for_each_recipe_then_reasons_and_counts() -> None:
    lines = results.text(ROWS).splitlines()
    assert [line.split("  ")[0] for line in lines[:4]] == ["recipe", "eks", "gpu", "arm"]
    assert lines[1].split() == [
        "eks", "al2023+eks-1.35", "ami-1", "61", "PASS", "80", "PASS", "system", "(al2023+eks-1.35", "on", "Debian",
        "12),", "nvidia_driver",
    ]  # fmt: skip
    assert lines[3].split() == ["arm", "-", "-", "-", "NO", "BASE", "IMAGE", "-", "-"]
    assert lines[5:] == [
        "gpu: FAIL: efa: a|b c",
        "arm: NO BASE IMAGE: no base image for amzn 2023 on arm64",
        "",
        "3 recipes: 1 PASS, 1 FAIL, 1 NO BASE IMAGE; 1 judged by an earlier run, unchanged since"
        " (--fresh judges them again)",
    ]


def test_a_booted_machine_is_named() -> None:
    row = Rehearsal("gpu", "gpu.yml", "x86_64", "PASS", 0, checks="90 PASS", instance_type="g6.xlarge")
    assert "PASS on g6.xlarge" in results.text([row])


def test_a_long_reason_is_cut_in_text_alone() -> None:
    row = Rehearsal("gpu", "gpu.yml", "x86_64", "FAIL", 1, reason="x" * 300)
    assert "x" * 200 not in results.text([row]) and "…" in results.text([row])
    assert "x" * 300 in results.markdown([row])


def test_markdown_is_one_table() -> None:
    lines = results.markdown(ROWS).splitlines()
    assert lines[0] == "| recipe | base image | source AMI | seconds | verdict | checks | simulated | reason |"
    assert lines[3] == "| gpu | debian12 | ami-2 | 70 | FAIL | 1 FAIL | - | efa: a\\|b c |"
    assert len({line.replace("\\|", "").count("|") for line in lines[:5]}) == 1


def test_recipes_with_the_same_reason_share_a_line() -> None:
    rows = [Rehearsal(name, f"{name}.yml", "x86_64", "LEFT OUT", 0, reason="not in the sample") for name in ("a", "b")]
    assert results.text(rows).splitlines()[4:5] == ["a, b: LEFT OUT: not in the sample"]
