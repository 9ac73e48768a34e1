"""Compiled Python files where the environment wants none beside the sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_ami import bytecode

_NONE, _FOLDER = "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of the test's own; what is set in this process is set back."""
    monkeypatch.setenv("GPU_AMI_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return tmp_path


def test_they_are_kept_in_the_cache_folder(own_home: Path) -> None:
    environment = {_NONE: "1", "OTHER": "x"}
    bytecode.keep(environment)
    folder = own_home / "cache" / "python"
    assert environment == {_FOLDER: str(folder), "OTHER": "x"}
    assert (sys.dont_write_bytecode, sys.pycache_prefix) == (False, str(folder))
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("environment", [{}, {_NONE: ""}, {_NONE: "1", _FOLDER: "/elsewhere"}])
def test_an_environment_that_says_where_stays_as_it_is(environment: dict[str, str]) -> None:
    before = dict(environment)
    bytecode.keep(environment)
    assert environment == before
    assert sys.dont_write_bytecode
    assert sys.pycache_prefix is None


def test_a_folder_that_others_can_write_to_is_not_used(own_home: Path) -> None:
    folder = own_home / "cache" / "python"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    environment = {_NONE: "1"}
    bytecode.keep(environment)
    assert environment == {_NONE: "1"}
    assert sys.pycache_prefix is None


def test_a_folder_that_cannot_be_made_is_no_error(own_home: Path) -> None:
    (own_home / "cache").write_text("a file")
    environment = {_NONE: "1"}
    bytecode.keep(environment)
    assert environment == {_NONE: "1"}


def test_the_program_and_what_it_starts_write_there_alone(own_home: Path) -> None:
    package = own_home / "package"
    package.mkdir()
    (package / "imported.py").write_text("ANSWER = 42\n")
    program = (
        "import os, subprocess, sys; from gpu_ami import bytecode; bytecode.keep(os.environ)\n"
        "subprocess.run([sys.executable, '-c', 'import imported'], check=True)"
    )
    environment = os.environ | {_NONE: "1", "PYTHONPATH": os.pathsep.join([str(package), *sys.path[:1], *sys.path])}
    environment.pop(_FOLDER, None)
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
    assert [path.name for path in package.iterdir()] == ["imported.py"]
    kept = [path.name for path in (own_home / "cache" / "python").rglob("imported*.pyc")]
    assert kept == [f"imported.{sys.implementation.cache_tag}.pyc"]
