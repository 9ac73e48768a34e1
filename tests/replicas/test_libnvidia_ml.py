"""The replica's libnvidia-ml: what it says of a board is what the replica's nvidia-smi shows of it, and its errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from localregion.mirror.table import REPLICAS
from tests.replicas.conftest import A10G, A100, VERSION, board
from tests.replicas.test_libraries import staged
from tests.replicas.test_nvidia_smi import B200, H100, smi

pytestmark = pytest.mark.slow  # compiles the library

NOW = 1_790_000_000
T4 = A10G | {"name": "Tesla T4", "architecture": "Turing", "memory_mib": "15360", "power_limit_w": "70"}
V100 = A10G | {"name": "Tesla V100-SXM2-16GB", "architecture": "Volta", "memory_mib": "16384"}
CAPABILITIES = {"Turing": "7.5", "Volta": "7.0", "Hopper": "9.0", "Blackwell": "10.0"}

# A reader with nothing but the library: prints [status, value] of each call, and of the MIG devices of each board.
_READER = Path(__file__).with_name("nvml_reader.py")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The library of a driver's version."""
    built: dict[str, Path] = {}

    def build(version: str) -> Path:
        if version not in built:
            tree = staged("libnvidia-ml1", f"{version}-1", tmp_path_factory.mktemp("libnvidia-ml"))
            built[version] = next(tree.rglob("libnvidia-ml.so.1"))
        return built[version]

    return build


@pytest.fixture
def boards(machine: Callable[..., str]) -> Callable[..., str]:
    """boards(model, version, capability) → a root folder with two boards of a model, and their device nodes."""

    def make(model: dict[str, str], version: str = VERSION, capability: str = "") -> str:
        root = Path(machine(model, 2, version))
        capability = capability or CAPABILITIES.get(model["architecture"], "8.0" if "A100" in model["name"] else "8.6")
        for index, folder in enumerate(sorted((root / "proc/driver/nvidia/gpus").iterdir())):
            text = board(model, index, folder.name).replace(
                "compute_capability: 8.6", f"compute_capability: {capability}"
            )
            (folder / "board").write_text(f"{text}device_id: 2237\n", encoding="utf-8")
            node = root / "sys/bus/pci/devices" / folder.name
            node.mkdir(parents=True)
            (node / "numa_node").write_text(f"{index}\n", encoding="utf-8")
            (node / "local_cpulist").write_text(f"{index * 8}-{index * 8 + 7},64\n", encoding="utf-8")
        (root / "dev").mkdir()
        for name in ("nvidiactl", "nvidia0", "nvidia1"):
            (root / "dev" / name).touch()
        return str(root)

    return make


