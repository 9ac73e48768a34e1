"""What a machine says of its hardware, read; and golden files, read and refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.scripted_host import table_host
from validator.probes import hardware, nvidia_smi
from validator.probes.hardware import Board, Golden, Hardware

# As `nvidia-smi topo -m` prints it on a p4d: underlined head, network cards between the GPUs and the affinities.
TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV12\tNV12\tPIX\t0-23,48-71\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tSYS\tPIX\t0-23,48-71\t0\t\tN/A\n"
    "GPU2\tNV12\tNV12\t X \tSYS\t24-47\t1\t\tN/A\n"
    "NIC0\tPIX\tPIX\tSYS\t X \n\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
)
PCI = (
    "0000:00:05.0 0x1d0f 0xec20 0x020000 ena\n0000:00:06.0 0x1d0f 0xefa1 0x020000 efa\n"
    "0000:80:1a.0 0x10de 0x1af1 0x068000 nvidia-nvswitch\n0000:10:1c.0 0x10de 0x20b0 0x030200 nvidia\n"
    "0000:00:04.0 0x10de 0x10f0 0x040300 \n"
)
XML = (
    '<nvidia_smi_log><gpu id="00000000:10:1C.0"><product_name>NVIDIA A100-SXM4-40GB</product_name>'
    "<compute_mode>Exclusive_Process</compute_mode><mig_mode><current_mig>Enabled</current_mig></mig_mode>"
    "<processes><process_info><pid>4242</pid><type>C</type><process_name>python3</process_name></process_info>"
    "</processes><fb_memory_usage><total>40960 MiB</total></fb_memory_usage></gpu></nvidia_smi_log>"
)
VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Release Build  (dvs@u)\n"
GOLDEN = Golden(
    "p4d.24xlarge",
    Hardware((Board("0000:10:1c.0", "NVIDIA A100-SXM4-40GB", 40960),), {}, ("0000:80:1a.0",), (), False, "550.163.01"),
    {"when": "2026-11-21", "where": "us-east-1", "by": "gpu-ami 0.1.0", "driver": "550.163.01"},
)


def test_topology_columns_follow_the_header() -> None:
    assert hardware.read_topology(TOPOLOGY) == {"0-1": "NV12", "0-2": "NV12", "1-2": "SYS/NV12"}
    assert hardware.read_topology("\tGPU0\tCPU Affinity\nGPU0\t X \t0-3\n") == {}
    assert hardware.read_topology("Failed to initialize NVML") == {}


# Copies of public reports, whose tabs have become spaces.
GB200_TOPOLOGY = """\
        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    NV18    NV18    SYS     SYS     0-71    0,3-9,11-17             2
GPU1    NV18     X      NV18    NV18    SYS     SYS     0-71    0,3-9,11-17             10
GPU2    NV18    NV18     X      NV18    SYS     SYS     72-143  1,19-25,27-33           18
GPU3    NV18    NV18    NV18     X      SYS     SYS     72-143  1,19-25,27-33           26
NIC0    SYS     SYS     SYS     SYS      X      PIX
"""
# A B200 of a machine of eight whose third GPU has lost its NVLinks; shortened to three.
B200_TOPOLOGY = """\
        GPU0    GPU1    GPU2    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    NODE    PXB     0-55,112-167    0               N/A
GPU1    NV18     X      NODE    NODE    0-55,112-167    0               N/A
GPU2    NODE    NODE     X      NODE    0-55,112-167    0               N/A
"""
# Sixteen GPUs, shortened to their last columns: cards were named by their devices then, and there was no NUMA column.
DGX2_TOPOLOGY = """\
        GPU8    GPU9    GPU10   mlx5_0  mlx5_1  CPU Affinity
