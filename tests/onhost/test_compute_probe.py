"""The program that computes on every GPU, on the replica's libcuda and a machine's files in a folder."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from localregion.mirror import staging
from localregion.mirror.table import Package, find_row
from onhost import compute_probe
from tests.waiting import until
from validator import remote

PROGRAM = Path(compute_probe.__file__)
VERSION = "550.163.01"
NAME = "NVIDIA A100-SXM4-40GB"
BOARD = """magic: gpu-ami-board/1
minor: {index}
name: {name}
uuid: GPU-{index:08x}-1111-2222-3333-444444444444
compute_capability: 8.0
memory_mib: 40960
"""


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the replica's library."""
    name = f"libnvidia-compute-{VERSION.partition('.')[0]}"
    row = find_row("packages", name, kind="deb", asked_by="a test")
    tree = tmp_path_factory.mktemp("libcuda")
    staging.stage(row, Package(name, f"{VERSION}-0ubuntu1", "deb", "x86_64", row).values, tree)
    (library,) = tree.rglob(f"libcuda.so.{VERSION}")
    return library.parent


@dataclass(frozen=True)
class Machine:
    """/proc, /dev and /run of a machine, which every user can read: the program gives root's rights away."""

    root: Path
    library: Path

    def boards(self, count: int, name: str = NAME) -> None:
        for index in range(count):
            self.write(f"{self.of(index)}/board", BOARD.format(index=index, name=name))
            self.write(f"dev/nvidia{index}")

    @staticmethod
    def of(index: int) -> str:
        return f"proc/driver/nvidia/gpus/0000:00:1{index}.0"

    def write(self, path: str, text: str = "") -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)
        (self.root / path).chmod(0o666)

    def command(self, *words: str) -> tuple[list[str], dict[str, str]]:
        environment = {"PATH": "/usr/bin:/bin", "GPU_AMI_ROOT": str(self.root), "LD_LIBRARY_PATH": str(self.library)}
        return [sys.executable, "-IS", "-", *words], environment

    def run(self, *words: str) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
        """The exit status, the machine's line and the GPUs'."""
        command, environment = self.command(*words)
        with PROGRAM.open() as program:
            done = subprocess.run(
                command, env=environment, stdin=program, capture_output=True, text=True, timeout=60, cwd="/"
            )
        assert done.stderr == ""
        machine, *gpus = (json.loads(line) for line in done.stdout.splitlines())
        assert [row["kind"] for row in (machine, *gpus)] == ["machine", *["gpu"] * len(gpus)]
        return done.returncode, machine, gpus


@pytest.fixture
def machine(libcuda: Path) -> Iterator[Machine]:
    folder = Path(tempfile.mkdtemp(prefix="gpu-ami-compute-"))  # pytest's own folders are closed to other users
    folder.chmod(0o755)
    library = folder / "lib"
    shutil.copytree(libcuda, library, symlinks=True)
    box = Machine(folder / "root", library)
    box.boards(3)
    box.write(
        "proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Build\n"
    )
    for node in ("nvidiactl", "nvidia-uvm"):
        box.write(f"dev/{node}")
    yield box
    shutil.rmtree(folder)


def test_every_gpu_and_every_pair_is_right(machine: Machine) -> None:
    status, shown, gpus = machine.run("--mib", "4")
    assert (status, shown["error"], shown["unfinished"], shown["count"], shown["cuda"]) == (0, None, None, 3, 12040)
    assert shown["replica"] == f"gpu-ami replica of libcuda {VERSION}"
    for index, gpu in enumerate(gpus):
        assert (gpu["index"], gpu["name"], gpu["capability"], gpu["memory_mib"]) == (index, NAME, "8.0", 40960)
        assert (gpu["uuid"], gpu["mig"]) == (f"{index:08x}-1111-2222-3333-444444444444", "")
        assert (gpu["error"], gpu["wrong"], gpu["pattern_wrong"]) == (None, None, None)
        assert gpu["pci"] == f"0000:00:1{index}.0"
        assert gpu["computed_mib"] >= 1 and gpu["pattern_mib"] >= 1 and gpu["h2d_gbps"] > 0 and gpu["d2h_gbps"] > 0
        peers = [(row["index"], row["access"], row["error"], row["wrong"]) for row in gpu["peers"]]
        assert peers == [(other, True, None, None) for other in range(3) if other != index]


