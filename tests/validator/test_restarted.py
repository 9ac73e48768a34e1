"""Which checks run after a restart and in which tier, and what their records are called; on a real sshd."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Sshd

from validator import identity, tiers

ROOT = Path(__file__).resolve().parents[2]
CHECKS = """
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
def test_of_an_image_alone(host):
    assert False
"""


def run(sshd: Sshd, folder: Path, source: str, *options: str) -> tuple[str, list[dict[str, Any]]]:
    file, results = folder / "test_given.py", folder / "checks.json"
    file.write_text(source)
    command = [
        sys.executable, "-m", "pytest", "-p", "validator.plugin", "-p", "no:cacheprovider", "-q", f"--rootdir={folder}",
        f"--ssh-identity-file={sshd.key}", f"--hosts=ssh://{sshd.target().user}@127.0.0.1:{sshd.port}",
        f"--results={results}", *options, str(file),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    found = json.loads(results.read_text())["checks"] if results.exists() else []
    return done.stdout + done.stderr, found


def test_what_survives_runs_again_under_its_own_name(sshd: Sshd, tmp_path: Path) -> None:
    _, found = run(sshd, tmp_path, CHECKS, "--after=reboot")
    assert {one["id"]: one["verdict"] for one in found} == {
        "given::test_stays[raw-log]@reboot": "PASS",
        "given::test_stays[json]@reboot": "PASS",
        "given::test_provokes@reboot": "FAIL",
    }
    assert {one["after"] for one in found} == {"reboot"}
    assert found[0]["promise"] == "After reboot: It stays."


def test_first_pass_runs_all_but_what_is_of_an_image(sshd: Sshd, tmp_path: Path) -> None:
    _, found = run(sshd, tmp_path, CHECKS)
    names = ["test_stays[raw-log]", "test_stays[json]", "test_of_files", "test_provokes"]
    assert [one["id"] for one in found] == [f"given::{name}" for name in names]
    assert {one["after"] for one in found} == {""} and [one["tier"] for one in found] == ["T1", "T1", "T0", "T1"]


def test_one_tier_alone(sshd: Sshd, tmp_path: Path) -> None:
    _, found = run(sshd, tmp_path, CHECKS, "--tier=T0")
    assert [one["id"] for one in found] == ["given::test_of_files"]


def test_tier_that_does_not_exist_is_refused(sshd: Sshd, tmp_path: Path) -> None:
    said, found = run(sshd, tmp_path, CHECKS.replace('"T0"', '"T9"'))
    assert "test_of_files" in said and "tier 'T9' is none of T0, T1, T2, T3, T4" in said
    assert {one["verdict"] for one in found} <= {"UNPROVEN"}  # nothing has run


@pytest.mark.parametrize(
    ("case", "shown"),
    [
        ("ssh://ip-10-0-0-7.ec2.internal:22", ""),
        ("ssh://ip-10-0-0-7.ec2.internal:22-raw-log", "[raw-log]"),
        ("raw-log-ssh://ip-10-0-0-7.ec2.internal:22", "[raw-log]"),
    ],
)
def test_name_of_a_host_is_no_parameter(case: str, shown: str) -> None:
    backend = SimpleNamespace(get_pytest_id=lambda: "ssh://ip-10-0-0-7.ec2.internal:22")
    callspec = SimpleNamespace(id=case, params={"_testinfra_host": SimpleNamespace(backend=backend)})
    assert identity._parameters(SimpleNamespace(callspec=callspec)) == shown  # type: ignore[arg-type]


def test_every_tier_says_what_it_does_not_prove() -> None:
    assert tiers.NAMES == ("T0", "T1", "T2", "T3", "T4")
    assert all(tier.proves and tier.does_not_prove for tier in tiers.TIERS)
