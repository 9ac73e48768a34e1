"""How the program that provokes a fault is started, which GPU it may use, and what is read of the kernel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from onhost import provoke_xid
from validator.probes import xid_injection
from validator.probes.nvidia_smi import Gpu
from validator.probes.xid_injection import Record

PCI = "0000:00:1e.0"
LINE = "NVRM: Xid (PCI:0000:00:1e): 31, pid=977, name=gpu-ami-provoke, Ch 00000008, intr 00000000. MMU Fault: ENGINE"


def test_program_runs_as_nobody_with_its_own_name(fake_libcuda: Path) -> None:
    """As it goes to a host: through sh, without the caller's environment; only the library's place is ours."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # nobody has to reach it
        library = shutil.copy(fake_libcuda, folder)
        command = xid_injection.command(PCI).replace("libcuda.so.1", library)
        environment = {"PATH": "/usr/bin:/bin", "FAKE_FAILS": "cuInit=1", "CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"}
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=environment, cwd="/")
    result = xid_injection.read_result(done.returncode, done.stdout, done.stderr)
    assert (done.returncode, result.outcome) == (0, "faulted"), result
    assert result.name == xid_injection.PROCESS == provoke_xid.NAME
    assert result.uid == (65534 if os.getuid() == 0 else os.getuid())
    assert len(xid_injection.PROCESS) <= 15


@pytest.mark.parametrize(
    ("out", "err", "message"),
    [
        ("", "sh: 1: python3: not found\n", "the program exited with status 127: sh: 1: python3: not found"),
        ("", "", "the program exited with status 127: no output"),
        ("[1]\n", "", "the program exited with status 127: [1]"),
    ],
)
def test_program_without_result(out: str, err: str, message: str) -> None:
    assert xid_injection.read_result(127, out, err) == xid_injection.Result("refused", message)


def gpu(slot: str, **others: Any) -> Gpu:
    return Gpu(0, "NVIDIA A10G", "Ampere", "GPU-0", f"0000:00:{slot}.0", {}, **others)


def test_an_idle_gpu_is_chosen() -> None:
    busy = gpu("1b", processes=("4242 python3 (C)",))
    assert xid_injection.choose([busy, gpu("1c", mig="Enabled"), gpu("1d"), gpu("1e")], ["sshd"]).pci == "0000:00:1d.0"


@pytest.mark.parametrize(
    ("gpus", "commands", "message"),
    [
        ([gpu("1e")], ["systemd", "nvidia-cuda-mps"], "MPS runs on this machine, and a fault ends all of its clients"),
        (
            [gpu("1b", processes=("4242 python3 (C)", "1 Xorg (G)")), gpu("1c", mig="Enabled")],
            [],
            "no GPU is idle: GPU 0000:00:1b.0 is used by 4242 python3 (C), 1 Xorg (G);"
            " GPU 0000:00:1c.0 has MIG enabled",
        ),
        ([gpu("1e", compute_mode="Prohibited")], [], "GPU 0000:00:1e.0 has compute mode Prohibited"),
        ([], [], "no GPU is idle: there is no GPU"),
    ],
)
def test_gpus_in_use_are_refused(gpus: list[Gpu], commands: list[str], message: str) -> None:
    with pytest.raises(xid_injection.Unfit) as caught:
        xid_injection.choose(gpus, commands)
    assert message in str(caught.value)


def test_only_new_kernel_xids_of_the_gpu_count() -> None:
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
    assert xid_injection.last_seq(kmsg) == 107
    assert xid_injection.last_seq("") == -1
    found = xid_injection.xids(kmsg, 100, PCI)
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
    assert xid_injection.events(["not JSON", *lines], "b", 7) == [event]
    assert Record(7, LINE, "0000:00:1e", 31, 977, "gpu-ami-provoke").fields()["pci"] == PCI
