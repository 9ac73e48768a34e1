"""nvidia_gpu: `nvidia-smi -q -x`, one process a sample (plugins/inputs/nvidia_smi of the agent's source).

It reads what this release of the agent reads: v10 and v11 with the old places, v12 from 1.300034.0 on (PR 1052), the
power readings of R570 from 1.300056.0 on (PR 1679). No release knows v13 (issue 2146): it warns once, and reads v12.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from typing import Any

from . import version

PROGRAM = "/usr/bin/nvidia-smi"
# The agent waits so long. While nvidia-smi computes, or waits for an emulated processor, the time is not counted: the
# original needs a tenth of a second.
SECONDS = 5.0
_KNOWN_AFTER = {"v10": (), "v11": (), "v12": (1, 300034, 0)}
_LAYOUT = re.compile(rb'<!DOCTYPE[^>]*"nvsmi_device_(v\d+)\.dtd"')
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "measurements.json"), encoding="utf-8") as _file:
    _ROWS = json.load(_file)  # written by tests/replicas/test_cloudwatch_agent_schema.py --update-golden
FRACTIONS = [name for name, row in _ROWS.items() if row["fraction"]]  # the others are integers
# measurement → its paths in a <gpu> → the first release that reads it; of several the last that has a number.
PLACES = {name: row["paths"] for name, row in _ROWS.items()}
warned_schemas: set[str] = set()


class SampleFailed(Exception):
    pass


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("b")[0])[:3])


def check_rights(path: str = PROGRAM) -> str | None:
    """Why the agent must not start (checked once, before anything is collected); None if it may start.

    Like the real agent: it refuses to start, logs included, if the owner of nvidia-smi cannot read and write it.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return f"{path}: {error.strerror}"
    return None if mode & 0o600 == 0o600 else f"{path}: its owner lacks read or write permission"


def sample(
    program: str = PROGRAM, warn: Callable[[str], None] = lambda _: None, release: str | None = None
) -> tuple[float, list[tuple[dict[str, str], dict[str, float]]]]:
    """(time, [(dimensions, {measurement: value})]), one entry a GPU. A value that the board lacks is absent."""
    try:
        status, output = _answer(program)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SampleFailed(f"calling {program!r} failed: {error}") from error
    if status != 0:
        raise SampleFailed(f"{program} -q -x ended with {status}: {output.decode('utf-8', 'replace').strip()[:300]}")
    return parse(output, release or version(), warn)


def _answer(program: str) -> tuple[int, bytes]:
    """Exit status and output. TimeoutExpired: SECONDS are over, without the time that nvidia-smi computes."""
    with subprocess.Popen(
        [program, "-q", "-x"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        started = time.monotonic()
        while True:
            try:
                output, _ = process.communicate(timeout=0.25)
                return process.returncode, output
            except subprocess.TimeoutExpired:
                if time.monotonic() - started - processor_seconds(process.pid) > SECONDS:
                    process.kill()
                    raise subprocess.TimeoutExpired([program, "-q", "-x"], SECONDS) from None


def processor_seconds(pid: int) -> float:
    """Seconds that a process and those that it started ran, and waited for a processor where the kernel counts that."""
    ran = waited = 0.0
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        ran = sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")  # with children that have ended
        with open(f"/proc/{pid}/schedstat", encoding="utf-8") as file:
            waited = int(file.read().split()[1]) / 1e9
    children: list[str] = []
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        children = file.read().split()
    return ran + waited + sum(processor_seconds(int(child)) for child in children)


def parse(
    text: bytes, release: str, warn: Callable[[str], None] = lambda _: None
) -> tuple[float, list[tuple[dict[str, str], dict[str, float]]]]:
    """What this release of the agent reads; `warn` gets the warning of a layout that it does not know, once."""
    import xml.etree.ElementTree as tree

    layout = _LAYOUT.search(text[:1000])
    name = layout.group(1).decode() if layout else "v11"
    if _release(release) < _KNOWN_AFTER.get(name, (9,)) and name not in warned_schemas:
        warned_schemas.add(name)
        warn(f'[inputs.nvidia_smi] Unknown schema version "{name}", using latest know schema for parsing.')
    try:
        root = tree.fromstring(text)
    except tree.ParseError as error:
        raise SampleFailed(f"nvidia-smi's XML: {error}") from error
    reads = _release(release)
    places = {
        name: [path for path, first in paths.items() if reads >= _release(first)] for name, paths in PLACES.items()
    }
    gpus = []
    for index, gpu in enumerate(root.iter("gpu")):
        dimensions = {
            "index": str(index),
            "name": gpu.findtext("product_name", ""),
            # schema_v11/parser.go has no such tag
            "arch": "" if name in ("v10", "v11") else gpu.findtext("product_architecture", ""),
        }
        values = {}
        for measurement, paths in places.items():
            value = _number(gpu, measurement, paths)
            if value is not None:
                values[measurement] = value
        gpus.append(({key: value for key, value in dimensions.items() if value}, values))
    return _timestamp(root.findtext("timestamp")), gpus


def _number(gpu: Any, measurement: str, paths: list[str]) -> float | None:
    """The first word as a number, else nothing (common/setters.go); of several paths the last one wins."""
    value = None
    for path in paths:
        word = ((gpu.findtext(path) or "").split() or [""])[0]
        if measurement == "pcie_link_width_current":
            word = word.removesuffix("x")
        with contextlib.suppress(ValueError):
            value = float(word) if measurement in FRACTIONS else float(int(word))
    return value


def _timestamp(text: str | None) -> float:
    try:
        return time.mktime(time.strptime(text or "", "%a %b %d %H:%M:%S %Y"))
    except ValueError:
        return time.time()
