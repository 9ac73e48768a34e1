"""The program that provokes a fault, against a libcuda of our own."""

from __future__ import annotations

import ctypes
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onhost import provoke_xid

PCI = "0000:00:1e.0"


@pytest.fixture
def run(fake_libcuda: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs the program here, its name taken back afterwards."""
    monkeypatch.setattr(provoke_xid, "take_name", lambda: "gpu-ami-provoke")

    def start(*words: str, library: str = str(fake_libcuda), **env: str) -> tuple[int, dict[str, Any]]:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        out = io.StringIO()
        rc = provoke_xid.main(list(words), lambda name: ctypes.CDLL(library), out)
        (line,) = out.getvalue().splitlines()
        return rc, json.loads(line)

    return start


def test_a_fault(run: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    rc, said = run(PCI)
    assert (rc, said["outcome"], said["pci"], said["pid"]) == (0, "faulted", PCI, os.getpid())
    assert said["message"] == "cuCtxSynchronize (page zero) returned 700 CUDA_ERROR_ILLEGAL_ADDRESS"
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
        ("cuInit=802", "cuInit returned 802 CUDA_ERROR_SYSTEM_NOT_READY"),
        ("cuInit=999", "cuInit returned 999"),
        ("cuDeviceGetByPCIBusId=100", "cuDeviceGetByPCIBusId returned 100"),
        ("cuCtxCreate_v2=2", "cuCtxCreate_v2 returned 2"),
        ("cuModuleLoadDataEx=218", "cuModuleLoadDataEx returned 218: ptxas application ptx input, line 6; error"),
        ("cuModuleGetFunction=500", "cuModuleGetFunction returned 500"),
        ("cuMemAlloc_v2=2", "cuMemAlloc_v2 returned 2"),
        ("cuLaunchKernel=1", "cuLaunchKernel (its own memory) returned 1"),
        ("cuCtxSynchronize=719", "cuCtxSynchronize (its own memory) returned 719"),
        ("cuMemcpyDtoH_v2=1", "cuMemcpyDtoH_v2 returned 1"),
    ],
)
def test_each_call_that_fails_is_named(
    run: Callable[..., tuple[int, dict[str, Any]]], fails: str, message: str
) -> None:
    rc, said = run(PCI, FAKE_FAILS=fails)
    assert (rc, said["outcome"], said["message"]) == (1, "refused", message)
    assert said["calls"][-1]["error"] == int(fails.partition("=")[2])


def test_other_failures(run: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    assert run("0000:00:1f.0")[1]["message"] == "cuDeviceGetByPCIBusId returned 101"
    rc, said = run(PCI, library="/nonexistent/libcuda.so.1")
    assert (rc, said["outcome"], said["calls"]) == (1, "no libcuda", [])
    assert "cannot open shared object file" in said["message"]
    rc, said = run(PCI, library="libc.so.6")
    assert (rc, said["message"]) == (1, "libcuda.so.1 has no cuInit")
    rc, said = run(PCI, FAKE_TAKES_PAGE_ZERO="1")
    assert (rc, said["outcome"]) == (1, "not refused")
    assert said["message"] == "the store to page zero was not refused: cuCtxSynchronize returned 0"
    rc, said = run(PCI, FAKE_FORGETS="1")
    assert (rc, said["message"]) == (1, "GPU memory: expected 0x5a5a1234, got 0x0")


def test_the_program_runs_on_old_systems() -> None:
    """Ubuntu 18.04 has Python 3.6; and a shell in a C locale must not stumble over it."""
    program = Path(provoke_xid.__file__)
    vermin = [Path(sys.executable).with_name("vermin"), "--no-tips", "--violations", "-t=3.6-", program]
    done = subprocess.run(vermin, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert program.read_text(encoding="ascii")
