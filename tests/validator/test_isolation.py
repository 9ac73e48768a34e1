"""validator.isolation: which programs take part in a run, and which of them somebody named."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.validator.conftest import Sshd
from validator import isolation


def test_nothing_of_the_caller_configures_pytest() -> None:
    assert "-P" in isolation.PYTHON_ARGUMENTS and "--isolated" in isolation.ARGUMENTS
    configuration = Path(isolation.ARGUMENTS[isolation.ARGUMENTS.index("-c") + 1])
    assert configuration.is_file() and "addopts =\n" in configuration.read_text()
    assert {"PYTEST_", "PYTHON"} <= set(isolation.CALLERS_VARIABLES)


@pytest.mark.slow
def test_the_plugin_alone_lists_what_nobody_named(sshd: Sshd, tmp_path: Path) -> None:
    """It stays open to the caller's plugins; its results say that they were there, and are not isolated."""
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "test_mine.py").write_text("def test_mine(host):\n    pass\n")
    (tmp_path / "conftest.py").write_text("")
    (tmp_path / "evil.py").write_text("")
    results = tmp_path / "checks.json"
    command = [
        sys.executable, "-m", "pytest", "-p", "validator.plugin", "-p", "no:cacheprovider", "-q", "--rootdir=.",
        f"--hosts=ssh://{getpass.getuser()}@127.0.0.1:{sshd.port}", f"--ssh-identity-file={sshd.key}",
        f"--results={results}", "checks",
    ]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTEST_PLUGINS": "evil"}, check=True, timeout=60)
    document = json.loads(results.read_text())
    named = {Path(program["name"]).name: program["named"] for program in document["programs"]}
    assert document["isolated"] is False
    assert named["conftest.py"] is False and named["evil"] is False and named["test_mine.py"] is True
