"""Reads NVML with ctypes alone: nvml_reader.py LIBRARY prints {call: [status, value]} as JSON.

Names, numbers and structures: nvml.h (NVIDIA's go-nvml 0.13.4).
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_char, c_int, c_longlong, c_ubyte, c_uint, c_ulong, c_ulonglong, c_void_p
from typing import Any

nvml = ctypes.CDLL(sys.argv[1])


class Pci(Structure):
    _fields_ = [
        ("legacy", c_char * 16), ("domain", c_uint), ("bus", c_uint), ("device", c_uint), ("device_id", c_uint),
        ("subsystem_id", c_uint), ("bus_id", c_char * 32),
    ]  # fmt: skip


class Memory(Structure):
    _fields_ = [("version", c_uint), *((name, c_ulonglong) for name in ("total", "reserved", "free", "used"))]


class Field(Structure):
    _fields_ = [("id", c_uint), ("scope", c_uint), ("timestamp", c_longlong), ("latency", c_longlong), ("type", c_uint),
                ("status", c_uint), ("value", c_ulonglong)]  # fmt: skip


class Fabric(Structure):
    _fields_ = [("cluster", c_ubyte * 16), ("status", c_uint), ("clique", c_uint), ("state", c_ubyte)]


class Addressing(Structure):
    _fields_ = [("version", c_uint), ("value", c_uint)]


class Attributes(Structure):
    _fields_ = [*((f"number{number}", c_uint) for number in range(8)), ("memory", c_ulonglong)]


class Instance(Structure):
    """Of a GPU instance; a compute instance has its GPU instance's handle after the device."""

    _fields_ = [("device", c_void_p), ("id", c_uint), ("profile", c_uint), ("start", c_uint), ("size", c_uint)]


class Compute(Structure):
    _fields_ = [("device", c_void_p), ("gpu_instance", c_void_p), ("id", c_uint), ("profile", c_uint),
                ("start", c_uint), ("size", c_uint)]  # fmt: skip


def answer(name: str, *arguments: Any, values: Callable[[], Any]) -> list[Any]:
    """[status, value]; the value is None where the call failed."""
    status = getattr(nvml, name)(*arguments)
    return [status, None if status else values()]


def text(name: str, *before: Any, size: int = 96) -> list[Any]:
    place = ctypes.create_string_buffer(size)
    return answer(name, *before, place, c_uint(size), values=lambda: place.value.decode())


def number(name: str, *before: Any, kind: Any = c_uint) -> list[Any]:
    place = kind()
    return answer(name, *before, byref(place), values=lambda: place.value)


def numbers(
    into: dict[str, Any], name: str, *before: Any, count: int = 2, kind: Any = c_uint, together: bool = False
) -> None:
    """together: one structure of them, else a place for each. "NAME 0", "NAME 1" …"""
    places = (kind * count)()
    arguments = [places] if together else [byref(places, number * ctypes.sizeof(kind)) for number in range(count)]
    status = getattr(nvml, name)(*before, *arguments)
    for index in range(count):
        into[f"{name} {index}"] = [status, None if status else places[index]]


def field(board: c_void_p, identifier: int) -> list[Any]:
    row = Field(id=identifier)
    status = nvml.nvmlDeviceGetFieldValues(board, 1, byref(row)) or row.status
    return [status, None if status else row.value & 0xFFFFFFFF]


def memory(into: dict[str, Any], board: c_void_p) -> None:
    place = Memory(version=ctypes.sizeof(Memory) | 2 << 24)
    status = nvml.nvmlDeviceGetMemoryInfo_v2(board, byref(place))
    for name in ("total", "reserved", "free", "used"):
        into["nvmlDeviceGetMemoryInfo_v2 " + name] = [status, None if status else getattr(place, name)]