def wrong(gpus: list[dict[str, Any]]) -> dict[str, Any]:
    """What is wrong, by GPU (2), pattern (2p) or pair (0-2)."""
    found = {str(gpu["index"]): gpu["wrong"] for gpu in gpus}
    found |= {f"{gpu['index']}p": gpu["pattern_wrong"] for gpu in gpus}
    found |= {f"{gpu['index']}-{peer['index']}": peer.get("wrong") for gpu in gpus for peer in gpu["peers"]}
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize(
    ("fault", "places"),
    [
        ("wrong-result", ["1"]),
        ("bad-memory", ["1p"]),
        ("bad-peer", ["0-1", "1-0", "1-2", "2-1"]),
        ("wrong-result bad-memory", ["1", "1p"]),
        ("nothing", []),
    ],
)
def test_one_wrong_bit_is_found_where_it_is(machine: Machine, fault: str, places: list[str]) -> None:
    machine.write(f"{machine.of(1)}/fault", f"{fault}\n")
    status, shown, gpus = machine.run()
    found = wrong(gpus)
    assert (status, shown["error"], sorted(found)) == (1 if places else 0, None, places)
    for first in found.values():
        assert first["byte"] > 0 and first["expected"] != first["got"]


@pytest.mark.parametrize(
    ("change", "number", "name", "meaning"),
    [
        (lambda box: (box.root / "dev/nvidia-uvm").unlink(), 999, "CUDA_ERROR_UNKNOWN", "/dev/nvidia-uvm is missing"),
        (lambda box: (box.root / "dev/nvidiactl").unlink(), 100, "CUDA_ERROR_NO_DEVICE", "/dev/nvidia* is missing"),
        (lambda box: shutil.rmtree(box.root / "proc/driver/nvidia"), 100, "CUDA_ERROR_NO_DEVICE", "no loaded module"),
        (
            lambda box: box.write(f"{box.of(2)}/fault", "not-ready"), 802, "CUDA_ERROR_SYSTEM_NOT_READY",
            "nvidia-fabricmanager does not run",
        ),
        (
            lambda box: box.write("proc/driver/nvidia-nvswitch/devices/0000:05:00.0/information"), 802,
            "CUDA_ERROR_SYSTEM_NOT_READY", "the NVLink fabric is not ready",
        ),
        (
            lambda box: box.write("proc/driver/nvidia/version", "NVRM version: Kernel Module  560.35.03  Build\n"), 803,
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "different versions",
        ),
    ],
)  # fmt: skip
def test_an_error_has_its_name_and_meaning(
    machine: Machine, change: Callable[[Machine], object], number: int, name: str, meaning: str
) -> None:
    change(machine)
    status, shown, gpus = machine.run()
    error = shown["error"]
    assert (status, gpus, error["call"], error["number"], error["name"]) == (1, [], "cuInit", number, name)
    assert meaning in error["meaning"]


def test_fabric_manager_makes_switches_ready(machine: Machine) -> None:
    machine.write("proc/driver/nvidia-nvswitch/devices/0000:05:00.0/information")
    machine.write("run/nvidia-fabricmanager/nv-fabricmanager.pid", f"{os.getpid()}\n")
    assert machine.run()[0] == 0


def test_b200_needs_the_fabric_manager_though_the_driver_shows_no_switch(machine: Machine) -> None:
    machine.boards(3, "NVIDIA B200")
    assert machine.run()[1]["error"]["number"] == 802
    machine.write("run/nvidia-fabricmanager/nv-fabricmanager.pid", f"{os.getpid()}\n")
    assert machine.run()[0] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can close a node to others and open it")
def test_it_is_computed_without_root_s_rights(machine: Machine) -> None:
    (machine.root / "dev/nvidia1").chmod(0o600)
    status, shown, gpus = machine.run()
    assert (status, shown["count"], [gpu["pci"] for gpu in gpus]) == (0, 2, ["0000:00:10.0", "0000:00:12.0"])
    (machine.root / "dev/nvidia-uvm").chmod(0o600)
    assert machine.run()[1]["error"]["number"] == 999


