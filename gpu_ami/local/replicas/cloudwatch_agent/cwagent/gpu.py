"""nvidia_gpu: `nvidia-smi -q -x`, one process a sample (plugins/inputs/nvidia_smi)."""

from __future__ import annotations

import os
import re
import subprocess
import time
from typing import Any

PROGRAM = "/usr/bin/nvidia-smi"
# The agent allows 5 s. Under emulation, while other machines boot, the replica's nvidia-smi can take as long.
_SECONDS = 20.0
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
# measurement → its paths in a <gpu>; the second path is the layout of R570 and later.
_PLACES = {
    "utilization_gpu": ("utilization/gpu_util",),
    "utilization_memory": ("utilization/memory_util",),
    "temperature_gpu": ("temperature/gpu_temp",),
    "power_draw": (
        "gpu_power_readings/power_draw",
        "gpu_power_readings/instant_power_draw",
        "power_readings/power_draw",
    ),
    "fan_speed": ("fan_speed",),
    "memory_total": ("fb_memory_usage/total",),
    "memory_used": ("fb_memory_usage/used",),
    "memory_free": ("fb_memory_usage/free",),
    "pcie_link_gen_current": ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",),
    "pcie_link_width_current": ("pci/pci_gpu_link_info/link_widths/current_link_width",),
    "encoder_stats_session_count": ("encoder_stats/session_count",),
    "encoder_stats_average_fps": ("encoder_stats/average_fps",),
    "encoder_stats_average_latency": ("encoder_stats/average_latency",),
    "clocks_current_graphics": ("clocks/graphics_clock",),
    "clocks_current_sm": ("clocks/sm_clock",),
    "clocks_current_memory": ("clocks/mem_clock",),
    "clocks_current_video": ("clocks/video_clock",),
}


class SampleFailed(Exception):
    pass


def check_rights(path: str = PROGRAM) -> str | None:
    """Why the agent must not start (checked once, before anything is collected); None if it may start.

    Like the real agent: it refuses to start, logs included, if the owner of nvidia-smi cannot read and write it.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return f"{path}: {error.strerror}"
    return None if mode & 0o600 == 0o600 else f"{path}: its owner lacks read or write permission"


def sample(program: str = PROGRAM) -> tuple[float, list[tuple[dict[str, str], dict[str, float]]]]:
    """(time, [(dimensions, {measurement: value})]), one entry a GPU. A value that the board lacks is absent."""
    try:
        done = subprocess.run(
            [program, "-q", "-x"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SampleFailed(f"{program} -q -x: {error}") from error
    if done.returncode != 0:
        raise SampleFailed(
            f"{program} -q -x ended with {done.returncode}: {done.stdout.decode('utf-8', 'replace').strip()[:300]}"
        )
    return parse(done.stdout)


def parse(text: bytes) -> tuple[float, list[tuple[dict[str, str], dict[str, float]]]]:
    import xml.etree.ElementTree as tree

    try:
        root = tree.fromstring(text)
    except tree.ParseError as error:
        raise SampleFailed(f"nvidia-smi's XML: {error}") from error
    gpus = []
    for index, gpu in enumerate(root.iter("gpu")):
        dimensions = {
            "index": str(index),
            "name": gpu.findtext("product_name", ""),
            "arch": gpu.findtext("product_architecture", ""),
        }
        values = {}
        for measurement, places in _PLACES.items():
            value = _number(gpu, places)
            if value is not None:
                values[measurement] = value
        gpus.append(({key: value for key, value in dimensions.items() if value}, values))
    return _timestamp(root.findtext("timestamp")), gpus


def _number(gpu: Any, places: tuple[str, ...]) -> float | None:
    for place in places:
        number = _NUMBER.match((gpu.findtext(place) or "").strip())
        if number:
            return float(number.group())
    return None


def _timestamp(text: str | None) -> float:
    try:
        return time.mktime(time.strptime(text or "", "%a %b %d %H:%M:%S %Y"))
    except ValueError:
        return time.time()