_TEXTS = ("Name", "UUID", "Serial", "VbiosVersion", "BoardPartNumber")
_NUMBERS = (
    "DisplayMode", "DisplayActive", "PersistenceMode", "AccountingMode", "AccountingBufferSize", "MinorNumber", "Index",
    "MultiGpuBoard", "BoardId", "MaxPcieLinkGeneration", "CurrPcieLinkGeneration", "MaxPcieLinkWidth",
    "PcieReplayCounter", "FanSpeed", "PerformanceState", "PowerState", "PowerUsage", "EnforcedPowerLimit",
    "PowerManagementDefaultLimit",
    "MaxMigDeviceCount", "Architecture", "Brand",
)  # fmt: skip
_PAIRS = (
    "MigMode", "EccMode", "EncoderUtilization", "JpgUtilization", "PowerManagementLimitConstraints",
    "CudaComputeCapability",
)  # fmt: skip


def read_board(board: c_void_p, first: c_void_p) -> dict[str, Any]:
    into: dict[str, Any] = {}
    for name in _TEXTS:
        into["nvmlDeviceGet" + name] = text("nvmlDeviceGet" + name, board)
    place = ctypes.create_string_buffer(80)
    into["nvmlDeviceGetGspFirmwareVersion"] = answer(
        "nvmlDeviceGetGspFirmwareVersion", board, place, values=lambda: place.value.decode()
    )
    for name in _NUMBERS:
        into["nvmlDeviceGet" + name] = number("nvmlDeviceGet" + name, board)
    for name in _PAIRS:
        numbers(into, "nvmlDeviceGet" + name, board)
    numbers(into, "nvmlDeviceGetUtilizationRates", board, together=True)
    numbers(into, "nvmlDeviceGetRowRemapperHistogram", board, count=5, together=True)
    numbers(into, "nvmlDeviceGetBAR1MemoryInfo", board, count=3, kind=c_ulonglong, together=True)
    numbers(into, "nvmlDeviceGetEncoderStats", board, count=3)
    numbers(into, "nvmlDeviceGetRemappedRows", board, count=4)
    into["nvmlDeviceGetTemperature"] = number("nvmlDeviceGetTemperature", board, 0)
    for kind in range(4):
        for name in ("ClockInfo", "MaxClockInfo", "ApplicationsClock", "MaxCustomerBoostClock", "TemperatureThreshold"):
            into[f"nvmlDeviceGet{name} {kind}"] = number("nvmlDeviceGet" + name, board, kind)
    for identifier in (82, 185, 186):
        into[f"field {identifier}"] = field(board, identifier)
    pci = Pci()
    status = nvml.nvmlDeviceGetPciInfo_v3(board, byref(pci))
    for name, _ in Pci._fields_:
        value = getattr(pci, name)
        into["nvmlDeviceGetPciInfo_v3 " + name] = [status, value.decode() if isinstance(value, bytes) else value]
    mode = Addressing(version=ctypes.sizeof(Addressing) | 1 << 24)
    into["nvmlDeviceGetAddressingMode"] = answer(
        "nvmlDeviceGetAddressingMode", board, byref(mode), values=lambda: mode.value
    )
    memory(into, board)
    fabric = Fabric()
    into["fabric"] = answer(
        "nvmlDeviceGetGpuFabricInfo", board, byref(fabric), values=lambda: [fabric.state, fabric.clique]
    )
    into["links"] = [number("nvmlDeviceGetNvLinkState", board, link)[0] for link in range(18)]
    cpus = (c_ulong * 2)()
    into["cpus"] = [nvml.nvmlDeviceGetCpuAffinity(board, 2, cpus), *cpus]
    into["path to board 0"] = number("nvmlDeviceGetTopologyCommonAncestor", board, first)
    into["mig"], part = [], c_void_p()
    while nvml.nvmlDeviceGetMigDeviceHandleByIndex(board, len(into["mig"]), byref(part)) == 0:
        into["mig"].append(read_mig(c_void_p(part.value)))
    after = nvml.nvmlDeviceGetMigDeviceHandleByIndex(board, len(into["mig"]), byref(part))
    into["after_the_last_mig"] = [after, None]
    return into


