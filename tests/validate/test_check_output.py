"""What pytest itself prints, read while it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpu_ami.validate.proof import CheckOutput
from gpu_ami.validate.validator_process import PYTEST

_CHECKS = """
import pytest

def test_holds(): pass
def test_red(): assert False
def test_skipped(): pytest.skip("not here")
@pytest.fixture
def broken(): raise ValueError
def test_error(broken): pass
@pytest.mark.parametrize("name", ["FAILED [ 10%]", "b"])
def test_many(name): pass
def test_deselected(): pass
"""


@pytest.mark.slow
def test_counts_are_pytests_own(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(_CHECKS)
    command = [sys.executable, *PYTEST[1:3], *PYTEST[5:], "-vv", "-k", "not deselected", str(tmp_path)]
    output = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False).stdout
    read = CheckOutput()
    for line in output.splitlines():
        read.line(line)
    assert (read.done, read.total, read.red) == (6, 6, 2), output


@pytest.mark.parametrize("line", ["collected 7 items", "collected 9 items / 2 deselected / 7 selected"])
def test_total_is_what_was_selected(line: str) -> None:
    read = CheckOutput()
    read.line(line)
    assert read.total == 7
