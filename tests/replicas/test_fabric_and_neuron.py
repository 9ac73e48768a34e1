"""Replicas of EFA's, Neuron's and GDRCopy's programs and modules: what they say of a machine that is a folder."""

from __future__ import annotations

import json
import re
import shutil
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpu_ami.process import run
from localregion.mirror import staging, table

pytestmark = pytest.mark.slow

REPLICAS = table.REPLICAS
HEADERS = sorted(Path("/lib/modules").glob("*/build/Makefile"))
needs_headers = pytest.mark.skipif(
    not HEADERS or not shutil.which("gcc"), reason="no kernel headers (linux-headers-cloud-amd64) or no gcc here"
)


def program(path: str) -> ModuleType:
    name = re.sub(r"\W", "_", path)
    loader = SourceFileLoader(name, str(REPLICAS / path))
    module = ModuleType(name)
    loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("dev/infiniband", "sys/devices/virtual/dmi/id", "proc"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemFree: 400 kB\nMemAvailable: 600 kB\n")
    (tmp_path / "proc/stat").write_text("cpu  10 0 10 80 0 0 0 0 0 0\n")
    return tmp_path


@pytest.fixture
def fi_info(root: Path) -> Any:
    module: Any = program("efa/fabric/fi_info")
    module.ROOT, module.VERSION = str(root), "1.22.0amzn1.0"
    return module


def test_fi_info_says_its_version(fi_info: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert fi_info.main(["--version"]) == 0
    assert capsys.readouterr().out == "fi_info: 1.22.0amzn1.0\nlibfabric: 1.22.0amzn1.0\nlibfabric api: 1.22\n"


@pytest.mark.parametrize("word", ["--help", "--nonsense"])
def test_fi_info_prints_its_usage_with_status_1(fi_info: Any, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As util/info.c: on standard output, and a failure also for --help."""
    assert fi_info.main([word]) == 1
    assert capsys.readouterr().out.startswith("Usage: fi_info ")


def test_fi_info_shows_two_endpoints_a_node(fi_info: Any, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (0, 2):
        (root / f"dev/infiniband/uverbs{number}").touch()
    (root / "dev/infiniband/rdma_cm").touch()
    named = root / "sys/class/infiniband_verbs/uverbs2"
    named.mkdir(parents=True)
    (named / "ibdev").write_text("rdmap9s0\n")
    (root / "dev/infiniband/uverbs3").touch()  # a bridge of a P6
    (root / "sys/class/infiniband_verbs/uverbs3").mkdir()
    (root / "sys/class/infiniband_verbs/uverbs3/ibdev").write_text("ibp115s0f0\n")
    (root / "sys/class/infiniband/ibp115s0f0/device").mkdir(parents=True)
    (root / "sys/class/infiniband/ibp115s0f0/device/driver").symlink_to("../../../../bus/pci/drivers/mlx5_core")
    assert fi_info.main(["-p", "efa"]) == 0
    domains = re.findall(r"domain: (\S+)", capsys.readouterr().out)
    assert domains == ["rdmap0s0-rdm", "rdmap0s0-dgrm", "rdmap9s0-rdm", "rdmap9s0-dgrm"]
    assert fi_info.main(["-p", "efa", "-t", "FI_EP_RDM"]) == 0
    assert capsys.readouterr().out.count("domain: ") == 2


@pytest.mark.parametrize("arguments", [["-p", "efa"], ["-p", "tcp"], []])
def test_fi_info_without_an_adapter(fi_info: Any, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert fi_info.main(arguments) == 61
    assert capsys.readouterr().err == "fi_getinfo: -61 (No data available)\n"


def test_ibv_devices(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module: Any = program("efa/verbs/ibv_devices")
    module.ROOT = str(root)
    (root / "dev/infiniband/uverbs0").touch()
    guid = root / "sys/class/infiniband/rdmap0s0"
    guid.mkdir(parents=True)
    (guid / "node_guid").write_text("fe80:0000:0000:0001\n")
    assert module.main() == 0
    assert capsys.readouterr().out.splitlines()[2:] == [f"    {'rdmap0s0':<16}\tfe80000000000001"]


@pytest.fixture
def machine(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """machine(instance type, devices) → neurontools' Machine of that folder; nobody answers for metadata."""
    monkeypatch.syspath_prepend(str(REPLICAS / "neuron/tools/share"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    from neurontools.devices import Machine  # type: ignore[import-not-found]

    def make(kind: str, count: int) -> Any:
        (root / "sys/devices/virtual/dmi/id/product_name").write_text(f"{kind}\n")
        for number in range(count):
            (root / f"dev/neuron{number}").touch()
        return Machine(str(root), lambda path: "")

    return make


@pytest.mark.parametrize(
    ("kind", "count", "cores", "logical", "gib", "near"),
    [
        ("inf2.xlarge", 1, 2, 1, 32, None),
        ("inf2.48xlarge", 12, 2, 1, 32, [1, 11]),
        ("trn1.32xlarge", 16, 2, 1, 32, [1, 3, 4, 12]),
        ("trn2.48xlarge", 16, 4, 2, 96, [1, 3, 4, 12]),
        ("inf1.24xlarge", 16, 4, 1, 8, [1, 15]),
    ],
)
def test_neuron_ls_shows_the_instance_type_s_devices(
    machine: Any, kind: str, count: int, cores: int, logical: int, gib: int, near: list[int] | None,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    module: Any = program("neuron/tools/bin/neuron-ls")
    found = machine(kind, count)
    assert module.main(["-j"], found) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["neuron_device"] for row in rows] == list(range(count))
    first = rows[0]
    assert (first["nc_count"], first["logical_neuroncore_config"]) == (cores, logical)
    assert (first["memory_size"], first["connected_to"], first["instance_type"]) == (gib << 30, near, kind)
    assert len({core for row in rows for core in row["neuroncore_ids"]}) == count * cores
    assert module.main([], found) == 0
    assert capsys.readouterr().out.count(f" {gib} GB ") == count


def test_neuron_ls_without_a_device(machine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    module: Any = program("neuron/tools/bin/neuron-ls")
    assert module.main(["-j"], machine("trn1.32xlarge", 0)) == 1
    assert capsys.readouterr().err == "No neuron device found\n"
    assert module.main(["--nonsense"], None) == 1


@pytest.mark.parametrize(("count", "error"), [(16, ""), (0, "no neuron device found")])
def test_neuron_monitor_reports_a_line(
    machine: Any, count: int, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module: Any = program("neuron/tools/bin/neuron-monitor")
    assert module.main([], machine("trn1.32xlarge", count), 1) == 0
    (line,) = capsys.readouterr().out.splitlines()
    report = json.loads(line)
    assert set(report) == {"neuron_runtime_data", "system_data", "instance_info", "neuron_hardware_info"}
    hardware = report["neuron_hardware_info"]
    assert (hardware["neuron_device_count"], hardware["error"]) == (count, error)
    assert report["system_data"]["memory_info"]["memory_used_bytes"] == 400 * 1024
    usage = report["system_data"]["vcpu_usage"]
    assert (usage["average_usage"]["idle"], usage["context_switch_count"]) == (80.0, 0)
    counters = report["system_data"]["neuron_hw_counters"]
    assert [row["neuron_device_index"] for row in counters["neuron_devices"]] == list(range(count))
    assert report["neuron_runtime_data"] == []


def test_neuron_monitor_reports_an_application_and_the_driver_s_counters(
    machine: Any, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys of each part as in the Neuron Monitor User Guide."""
    module: Any = program("neuron/tools/bin/neuron-monitor")
    process = root / "proc/77"
    (process / "fd").mkdir(parents=True)
    (process / "fd/3").symlink_to("/dev/neuron1")
    (process / "environ").write_bytes(b"PATH=/bin\0NEURON_PROCESS_TAG=train\0")
    (process / "status").write_text("Name:\tpython\nVmRSS:\t  2048 kB\n")
    hardware = root / "sys/devices/virtual/neuron_device/neuron1/stats/hardware"
    hardware.mkdir(parents=True)
    (hardware / "mem_ecc_uncorrected").write_text("3\n")
    assert module.main([], machine("trn2.48xlarge", 2), 1) == 0
    report = json.loads(capsys.readouterr().out)
    (runtime,) = report["neuron_runtime_data"]
    assert (runtime["pid"], runtime["neuron_runtime_tag"], runtime["error"]) == (77, "train", "")
    groups = runtime["report"]
    assert list(groups) == ["neuroncore_counters", "memory_used", "neuron_runtime_vcpu_usage", "execution_stats"]
    cores = groups["neuroncore_counters"]["neuroncores_in_use"]
    assert list(cores) == ["4", "5", "6", "7"]
    assert {"neuroncore_utilization", "flops", "v3d"} == set(cores["4"]) and set(cores["4"]["v3d"]) == {
        "nc_v3.8",
        "nc_v3.9",
    }
    used = groups["memory_used"]["neuron_runtime_used_bytes"]
    assert (used["host"], used["neuron_device"]) == (2048 * 1024, 4 * 3 * (128 << 20))
    assert set(groups["execution_stats"]) == {
        "period", "error_summary", "execution_summary", "latency_stats", "error",
    }  # fmt: skip
    assert report["system_data"]["neuron_hw_counters"]["neuron_devices"][1] == {
        "neuron_device_index": 1, "mem_ecc_corrected": 0, "mem_ecc_uncorrected": 3, "sram_ecc_uncorrected": 0,
        "sram_ecc_corrected": 0,
    }  # fmt: skip


def test_neuron_monitor_takes_period_and_groups_from_a_configuration(tmp_path: Path) -> None:
    module: Any = program("neuron/tools/bin/neuron-monitor")
    file = tmp_path / "monitor.conf"
    for text, seconds in (('{"period": "1s"}', 1.0), ('{"period": "500ms"}', 0.5), ("{}", 5.0)):
        file.write_text(text)
        assert module.configuration_of(str(file)) == (seconds, (), ())
    groups = [{"type": "execution_stats"}]
    file.write_text(json.dumps({"neuron_runtimes": [{"metrics": groups}], "system_metrics": [{"type": "vcpu_usage"}]}))
    assert module.configuration_of(str(file)) == (5.0, ("execution_stats",), ("vcpu_usage",))


MODULES = [
    ("efa/module", "efa", "EFA_VERSION := 3.3.0", b"version=3.3.0g", b"alias=dmi*:svnAmazonEC2:*"),
    ("neuron/module", "neuron", "NEURON_VERSION := 2.31.7.0", b"version=2.31.7.0", b"alias=dmi*:svnAmazonEC2:*"),
    ("lustre/module", "lustre", "LUSTRE_VERSION := 2.15.6", b"version=2.15.6", b"alias=fs-lustre"),
]


@needs_headers
@pytest.mark.parametrize(("source", "name", "version", "said", "alias"), MODULES)
def test_module_builds_without_a_warning(
    tmp_path: Path, source: str, name: str, version: str, said: bytes, alias: bytes
) -> None:
    tree = tmp_path / name
    shutil.copytree(REPLICAS / source, tree)
    (tree / f"{name}-version.mk").write_text(f"{version}\n")
    done = run(["make", "-C", tree, f"KERNEL_UNAME={HEADERS[-1].parts[3]}", "W=1", "modules"], timeout=300)
    assert "warning:" not in done.stdout + done.stderr
    text = (tree / f"{name}.ko").read_bytes()
    for line in (said + b"\0", b"description=gpu-ami replica of ", alias + b"\0"):
        assert line in text


def staged(row_name: str, tmp_path: Path, version: str) -> Path:
    """The source of a git replica, as the mirror's repository has it."""
    row = table.find_row("git", row_name, asked_by="this test")
    tree = tmp_path / row_name
    tree.mkdir()
    values = table.version_values(version) | {"full_version": version, "name": row_name, "tag": f"v{version}"}
    staging.stage(row, values, tree)
    return tree


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc here")
@pytest.mark.parametrize(
    ("version", "folder", "libraries"),
    [
        ("1.16.3", "lib", {"libnccl-net.so"}),
        ("1.21.1", "lib64", {"libnccl-net.so", "libnccl-net-ofi.so", "libnccl-ofi-tuner.so", "libnccl-tuner-ofi.so"}),
    ],
)
def test_plugin_is_built_as_the_original_is(tmp_path: Path, version: str, folder: str, libraries: set[str]) -> None:
    tree, out = staged("aws-ofi-nccl", tmp_path, version), tmp_path / "out"
    libfabric = tmp_path / "efa"
    options = [f"--prefix={out}", f"--with-libfabric={libfabric}", "--with-cuda=/usr/local/cuda", "--disable-tests"]
    run(["./autogen.sh"], timeout=60, cwd=tree)
    refused = run(["./configure", *options], timeout=60, cwd=tree, check=False)
    assert refused.returncode == 1
    assert "Could not find libfabric" in refused.stderr
    (libfabric / folder).mkdir(parents=True)
    (libfabric / folder / "libfabric.so.1").touch()
    run(["./configure", *options], timeout=60, cwd=tree)
    run(["make", "install"], timeout=60, cwd=tree)
    assert {path.name for path in (out / "lib").iterdir()} == libraries
    for name in libraries:
        data = (out / "lib" / name).read_bytes()
        assert f"NET/OFI Initializing aws-ofi-nccl {version}\0".encode() in data
        assert f"gpu-ami replica of aws-ofi-nccl {version}\0".encode() in data


@needs_headers
def test_gdrcopy_is_built_as_the_original_is(tmp_path: Path) -> None:
    tree, out, cuda = staged("gdrcopy", tmp_path, "2.5.1"), tmp_path / "out", tmp_path / "cuda"
    cuda.mkdir()
    run(["make", f"prefix={out}", f"CUDA={cuda}", "lib_install", "exes_install"], timeout=120, cwd=tree)
    assert {path.name for path in (out / "lib").iterdir()} == {"libgdrapi.so", "libgdrapi.so.2", "libgdrapi.so.2.5"}
    assert {path.name for path in (out / "bin").iterdir()} == {"gdrcopy_sanity", "gdrcopy_copybw"}
    run(["make", "-C", tree / "src/gdrdrv", f"KVER={HEADERS[-1].parts[3]}"], timeout=300)
    text = (tree / "src/gdrdrv/gdrdrv.ko").read_bytes()
    assert b"version=2.5\0" in text
    assert b"description=gpu-ami replica of the GDRCopy" in text


@needs_headers
def test_nvidia_fs_is_built_against_the_driver_s_symbols(tmp_path: Path) -> None:
    """With the sizes of the environment, as the original's Makefile; the driver's source is what gives the versions."""
    for name, version in (("nvidia-fs-dkms", "2.29.4-1"), ("nvidia-kernel-open-dkms", "580.95.05-1")):
        row = table.find_row("packages", name, kind="deb", asked_by="this test")
        staging.stage(row, table.Package(name, version, "deb", "x86_64", row).values, tmp_path)
    tree, driver = tmp_path / "usr/src/nvidia-fs-2.29.4", tmp_path / "usr/src/nvidia-580.95.05"
    kernel = HEADERS[-1].parent
    run(["make", "-C", kernel, f"M={driver}", "modules"], timeout=300)
    (tree / "nvidia.mk").write_text(f"KBUILD_EXTRA_SYMBOLS := {driver}/Module.symvers\n")
    sizes = {"NVFS_MAX_PEER_DEVS": "128", "NVFS_MAX_PCI_DEPTH": "16"}
    made = [f"{name}={size}" for name, size in sizes.items()]
    built = run(["make", "-C", kernel, f"M={tree}", "V=1", "modules", *made], timeout=300)
    assert "-DMAX_PEER_DEVS=128 -DMAX_PCI_DEPTH=16" in built.stdout
    data = (tree / "nvidia-fs.ko").read_bytes()
    assert b"version=2.29.4\0" in data and b"depends=nvidia\0" in data and b"nvidia_p2p_get_pages" in data


def test_efa_s_installer_knows_its_options(tmp_path: Path) -> None:
    """What it refuses before it touches anything; that it installs is for sandboxes to show."""
    shutil.copytree(REPLICAS / "efa/installer", tmp_path, dirs_exist_ok=True)
    (tmp_path / "env.sh").write_text("EFA_INSTALLER_VERSION=1.38.0\n")
    for options, said in (
        (["--nonsense"], "usage: efa_installer.sh"),
        (["--debug-packages", "-y"], "no debug packages"),
    ):
        done = run(["./efa_installer.sh", *options], timeout=60, cwd=tmp_path, check=False)
        assert done.returncode == 1
        assert said in done.stdout + done.stderr or "you must be root" in done.stderr
    elsewhere = run([tmp_path / "efa_installer.sh", "-y"], timeout=60, cwd="/", check=False)
    assert "Please cd into the installer directory" in elsewhere.stderr