GPU8     X      NV6     NV6     PIX     PXB     0-23,48-71
GPU9    NV6      X      NV6     PIX     PXB     0-23,48-71
GPU10   NV6     NV6      X      PXB     PIX     0-23,48-71
"""


@pytest.mark.parametrize(
    ("text", "links"),
    [
        # https://github.com/sgl-project/sglang/issues/11208 (NVIDIA GB200, driver 570.172.08)
        (GB200_TOPOLOGY, {f"{one}-{other}": "NV18" for one in range(4) for other in range(one + 1, 4)}),
        # https://github.com/vllm-project/vllm/issues/16336 (NVIDIA B200)
        (B200_TOPOLOGY, {"0-1": "NV18", "0-2": "NODE", "1-2": "NODE"}),
        # https://github.com/NVIDIA/nccl-tests/issues/78 (sixteen V100)
        (DGX2_TOPOLOGY, {"8-9": "NV6", "8-10": "NV6", "9-10": "NV6"}),
        (GB200_TOPOLOGY.replace("\n", "\r\n"), {f"{a}-{b}": "NV18" for a in range(4) for b in range(a + 1, 4)}),
    ],
    ids=["gb200", "b200-without-links", "dgx-2", "crlf"],
)
def test_topologies_of_public_reports(text: str, links: dict[str, str]) -> None:
    assert hardware.read_topology(text) == links


def test_devices_are_classified_by_pci_class() -> None:
    found = hardware.pci_devices(PCI)
    assert [one.address for one in found if one.is_gpu] == ["0000:10:1c.0"]
    assert [one.address for one in found if one.is_nvswitch] == ["0000:80:1a.0"]
    assert [one.address for one in found if one.is_efa] == ["0000:00:06.0"]


def test_unbound_and_simulated_gpus_count() -> None:
    unbound, simulated = hardware.pci_devices(
        "0000:00:1e.0 0x10de 0x1eb8 0x030200\n0000:00:1f.0 0x1af4 0x1110 0x050000 nvidia"
    )
    assert unbound.is_gpu and unbound.driver == ""
    assert simulated.is_gpu


def machine(**answers: Any) -> hardware.Run:
    known = {
        "for": (0, PCI),
        "nvidia-smi -q": (0, XML),
        "nvidia-smi topo": (0, TOPOLOGY),
        "cat /proc/driver": (0, VERSION),
    }
    table = known | answers
    return lambda command: next(reply for key, reply in reversed(table.items()) if command.startswith(key))


BOARD = "0000:00:1b.0 0x1af4 0x1110 0x050000 \n0000:00:1c.0 0x1af4 0x1110 0x050000 \n"
REAL_ALIAS = "alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia_current\n"
ALIASES = "grep -e '^alias pci:.* nvidia_current$' /lib/modules/$(uname -r)/modules.alias"


def test_real_driver_on_simulated_boards_proves_nothing_of_them() -> None:
    host = table_host({"for d in *": BOARD, ALIASES: REAL_ALIAS})
    assert hardware.without_board(host, "nvidia-current") == (
        "no NVIDIA GPU on the PCI bus: the 2 boards are simulated (1af4:1110), and the module nvidia-current is "
        "NVIDIA's own, which drives real GPUs alone"
    )


@pytest.mark.parametrize(
    ("devices", "aliases"),
    {
        "a real GPU that the driver does not see": ("0000:10:1c.0 0x10de 0x20b0 0x030200 \n" + BOARD, REAL_ALIAS),
        "no GPU at all, as where AWS lost them": ("0000:00:05.0 0x1d0f 0xec20 0x020000 ena\n", REAL_ALIAS),
        "the replica's module": (BOARD, "alias pci:v00001AF4d00001110sv*sd*bc*sc*i* nvidia\n"),
        "no module on disk": (BOARD, (1, "")),
    }.values(),
)
def test_every_other_machine_without_a_driver_is_judged(devices: str, aliases: str | tuple[int, str]) -> None:
    assert hardware.without_board(table_host({"for d in *": devices, "grep -e *": aliases}), "nvidia") == ""


def test_see_reads_the_hardware_of_a_machine() -> None:
    seen = hardware.see(machine())
    assert seen.gpus == GOLDEN.hardware.gpus
    assert (seen.nvswitches, seen.efa_interfaces) == (("0000:80:1a.0",), ("0000:00:06.0",))
    assert (seen.simulated, seen.driver) == (False, "550.163.01")
    assert hardware.see(
        machine(**{"for": (0, PCI.replace("0x10de 0x20b0 0x030200", "0x1af4 0x1110 0x050000"))})
    ).simulated


@pytest.mark.parametrize(
    ("command", "reply", "message"),
    [
        (
            "nvidia-smi -q",
            (9, "NVIDIA-SMI has failed\n"),
            "`nvidia-smi -q -x` exited with status 9: NVIDIA-SMI has failed",
        ),
        ("nvidia-smi -q", (0, "oops"), "nvidia-smi -q -x: expected XML"),
        ("nvidia-smi topo", (0, ""), "`nvidia-smi topo -m` exited with status 0: no output"),
        ("for", (1, ""), "exited with status 1: no output"),
    ],
)
def test_unreadable_hardware_is_named(command: str, reply: tuple[int, str], message: str) -> None:
    with pytest.raises(hardware.Unseen, match=re.escape(message)):
        hardware.see(machine(**{command: reply}))


def test_processes_of_a_gpu_are_read() -> None:
    (gpu,) = nvidia_smi.read(XML)
    assert (gpu.processes, gpu.compute_mode, gpu.mig) == (("4242 python3 (C)",), "Exclusive_Process", "Enabled")


def test_golden_file_round_trip(tmp_path: Path) -> None:
    (tmp_path / "p4d.24xlarge.json").write_text(json.dumps(GOLDEN.to_json()))
    assert hardware.find_golden("p4d.24xlarge", tmp_path) == GOLDEN
    assert hardware.find_golden("p5.48xlarge", tmp_path) is None
    assert hardware.find_golden("p4d.24xlarge", tmp_path / "none", tmp_path) == GOLDEN
    assert GOLDEN.name == "p4d.24xlarge.json of 2026-11-21 (real hardware)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "p4d.24xlarge.json: not JSON"),
        ("[]", "p4d.24xlarge.json: not a golden file (TypeError"),
        (json.dumps(GOLDEN.to_json() | {"schema": "gpu-ami/golden/9"}), "got 'gpu-ami/golden/9'"),
        (
            json.dumps(GOLDEN.to_json() | {"hardware": "borrowed"}),
            "expected hardware 'real' or 'simulated', got 'borrowed'",
        ),
        (json.dumps(GOLDEN.to_json() | {"gpus": [{"pci": "0000:00:1e.0"}]}), "not a golden file (KeyError: 'name')"),
        (
            json.dumps(GOLDEN.to_json() | {"instance_type": "p5.48xlarge"}),
            "p4d.24xlarge.json: expected instance_type p4d.24xlarge, got p5.48xlarge",
        ),
    ],
)
def test_malformed_golden_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "p4d.24xlarge.json").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        hardware.find_golden("p4d.24xlarge", tmp_path)


def test_golden_file_applies_to_its_kind_of_hardware() -> None:
    assert hardware.applicable(GOLDEN, simulated=False) is GOLDEN
    assert hardware.applicable(GOLDEN, simulated=True) is None
    assert hardware.applicable(None, simulated=False) is None
    assert hardware.same_branch(GOLDEN, "550.54.15") is GOLDEN
    assert hardware.same_branch(GOLDEN, "570.124.06") is None


def test_committed_golden_files_are_whole() -> None:
    for path in hardware.FOLDER.glob("*.json"):
        found = hardware.find_golden(path.stem)
        assert found is not None and found.hardware.gpus and found.recorded.keys() >= {"when", "where", "by", "driver"}
