"""Fabric manager, IMEX and persistence daemon: they say their version and run beside the driver's own alone."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_ami.process import Completed, run
from localregion.mirror import staging, table

VERSION = "550.163.01"
PROGRAMS = {
    "fabric_manager": "rootfs/usr/bin/nv-fabricmanager",
    "imex": "rootfs/usr/bin/nvidia-imex",
    "nvidia_driver": "persistenced/usr/bin/nvidia-persistenced",
}
PID_FILES = {
    "fabric_manager": "run/nvidia-fabricmanager/nv-fabricmanager.pid",
    "imex": "run/nvidia-imex/nvidia-imex.pid",
    "nvidia_driver": "run/nvidia-persistenced/nvidia-persistenced.pid",
}


@dataclass
class Machine:
    """A folder that looks like a machine, and one of the programs as its package installs it."""

    root: Path
    family: str

    def driver(self, version: str) -> None:
        path = self.root / "proc/driver/nvidia/version"
        path.parent.mkdir(parents=True)
        path.write_text(f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (x@y)\n")

    def switch(self) -> None:
        (self.root / "proc/driver/nvidia-nvswitch/devices/0000:c4:00.0").mkdir(parents=True)

    def run(self, *words: str) -> Completed:
        source = table.REPLICAS / self.family / PROGRAMS[self.family]
        program = self.root / source.name
        program.write_text(source.read_text().replace("@VERSION@", VERSION))
        environment = {"GPU_AMI_ROOT": str(self.root), "PATH": "/usr/bin:/bin"}
        return run([sys.executable, "-I", program, *words], timeout=60, env=environment, check=False)

    def start(self) -> Completed:
        (self.root / "var/log").mkdir(parents=True)
        config = self.root / "config"
        config.write_text("# comment\nDAEMONIZE=1\n")
        return self.run(*(["-c", str(config)] if self.family != "nvidia_driver" else []))

    def end(self) -> None:
        """Ends the daemon and waits until it is gone."""
        pid = int((self.root / PID_FILES[self.family]).read_text())
        os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + 30
        while Path(f"/proc/{pid}/status").exists() and "zombie" not in Path(f"/proc/{pid}/status").read_text():
            assert time.monotonic() < until, "the daemon did not end"
            time.sleep(0.05)


@pytest.fixture(params=sorted(PROGRAMS))
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    made = Machine(tmp_path, request.param)
    if made.family == "fabric_manager":
        made.switch()
    if made.family == "imex":
        (tmp_path / "etc/nvidia-imex").mkdir(parents=True)
        (tmp_path / "etc/nvidia-imex/nodes_config.cfg").write_text("10.0.0.4\n")
    return made


SAYS = {
    "fabric_manager": f"Fabric Manager version is : {VERSION}\n",
    "imex": f"IMEX version is: {VERSION}\n",
    "nvidia_driver": f"\nnvidia-persistenced:  version {VERSION}  (gpu-ami@replica)\n",
}
REFUSES = {
    "fabric_manager": f"driver interface version {VERSION} don't match with driver version 550.144.03",
    "imex": f"IMEX version {VERSION} is not compatible with driver version 550.144.03",
    "nvidia_driver": "version 550.144.03 of the driver is loaded",
}


def test_it_says_its_version(machine: Machine) -> None:
    done = machine.run("--version")
    assert done.returncode == 0 and done.stdout.startswith(SAYS[machine.family])


def test_it_runs_until_it_is_ended(machine: Machine) -> None:
    machine.driver(VERSION)
    done = machine.start()
    assert done.returncode == 0, done.stderr
    machine.end()


def test_persistence_daemon_has_the_nodes_made(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "nvidia_driver")
    machine.driver(VERSION)
    for minor in ("0", "3"):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:0{minor}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA L4\nDevice Minor: \t {minor}\n")
    program = tmp_path / "usr/bin/nvidia-modprobe"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    program.chmod(0o755)
    assert machine.start().returncode == 0
    machine.end()
    first, *others = re.findall(r"-c (\d+)", (tmp_path / "asked").read_text())
    assert (first, sorted(others)) == ("255", ["0", "3"])


def test_it_refuses_a_driver_of_another_version(machine: Machine) -> None:
    machine.driver("550.144.03")
    done = machine.start()
    assert done.returncode == 1
    assert REFUSES[machine.family] in done.stderr
    assert not (machine.root / PID_FILES[machine.family]).exists()


def test_it_refuses_to_run_without_a_driver(machine: Machine) -> None:
    assert machine.start().returncode == 1


def test_it_refuses_options_that_it_does_not_have(machine: Machine) -> None:
    assert machine.run("--nonsense").returncode == 1


def test_fabric_manager_wants_a_switch(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "fabric_manager")
    machine.driver(VERSION)
    done = machine.start()
    assert done.returncode == 1 and "NV_WARN_NOTHING_TO_DO" in done.stderr
    assert "[ERROR]" in (tmp_path / "var/log/fabricmanager.log").read_text()


def test_fabric_manager_reaches_the_fourth_generation_through_the_subnet_manager(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "fabric_manager")
    machine.driver(VERSION)
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/umad0").touch()
    done = machine.start()
    assert done.returncode == 1 and "nvlsm not found" in done.stderr
    row = table.find_row("packages", "nvlsm", kind="rpm", asked_by="this test")
    staging.stage(row, {"version": "2025.10.14"}, tmp_path / "package")  # as installed: the package's own file and mode
    shutil.copytree(tmp_path / "package/opt", tmp_path / "opt")
    (tmp_path / "var/log/fabricmanager.log").unlink()
    (tmp_path / "var/log").rmdir()
    done = machine.start()
    assert done.returncode == 0, done.stderr
    machine.end()


@pytest.mark.parametrize("text", ["# none\n", None])
def test_imex_wants_a_list_of_machines(tmp_path: Path, text: str | None) -> None:
    machine = Machine(tmp_path, "imex")
    machine.driver(VERSION)
    (tmp_path / "etc/nvidia-imex").mkdir(parents=True)
    if text is not None:  # the package has no list
        (tmp_path / "etc/nvidia-imex/nodes_config.cfg").write_text(text)
    done = machine.start()
    assert done.returncode == 1 and "no machine is listed" in done.stderr


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvidia-fabricmanager-550", "deb"),
        ("nvidia-fabricmanager", "deb"),
        ("nvidia-fabric-manager", "rpm"),
        ("nvidia-imex", "rpm"),
        ("nvidia-imex-570", "deb"),
        ("nvlsm", "rpm"),
    ],
)
def test_every_name_of_the_facts_has_a_replica(name: str, kind: str) -> None:
    row = table.find_row("packages", name, kind=kind, asked_by="this test")
    assert row.entry["does"]


def test_persistence_daemon_leaves_the_mode_alone_if_told_so(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "nvidia_driver")
    machine.driver(VERSION)
    for words, held in (([], True), (["--no-persistence-mode"], False)):
        assert machine.run(*words).returncode == 0
        machine.end()
        mode = tmp_path / "run/nvidia-persistenced/mode"
        assert mode.exists() is held
        mode.unlink(missing_ok=True)
