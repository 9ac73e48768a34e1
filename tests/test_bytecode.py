"""Compiled Python files where the environment wants none beside the sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_ami import bytecode
from gpu_ami.build.ansible import ansible_settings

_NONE, _FOLDER = "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of the test's own; what is set in this process is set back."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GPU_AMI_HOME", str(home))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return home


def test_they_are_kept_in_the_cache_folder(own_home: Path) -> None:
    bytecode.keep({_NONE: "1", "OTHER": "x"})
    folder = own_home / "cache" / "python"
    assert (sys.dont_write_bytecode, sys.pycache_prefix) == (False, str(folder))
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("environment", [{}, {_NONE: ""}, {_NONE: "1", _FOLDER: "/elsewhere"}])
def test_an_environment_that_says_where_stays_as_it_is(environment: dict[str, str]) -> None:
    bytecode.keep(environment)
    assert sys.dont_write_bytecode
    assert sys.pycache_prefix is None


def test_what_is_made_for_them_is_private(own_home: Path) -> None:
    """The state folder too, which may not be there yet."""
    own_home.rmdir()
    bytecode.keep({_NONE: "1"})
    modes = {folder.stat().st_mode & 0o777 for folder in (own_home, own_home / "cache", own_home / "cache" / "python")}
    assert modes == {0o700}


@pytest.mark.parametrize("open_to_others", ["", "cache", "cache/python"])
def test_a_folder_that_others_can_write_to_is_not_used(own_home: Path, open_to_others: str) -> None:
    (own_home / "cache" / "python").mkdir(parents=True)
    (own_home / open_to_others).chmod(0o777)
    bytecode.keep({_NONE: "1"})
    assert sys.pycache_prefix is None


def test_a_user_without_a_home_directory_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_AMI_HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", _no_home)
    bytecode.keep({_NONE: "1"})
    assert sys.pycache_prefix is None


def test_a_working_directory_that_is_gone_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("GPU_AMI_HOME", "relative")
    bytecode.keep({_NONE: "1"})
    assert sys.pycache_prefix is None


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_folder_that_cannot_be_made_is_no_error(own_home: Path) -> None:
    (own_home / "cache").write_text("a file")
    bytecode.keep({_NONE: "1"})
    assert sys.pycache_prefix is None


def test_our_own_python_programs_write_there_and_others_are_not_told(own_home: Path) -> None:
    """A program that installs packages in an image's tree would have them compiled to that folder in the tree."""
    package = own_home / "package"
    package.mkdir()
    (package / "imported.py").write_text("ANSWER = 42\n")
    program = (
        "import os, sys; from gpu_ami import bytecode, process; bytecode.keep(os.environ)\n"
        "process.run([sys.executable, '-c', 'import imported'], timeout=60)\n"
        "nested = 'from gpu_ami import process; print(process.run([\"env\"], timeout=60).stdout)'\n"
        "print(process.run([sys.executable, '-c', nested], timeout=60).stdout, process.run(['env'], timeout=60).stdout)"
    )
    environment = os.environ | {_NONE: "1", "PYTHONPATH": os.pathsep.join([str(package), *filter(None, sys.path)])}
    environment.pop(_FOLDER, None)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, timeout=60, capture_output=True, text=True
    )
    assert [path.name for path in package.iterdir()] == ["imported.py"]
    kept = [path.name for path in (own_home / "cache" / "python").rglob("imported*.pyc")]
    assert kept == [f"imported.{sys.implementation.cache_tag}.pyc"]
    assert "PYTHONPATH=" in done.stdout and _FOLDER not in done.stdout


def test_ansible_is_told(own_home: Path) -> None:
    assert not [setting for setting in ansible_settings(slow_python=False) if setting.startswith("PYTHON")]
    bytecode.keep({_NONE: "1"})
    told = [setting for setting in ansible_settings(slow_python=False) if setting.startswith("PYTHON")]
    assert told == [f"{_FOLDER}={own_home / 'cache' / 'python'}", f"{_NONE}="]