def read(library: Path, root: str, **environment: str) -> dict[str, Any]:
    settings = {"GPU_AMI_ROOT": root, "GPU_AMI_SECONDS": str(NOW)} | environment
    words = [sys.executable, str(_READER), str(library)]
    done = subprocess.run(words, env=settings, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def report(root: str, version: str) -> list[ElementTree.Element]:
    status, text = smi(root, "-q", "-x", own=version, now=NOW)
    assert status == 0
    return ElementTree.fromstring(text.partition("?>")[2].partition('.dtd">')[2]).findall("gpu")


SUCCESS, NOT_SUPPORTED, DEPRECATED = 0, 3, 26
ON = {"Enabled": 1, "Disabled": 0, "Yes": 1, "No": 0}
# Element of nvidia-smi's report → call of NVML, and how the element's text is said as NVML's value.
SAME: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "product_name": ("nvmlDeviceGetName", str),
    "display_mode": ("nvmlDeviceGetDisplayMode", ON.__getitem__),
    "display_active": ("nvmlDeviceGetDisplayActive", ON.__getitem__),
    "persistence_mode": ("nvmlDeviceGetPersistenceMode", ON.__getitem__),
    "mig_mode/current_mig": ("nvmlDeviceGetMigMode 0", ON.__getitem__),
    "mig_mode/pending_mig": ("nvmlDeviceGetMigMode 1", ON.__getitem__),
    "accounting_mode": ("nvmlDeviceGetAccountingMode", ON.__getitem__),
    "accounting_mode_buffer_size": ("nvmlDeviceGetAccountingBufferSize", int),
    "serial": ("nvmlDeviceGetSerial", str),
    "uuid": ("nvmlDeviceGetUUID", str),
    "minor_number": ("nvmlDeviceGetMinorNumber", int),
    "vbios_version": ("nvmlDeviceGetVbiosVersion", str),
    "multigpu_board": ("nvmlDeviceGetMultiGpuBoard", ON.__getitem__),
    "board_id": ("nvmlDeviceGetBoardId", lambda text: int(text, 16)),
    "board_part_number": ("nvmlDeviceGetBoardPartNumber", str),
    "gsp_firmware_version": ("nvmlDeviceGetGspFirmwareVersion", str),
    "pci/pci_bus": ("nvmlDeviceGetPciInfo_v3 bus", lambda text: int(text, 16)),
    "pci/pci_device": ("nvmlDeviceGetPciInfo_v3 device", lambda text: int(text, 16)),
    "pci/pci_domain": ("nvmlDeviceGetPciInfo_v3 domain", lambda text: int(text, 16)),
    "pci/pci_device_id": ("nvmlDeviceGetPciInfo_v3 device_id", lambda text: int(text, 16)),
    "pci/pci_sub_system_id": ("nvmlDeviceGetPciInfo_v3 subsystem_id", lambda text: int(text, 16)),
    "pci/pci_bus_id": ("nvmlDeviceGetPciInfo_v3 bus_id", str),
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": ("nvmlDeviceGetMaxPcieLinkGeneration", int),
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": ("nvmlDeviceGetCurrPcieLinkGeneration", int),
    "pci/pci_gpu_link_info/link_widths/max_link_width": ("nvmlDeviceGetMaxPcieLinkWidth", lambda text: int(text[:-1])),
    "pci/replay_counter": ("nvmlDeviceGetPcieReplayCounter", int),
    "fan_speed": ("nvmlDeviceGetFanSpeed", int),
    "performance_state": ("nvmlDeviceGetPerformanceState", lambda text: int(text[1:])),
    "fb_memory_usage/total": ("nvmlDeviceGetMemoryInfo_v2 total", lambda text: int(text.split()[0]) << 20),
    "fb_memory_usage/reserved": ("nvmlDeviceGetMemoryInfo_v2 reserved", lambda text: int(text.split()[0]) << 20),
    "fb_memory_usage/used": ("nvmlDeviceGetMemoryInfo_v2 used", lambda text: int(text.split()[0]) << 20),
    "fb_memory_usage/free": ("nvmlDeviceGetMemoryInfo_v2 free", lambda text: int(text.split()[0]) << 20),
    "bar1_memory_usage/total": ("nvmlDeviceGetBAR1MemoryInfo 0", lambda text: int(text.split()[0]) << 20),
    "bar1_memory_usage/free": ("nvmlDeviceGetBAR1MemoryInfo 1", lambda text: int(text.split()[0]) << 20),
    "utilization/gpu_util": ("nvmlDeviceGetUtilizationRates 0", lambda text: int(text.split()[0])),
    "utilization/memory_util": ("nvmlDeviceGetUtilizationRates 1", lambda text: int(text.split()[0])),
    "utilization/encoder_util": ("nvmlDeviceGetEncoderUtilization 0", lambda text: int(text.split()[0])),
    "utilization/jpeg_util": ("nvmlDeviceGetJpgUtilization 0", lambda text: int(text.split()[0])),
    "encoder_stats/session_count": ("nvmlDeviceGetEncoderStats 0", int),
    "ecc_mode/current_ecc": ("nvmlDeviceGetEccMode 0", ON.__getitem__),
    "ecc_mode/pending_ecc": ("nvmlDeviceGetEccMode 1", ON.__getitem__),
    "remapped_rows/remapped_row_corr": ("nvmlDeviceGetRemappedRows 0", int),
    "remapped_rows/remapped_row_unc": ("nvmlDeviceGetRemappedRows 1", int),
    "remapped_rows/remapped_row_pending": ("nvmlDeviceGetRemappedRows 2", ON.__getitem__),
    "remapped_rows/row_remapper_histogram/row_remapper_histogram_max": (
        "nvmlDeviceGetRowRemapperHistogram 0", lambda text: int(text.split()[0]),
    ),
    "temperature/gpu_temp": ("nvmlDeviceGetTemperature", lambda text: int(text.split()[0])),
    "temperature/gpu_temp_max_threshold": ("nvmlDeviceGetTemperatureThreshold 0", lambda text: int(text.split()[0])),
    "temperature/gpu_temp_slow_threshold": ("nvmlDeviceGetTemperatureThreshold 1", lambda text: int(text.split()[0])),
    "temperature/memory_temp": ("field 82", lambda text: int(text.split()[0])),
    "clocks/graphics_clock": ("nvmlDeviceGetClockInfo 0", lambda text: int(text.split()[0])),
    "clocks/sm_clock": ("nvmlDeviceGetClockInfo 1", lambda text: int(text.split()[0])),
    "clocks/mem_clock": ("nvmlDeviceGetClockInfo 2", lambda text: int(text.split()[0])),
    "clocks/video_clock": ("nvmlDeviceGetClockInfo 3", lambda text: int(text.split()[0])),
    "max_clocks/graphics_clock": ("nvmlDeviceGetMaxClockInfo 0", lambda text: int(text.split()[0])),
    "max_clocks/mem_clock": ("nvmlDeviceGetMaxClockInfo 2", lambda text: int(text.split()[0])),
    "applications_clocks/graphics_clock": ("nvmlDeviceGetApplicationsClock 0", lambda text: int(text.split()[0])),
    "applications_clocks/mem_clock": ("nvmlDeviceGetApplicationsClock 2", lambda text: int(text.split()[0])),
    "max_customer_boost_clocks/graphics_clock": (
        "nvmlDeviceGetMaxCustomerBoostClock 0", lambda text: int(text.split()[0]),
    ),
    "gpu_power_readings/power_state": ("nvmlDeviceGetPowerState", lambda text: int(text[1:])),
    "gpu_power_readings/power_draw": ("nvmlDeviceGetPowerUsage", lambda text: round(float(text.split()[0]) * 1000)),
    "gpu_power_readings/average_power_draw": ("field 185", lambda text: round(float(text.split()[0]) * 1000)),
    "gpu_power_readings/instant_power_draw": ("field 186", lambda text: round(float(text.split()[0]) * 1000)),
    "gpu_power_readings/current_power_limit": (
        "nvmlDeviceGetEnforcedPowerLimit", lambda text: round(float(text.split()[0]) * 1000),
    ),
    "gpu_power_readings/default_power_limit": (
        "nvmlDeviceGetPowerManagementDefaultLimit", lambda text: round(float(text.split()[0]) * 1000),
    ),
    "gpu_power_readings/min_power_limit": (
        "nvmlDeviceGetPowerManagementLimitConstraints 0", lambda text: round(float(text.split()[0]) * 1000),
    ),
    "gpu_power_readings/max_power_limit": (
        "nvmlDeviceGetPowerManagementLimitConstraints 1", lambda text: round(float(text.split()[0]) * 1000),
    ),
    "addressing_mode": ("nvmlDeviceGetAddressingMode", {"HMM": 1}.__getitem__),
}  # fmt: skip


