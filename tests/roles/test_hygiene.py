"""The last task of a build under Ansible's own strategy; emulated builds run mitogen, which keeps no files in /tmp."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.slow

ROLES = Path(__file__).parents[2] / "roles"
ANSIBLE = Path(sys.executable).with_name("ansible-playbook")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with the builder's files below it: tmp/ is where Ansible puts modules by default."""
    for name in ("tmp/ansible_payload/module.zip", "tmp/.X11-unix/socket", "var/log/apt/history.log", "home/.cache/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("of the builder\n")
    (tmp_path / "run").mkdir()
    return tmp_path


REMOVED = ("/tmp/*", "/tmp/.[!.]*", "/home/.cache")


def default_patterns() -> list[str]:
    defaults = yaml.safe_load((ROLES / "hygiene" / "defaults" / "main.yml").read_text())
    return list(defaults["hygiene_removed"])


def remove_files(
    machine: Path, workspace: Path, kept: Sequence[str] = (), removed: Sequence[str] = REMOVED
) -> subprocess.CompletedProcess[str]:
    """Runs the role's last task with patterns below a folder; workspace: the task's TMPDIR; kept: patterns."""
    task = yaml.safe_load((ROLES / "hygiene" / "tasks" / "main.yml").read_text())[-1]
    variables = {
        "hygiene_emptied": [str(machine / "var" / "log")],
        "hygiene_removed": [f"{machine}{name}" for name in removed],
        "hygiene_kept": [str(machine / name) for name in kept],
        "__hygiene_tmpdir": str(workspace),
    }
    play = {"hosts": "localhost", "gather_facts": False, "vars": variables, "tasks": [task]}
    (machine / "play.yml").write_text(yaml.safe_dump([play]))
    environment = os.environ | {
        "TMPDIR": str(machine / "tmp"),
        "ANSIBLE_LOCAL_TEMP": str(machine / "local"),
        "ANSIBLE_STRATEGY": "linear",
    }
    command = [str(ANSIBLE), "-i", "localhost,", "-c", "local", str(machine / "play.yml")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_last_task_removes_everything_and_succeeds(machine: Path) -> None:
    done = remove_files(machine, machine / "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in (machine / "tmp").iterdir()] == []
    assert not (machine / "home" / ".cache").exists()
    assert [path.name for path in (machine / "var" / "log").rglob("*")] == ["apt"]
    assert list((machine / "run").iterdir()) == []  # Ansible removed its modules


def test_a_layer_image_keeps_what_it_names_and_nothing_else(machine: Path) -> None:
    done = remove_files(machine, machine / "run", kept=["home/.cache"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert (machine / "home" / ".cache" / "x").exists()
    assert [path.name for path in (machine / "tmp").iterdir()] == []


def test_the_login_users_rules_are_left_to_the_next_first_boot(machine: Path) -> None:
    """cloud-init appends the same rules at each first boot: an image in layers would have more of them."""
    folder = machine / "etc" / "sudoers.d"
    folder.mkdir(parents=True)
    for name in ("90-cloud-init-users", "README", "50-site"):
        (folder / name).write_text("# a rule\n")
    done = remove_files(machine, machine / "run", removed=default_patterns())
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["50-site", "README"]


def test_the_playbook_names_patterns_that_hygiene_has() -> None:
    """A pattern that hygiene does not have keeps nothing: the bill of materials would lose repositories' names."""
    (play,) = yaml.safe_load((ROLES.parent / "playbooks" / "image.yml").read_text())
    kept = play["vars"]["__gpu_ami_package_lists"]
    assert kept and set(kept) <= set(default_patterns())


def test_modules_in_the_folder_that_it_empties_would_fail_the_build(machine: Path) -> None:
    """Why the task sets TMPDIR: the modules were removed while they ran, except under mitogen."""
    done = remove_files(machine, machine / "tmp")
    assert done.returncode != 0
    assert "Module result deserialization failed" in done.stdout


def test_tmpdir_is_in_memory() -> None:
    assert yaml.safe_load((ROLES / "hygiene" / "vars" / "main.yml").read_text()) == {"__hygiene_tmpdir": "/run"}
