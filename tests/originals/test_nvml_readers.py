"""NVIDIA's own reader of NVML for Python (nvidia-ml-py) on the replica of libnvidia-ml, beside nvidia-smi's replica.

It has the structures and versions of NVIDIA's header. What each function says is compared in tests/replicas; here, that
another reader understands the same, and what the replica has not. `make real` (network; the wheel is kept by version).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.originals import fetch
from tests.replicas.conftest import machine  # noqa: F401
from tests.replicas.test_libnvidia_ml import NOW, boards, library  # noqa: F401
from tests.replicas.test_nvidia_smi import H100, smi

pytestmark = [pytest.mark.real, pytest.mark.slow]

WHEEL = ("nvidia-ml-py", "13.580.126")
DRIVER = "580.95.05"
# Prints, for each function that asks one handle alone, what it says of the first board; and some that ask more.
_PROGRAM = """
import ctypes, inspect, json, pynvml

def plain(value):
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [plain(item) for item in value]
    if hasattr(value, "_fields_"):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    return value.decode() if isinstance(value, bytes) else value

def said(function, *arguments):
    try:
        return ["", plain(function(*arguments))]
    except pynvml.NVMLError as error:
        return [type(error).__name__, None]

pynvml.nvmlInit()
board = pynvml.nvmlDeviceGetHandleByIndex(0)
table = {}
for name, function in inspect.getmembers(pynvml, inspect.isfunction):
    takes = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
    if name.startswith("nvmlDeviceGet") and [one.name for one in takes] in (["handle"], ["device"]):
        table[name] = said(function, board)
