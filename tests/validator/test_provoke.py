"""The program that provokes a fault, against a libcuda of our own; which GPU it may use; what is read of the kernel."""

from __future__ import annotations

import ctypes
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from validator import provoke, provoke_program
from validator.provoke import Record
from validator.smi import Gpu

PCI = "0000:00:1e.0"
LINE = "NVRM: Xid (PCI:0000:00:1e): 31, pid=977, name=gpu-ami-provoke, Ch 00000008, intr 00000000. MMU Fault: ENGINE"


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "these tests need a C compiler: apt-get install gcc libc6-dev"
    library = tmp_path_factory.mktemp("fake") / "libcuda.so.1"
    source = Path(__file__).with_name("fake_libcuda.c")
    subprocess.run([compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.fixture
def run(fake: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs the program here, its name taken back afterwards."""
    monkeypatch.setattr(provoke_program, "_take_name", lambda: "gpu-ami-provoke")

    def start(*words: str, library: str = str(fake), **env: str) -> tuple[int, dict[str, Any]]:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        out = io.StringIO()
        rc = provoke_program.main(list(words), lambda name: ctypes.CDLL(library), out)
        (line,) = out.getvalue().splitlines()
        return rc, json.loads(line)

    return start


def test_a_fault(run: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    rc, said = run(PCI)
    assert (rc, said["outcome"], said["pci"], said["pid"]) == (0, "faulted", PCI, os.getpid())
    assert said["message"] == "cuCtxSynchronize (page zero) ended with 700 CUDA_ERROR_ILLEGAL_ADDRESS"
    calls = [(one["call"], one["what"], one["error"]) for one in said["calls"]]
    assert calls == [
        ("cuInit", "", 0),
        ("cuDeviceGetByPCIBusId", "", 0),
        ("cuCtxCreate_v2", "", 0),
        ("cuModuleLoadDataEx", "", 0),
        ("cuModuleGetFunction", "", 0),
        ("cuMemAlloc_v2", "", 0),
        ("cuLaunchKernel", "its own memory", 0),
        ("cuCtxSynchronize", "its own memory", 0),
        ("cuMemcpyDtoH_v2", "", 0),
        ("cuLaunchKernel", "page zero", 0),
        ("cuCtxSynchronize", "page zero", 700),
    ]


def test_work_alone(run: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    rc, said = run(PCI, "work")
    assert (rc, said["outcome"], said["message"]) == (0, "worked", "")
    assert "page zero" not in json.dumps(said["calls"])


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        ("cuInit=802", "cuInit ended with 802 CUDA_ERROR_SYSTEM_NOT_READY"),
        ("cuInit=999", "cuInit ended with 999"),
        ("cuDeviceGetByPCIBusId=100", "cuDeviceGetByPCIBusId ended with 100"),
        ("cuCtxCreate_v2=2", "cuCtxCreate_v2 ended with 2"),
        ("cuModuleLoadDataEx=218", "cuModuleLoadDataEx ended with 218: ptxas application ptx input, line 6; error"),
        ("cuModuleGetFunction=500", "cuModuleGetFunction ended with 500"),
        ("cuMemAlloc_v2=2", "cuMemAlloc_v2 ended with 2"),
        ("cuLaunchKernel=1", "cuLaunchKernel (its own memory) ended with 1"),
        ("cuCtxSynchronize=719", "cuCtxSynchronize (its own memory) ended with 719"),
        ("cuMemcpyDtoH_v2=1", "cuMemcpyDtoH_v2 ended with 1"),
    ],
)
def test_each_call_that_fails_is_named(
    run: Callable[..., tuple[int, dict[str, Any]]], fails: str, message: str
) -> None:
    rc, said = run(PCI, FAKE_FAILS=fails)
    assert (rc, said["outcome"], said["message"]) == (1, "refused", message)
    assert said["calls"][-1]["error"] == int(fails.partition("=")[2])


def test_what_else_can_go_wrong(run: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    assert run("0000:00:1f.0")[1]["message"] == "cuDeviceGetByPCIBusId ended with 101"
    rc, said = run(PCI, library="/nonexistent/libcuda.so.1")
    assert (rc, said["outcome"], said["calls"]) == (1, "no libcuda", [])
    assert "cannot open shared object file" in said["message"]
    rc, said = run(PCI, library="libc.so.6")
    assert (rc, said["message"]) == (1, "libcuda.so.1 has no cuInit")
    rc, said = run(PCI, FAKE_TAKES_PAGE_ZERO="1")
    assert (rc, said["outcome"]) == (1, "not refused")
    assert said["message"] == "the store to page zero was not refused: cuCtxSynchronize gave 0"
    rc, said = run(PCI, FAKE_FORGETS="1")
    assert (rc, said["message"]) == (1, "the GPU was to store 0x5a5a1234, its memory holds 0x0")


def test_the_command_runs_as_nobody_under_its_own_name(fake: Path) -> None:
    """As it goes to a host: through sh, without the caller's environment; only the library's place is ours."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # nobody has to reach it
        library = shutil.copy(fake, folder)
        command = provoke.command(PCI).replace("libcuda.so.1", library)
        environment = {"PATH": "/usr/bin:/bin", "FAKE_FAILS": "cuInit=1", "CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"}
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=environment, cwd="/")
    said = provoke.answer(done.returncode, done.stdout, done.stderr)
    assert (done.returncode, said["outcome"]) == (0, "faulted"), said
    assert said["name"] == provoke.PROCESS == provoke_program.NAME
    assert said["uid"] == (65534 if os.getuid() == 0 else os.getuid())
    assert len(provoke.PROCESS) <= 15


def test_the_program_runs_on_old_systems() -> None:
    """Ubuntu 18.04 has Python 3.6; and a shell in a C locale must not stumble over it."""
    program = Path(provoke_program.__file__)
    vermin = [Path(sys.executable).with_name("vermin"), "--no-tips", "--violations", "-t=3.6-", program]
    done = subprocess.run(vermin, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert program.read_text(encoding="ascii")


@pytest.mark.parametrize(
    ("out", "err", "message"),
    [
        ("", "sh: 1: python3: not found\n", "the program ended with 127: sh: 1: python3: not found"),
        ("", "", "the program ended with 127: no output"),
        ("[1]\n", "", "the program ended with 127: [1]"),
    ],
)
def test_an_answer_that_is_none(out: str, err: str, message: str) -> None:
    assert provoke.answer(127, out, err) == {"outcome": "refused", "message": message, "calls": []}


def gpu(slot: str, **others: Any) -> Gpu:
    return Gpu(0, "NVIDIA A10G", "Ampere", "GPU-0", f"0000:00:{slot}.0", {}, **others)


def test_an_idle_gpu_is_chosen() -> None:
    busy = gpu("1b", processes=("4242 python3 (C)",))
    assert provoke.choose([busy, gpu("1c", mig="Enabled"), gpu("1d"), gpu("1e")], ["sshd"]).pci == "0000:00:1d.0"


@pytest.mark.parametrize(
    ("gpus", "commands", "message"),
    [
        ([gpu("1e")], ["systemd", "nvidia-cuda-mps"], "MPS runs on this machine, and a fault ends all of its clients"),
        (
            [gpu("1b", processes=("4242 python3 (C)", "1 Xorg (G)")), gpu("1c", mig="Enabled")],
            [],
            "no GPU is idle: GPU 0000:00:1b.0 is used by 4242 python3 (C), 1 Xorg (G);"
            " GPU 0000:00:1c.0 is divided by MIG",
        ),
        ([gpu("1e", compute_mode="Prohibited")], [], "GPU 0000:00:1e.0 has compute mode Prohibited"),
        ([], [], "no GPU is idle: there is none"),
    ],
)
def test_no_gpu_that_somebody_needs(gpus: list[Gpu], commands: list[str], message: str) -> None:
    with pytest.raises(provoke.Unfit) as told:
        provoke.choose(gpus, commands)
    assert message in str(told.value)


def test_only_the_kernels_own_new_xids_of_that_gpu_count() -> None:
    kmsg = "\n".join(
        [
            f"4,100,1000,-;{LINE}",
            f"4,101,1001,-;{LINE.replace('977', '978')}",
            " SUBSYSTEM=pci",
            f"12,102,1002,-;{LINE}",
            f"4,103,1003,-;{LINE.replace('00:1e', '00:1d')}",
            "4,104,1004,-,caller=T1;NVRM: Xid (PCI:0000:00:1e): 43, pid=978, name=gpu-ami-provoke, Ch 00000008",
            "4,105,1005,-;NVRM: Xid (PCI:0000:00:1E): 13, Graphics Exception: ESR 0x1=0x2",
            "4,106,1006,-;NVRM: Xid (PCI:0000:00:1e): 45, pid='<unknown>', name=<unknown>, Ch 00000009",
            "6,107,1007,-;usb 1-1: new device",
        ]
    )
    assert provoke.last_seq(kmsg) == 107
    assert provoke.last_seq("") == -1
    found = provoke.xids(kmsg, 100, PCI)
    assert [(one.seq, one.code, one.pid, one.process) for one in found] == [
        (101, 31, 978, "gpu-ami-provoke"),
        (104, 43, 978, "gpu-ami-provoke"),
        (105, 13, None, None),
        (106, 45, None, None),
    ]
    assert found[0].fields() == {
        "kind": "xid", "code": 31, "pci": PCI, "pid": 978, "process": "gpu-ami-provoke", "origin": "kernel",
    }  # fmt: skip


def test_events_are_those_of_the_record_in_this_boot() -> None:
    event = {"boot_id": "b", "seq": 7, "kind": "xid", "code": 31}
    lines = [json.dumps(event | changed) for changed in ({}, {"boot_id": "a"}, {"seq": 77}, {"kind": "heartbeat"})]
    assert provoke.events(["not JSON", *lines], "b", 7) == [event]
    assert Record(7, LINE, "0000:00:1e", 31, 977, "gpu-ami-provoke").fields()["pci"] == PCI
