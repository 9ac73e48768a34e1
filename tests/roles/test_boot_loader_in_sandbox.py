"""Role kernel makes an installed kernel of the planned series GRUB's default: Debian's own update-grub, in a sandbox.

The base image has one kernel. A newer one is put beside it, as on an AMI whose kernel is too new for a planned module.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_ami.build.ansible import Machine
from gpu_ami.files import home_dir
from gpu_ami.plan import make_plan
from gpu_ami.progress import Progress
from localregion import region
from localregion.images.source_ami import base_of
from localregion.machines import firmware
from localregion.machines.boards import Devices
from localregion.mirror import mirror
from localregion.sandbox import sandbox
from tests.roles.test_converge_in_sandbox import ssh

ROOT = Path(__file__).resolve().parents[2]
_PLAY = """\
- hosts: all
  become: true
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: kernel
        tasks_from: debian_boot.yml
"""
_NEWER = "99.0.0-1014-aws"


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    home, progress = home_dir(), Progress(mode="plain")
    plan = make_plan(ROOT / "variables" / "recipes" / "ubuntu2404-workstation.yml", region.local_place(home))
    mirror.ensure(home, plan=plan.document, agent_package=None, progress=progress)
    with sandbox.entered(base_of(plan.document), Devices(gpu=1), home, progress) as found:
        yield Machine(found.host, found.port, found.user, Path(found.key))


def default_kernel(machine: Machine) -> str:
    """The kernel that the boot loader takes, by its menu."""
    entry = firmware.default_entry(ssh(machine, "sudo cat /boot/grub/grub.cfg").decode())
    assert entry is not None
    return entry.kernel.rpartition("/")[2]


@pytest.mark.sandbox
def test_an_older_kernel_becomes_the_default_and_stays_it(machine: Machine, tmp_path: Path) -> None:
    own = ssh(machine, "ls /boot").decode()
    release = next(name.removeprefix("vmlinuz-") for name in own.split() if name.startswith("vmlinuz-"))
    series = ".".join(release.split(".")[:2])
    for name in ("vmlinuz", "initrd.img", "config", "System.map"):
        ssh(
            machine, f"sudo sh -c 'test ! -e /boot/{name}-{release} || cp /boot/{name}-{release} /boot/{name}-{_NEWER}'"
        )
    ssh(machine, "sudo update-grub")
    assert default_kernel(machine) == f"vmlinuz-{_NEWER}", "the boot loader takes the newest kernel"

    play = tmp_path / "play.yml"
    play.write_text(_PLAY)
    variables = {
        "kernel_version": series, "kernel_package": "linux-image-aws-lts-24.04", "kernel_follows": [],
        "__kernel_running": {"stdout": release},  # so the handlers do not restart the sandbox
    }  # fmt: skip
    command = [
        "ansible-playbook", "-i", f"{machine.address},", "-e", f"ansible_port={machine.port}", "-u", machine.user,
        "--private-key", str(machine.key), "-e", json.dumps(variables), str(play),
    ]  # fmt: skip
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_ROLES_PATH": str(ROOT / "roles")}
    programs = ROOT / ".venv" / "bin"
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert default_kernel(machine) == f"vmlinuz-{release}"
    ssh(machine, "sudo update-grub")  # as the next package of a kernel does
    assert default_kernel(machine) == f"vmlinuz-{release}"
