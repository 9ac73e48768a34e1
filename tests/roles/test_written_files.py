"""playbooks/callback_plugins/written_files.py: what a run of Ansible says that its roles wrote, on this machine."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_ami.build.ansible import ansible_playbook
from validator.file_account import WrittenFile, written_files

pytestmark = pytest.mark.slow

PLUGINS = Path(__file__).resolve().parents[2] / "playbooks/callback_plugins"
TASKS = """
- ansible.builtin.copy: {dest: "{{ etc }}/{{ item }}.conf", content: "{{ item }}\\n"}
  loop: [one, two]
- ansible.builtin.template: {src: unit.j2, dest: "{{ etc }}/unit"}
- ansible.builtin.file: {path: "{{ etc }}/one.conf", mode: "0600"}
- ansible.builtin.copy: {dest: "{{ etc }}/edited", content: "a\\n"}
- ansible.builtin.lineinfile: {path: "{{ etc }}/edited", line: b}
- ansible.builtin.file: {path: "{{ etc }}/work", state: directory}
- ansible.builtin.copy: {dest: "{{ etc }}/work/config", content: "c\\n"}
- ansible.builtin.file: {path: "{{ etc }}/work", state: absent}
- ansible.builtin.copy: {dest: "{{ etc }}/controller", content: "d\\n"}
  delegate_to: localhost
"""


def sha1(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def test_written_files_are_recorded_unless_they_are_changed_or_removed(tmp_path: Path) -> None:
    for name in ("roles/demo/tasks", "roles/demo/templates", "etc", "out"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copytree(PLUGINS, tmp_path / "callback_plugins")
    (tmp_path / "roles/demo/tasks/main.yml").write_text(TASKS)
    (tmp_path / "roles/demo/templates/unit.j2").write_text("in {{ etc }}\n")
    (tmp_path / "play.yml").write_text("- hosts: all\n  gather_facts: false\n  roles: [demo]\n")
    variables = {
        "etc": f"{tmp_path}/etc",
        "gpu_ami_build_folder": f"{tmp_path}/out",
        "ansible_python_interpreter": shutil.which("python3", path="/usr/bin"),
    }
    command = [ansible_playbook(), "-i", "box,", "-c", "local", "-e", json.dumps(variables), "play.yml"]
    for run in ("changed", "ok"):  # a file that is there already, as planned, counts as written
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "ANSIBLE_NOCOLOR": "1", "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert run in done.stdout
        texts = {"one.conf": "one\n", "two.conf": "two\n", "unit": f"in {tmp_path}/etc\n"}
        wrote = {f"{tmp_path}/etc/{name}": WrittenFile("demo", sha1(text)) for name, text in texts.items()}
        assert written_files(tmp_path / "out") == wrote
