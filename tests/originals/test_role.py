"""Role container_toolkit's tasks for Docker, with NVIDIA's own nvidia-ctk, in a mount namespace with its own /etc."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.originals import fetch
from tests.originals.test_container_toolkit import RELEASE

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.usefixtures("root_user")]

_ENTER = """\
set -e
mount --make-rprivate /
mount -t tmpfs none "$1/etc"
cp -a /etc/. "$1/etc"
mkdir -p "$1/etc/docker"
cp "$1/daemon.json" "$1/etc/docker/daemon.json"
mount --bind "$1/etc" /etc
cd "$1"
for run in 1 2; do
  "$2" -e ansible_python_interpreter=/usr/bin/python3 -i localhost, -c local play.yml
done
cp /etc/docker/daemon.json "$1/daemon.json"
"""


@pytest.mark.parametrize("before", ["", "{}", '{"log-driver": "journald"}'], ids=["empty", "object", "settings"])
def test_docker_gets_the_runtime_once(tmp_path: Path, before: str) -> None:
    """An empty file is no configuration for dockerd, and nvidia-ctk stops at it (EOF)."""
    tasks = yaml.safe_load((ROOT / "roles/container_toolkit/tasks/docker.yml").read_text(encoding="utf-8"))
    handler = {"name": "Reload the container runtime", "ansible.builtin.debug": {"msg": "reloaded"}}
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars": {"container_toolkit_cdi": True, "__container_toolkit_cdi_flag": ["--cdi.enabled"]},
        "tasks": [task for task in tasks if "ansible.builtin.systemd_service" not in task],
        "handlers": [handler],
    }
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]), encoding="utf-8")
    (tmp_path / "daemon.json").write_text(before, encoding="utf-8")
    (tmp_path / "etc").mkdir()
    ansible = Path(sys.executable).with_name("ansible-playbook")
    words = ["unshare", "--mount", "/bin/sh", "-c", _ENTER, "enter", str(tmp_path), str(ansible)]
    path = f"{fetch.toolkit(RELEASE)}:{os.environ['PATH']}"
    environment = {"PATH": path, "ANSIBLE_HOME": str(tmp_path / "ansible"), "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-1000:]
    assert [int(changed) > 0 for changed in re.findall(r"changed=(\d+)", done.stdout)] == [True, False]
    settings = json.loads((tmp_path / "daemon.json").read_text(encoding="utf-8"))
    assert settings["runtimes"]["nvidia"]["path"] == "nvidia-container-runtime"
    assert settings["features"]["cdi"] is True
    assert settings.get("log-driver", "") == ("journald" if "log-driver" in before else "")
