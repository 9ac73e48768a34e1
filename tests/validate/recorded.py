"""A machine whose hardware is recorded: its answers, the golden file of it, and the plan that it fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_ami.plan.document import digest_of
from tests.scripted_host import ScriptedConnection
from validator.probes.hardware import Board, Golden, Hardware
from validator.transport import ssh

PCI = "0000:00:1b.0 {} nvidia\n0000:00:1c.0 {} nvidia\n"
XML = "".join(
    f'<gpu id="00000000:00:{slot}.0"><product_name>NVIDIA A10G</product_name>'
    "<fb_memory_usage><total>23028 MiB</total></fb_memory_usage></gpu>"
    for slot in ("1B", "1C")
)
ANSWERS = {
    "for d in": PCI.format(*["0x10de 0x2237 0x030200"] * 2),
    "nvidia-smi -q -x": f"<nvidia_smi_log>{XML}</nvidia_smi_log>",
    "nvidia-smi topo": "\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n",
    "cat /proc/driver": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Release\n",
    "python3 -IS -c": "i-1\36g5.12xlarge\36ami-1\36{}\n",
}
SIMULATED = {"for d in": PCI.format(*["0x1af4 0x1110 0x050000"] * 2)}
SEEN = Golden(
    "g5.12xlarge",
    Hardware((Board("0000:00:1b.0", "NVIDIA A10G", 23028),), {}, driver="550.163.01"),
    {"when": "2026-11-21T16:00:00Z", "where": "aws, us-east-1", "by": "gpu-ami 0.1.0", "driver": "550.163.01"},
)
PLAN = {
    "schema": "gpu-ami/plan/1", "image": "x", "digest": "sha256:0", "roles": [],
    "os": {
        "id": "debian", "version": "12", "codename": "bookworm", "family": "debian", "ssh_user": "admin",
        "python": "/usr/bin/python3", "end_of_life": "2028-06-30",
    },
    "instance_types": [{
        "name": "g5.12xlarge", "gpu_count": 2, "nvswitch": False, "efa_interfaces": 1, "vcpus": 48, "memory_gib": 192,
        "gpu": {
            "vendor": "nvidia", "name": "NVIDIA A10G", "architecture": "Ampere", "compute_capability": "8.6",
            "memory_mib": 23028, "power_limit_w": 300, "pcie_gen": 4, "pcie_width": 16,
            "max_clock_mhz": {"graphics": 1710, "sm": 1710, "memory": 6251, "video": 1500},
            "pci": ["0000:00:1b.0", "0000:00:1c.0"],
        },
    }],
}  # fmt: skip


def write_plan(folder: Path) -> None:
    content = {key: value for key, value in PLAN.items() if key != "digest"}
    (folder / "plan.json").write_text(json.dumps(content | {"digest": digest_of(content)}))


def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ScriptedConnection]:
    """A function of changed answers: from its call on, the machine answers with them at every address."""

    def answer(**answers: str) -> ScriptedConnection:
        script = {f"{start}*": (0 if reply else 9, reply) for start, reply in (ANSWERS | answers).items()}
        connection = ScriptedConnection(script, ssh.Target("10.0.0.7", user="admin"))
        monkeypatch.setattr(ssh, "connect", lambda target: connection)
        return connection

    return answer
