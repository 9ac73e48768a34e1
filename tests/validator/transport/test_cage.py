"""validator.transport.cage: the command line, and what is refused; tests/attacks/test_image.py has the ways out."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.validator.transport.test_image_files import can_enter
from validator.transport import cage


def test_command_has_the_settings_in_one_word() -> None:
    *_, program, settings = cage.command("files", Path("/m"), ["/bin/sh", "-c", "x y"], "/tree", 512)
    assert Path(program).name == "cage.py"
    expected = {"kind": "files", "root": "/m", "words": ["/bin/sh", "-c", "x y"], "source": "/tree", "offset": 512}
    assert json.loads(settings) == expected


def test_a_sandbox_cannot_reach_the_kernel() -> None:
    assert {"sys_admin", "sys_module", "sys_ptrace", "dac_read_search", "sys_rawio", "bpf"} <= set(cage.SANDBOX_DROPPED)


@pytest.mark.skipif(not can_enter(), reason="needs root and namespaces")
@pytest.mark.parametrize(
    ("source", "words", "message"),
    [
        ("/nonexistent", ["/bin/true"], "cage: mount"),
        ("/", ["/nonexistent"], "cage: /nonexistent: No such file or directory"),
        ("/etc", ["/bin/true"], "cage: it has no /proc: not the root of a system"),
    ],
)
def test_a_cage_that_cannot_be_built_runs_nothing(source: str, words: list[str], message: str, tmp_path: Path) -> None:
    command = cage.command("files", tmp_path, words, source)
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == cage.FAILED and done.stderr.startswith(message)