document = {
    "driver": pynvml.nvmlSystemGetDriverVersion(), "nvml": pynvml.nvmlSystemGetNVMLVersion(),
    "cuda": pynvml.nvmlSystemGetCudaDriverVersion_v2(), "count": pynvml.nvmlDeviceGetCount(), "table": table,
    "memory": plain(pynvml.nvmlDeviceGetMemoryInfo(board, version=pynvml.nvmlMemory_v2)),
    "temperature": said(pynvml.nvmlDeviceGetTemperature, board, pynvml.NVML_TEMPERATURE_GPU),
    "temperature by structure": said(pynvml.nvmlDeviceGetTemperatureV, board, pynvml.NVML_TEMPERATURE_GPU),
    "clocks": [said(pynvml.nvmlDeviceGetClockInfo, board, kind) for kind in range(4)],
    "affinity": said(pynvml.nvmlDeviceGetCpuAffinity, board, 2),
    "fields": [row.value.uiVal for row in pynvml.nvmlDeviceGetFieldValues(board, [pynvml.NVML_FI_DEV_MEMORY_TEMP])],
    "processes": said(pynvml.nvmlDeviceGetComputeRunningProcesses, board),
    "setting": said(pynvml.nvmlDeviceSetPersistenceMode, board, 1),
}
fabric = pynvml.c_nvmlGpuFabricInfo_v2_t()
document["fabric"] = said(pynvml.nvmlDeviceGetGpuFabricInfoV, board, pynvml.byref(fabric))
part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(pynvml.nvmlDeviceGetHandleByIndex(1), 0)
document["mig"] = {
    "uuid": pynvml.nvmlDeviceGetUUID(part), "attributes": plain(pynvml.nvmlDeviceGetAttributes(part)),
    "is": bool(pynvml.nvmlDeviceIsMigDeviceHandle(part)),
}
pynvml.nvmlShutdown()
print(json.dumps(document))
"""
# What the replica has no function for: NVML_ERROR_FUNCTION_NOT_FOUND, as from a library of an older driver.
ABSENT = "NVMLError_FunctionNotFound"


@pytest.fixture
def read(library: Any, boards: Any) -> tuple[str, dict[str, Any]]:  # noqa: F811
    """The root of a machine with two H100, the second divided, and what nvidia-ml-py reads of it."""
    root = boards(H100, DRIVER)
    assert smi(root, "-mig", "1", "-i", "1", own=DRIVER)[0] == 0
    assert smi(root, "mig", "-cgi", "2g.20gb", "-C", own=DRIVER)[0] == 0
    environment = {
        "GPU_AMI_ROOT": root, "GPU_AMI_SECONDS": str(NOW), "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(Path(library(DRIVER)).parent), "PYTHONPATH": str(fetch.wheel(*WHEEL)),
    }  # fmt: skip
    words = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return root, document


def queried(root: str, *fields: str) -> list[str]:
    words = (f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "-i", "0")
    return smi(root, *words, own=DRIVER, now=NOW)[1].strip().split(", ")


def test_it_reads_what_nvidia_smi_shows(read: tuple[str, dict[str, Any]]) -> None:
    root, document = read
    table = {name: answer[1] for name, answer in document["table"].items()}
    assert (document["driver"], document["nvml"], document["cuda"]) == (DRIVER, f"13.{DRIVER}", 13000)
    shown = queried(
        root, "name", "uuid", "serial", "pci.bus_id", "temperature.gpu", "utilization.gpu", "power.draw", "power.limit",
        "memory.total", "memory.used", "memory.free", "mig.mode.current", "ecc.mode.current", "persistence_mode",
        "clocks.gr", "clocks.mem", "compute_cap", "temperature.memory", "vbios_version", "count",
    )  # fmt: skip
    memory, switches = document["memory"], ("Disabled", "Enabled")
    assert shown == [
        table["nvmlDeviceGetName"], table["nvmlDeviceGetUUID"], table["nvmlDeviceGetSerial"],
        table["nvmlDeviceGetPciInfo"]["busId"], str(document["temperature"][1]),
        str(table["nvmlDeviceGetUtilizationRates"]["gpu"]), f"{table['nvmlDeviceGetPowerUsage'] / 1000:.2f}",
        f"{table['nvmlDeviceGetEnforcedPowerLimit'] / 1000:.2f}",
        *(str(memory[part] >> 20) for part in ("total", "used", "free")),
        switches[table["nvmlDeviceGetMigMode"][0]], switches[table["nvmlDeviceGetEccMode"][0]],
        switches[table["nvmlDeviceGetPersistenceMode"]], str(document["clocks"][0][1]), str(document["clocks"][2][1]),
        ".".join(map(str, table["nvmlDeviceGetCudaComputeCapability"])), str(document["fields"][0]),
        table["nvmlDeviceGetVbiosVersion"], str(document["count"]),
    ]  # fmt: skip
    assert document["temperature by structure"] == document["temperature"]
    assert table["nvmlDeviceGetArchitecture"] == 9 and document["processes"] == ["", []]
    assert document["affinity"] == ["", [0xFF, 1]] and document["fabric"][0] == ""


def test_it_finds_the_mig_device(read: tuple[str, dict[str, Any]]) -> None:
    root, document = read
    assert f"UUID: {document['mig']['uuid']})" in smi(root, "-L", own=DRIVER)[1]
    assert document["mig"]["is"] is True
    assert document["mig"]["attributes"]["gpuInstanceSliceCount"] == 2
    total = H100["memory_mib"]
    assert document["mig"]["attributes"]["memorySizeMB"] == int(total) * 2 // 7


def test_what_is_not_there_is_said(read: tuple[str, dict[str, Any]]) -> None:
    """Nothing else than a value, what a board has none of, and what the replica has no function for."""
    _, document = read
    kinds: dict[str, list[str]] = {}
    for name, (error, _) in document["table"].items():
        kinds.setdefault(error, []).append(name.removeprefix("nvmlDeviceGet"))
    for error, names in sorted(kinds.items()):
        print(f"\n{len(names)} {error or 'answered'}: {' '.join(names)}")
    assert kinds.keys() <= {"", "NVMLError_NotSupported", "NVMLError_Deprecated", ABSENT}
    assert len(kinds[""]) > 50
    assert document["setting"] == [ABSENT, None]
