"""The order of playbooks/image.yml, on this machine: its roles, the commands of the system and the programs are ours.

In a folder of its own, so that no role of the project is within reach: hygiene would empty this machine.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_ami.build.ansible import ansible_playbook

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
STOPPED = [
    "apt-daily.timer", "apt-daily-upgrade.timer", "apt-daily.service", "apt-daily-upgrade.service",
    "unattended-upgrades.service",
]  # fmt: skip
SYSTEMCTL = """#!/bin/sh
case "$1 $2" in
stop*) echo "$@" >>{log}; exit 5 ;;
esac
"""


@dataclass(frozen=True)
class Played:
    """What happened, in order; exit code and output."""

    steps: list[str]
    code: int
    text: str


def play(folder: Path, cloud_init: int, roles: Sequence[str] = ("marker", "hygiene"), result: str = "") -> Played:
    """Runs the playbook with a cloud-init that ends with this exit code. result: its result.json, "" for none yet."""
    log, programs = folder / "log", folder / "bin"
    for path in ("playbooks/roles/marker/tasks", "playbooks/roles/hygiene/tasks", "onhost", "bin"):
        (folder / path).mkdir(parents=True)
    shutil.copy(ROOT / "playbooks/image.yml", folder / "playbooks")
    for name in ("marker", "hygiene"):
        task = f'- name: Ensure it is noted\n  ansible.builtin.command: sh -c "echo role {name} >>{log}"\n'
        (folder / f"playbooks/roles/{name}/tasks/main.yml").write_text(task)
        (folder / f"playbooks/roles/{name}/tasks/package.yml").write_text(task.replace("echo role", "echo package of"))
    for name in ("inventory", "materials"):
        out = folder / "none" if name == "inventory" else folder / "bom"
        noted = f"Path({str(log)!r}).open('a').write('{name}\\n')"
        source = f"from pathlib import Path\n{noted}\nPath({str(out)!r}).touch()\n"
        (folder / f"onhost/{name}.py").write_text(source)
    for name, text in {
        "cloud-init": f'#!/bin/sh\necho "cloud-init $*" >>{log}\nexit {cloud_init}\n',
        "systemctl": SYSTEMCTL.format(log=log),
        "df": "#!/bin/sh\necho Avail\necho 99999\n",
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    variables = {
        "gpu_ami_roles": list(roles), "ansible_become": False, "gpu_ami_base_inventory": f"{folder}/none",
        "ansible_python_interpreter": shutil.which("python3", path="/usr/bin"),
        "gpu_ami_bill_of_materials": f"{folder}/bom", "gpu_ami_builder_boots": f"{folder}/boots",
        "__gpu_ami_cloud_init_result": f"{folder}/result.json",
    }  # fmt: skip
    if result:
        (folder / "result.json").write_text(result)
    done = subprocess.run(
        [ansible_playbook(), "-i", "localhost,", "-c", "local", "-e", json.dumps(variables), "playbooks/image.yml"],
        cwd=folder,
        env={"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "ANSIBLE_NOCOLOR": "1", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return Played(log.read_text().splitlines(), done.returncode, done.stdout + done.stderr)


def test_nothing_is_done_before_cloud_init_has_finished(tmp_path: Path) -> None:
    """It may still write package sources; exit code 2 is `done, with warnings`."""
    played = play(tmp_path, 2)
    assert played.code == 0, played.text
    like_debian = {"debian", "ubuntu"} & set(platform.freedesktop_os_release().get("ID", "").split())
    stops = [" ".join(["stop", *STOPPED])] if like_debian else []
    expected = ["cloud-init status --wait", *stops, "inventory", "role marker", "materials", "role hygiene"]
    assert played.steps == expected, played.text


# As cloud-init 22.4 (Debian 12) and 24.1 (Ubuntu 24.04) write it; cloudinit/atomic_helper.py, write_json.
RESULT = """{{
 "v1": {{
  "datasource": "DataSourceEc2Local",
  "errors": {errors}
 }}
}}
"""


def test_a_cloud_init_that_has_finished_without_errors_is_not_started(tmp_path: Path) -> None:
    played = play(tmp_path, 1, result=RESULT.format(errors="[]"))
    assert played.code == 0 and "cloud-init status --wait" not in played.steps, played.text


def test_errors_of_cloud_init_end_the_build(tmp_path: Path) -> None:
    played = play(tmp_path, 1, result=RESULT.format(errors="[\n   \"('scripts_user', RuntimeError())\"\n  ]"))
    assert played.code != 0 and played.steps == ["cloud-init status --wait"]


def test_a_cloud_init_that_fails_ends_the_build(tmp_path: Path) -> None:
    played = play(tmp_path, 1)
    assert played.code != 0 and played.steps == ["cloud-init status --wait"]
    assert "Wait until cloud-init has finished" in played.text


def test_of_a_role_of_a_higher_layer_the_early_tasks_alone_run(tmp_path: Path) -> None:
    played = play(tmp_path, 0, ["marker:package", "hygiene"])
    assert played.code == 0, played.text
    assert [step for step in played.steps if "marker" in step] == ["package of marker"]
