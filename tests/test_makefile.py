"""`make prove` and `make setup` at their doors: what they install, and what runs at the same time.

A program in Python's place notes its calls; pip and the base image each wait until the other has begun, and so do mypy
and the tests.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Given as PYTHON: makes a virtual environment of itself. WAITS: pip and the base image wait for each other, as do mypy
# and the tests. BASE, MYPY: exit status of the base image, of mypy.
_PYTHON = """#!/bin/bash
echo "$*" >> "$LOG"
[ -z "$PYTHONDONTWRITEBYTECODE" ] || echo "keeps no bytecode: $*" >> "$LOG"
began() { touch "$LOG.$1"; for _ in {1..200}; do [ -z "$WAITS" ] || [ -e "$LOG.$2" ] && return; sleep 0.05; done
          echo "$1 ran alone" >> "$LOG"; }
case "${0##*/} $*" in
    "mypy ") began lint tests; exit "${MYPY:-0}" ;;
    *"-m pytest "*) echo "workers: ${PYTEST_XDIST_AUTO_NUM_WORKERS:-auto}" >> "$LOG"; began tests lint ;;
    *"-m venv "*) mkdir -p "$3/bin"; for name in python gpu-ami ruff mypy; do cp "$0" "$3/bin/$name"; done ;;
    *"-m pip install"*) began pip base ;;
    *images.prepare) began base pip; exit "${BASE:-0}" ;;
esac
"""
_PIP = "-m pip install -q --no-compile --disable-pip-version-check -e"
_BASE = "-m localregion.images.prepare"
_PROVE = "prove variables/recipes/debian12-gpu.yml -o out/debian12-gpu"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    program = tmp_path / "localregion" / "packages.sh"
    program.parent.mkdir(parents=True)
    shutil.copy(ROOT / "localregion" / "packages.sh", program)
    program = tmp_path / "system-python"
    program.write_text(_PYTHON)
    program.chmod(0o755)
    return tmp_path


def make(checkout: Path, target: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a target; no Debian package is asked for."""
    environment = dict(os.environ) | {"LOG": str(checkout / "log"), "WAITS": ""} | environment
    command = ["make", target, "PACKAGES=", "TEST_PACKAGES=", f"PYTHON={checkout / 'system-python'}"]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60)


def calls(checkout: Path) -> list[str]:
    """What was run since the last look, without the question for the version."""
    log = checkout / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return [line for line in lines if not line.startswith("-c")]


def test_prove_makes_the_base_image_while_pip_installs(checkout: Path) -> None:
    done = make(checkout, "prove", WAITS="1")
    assert done.returncode == 0, done.stderr
    found = calls(checkout)
    assert sorted(found[:-1]) == sorted(["-m venv .venv", f"{_PIP} .[local]", _BASE])
    assert found[-1] == _PROVE


def test_prove_goes_on_where_the_base_image_failed(checkout: Path) -> None:
    """gpu-ami makes it, or says at its own stage why it cannot."""
    done = make(checkout, "prove", BASE="4")
    assert done.returncode == 0, done.stderr
    assert calls(checkout)[-1] == _PROVE


@pytest.mark.parametrize("target", ["test", "test-all"])
def test_types_are_checked_while_tests_run(checkout: Path, target: str) -> None:
    make(checkout, "setup")
    calls(checkout)
    done = make(checkout, target, WAITS="1")
    assert done.returncode == 0, done.stderr
    found = calls(checkout)
    assert {"check .", "", "--config-file tests/mypy.ini tests"} < set(found)
    assert len([line for line in found if line.startswith("-m pytest -n auto --dist worksteal -m ")]) == 1
    assert [line for line in found if "alone" in line] == []


def test_tests_do_not_inherit_what_was_said_to_the_make_around_them() -> None:
    """.ci/run says LINT= to its own, for which the makes of these tests would leave out linters, too."""
    assert not {"MAKEFLAGS", "MAKELEVEL", "LINT"} & set(os.environ)


def test_linters_that_have_run_are_left_out(checkout: Path) -> None:
    make(checkout, "setup")
    calls(checkout)
    assert make(checkout, "test-all", LINT="").returncode == 0
    assert {line.split()[0] for line in calls(checkout)} == {"workers:", "-m"}


