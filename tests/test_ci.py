"""Which end-to-end run .ci/run makes, and what its exit code is, with programs that note their calls."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_NOTES = """#!/bin/bash
echo "$(basename "$0") $*" >> "$LOG"
case "$*" in
    rehearse*) exit "${SLICE:-0}" ;;
    lint) echo "1 error"; exit "${LINTERS:-0}" ;;
    test-all*) echo "5 passed in 1.00s"; exit "${TESTS:-0}" ;;
esac
"""


def git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", folder, *names, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone of a repository in which make and gpu-ami only note their calls."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    (origin / ".ci").mkdir(parents=True)
    git(origin, "init", "-q", "-b", "main")
    shutil.copy(ROOT / ".ci" / "run", origin / ".ci")
    git(origin, "add", "-A")
    git(origin, "commit", "-q", "-m", "first")
    git(tmp_path, "clone", "-q", str(origin), str(clone))
    for name in ("programs/make", "programs/id", "clone/.venv/bin/gpu-ami"):
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\necho 0\n" if program.name == "id" else _NOTES)
        program.chmod(0o755)
    (clone / "out" / "debian12-gpu").mkdir(parents=True)
    (clone / "out" / "debian12-gpu" / "certificate.md").write_text("# Rehearsal certificate\n")
    return clone


def run(checkout: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{checkout.parent / 'programs'}:{os.environ['PATH']}"
    given = os.environ | {"PATH": path, "LOG": str(checkout.parent / "log")} | environment
    return subprocess.run([checkout / ".ci" / "run", *words], env=given, capture_output=True, text=True, timeout=60)


def calls(checkout: Path) -> list[str]:
    return (checkout.parent / "log").read_text().splitlines()


def commit_until(checkout: Path, last_digits: str) -> str:
    """Commits until the digest ends with one of last_digits; returns the digest."""
    for number in range(200):
        git(checkout, "commit", "-q", "--allow-empty", "-m", str(number))
        digest = git(checkout, "rev-parse", "HEAD")
        if digest[-1] in last_digits:
            return digest
    raise AssertionError(digest)


def test_an_even_commit_proves_as_the_readme_says_and_rehearses_a_slice(checkout: Path) -> None:
    digest = commit_until(checkout, "02468ace")
    done = run(checkout)
    assert done.returncode == 0, done.stderr
    assert "make prove" in calls(checkout)
    assert f"gpu-ami rehearse --sample {digest} --boot" in calls(checkout)
    assert not [call for call in calls(checkout) if call.startswith("gpu-ami diff")]
    assert done.stdout.splitlines()[-1] == "5 passed in 1.00s"


def test_an_odd_commit_proves_under_the_conditions_of_aws(checkout: Path) -> None:
    commit_until(checkout, "13579bdf")
    done = run(checkout)
    assert done.returncode == 0, done.stderr
    assert "make prove CONDITIONS=aws-like" in calls(checkout)
    assert "gpu-ami diff --same out/debian12-gpu out/in-a-sandbox" in calls(checkout)
    assert not [call for call in calls(checkout) if call.startswith("gpu-ami rehearse")]


def test_without_root_no_sandbox_is_needed(checkout: Path) -> None:
    (checkout.parent / "programs" / "id").write_text("#!/bin/sh\necho 1000\n")
    commit_until(checkout, "02468ace")
    assert run(checkout).returncode == 0
    assert "make prove CONDITIONS=aws-like" in calls(checkout)
    assert not [call for call in calls(checkout) if "rehearse" in call or "sandbox" in call]


def test_the_caller_may_choose(checkout: Path) -> None:
    commit_until(checkout, "13579bdf")
    assert run(checkout, "recipes").returncode == 0
    assert "make prove" in calls(checkout)
    done = run(checkout, "everything")
    assert (done.returncode, done.stderr) == (2, ".ci/run: everything: expected conditions or recipes\n")


def test_a_red_slice_is_red_after_the_tests(checkout: Path) -> None:
    done = run(checkout, "recipes", SLICE="3")
    assert done.returncode == 3
    assert re.search(r"^slice of the recipes: \d+ s, exit code 3$", done.stdout, re.MULTILINE)
    assert done.stdout.splitlines()[-1] == "5 passed in 1.00s"


def test_red_linters_are_red_after_the_tests(checkout: Path) -> None:
    done = run(checkout, LINTERS="2")
    assert done.returncode == 2
    assert "1 error" in done.stdout.splitlines()
    assert done.stdout.splitlines()[-1] == "5 passed in 1.00s"
    assert "make test-all LINT=" in calls(checkout)


def test_red_tests_are_red(checkout: Path) -> None:
    assert run(checkout, TESTS="1").returncode == 1


@pytest.mark.parametrize(
    ("subject", "mistake"),
    [
        ("region: Enter a place by one door", ""),
        ("nvidia_driver: Print layout 13 as real boards do", ""),  # a role
        ("Merge branch 'main'", ""),
        (f"docs: {'Say more ' * 7}", "69 characters, expected at most 60"),
        ("elsewhere: Say more", "area 'elsewhere', expected a role or one of account"),
        ("Say more", "no `area: `"),
        ("docs: say more", "'say more', expected a verb with a capital letter"),
        ("", "no `area: `"),
    ],
)
def test_subjects_of_commits(tmp_path: Path, subject: str, mistake: str) -> None:
    (tmp_path / "message").write_text(f"{subject}\n\nwhy\n# a comment of git\n")
    done = subprocess.run([ROOT / ".ci" / "commit-msg", tmp_path / "message"], capture_output=True, text=True)
    assert done.returncode == bool(mistake), done.stderr
    assert mistake in done.stderr