def read_mig(part: c_void_p) -> dict[str, Any]:
    parent, attributes, again = c_void_p(), Attributes(), c_void_p()
    place: dict[str, Any] = {}
    uuid = text("nvmlDeviceGetUUID", part)
    nvml.nvmlDeviceGetHandleByUUID(uuid[1].encode(), byref(again))
    memory(place, part)
    nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part, byref(parent))
    gpu_instance, compute, instance, of_instance = c_void_p(), c_void_p(), Instance(), Compute()
    nvml.nvmlDeviceGetGpuInstanceById(parent, number("nvmlDeviceGetGpuInstanceId", part)[1], byref(gpu_instance))
    found = nvml.nvmlGpuInstanceGetInfo(gpu_instance, byref(instance))
    nvml.nvmlGpuInstanceGetComputeInstanceById(gpu_instance, 0, byref(compute))
    computes = nvml.nvmlComputeInstanceGetInfo_v2(compute, byref(of_instance))
    return {
        "uuid": uuid,
        "instance": [found, instance.id, instance.size, instance.profile, instance.start],
        "compute": [computes, of_instance.id, of_instance.size],
        "by_uuid": text("nvmlDeviceGetUUID", again),
        "name": text("nvmlDeviceGetName", part),
        "index": number("nvmlDeviceGetIndex", part),
        "gpu_instance": number("nvmlDeviceGetGpuInstanceId", part),
        "compute_instance": number("nvmlDeviceGetComputeInstanceId", part),
        "multiprocessors": answer(
            "nvmlDeviceGetAttributes_v2", part, byref(attributes), values=lambda: attributes.number0
        ),
        "total": place["nvmlDeviceGetMemoryInfo_v2 total"],
        "temperature": number("nvmlDeviceGetTemperature", part, 0),
        "parent": [
            nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part, byref(parent)),
            text("nvmlDeviceGetUUID", parent)[1],
        ],
    }


def by(name: str, *arguments: Any) -> list[Any]:
    board = c_void_p()
    status = getattr(nvml, name)(*arguments, byref(board))
    return [status, None if status else text("nvmlDeviceGetUUID", board)[1]]


def main() -> None:
    init = nvml.nvmlInit_v2()
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    document = {
        "init": init,
        "text": nvml.nvmlErrorString(init).decode(),
        "driver": text("nvmlSystemGetDriverVersion"),
        "nvml": text("nvmlSystemGetNVMLVersion"),
        "cuda": number("nvmlSystemGetCudaDriverVersion", kind=c_int),
        "count": number("nvmlDeviceGetCount_v2"),
        "boards": [],
    }
    if init == 0:
        read_all(document)
    print(json.dumps(document))


def read_all(document: dict[str, Any]) -> None:
    boards = []
    for index in range(document["count"][1]):
        board = c_void_p()
        nvml.nvmlDeviceGetHandleByIndex_v2(index, byref(board))
        boards.append(c_void_p(board.value))
    document["boards"] = [read_board(board, boards[0]) for board in boards]
    names = ("0000:00:1c.0", "00000000:00:1C.0", "00:1c.0", "0000:00:1d.0", "nonsense")
    document["by_bus"] = {name: by("nvmlDeviceGetHandleByPciBusId_v2", name.encode()) for name in names}
    document["by_serial"] = by("nvmlDeviceGetHandleBySerial", b"132000001")
    document["by_index"] = {str(len(boards)): by("nvmlDeviceGetHandleByIndex_v2", len(boards))}
    document["by_uuid"] = {"GPU-none": by("nvmlDeviceGetHandleByUUID", b"GPU-none")}
    wrong = {
        "short name": text("nvmlDeviceGetName", boards[0], size=4)[0],
        "no place": nvml.nvmlDeviceGetMinorNumber(boards[0], POINTER(c_uint)()),
        "no board": nvml.nvmlDeviceGetMinorNumber(c_void_p(), byref(c_uint())),
        "other structure": nvml.nvmlDeviceGetMemoryInfo_v2(boards[0], byref(Memory(version=7))),
        "clock 9": number("nvmlDeviceGetClockInfo", boards[0], 9)[0],
    }
    nvml.nvmlShutdown()
    wrong["after the end"] = number("nvmlDeviceGetMinorNumber", boards[0])[0]
    document["wrong"] = wrong


if __name__ == "__main__":
    main()
