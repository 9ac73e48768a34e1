"""Ansible's side: sandboxes are converged, AWS's machines are not; its output as tasks, changes and failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.build import ansible as module
from gpu_ami.build.ansible import Machine, Play, converge, is_failure
from gpu_ami.errors import BuildError, CloudError

_SSH = Machine("127.0.0.1", 9, "nobody")  # the discard port: nothing listens there
_PLAY = """
- hosts: all
  gather_facts: false
  connection: local
  tasks:
    - name: Ensure the file says so
      ansible.builtin.copy: {{dest: "{file}", content: "{{{{ word }}}}", mode: "0600"}}
      vars: {{ansible_python_interpreter: "{{{{ ansible_playbook_python }}}}"}}
    - name: Ensure it is not forbidden
      ansible.builtin.assert: {{that: word != "forbidden", fail_msg: forbidden it is, quiet: true}}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "ansible.cfg").write_text("[defaults]\nretry_files_enabled = False\n")
    (tmp_path / "playbooks" / "attach.yml").write_text(_PLAY.format(file=tmp_path / "said"))
    return tmp_path


def variables(root: Path, word: str) -> Path:
    file = root / "ansible.json"
    file.write_text(f'{{"word": "{word}"}}')
    return file


@pytest.mark.slow
def test_a_second_time_changes_nothing(root: Path) -> None:
    first = converge(root, variables(root, "a"), _SSH)
    assert (first.changed, first.ok) == (("Ensure the file says so",), 2)
    assert first.text().startswith("ok=2 changed=1 in ")
    assert {name for name, _ in first.slowest} == {"Ensure the file says so", "Ensure it is not forbidden"}
    again = converge(root, variables(root, "a"), _SSH)
    assert (again.changed, again.ok) == ((), 2)
    assert converge(root, variables(root, "b"), _SSH).changed == ("Ensure the file says so",)


@pytest.mark.slow
def test_roles_alone_stand_in_for_the_plan_s(root: Path) -> None:
    play = root / "playbooks" / "attach.yml"
    play.write_text(play.read_text().replace('"{{ word }}"', "\"{{ gpu_ami_roles | join(' ') }}\""))
    (root / "ansible.json").write_text('{"word": "a", "gpu_ami_roles": ["cuda", "nccl", "dcgm"]}')
    converge(root, root / "ansible.json", _SSH)
    assert (root / "said").read_text() == "cuda nccl dcgm"
    converge(root, root / "ansible.json", _SSH, roles=["nccl"])
    assert (root / "said").read_text() == "nccl"


@pytest.mark.slow
def test_a_failure_names_task_and_message(root: Path) -> None:
    with pytest.raises(BuildError, match=r"Ensure it is not forbidden: .*forbidden it is"):
        converge(root, variables(root, "forbidden"), _SSH)


@pytest.mark.slow
def test_nobody_there(root: Path) -> None:
    (root / "playbooks" / "attach.yml").write_text(_PLAY.format(file="x").replace("  connection: local\n", ""))
    with pytest.raises(CloudError, match=r"nobody@127.0.0.1:9 could not be reached"):
        converge(root, variables(root, "a"), _SSH)


def test_mitogen_is_for_emulated_machines_alone() -> None:
    assert module.ansible_settings(slow_python=False) == []
    assert "ANSIBLE_STRATEGY=mitogen_linear" in module.ansible_settings(slow_python=True)


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
    monkeypatch.setattr("gpu_ami.build.ansible.time.time", lambda: next(clock))
    converged = play(OUTPUT.replace("[nccl : Hold", "[tuning : Hold")).converged
    assert converged is not None
    assert converged.roles == (("nccl", 1000, 1001), ("tuning", 1001, 1002), ("nccl", 1002, 1003))
