"""ansible-playbook's output as tasks, changes and failures."""

from __future__ import annotations

import pytest

from gpu_ami.build.ansible_output import Play, is_failure

OUTPUT = """\
PLAY [Build the image] *********************************************************

TASK [nccl : Install the planned packages] *************************************
changed: [default] => (item=libnccl2)
changed: [default] => (item=libnccl-dev)

TASK [nccl : Hold the packages] ************************************************
ok: [default]

RUNNING HANDLER [nccl : Update the linker cache] *******************************
changed: [default]

PLAY RECAP *********************************************************************
default                    : ok=3    changed=2    unreachable=0    failed=0    skipped=0
"""


def play(text: str) -> Play:
    read = Play()
    for line in text.splitlines():
        read.line(line)
    read.end()
    return read


def test_tasks_and_changes_are_counted_once_a_task() -> None:
    converged = play(OUTPUT).converged
    assert converged is not None
    assert converged.changed == ("nccl : Install the planned packages", "nccl : Update the linker cache")
    assert converged.ok == 3 and not play(OUTPUT).failed and not play(OUTPUT).lost


def test_failed_task_comes_before_other_error_lines() -> None:
    lines = '[ERROR]: [mux  17] prune_tree\nfatal: [default]: FAILED! => {"msg": "held"}'
    read = play(OUTPUT.replace("ok: [default]", lines).replace("failed=0", "failed=1"))
    assert read.failed
    assert read.failures[0] == 'nccl : Hold the packages: fatal: [default]: FAILED! => {"msg": "held"}'
    assert "prune_tree" in read.failures[1]


def test_output_that_ends_early_has_failed() -> None:
    read = play(OUTPUT.partition("PLAY RECAP")[0])
    assert read.failed and read.converged is None


def test_unreachable_host() -> None:
    assert play(OUTPUT.replace("unreachable=0", "unreachable=1")).lost


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("fatal: [default]: UNREACHABLE! => {}", True),
        ("failed: [default] (item=x) => {}", True),
        ("ERROR! the role 'x' was not found", True),
        ("[ERROR]: Task failed", True),
        ("ok: [default]", False),
        ("  msg: fatal: [quoted]", False),
    ],
)
def test_error_prefixes(line: str, failure: bool) -> None:
    assert is_failure(line) is failure


def test_the_time_of_each_role_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000, 2000))
    monkeypatch.setattr("gpu_ami.build.ansible_output.time.time", lambda: next(clock))
    converged = play(OUTPUT.replace("[nccl : Hold", "[tuning : Hold")).converged
    assert converged is not None
    assert converged.roles == (("nccl", 1000, 1001), ("tuning", 1001, 1002), ("nccl", 1002, 1003))
