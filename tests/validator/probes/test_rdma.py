"""RDMA devices: the program's output, and the program itself on a tree of files."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.scripted_host import table_host
from validator.probes import rdma

# Driver links and nodes as on a p6-b200.48xlarge (aws/sagemaker-hyperpod-cli#282), shortened.
PRINTED = """device|rdmap79s0|../../../../bus/pci/drivers/efa|NVIDIA
device|ibp115s0f0|../../../../bus/pci/drivers/mlx5_core|
node|uverbs0|ibp115s0f0|
node|uverbs1|rdmap79s0|
"""


def test_efa_devices_are_those_of_the_driver() -> None:
    host = table_host({"for d in*": PRINTED})
    bridge, efa = rdma.devices(host)
    assert bridge == rdma.Device("ibp115s0f0", "mlx5_core", "uverbs0", "")
    assert [efa] == rdma.efa_devices(host) == [rdma.Device("rdmap79s0", "efa", "uverbs1", "NVIDIA")]
    assert rdma.devices(table_host({"for d in*": ""})) == []


def test_the_program_reads_links_and_providers(tmp_path: Path) -> None:
    for name, driver in {"rdmap79s0": "efa", "ibp115s0f0": "mlx5_core"}.items():
        (tmp_path / "class/infiniband" / name / "device").mkdir(parents=True)
        (tmp_path / "class/infiniband" / name / "device/driver").symlink_to(f"../../bus/pci/drivers/{driver}")
    (tmp_path / "class/infiniband/rdmap79s0/device/p2p").write_text("NVIDIA peermem\n")
    program = rdma.LIST.replace("/sys/", f"{tmp_path}/")
    printed = subprocess.run(["sh", "-c", program], capture_output=True, text=True, check=True).stdout
    assert [(device.name, device.driver, device.p2p) for device in rdma.read(printed)] == [
        ("ibp115s0f0", "mlx5_core", ""),
        ("rdmap79s0", "efa", "NVIDIA peermem"),
    ]
