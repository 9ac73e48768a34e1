"""What a converge says of itself: tasks, changes, failures, of an Ansible that really runs, on this machine alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.build import ansible as module
from gpu_ami.build.ansible import Machine, converge
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
    assert module.ansible_settings(simulated=False) == []
    assert "ANSIBLE_STRATEGY=mitogen_linear" in module.ansible_settings(simulated=True)