@pytest.mark.parametrize("target", ["test", "test-all"])
def test_wrong_types_are_red_after_the_tests(checkout: Path, target: str) -> None:
    done = make(checkout, target, MYPY="1")
    assert done.returncode == 2 and "lint] Error 1" in done.stderr
    assert any(line.startswith("-m pytest") for line in calls(checkout))


@pytest.mark.parametrize(("target", "by_cpu"), [("unit", 0), ("slow", 2), ("unit-and-slow", 2)])
def test_slow_tests_have_two_workers_for_each_cpu(checkout: Path, target: str, by_cpu: int) -> None:
    make(checkout, "setup")
    assert make(checkout, target).returncode == 0
    workers = f"workers: {len(os.sched_getaffinity(0)) * by_cpu or 'auto'}"
    assert [line for line in calls(checkout) if line.startswith("workers")] == [workers]


def test_a_second_prove_installs_nothing(checkout: Path) -> None:
    make(checkout, "prove")
    calls(checkout)
    make(checkout, "prove")
    assert calls(checkout) == [_BASE, _PROVE]


def test_setup_adds_what_tests_need_in_either_order(checkout: Path) -> None:
    make(checkout, "prove")
    calls(checkout)
    assert make(checkout, "setup").returncode == 0
    assert calls(checkout) == [f"{_PIP} .[local,dev]"]
    make(checkout, "setup")
    assert calls(checkout) == []
    shutil.rmtree(checkout / ".venv")
    make(checkout, "setup")
    assert calls(checkout) == ["-m venv .venv", f"{_PIP} .[local,dev]"]
    make(checkout, "prove")
    assert calls(checkout) == [_BASE, _PROVE]


@pytest.mark.parametrize(
    ("variables", "command"),
    [
        ({}, "rehearse -o out/rehearsals"),
        ({"RECIPES": "eks gpu", "BOOT": "yes"}, "rehearse eks gpu -o out/rehearsals --boot"),
        ({"BOOT": "no"}, "rehearse -o out/rehearsals"),
    ],
)  # fmt: skip
def test_recipes_are_rehearsed_on_a_machine_that_is_set_up(
    checkout: Path, variables: dict[str, str], command: str
) -> None:
    assert make(checkout, "recipes", **variables).returncode == 0
    found = calls(checkout)
    assert sorted(found[:-1]) == sorted(["-m venv .venv", f"{_PIP} .[local]", _BASE])
    assert found[-1] == command


@pytest.mark.parametrize("target", ["prove", "unit", "setup"])
def test_compiled_files_are_kept_whatever_the_environment_says(checkout: Path, target: str) -> None:
    make(checkout, "setup", PYTHONDONTWRITEBYTECODE="1")
    make(checkout, target, PYTHONDONTWRITEBYTECODE="1")
    made = calls(checkout)
    assert any(call.startswith("-m pip install") for call in made)
    assert [call for call in made if call.startswith("keeps no")] == []


@pytest.mark.parametrize(
    ("target", "variables", "expected"),
    [
        ("prove", [], False),
        ("prove", ["RECIPE=variables/recipes/al2023-arm64.yml"], True),
        ("recipes", ["RECIPES=debian12-gpu ecs-al2023-gpu"], False),
        ("recipes", ["RECIPES=debian12-gpu ubuntu2404-gb200"], True),
        ("recipes", ["RECIPES=variables/recipes/al2023-arm64.yml"], True),
        ("recipes", [], True),
        ("setup", [], False),
    ],
)
@pytest.mark.skipif(platform.machine() == "aarch64", reason="its own architecture needs no emulator")
def test_emulators_are_installed_for_recipes_of_another_architecture_alone(
    target: str, variables: list[str], expected: bool
) -> None:
    done = subprocess.run(["make", "-n", target, *variables], cwd=ROOT, capture_output=True, text=True, timeout=60)
    (line,) = [line for line in done.stdout.splitlines() if "localregion/packages.sh" in line]
    assert ("qemu-system-arm" in line) == expected
