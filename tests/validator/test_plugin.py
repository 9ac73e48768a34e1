"""The plugin on pytest's command line: options that exclude each other, the engine and its absence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked_pytest
from tests.validator.conftest import LOOKS, Run


def test_processes_that_would_overwrite_each_other_are_refused(run: Run) -> None:
    with pytest.raises(AssertionError, match="omit -n"):  # there is no checks.json then
        run(LOOKS, "-n2")


BLOCKED = "import sys\nsys.modules[{module!r}] = None\n"


@pytest.mark.parametrize(
    ("module", "reason"),
    [("validator.engine", "validator.engine is not installed"), ("greenlet", "greenlet is not installed")],
)
def test_checks_run_without_the_engine(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, reason: str
) -> None:
    (tmp_path / "blocker.py").write_text(BLOCKED.format(module=module))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = run(LOOKS + LOOKS.replace("looks", "fails").replace("== 0", "== 1"), "-p", "blocker", "-v")
    assert outcome.verdicts == {"test_looks": "PASS", "test_fails": "FAIL"}, outcome.text
    assert f"validator: checks run one after the other, with one round trip for each command: {reason}" in outcome.text


def test_checks_run_concurrently_by_default(run: Run) -> None:
    assert "validator: checks run concurrently" in run(LOOKS, "-v").text
    assert "validator: checks run one after the other\n" in run(LOOKS, "--serial", "-v").text


def test_waivers_without_effect_are_on_the_console(run: Run, tmp_path: Path) -> None:
    common = "reason: why, owner: me"
    (tmp_path / "w.yml").write_text(
        f"- {{check: 'test_given::test_loks', {common}, expires: 2999-01-31}}\n"
        f"- {{check: 'test_given::test_fails', {common}, expires: 2020-01-31}}\n"
        f"- {{check: 'test_given::test_looks', {common}, expires: 2999-01-31}}\n"
    )
    outcome = run(LOOKS + LOOKS.replace("looks", "fails").replace("== 0", "== 1"), f"--waivers={tmp_path / 'w.yml'}")
    assert [line for line in outcome.text.splitlines() if line.startswith("waivers: ")] == [
        "waivers: test_given::test_loks: matches no check that ran; did you mean test_given::test_looks?;"
        " `gpu-ami checks` lists the ids",
        "waivers: test_given::test_fails: expired on 2020-01-31; ask me to renew or remove it",
        "waivers: test_given::test_looks: not needed, no check that it names failed; remove it",
    ]


def test_list_of_checks_judges_none(run: Run) -> None:
    outcome = run(LOOKS + "import pytest\n@pytest.mark.offline\ndef test_files(host):\n    pass\n", "--collect-only")
    assert outcome.verdicts == {"test_looks": "UNPROVEN", "test_files": "UNPROVEN"}


def test_start_loads_only_what_every_run_needs() -> None:
    """pytest imports the plugin before it prints anything; probes, AWS and schema would add a quarter to that."""
    code = "import sys, validator.plugin; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    needless = ("validator.probes", "validator.file_account", "validator.cloudwatch", "validator.schema",
                "validator.plan_document", "validator.checks", "yaml", "boto3", "paramiko", "jinja2")  # fmt: skip
    assert [name for name in needless if name in loaded] == []


@pytest.mark.slow
def test_a_named_file_of_checks_is_collected_once() -> None:
    """pytest collects a file that the command line names by itself, whatever its name is."""
    options = ("-p", "validator.plugin", "-p", "no:cacheprovider", "-q", "--collect-only", "--hosts=local://")
    listed = forked_pytest.run([*options, "validator/checks/compute.py"]).stdout.splitlines()
    tests = [line for line in listed if "::" in line]
    assert tests
    assert len(tests) == len(set(tests))
