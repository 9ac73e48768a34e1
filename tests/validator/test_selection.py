"""Which checks run: by the plan, by the folder given, after a restart, in a tier; without a plan they all stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import forked_pytest
from tests.validator.conftest import LOOKS, Run, folder_of

pytestmark = pytest.mark.slow  # they start pytest
CHECKS = """
import pytest
pytestmark = pytest.mark.planned("efa")
def test_of_efa(host): ...
@pytest.mark.planned("nccl")
def test_of_both(host): ...
@pytest.mark.planned("efa.mode")
def test_of_its_mode(host): ...
@pytest.mark.without("nccl")
def test_of_efa_alone(host): ...
"""
RESTARTED = """
import pytest
@pytest.mark.survives
@pytest.mark.parametrize("which", ["raw-log", "json"])
def test_stays(host, which):
    "It stays."
    assert host.run("true").rc == 0
@pytest.mark.tier("T0")
def test_of_files(host):
    assert host.run("true").rc == 0
@pytest.mark.survives
@pytest.mark.live
def test_provokes(host):
    assert host.run("false").rc == 0
@pytest.mark.offline
def test_offline_checks_run_only_on_images(host):
    assert False
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sections", "collected"),
    [
        ({}, set()),
        ({"nccl": {"mode": "full"}}, set()),
        ({"efa": {"version": "1"}}, {"test_of_efa", "test_of_efa_alone"}),
        ({"efa": {"mode": []}}, {"test_of_efa", "test_of_efa_alone"}),
        ({"efa": {"mode": "full"}}, {"test_of_efa", "test_of_its_mode", "test_of_efa_alone"}),
        ({"efa": {"version": "1"}, "nccl": {"mode": "full"}}, {"test_of_efa", "test_of_both"}),
        (None, {"test_of_efa", "test_of_both", "test_of_its_mode", "test_of_efa_alone"}),
    ],
)
def test_unplanned_checks_are_deselected(tmp_path: Path, sections: dict[str, Any] | None, collected: set[str]) -> None:
    (tmp_path / "test_given.py").write_text(CHECKS)
    options = []
    if sections is not None:
        plan = {"schema": "gpu-ami/plan/1"} | sections
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        options = [f"--plan={tmp_path / 'plan.json'}"]
    done = forked_pytest.run(
        [
            "-p", "validator.plugin", "-p", "no:cacheprovider", "--collect-only", "-q",
            f"--rootdir={tmp_path}", "--hosts=ssh://nobody@127.0.0.1:9", *options, str(tmp_path / "test_given.py"),
        ]
    )  # fmt: skip
    names = {line.rpartition("::")[2].partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    assert names == collected, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "drills"),
    [("nvidia_driver", {"xid"}), ("neuron", {"neuron_error"}), ("cloudwatch_agent", {"xid"})],
)
def test_every_plan_has_one_drill(tmp_path: Path, section: str, drills: set[str]) -> None:
    """Also that of machines without accelerators: `gpu-ami fleet prove` proves nothing without one."""
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"schema": "gpu-ami/plan/1", section: {"version": "1"}, "event_parser": {}}))
    done = forked_pytest.run(
        [
            "-p", "validator.plugin", "-p", "no:cacheprovider", "--collect-only", "-q",
            "--hosts=ssh://nobody@127.0.0.1:9", f"--plan={plan}", "validator/checks",
        ]
    )  # fmt: skip
    found = {
        Path(line.partition("::")[0]).stem for line in done.stdout.splitlines() if "::test_drill_is_labelled" in line
    }
    assert found == drills, done.stdout + done.stderr