def expected(text: str, convert: Callable[[str], Any]) -> list[Any]:
    if text == "N/A":
        return [NOT_SUPPORTED, None]
    return [DEPRECATED, None] if text == "Requested functionality has been deprecated" else [SUCCESS, convert(text)]


def same(answers: dict[str, Any], shown: ElementTree.Element) -> int:
    """Compares a board's answers with its part of the report; the number of elements that were compared."""
    compared = 0
    for path, (call, convert) in SAME.items():
        text = shown.findtext(path)
        if text is not None:
            assert answers[call] == expected(text, convert), f"{call} of {answers['nvmlDeviceGetName']}, {path}: {text}"
            compared += 1
    return compared


@pytest.mark.parametrize(
    ("model", "version"),
    [
        (A10G, "550.163.01"), (A10G, "595.91.07"), (A100, "535.309.01"), (A100, "580.95.05"), (H100, "580.95.05"),
        (H100, "590.48.01"), (B200, "580.95.05"), (T4, "595.91.07"), (V100, "550.163.01"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["name"].replace(" ", "-"),
)  # fmt: skip
def test_it_says_what_nvidia_smi_shows(
    library: Callable[[str], Path], boards: Callable[..., str], model: dict[str, str], version: str
) -> None:
    root = boards(model, version)
    document = read(library(version), root)
    shown = report(root, version)
    assert document["driver"] == [SUCCESS, version]
    assert document["nvml"][1].partition(".")[2] == version
    assert document["count"] == [SUCCESS, len(shown)] == [SUCCESS, 2]
    for answers, gpu in zip(document["boards"], shown, strict=True):
        assert same(answers, gpu) > 50


def test_it_follows_the_clock(library: Callable[[str], Path], boards: Callable[..., str]) -> None:
    """The readings of another minute are others, and again nvidia-smi's."""
    root = boards(A10G)
    readings = set()
    for seconds in range(NOW, NOW + 6000, 600 // 7):
        (answers, _) = read(library(VERSION), root, GPU_AMI_SECONDS=str(seconds))["boards"]
        text = smi(
            root, "--query-gpu=utilization.gpu,power.draw", "--format=csv,noheader,nounits", "-i", "0", now=seconds
        )[1]
        load, watts = text.split(", ")
        assert answers["nvmlDeviceGetUtilizationRates 0"] == [0, int(load)]
        assert answers["nvmlDeviceGetPowerUsage"] == [0, round(float(watts) * 1000)]
        readings.add(load)
    assert len(readings) > 20


def test_it_takes_settings_from_nvidia_smi(library: Callable[[str], Path], boards: Callable[..., str]) -> None:
    root = boards(A10G)
    for words in (["-pm", "1"], ["-pl", "210.5"], ["-ac", "6251,1200"]):
        assert smi(root, *words, "-i", "0")[0] == 0
    document = read(library(VERSION), root)
    answers = document["boards"][0]
    assert answers["nvmlDeviceGetPersistenceMode"] == [0, 1]
    assert answers["nvmlDeviceGetEnforcedPowerLimit"] == [0, 210500]
    assert (answers["nvmlDeviceGetApplicationsClock 0"], answers["nvmlDeviceGetApplicationsClock 2"]) == (
        [0, 1200],
        [0, 6251],
    )
    for row, gpu in zip(document["boards"], report(root, VERSION), strict=True):
        assert same(row, gpu) > 50


def test_mig_is_as_nvidia_smi_divides_a_board(library: Callable[[str], Path], boards: Callable[..., str]) -> None:
    root = boards(H100, "580.95.05")
    assert smi(root, "-mig", "1", "-i", "0", own="580.95.05")[0] == 0
    assert smi(root, "mig", "-cgi", "3g.40gb,1g.10gb", "-C", own="580.95.05")[0] == 0
    document = read(library("580.95.05"), root)
    divided, whole = document["boards"]
    shown = report(root, "580.95.05")
    assert same(divided, shown[0]) > 50
    listed = smi(root, "-L", own="580.95.05")[1]
    assert [row["uuid"][1] for row in divided["mig"]] == [
        line.partition("UUID: ")[2].rstrip(")") for line in listed.splitlines() if line.startswith("  MIG")
    ]
    for row, element in zip(divided["mig"], shown[0].findall("mig_devices/mig_device"), strict=True):
        assert row["name"][1].startswith("NVIDIA H100 80GB HBM3 MIG ")
        assert row["index"] == [0, int(element.findtext("index") or "")]
        assert row["gpu_instance"] == [0, int(element.findtext("gpu_instance_id") or "")]
        assert row["compute_instance"] == [0, int(element.findtext("compute_instance_id") or "")]
        shared = "device_attributes/shared/multiprocessor_count"
        assert row["multiprocessors"] == [0, int(element.findtext(shared) or "")]
        assert row["total"] == [0, int((element.findtext("fb_memory_usage/total") or "").split()[0]) << 20]
        assert (row["parent"], row["temperature"]) == ([0, divided["nvmlDeviceGetUUID"][1]], [NOT_SUPPORTED, None])
        assert row["by_uuid"] == row["uuid"]
        slices = int(row["name"][1].partition(" MIG ")[2][0])
        assert row["instance"] == [0, row["gpu_instance"][1], slices, {3: 9, 1: 19}[slices], {3: 0, 1: 3}[slices]]
        assert row["compute"] == [0, 0, slices]
    assert whole["mig"] == [] and whole["nvmlDeviceGetMaxMigDeviceCount"] == [0, 7]
    assert divided["after_the_last_mig"] == [6, None]


def test_a_board_that_cannot_be_divided_has_no_mig(library: Callable[[str], Path], boards: Callable[..., str]) -> None:
    (answers, _) = read(library(VERSION), boards(A10G))["boards"]
    assert answers["nvmlDeviceGetMigMode 0"] == [NOT_SUPPORTED, None]
    assert answers["nvmlDeviceGetMaxMigDeviceCount"] == [0, 0]


def test_boards_are_found_by_each_name(library: Callable[[str], Path], boards: Callable[..., str]) -> None:
    document = read(library(VERSION), boards(A10G))
    uuid = document["boards"][1]["nvmlDeviceGetUUID"][1]
    for name in ("0000:00:1c.0", "00000000:00:1C.0", "00:1c.0"):
        assert document["by_bus"][name] == [0, uuid]
    assert document["by_bus"]["0000:00:1d.0"] == [6, None]
    assert document["by_bus"]["nonsense"] == [2, None]
    assert document["by_serial"] == [0, uuid]
    assert document["by_index"] == {"2": [2, None]}
    assert document["by_uuid"] == {"GPU-none": [6, None]}


def test_links_fabric_and_cpus(library: Callable[[str], Path], boards: Callable[..., str]) -> None:
    root = boards(H100, "580.95.05")
    (Path(root) / "proc/driver/nvidia-nvswitch/devices/0000:00:05.0").mkdir(parents=True)
    (Path(root) / "sys/module/nvidia").mkdir(parents=True)
    before = read(library("580.95.05"), root)["boards"][1]
    assert before["fabric"] == [0, [2, 0]]  # in progress
    assert report(root, "580.95.05")[1].findtext("fabric/state") == "In Progress"
    (Path(root) / "run/nvidia-fabric").mkdir(parents=True)
    registered = str((Path(root) / "sys/module/nvidia").stat().st_ino)
    (Path(root) / "run/nvidia-fabric/registered").write_text(f"{registered}\n", encoding="utf-8")
    after = read(library("580.95.05"), root)["boards"][1]
    assert after["fabric"] == [0, [3, 0]]
    assert report(root, "580.95.05")[1].findtext("fabric/state") == "Completed"
    assert after["links"] == [0] * 18 and after["cpus"] == [0, 0xFF00, 1]
    assert after["path to board 0"] == [0, 50]


def test_links_are_only_where_the_board_has_them(library: Callable[[str], Path], boards: Callable[..., str]) -> None:
    (answers, _) = read(library(VERSION), boards(A100))["boards"]
    assert answers["links"] == [0] * 12 + [NOT_SUPPORTED] * 6
    assert answers["fabric"] == [NOT_SUPPORTED, None]


def test_without_a_module_the_driver_is_not_loaded(library: Callable[[str], Path], tmp_path: Path) -> None:
    document = read(library(VERSION), str(tmp_path))
    assert (document["init"], document["text"], document["driver"]) == (9, "Driver Not Loaded", [1, None])


def test_a_module_of_another_version_is_refused(library: Callable[[str], Path], boards: Callable[..., str]) -> None:
    document = read(library(VERSION), boards(A10G, "580.95.05"))
    assert (document["init"], document["text"]) == (18, "Driver/library version mismatch")
    assert document["count"] == [1, None]


def test_without_the_control_node_the_driver_is_not_loaded(
    library: Callable[[str], Path], boards: Callable[..., str]
) -> None:
    root = boards(A10G)
    (Path(root) / "dev/nvidiactl").unlink()
    assert read(library(VERSION), root)["init"] == 9


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives its rights away")
def test_without_rights_there_is_no_permission(
    library: Callable[[str], Path], boards: Callable[..., str], tmp_path: Path
) -> None:
    root = boards(A10G)
    (Path(root) / "dev/nvidiactl").chmod(0o600)
    for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    shutil.copy(library(VERSION).resolve(), tmp_path / "libnvidia-ml.so.1")
    shutil.copy(_READER, tmp_path / "reader.py")
    words = ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3"]
    words += [str(tmp_path / "reader.py"), str(tmp_path / "libnvidia-ml.so.1")]
    done = subprocess.run(words, env={"GPU_AMI_ROOT": root}, capture_output=True, text=True, timeout=30, check=True)
    document = json.loads(done.stdout)
    assert (document["init"], document["text"]) == (4, "Insufficient Permissions")


def test_a_container_has_the_boards_of_its_nodes(library: Callable[[str], Path], boards: Callable[..., str]) -> None:
    root = boards(A10G)
    (Path(root) / "dev/nvidia0").unlink()
    document = read(library(VERSION), root)
    assert document["count"] == [0, 1]
    assert document["boards"][0]["nvmlDeviceGetMinorNumber"] == [0, 1]
    assert document["boards"][0]["nvmlDeviceGetIndex"] == [0, 0]


def test_short_places_and_wrong_arguments(library: Callable[[str], Path], boards: Callable[..., str]) -> None:
    document = read(library(VERSION), boards(A10G))
    assert document["wrong"] == {
        "short name": 7, "no place": 2, "no board": 2, "other structure": 25, "clock 9": 2, "after the end": 1,
    }  # fmt: skip


def test_it_is_its_own_kind_alone_that_is_marked() -> None:
    """Programs tell the replica by a name that no original has, as with libcuda."""
    assert "gpu_ami_replica" in (REPLICAS / "nvidia_driver/libnvidia_ml/fields.c").read_text(encoding="utf-8")
