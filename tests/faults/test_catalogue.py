"""The faults as data, how their outcome is judged and kept. How they are tried: test_fault_trials.py."""

from __future__ import annotations

import ast
import fnmatch
import json
import re
from pathlib import Path

import pytest

import validator
from gpu_ami.errors import UsageError
from gpu_ami.faults import catalogue
from gpu_ami.faults.catalogue import CleanProof, Fault, Record, Trial
from gpu_ami.observe import findings

FOLDER = Path(catalogue.__file__).parent / "definitions"
CHECKS = Path(validator.__file__).parent / "checks"
GOOD = {"id": "x", "description": "b", "inject": "true", "revert": "true", "caught_by": "boot::test_a"}


def check_names() -> set[str]:
    return {
        f"{path.stem}::{node.name}"
        for path in CHECKS.glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_fault_names_checks_that_exist() -> None:
    names = check_names()
    for fault in catalogue.load(FOLDER):
        assert fault.caught_by in names, f"{fault.id}: no check {fault.caught_by}"
        for pattern in fault.also:
            assert fnmatch.filter(names, pattern.partition("[")[0].rstrip("*") + "*"), (
                f"{fault.id}: {pattern} fits no check"
            )


def test_every_fault_of_an_image_as_found_names_a_check_or_a_finding() -> None:
    tree = ast.parse(Path(findings.__file__).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding"]
    ids = {f"findings::{call.args[0].value!s}" for call in calls if isinstance(call.args[0], ast.Constant)}
    named = {fault.as_found for fault in catalogue.load(FOLDER)} - {""}
    assert "findings::not-held" in named & ids
    assert named <= ids | check_names()


def test_a_fault_is_judged_as_found_by_what_needs_no_recipe() -> None:
    other = Fault(**GOOD, as_found="observed::test_b")  # type: ignore[arg-type]
    assert [each.caught_by for each in catalogue.judged_as_found([other, X], ["boot"])] == [
        "observed::test_b",
        X.caught_by,
    ]
    assert catalogue.judged_as_found([other], ["nvidia_driver"]) == [other], "the image has no such component"


def test_every_role_and_stage_has_two_faults() -> None:
    roles = [fault.caught_by.partition("::")[0] for fault in catalogue.load(FOLDER)]
    for role in ("boot", "hygiene", "nvidia_driver", "cloudwatch_agent", "event_parser", "metrics", "logs", "xid"):
        assert roles.count(role) >= 2, role


@pytest.mark.parametrize(
    "role", ["cloudwatch_agent", "drain_hook", "event_parser", "logs", "metrics", "neuron_error", "xid"]
)
def test_every_check_of_the_telemetry_is_shown_red(role: str) -> None:
    seen = {fault.caught_by for fault in catalogue.load(FOLDER)} | {"xid::test_real_fault_arrives"}  # real GPU
    assert {name for name in check_names() if name.startswith(f"{role}::")} <= seen


# The faults that stay silent in a validator which looks at names and states alone.
@pytest.mark.parametrize(
    "silent",
    [
        "parser-reads-the-wrong-source", "active-while-its-child-is-dead", "another-log-group",
        "agent-ships-to-another-group", "stream-of-another-instance", "metrics-of-the-builder", "one-gpu-missing",
        "last-of-eight-gpus-missing", "clock-ten-minutes-ahead", "rotation-loses-the-file",
        "module-missing-for-a-new-kernel", "stale-driver-loaded", "duplicate-delivery", "a-line-without-newline",
        "world-writable-parser", "key-of-the-build", "drill-labelled-as-kernel",
    ],
)  # fmt: skip
def test_silent_faults_are_among_them(silent: str) -> None:
    assert [fault.id for fault in catalogue.load(FOLDER, [silent])] == [silent]


def test_no_program_is_replaced_by_one_below_run() -> None:
    """/run is mounted noexec where initramfs-tools made it: the replacement would not run at all."""
    everything = "".join(path.read_text() for path in sorted(FOLDER.glob("*.yml")))
    bound = re.findall(r"mount --bind (/\S+) (/\S+)", everything)
    assert len(bound) > 10
    assert [pair for pair in bound if "/bin/" in pair[1] and pair[0].startswith("/run/")] == []


def test_a_program_that_the_agent_may_run_is_unmounted_without_waiting_for_it() -> None:
    """A mount with an open file is busy: umount fails, and the replacement stays for all faults after it."""
    replaced = [
        fault
        for fault in catalogue.load(FOLDER)
        if re.search("mount --bind .*/nvidia-smi$", fault.inject, re.MULTILINE)
    ]
    assert len(replaced) > 5
    assert [fault.id for fault in replaced if "umount -l /usr/bin/nvidia-smi" not in fault.revert] == []


def test_what_cannot_be_reverted_comes_last() -> None:
    order = [fault.last for fault in catalogue.load(FOLDER)]
    assert order == sorted(order)
    assert catalogue.load(FOLDER)[-1].id == "clock-ten-minutes-ahead"


def test_after_goes_on_behind_a_fault() -> None:
    every = catalogue.load(FOLDER)
    assert catalogue.load(FOLDER, after=every[2].id) == every[3:]
    assert catalogue.load(FOLDER, [every[1].id], after=every[2].id) == []


@pytest.mark.parametrize(
    ("red", "outcome"),
    [
        ({"boot::test_a": "m"}, "detected"),
        ({"boot::test_a[raw]": "m"}, "detected"),
        ({"boot::test_a": "m", "logs::test_b": "m"}, "detected"),
        ({"boot::test_a": "m", "metrics::test_c": "m"}, "collateral"),
        ({"metrics::test_c": "m"}, "wrong check"),
        ({"boot::test_ab": "m"}, "wrong check"),
        ({}, "missed"),
        ({"boot::test_a": "m", "inventory::test_packages_are_unchanged": "m"}, "detected"),
    ],
)
def test_outcome(red: dict[str, str], outcome: str) -> None:
    assert catalogue.judge(Fault(**GOOD, also=("logs::*",)), red).outcome == outcome  # type: ignore[arg-type]


def test_mistakes_are_named_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(
        "- {id: x, plantt: 1, plant: true}\n- {id: y, description: b, inject: p, revert: u, caught_by: c}\n"
    )
    (tmp_path / "b.yml").write_text("- {id: y, description: b, inject: p, revert: u, caught_by: c}\n")
    with pytest.raises(UsageError) as caught:
        catalogue.load(tmp_path, ["z"], after="w")
    said = "\n".join(caught.value.details)
    for part in (
        "a.yml: x: plantt: unknown key",
        "a.yml: x: plant: the key is now called inject",
        "a.yml: x: revert: missing",
        "y: duplicate id",
        "z: no fault has this id",
        "w: no fault has this id",
    ):
        assert part in said


X = Fault(**GOOD)  # type: ignore[arg-type]
Y = Fault(**(GOOD | {"id": "y"}))  # type: ignore[arg-type]
ALARM = CleanProof("before", 55, 60.0, {"boot::test_b": "it rained"})
CLEAN = CleanProof("before", 55, 60.0)


def test_record_is_good_when_every_fault_was_seen() -> None:
    record = Record("ami-1", "g5.12xlarge", proofs=[CLEAN])
    assert not record.is_good([X])
    record.add(Trial("x", "detected", ("boot::test_a",)))
    assert record.is_good([X])
    assert not record.is_good([X, Y])
    record.add(Trial("y", "out of scope"))
    assert record.is_good([X, Y])
    record.add(Trial("x", "missed"))
    assert not record.is_good([X, Y])


def test_a_false_alarm_of_this_run_counts_and_one_of_an_earlier_run_does_not() -> None:
    record = Record("ami-1", "g5.12xlarge", proofs=[ALARM, CLEAN])
    assert not record.is_good([])
    assert record.in_a_row == 1
    record.earlier = 1
    assert record.is_good([])


def test_record_is_kept_for_the_same_image_on_the_same_type(tmp_path: Path) -> None:
    record = Record("ami-1", "g5.12xlarge", {"x": Trial("x", "detected", ("boot::test_a",), "m", 3.0)}, [CLEAN, ALARM])
    path = tmp_path / "faults.json"
    path.write_text(json.dumps(record.to_json()))
    again = Record.load(path, "ami-1", "g5.12xlarge")
    assert (again.trials, again.proofs, again.earlier) == (record.trials, record.proofs, 2)
    for image, kind in (("ami-2", "g5.12xlarge"), ("ami-1", "p4d.24xlarge")):
        assert not Record.load(path, image, kind).trials
    path.write_text("[]")
    assert not Record.load(path, "ami-1", "g5.12xlarge").trials


def test_summary_names_what_was_not_tried_and_every_false_alarm() -> None:
    record = Record("ami-1", "g5.12xlarge", {"x": Trial("x", "detected", ("boot::test_a",))}, [CLEAN, ALARM, CLEAN])
    said = record.summary([X, Y]).splitlines()
    assert said[0].split() == ["detected", "x", "boot::test_a"]
    assert said[1].split() == ["not", "tried", "y"]
    assert "2 faults: 1 detected, 0 missed, 1 not tried" in said
    assert "1 clean proof in a row without a false alarm" in said
    assert said[-1].strip() == "before: boot::test_b: it rained"


def test_a_fault_of_the_inventory_explains_no_other_check_of_it() -> None:
    fault = Fault(**(GOOD | {"caught_by": "inventory::test_a"}))  # type: ignore[arg-type]
    assert catalogue.judge(fault, {"inventory::test_a": "m"}).outcome == "detected"
    assert catalogue.judge(fault, {"inventory::test_a": "m", "inventory::test_b": "m"}).outcome == "collateral"


def test_a_record_of_an_earlier_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_text('{"schema": "gpu-ami/faults/1"}')
    with pytest.raises(UsageError, match="schema: expected gpu-ami/faults/2, got gpu-ami/faults/1"):
        Record.load(path, "ami-1", "g5.12xlarge")


def test_no_fault_looks_for_the_driver_version_of_one_plan() -> None:
    """`another-version-on-disk` replaced 550.163.01, and so nothing where the driver was newer (2026-11-23)."""
    sought = re.compile(r"s/[^/]*\b[45]\d\d\\?\.\d+")
    assert [fault.id for fault in catalogue.load(FOLDER) if sought.search(fault.inject)] == []


def test_guards_of_faults_end_them() -> None:
    """`set -e` does not end a script at `! cmp …`: a fault that had changed nothing was called missed."""
    guards = re.compile(r"(?m)(?:^|;)\s*! ")
    assert [fault.id for fault in catalogue.load(FOLDER) if guards.search(fault.inject)] == []