def test_a_folder_without_checks_is_an_error(run: Run, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(AssertionError, match=f"no check in {empty}"):  # there is no checks.json then
        run(LOOKS, str(empty))


TOGETHER = """
import pytest
def test_alone(host):
    assert host.run("true").rc == 0
@pytest.mark.tier("T4")
def test_several(host):
    assert host.run("true").rc == 0
@pytest.mark.tier("TN")
def test_node(host):
    assert host.run("true").rc == 0
"""


@pytest.mark.parametrize(
    ("option", "ran"), [("", {"test_alone"}), ("nodes", {"test_several"}), ("join", {"test_node"})]
)
def test_checks_of_nodes_run_in_passes_of_their_own(run: Run, tmp_path: Path, option: str, ran: set[str]) -> None:
    (tmp_path / "file.json").write_text("{}")
    assert set(run(TOGETHER, *([f"--{option}={tmp_path / 'file.json'}"] if option else [])).verdicts) == ran


def test_optional_sections_are_skipped_without_a_plan(run: Run) -> None:
    outcome = run(
        "import pytest\n@pytest.mark.planned('node_ecs')\ndef test_some(host):\n    assert False\n"
        "@pytest.mark.planned('nvidia_driver')\ndef test_every(host):\n    assert host.run('true').rc == 0\n"
    )
    assert outcome.verdicts == {"test_some": "UNPROVEN", "test_every": "PASS"}
    assert "no --plan" in outcome.check("test_some")["message"]


def test_checks_after_a_restart_have_their_own_ids(run: Run) -> None:
    checks = run(RESTARTED, "--after=reboot").document["checks"]
    assert {check["id"]: check["verdict"] for check in checks} == {
        "test_given::test_stays[raw-log]@reboot": "PASS",
        "test_given::test_stays[json]@reboot": "PASS",
        "test_given::test_provokes@reboot": "FAIL",
    }
    assert {check["after"] for check in checks} == {"reboot"}
    assert checks[0]["promise"] == "After reboot: It stays."


def test_first_pass_runs_all_online_checks(run: Run) -> None:
    checks = run(RESTARTED).document["checks"]
    names = ["test_stays[raw-log]", "test_stays[json]", "test_of_files", "test_provokes"]
    assert [check["id"] for check in checks] == [f"test_given::{name}" for name in names]
    assert {check["after"] for check in checks} == {""}
    assert [check["tier"] for check in checks] == ["T1", "T1", "T0", "T1"]


LOGS = """
import pytest
@pytest.fixture(scope="module")
def files(host):
    return host.run("echo a b").stdout.split()
@pytest.mark.after_live("neuron")
def test_log(files):
    assert files == ["a", "b"]
def test_reads(files):
    assert files == ["a", "b"]
"""
DRILL = """
import pytest
@pytest.mark.live
def test_drill(host): ...
def test_more(host): ...
"""


@pytest.mark.parametrize(
    ("section", "order"),
    [
        ("neuron", ["test_reads", "test_more", "test_drill", "test_log"]),
        ("efa", ["test_log", "test_reads", "test_more", "test_drill"]),
    ],
)
def test_checks_that_need_a_live_one_follow_it(run: Run, tmp_path: Path, section: str, order: list[str]) -> None:
    """In another file, too: pytest brings the checks of a file together again."""
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"schema": "gpu-ami/plan/1", section: {"version": "1"}}))
    folder = folder_of(tmp_path, {"test_a_logs.py": LOGS, "test_drill.py": DRILL})
    checks = run(folder, f"--plan={plan}").document["checks"]
    assert [(check["id"].partition("::")[2], check["verdict"]) for check in checks] == [
        (name, "PASS") for name in order
    ]


@pytest.mark.slow
def test_the_raw_log_of_a_neuron_machine_is_judged_after_its_drill(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"schema": "gpu-ami/plan/1", "neuron": {"version": "1"}, "event_parser": {}}))
    names = ("logs", "neuron_error", "system", "xid")
    done = forked_pytest.run(
        [
            "-p", "validator.plugin", "-p", "no:cacheprovider", "--collect-only", "-q",
            "--hosts=ssh://nobody@127.0.0.1:9", f"--plan={plan}", *(f"validator/checks/{name}.py" for name in names),
        ]
    )  # fmt: skip
    listed = list(dict.fromkeys(line for line in done.stdout.splitlines() if "::" in line))
    after = listed[max(n for n, line in enumerate(listed) if "/xid.py" in line or "/neuron_error.py" in line) + 1 :]
    assert len(after) == 3 and all("raw_log" in line or "test_retention" in line for line in after), listed


def test_only_the_selected_tier_runs(run: Run) -> None:
    checks = run(RESTARTED, "--tier=T0").document["checks"]
    assert [check["id"] for check in checks] == ["test_given::test_of_files"]