def test_a_gpu_that_cuda_does_not_show(machine: Machine) -> None:
    machine.write(f"{machine.of(0)}/fault", "hidden")
    status, shown, gpus = machine.run()
    assert (status, shown["count"], [gpu["pci"] for gpu in gpus]) == (0, 2, ["0000:00:11.0", "0000:00:12.0"])


@pytest.mark.slow  # it waits in real time
def test_a_hang_is_named_and_ends(machine: Machine) -> None:
    machine.write(f"{machine.of(1)}/fault", "stuck")
    started = time.monotonic()
    status, shown, gpus = machine.run("--seconds", "3")
    assert (status, time.monotonic() - started < 20) == (1, True)
    assert shown["unfinished"] == {"why": "it did not end within 3 s", "step": "GPU 1: run the kernel"}
    assert [(gpu["index"], gpu["error"], gpu["wrong"]) for gpu in gpus] == [(0, None, None)]


def test_sigterm_ends_both_processes(machine: Machine) -> None:
    machine.write(f"{machine.of(0)}/fault", "stuck")
    command, environment = machine.command("--seconds", "60")
    with PROGRAM.open() as program:
        process = subprocess.Popen(command, env=environment, stdin=program, stdout=subprocess.PIPE, cwd="/")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    found = until(lambda: children.read_text().split())
    time.sleep(0.5)  # the child may still be what it was forked from
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    assert [
        pid
        for pid in found
        if "compute" in (Path(f"/proc/{pid}/cmdline").read_text() if Path(f"/proc/{pid}").exists() else "")
    ] == []


def test_mig_devices_count_as_their_own(machine: Machine) -> None:
    """CUDA shows one of them to a process, so each is computed on by a process of its own."""
    state = {"mig": True, "instances": ["1g.5gb"] * 7}
    machine.write("run/nvidia-smi/GPU-00000001-1111-2222-3333-444444444444", json.dumps(state))
    uuids = [f"MIG-80000001-1111-2222-3333-44444444444{number}" for number in range(7)]  # none is the board's own
    status, shown, gpus = machine.run("--mig", ",".join(uuids))
    assert (status, shown["error"], shown["count"]) == (0, None, 7)
    assert [f"MIG-{gpu['mig']}" for gpu in gpus] == uuids
    assert [gpu["memory_mib"] for gpu in gpus] == [5120] * 7
    assert {gpu["uuid"] for gpu in gpus} == {"00000001-1111-2222-3333-444444444444"}


def test_without_a_driver(machine: Machine) -> None:
    shutil.rmtree(machine.library)
    status, shown, _ = machine.run()
    assert (status, shown["error"]["call"]) == (1, "dlopen")
    assert "the driver's user space is not installed" in shown["error"]["meaning"]


def test_wrong_arguments(machine: Machine) -> None:
    command, environment = machine.command("--mib", "0")
    with PROGRAM.open() as program:
        done = subprocess.run(command, env=environment, stdin=program, capture_output=True, text=True, timeout=30)
    assert (done.returncode, "expected a number above zero" in done.stderr) == (2, True)


def test_every_name_is_that_of_its_number() -> None:
    """cuda.h's names are CUDA_ERROR_ and capitals, and no meaning is empty."""
    for number, (name, meaning) in compute_probe.ERRORS.items():
        assert number > 0 and name.startswith("CUDA_ERROR_") and name == name.upper() and meaning


def test_the_program_runs_on_old_systems() -> None:
    vermin = [Path(sys.executable).with_name("vermin"), "--no-tips", "--violations", "-t=3.6-", PROGRAM]
    done = subprocess.run(vermin, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert PROGRAM.read_text(encoding="ascii")
    assert remote.python("compute_probe", "--mib", "1").startswith("python3 -IS - --mib 1 <<")


def test_it_waits_on_any_descriptor() -> None:
    """select() takes none from 1024 on, which a process with many open files has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reading, writing = os.pipe()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    try:
        high = fcntl.fcntl(reading, fcntl.F_DUPFD, 2000)
        assert not compute_probe.readable(high, 0.01)
        os.write(writing, b"x")
        assert compute_probe.readable(high, 0.01)
        os.close(high)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(reading)
        os.close(writing)
