"""The metrics of the former system, for its dashboards: namespaces AcceleratorMetrics and EFAMetrics (option --seed-metrics).

Names, dimensions and units are those of accel-to-cw.py and efa-to-cw.py (aws-efa-nccl-baseami-pipeline 9d8a9273); each metric
also without the index, for the instance. Different: EFA's counters are what was added since the reading before, not the total
since boot; a value that nvidia-smi does not have is left out, where the former system ended.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, List, Optional, Tuple

from . import readings
from .snapshot import Snapshot

# Name in the former system → property of nvidia-smi.
GPU_METRICS = {
    "Mem_used": "memory.used", "Mem_free": "memory.free", "Util_gpu": "utilization.gpu", "Util_mem": "utilization.memory",
    "Clock_sm": "clocks.current.sm", "Clock_mem": "clocks.current.memory", "Uncorr_ecc": "ecc.errors.uncorrected.volatile.total",
}  # fmt: skip
EFA_METRICS = {"Rx_bytes": "rx_bytes", "Tx_bytes": "tx_bytes", "Rdma_read": "rdma_read_bytes"}
QUERY = ("--query-gpu=index,name,driver_version," + ",".join(GPU_METRICS.values()), "--format=csv,noheader,nounits")
_INSTANCE_DATA = "/run/cloud-init/instance-data.json"


class SeedMetrics:
    """Reads GPUs and EFA every `period_s`. nvidia-smi runs beside the reader, so a driver that hangs does not stop it."""

    def __init__(self, nvidia_smi: str, period_s: float, root: str = "/") -> None:
        self.nvidia_smi = nvidia_smi
        self.period_s = period_s
        self.root = root
        self.query = None  # type: Optional[Snapshot]
        self.failures = 0
        self._due = time.monotonic()
        self._before = {}  # type: Dict[str, Dict[str, int]]
        self._instance_type = ""

    def next_due(self) -> float:
        return min(self._due, self.query.deadline) if self.query else self._due

    def step(self, poller: Any, ready: List[int], instance: Dict[str, str], now: float) -> List[Dict[str, Any]]:
        """What is due now: starts nvidia-smi, takes its answer, reads EFA. Returns documents."""
        made = []  # type: List[Dict[str, Any]]
        if self.query and ((self.query.fd in ready and self.query.read()) or now >= self.query.deadline):
            poller.unregister(self.query.fd)
            output, _ = self.query.output()
            unanswered = output is None or has_unknown(output)
            self.query, self.failures = None, self.failures + unanswered
            made += self._documents("AcceleratorMetrics", gpu_rows(output or b""), instance)
        if now >= self._due:
            self._due = now + self.period_s
            made += self._documents("EFAMetrics", self._efa_rows(), instance)
            if self.query is None:
                self.query = Snapshot.start(self.nvidia_smi, QUERY)
                if self.query:
                    poller.register(self.query.fd, 1)  # POLLIN
        return made

    def _efa_rows(self) -> List[Tuple[Dict[str, str], Dict[str, int]]]:
        """What each EFA counted since the reading before; nothing at the first reading and after a reset."""
        rows = []
        counters = read_efa(self.root)
        for index, (name, values) in enumerate(sorted(counters.items())):
            before = self._before.get(name, {})
            grown = {metric: value - before[metric] for metric, value in values.items() if before.get(metric, value + 1) <= value}
            driver = _text(os.path.join(self.root, "sys/module/efa/version")) or "-"
            if grown:
                rows.append(({"EFAIndex": str(index), "EFAName": name, "EFADriver": driver}, grown))
        self._before = counters
        return rows

    def _documents(
        self, namespace: str, rows: List[Tuple[Dict[str, str], Dict[str, int]]], instance: Dict[str, str]
    ) -> List[Dict[str, Any]]:
        """No document before the instance's id and type are known: it would be another series."""
        self._instance_type = instance.get("InstanceType") or self._instance_type or _instance_type(self.root)
        identity = {"Id": instance.get("InstanceId", ""), "InstanceType": self._instance_type}
        if not all(identity.values()):
            return []
        unit = "Bytes" if namespace == "EFAMetrics" else "None"
        return [_document(namespace, unit, identity, device, values) for device, values in rows if values]


def gpu_rows(output: bytes) -> List[Tuple[Dict[str, str], Dict[str, int]]]:
    """(dimensions, values) of each GPU in nvidia-smi's table; `[N/A]` and the like are left out."""
    rows = []
    for cells in _cells(output):
        if len(cells) != 3 + len(GPU_METRICS) or not cells[0].isdigit():
            continue
        device = {"AcceleratorIndex": cells[0], "AcceleratorName": cells[1], "AcceleratorDriver": cells[2]}
        numbers = {name: readings.read_number(cell).number_or_none() for name, cell in zip(GPU_METRICS, cells[3:])}
        rows.append((device, {name: int(number) for name, number in numbers.items() if number is not None}))
    return rows


def has_unknown(output: bytes) -> bool:
    """Whether the table lacks a row, or a cell of it holds an error in place of a value: no answer is not a good one."""
    rows = _cells(output)
    return not rows or any(
        len(cells) != 3 + len(GPU_METRICS) or any(readings.read_number(cell).state == readings.UNKNOWN for cell in cells[3:])
        for cells in rows
    )


def _cells(output: bytes) -> List[List[str]]:
    lines = output.decode("utf-8", "replace").splitlines()
    return [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]


def read_efa(root: str = "/") -> Dict[str, Dict[str, int]]:
    """Device → counters of its port, those that it has."""
    folder = os.path.join(root, "sys/class/infiniband")
    counters = {}  # type: Dict[str, Dict[str, int]]
    for name in readings.efa_devices(root):
        texts = {metric: _text(os.path.join(folder, name, "ports/1/hw_counters", file)) for metric, file in EFA_METRICS.items()}
        values = {metric: int(text) for metric, text in texts.items() if text.isdigit()}
        if values:
            counters[name] = values
    return counters


def _document(
    namespace: str, unit: str, identity: Dict[str, str], device: Dict[str, str], values: Dict[str, int]
) -> Dict[str, Any]:
    every = list(identity) + list(device)
    directive = {
        "Namespace": namespace,
        "Dimensions": [every, [name for name in every if not name.endswith("Index")]],
        "Metrics": [{"Name": name, "Unit": unit, "StorageResolution": 1} for name in values],
    }
    wall_us = time.time_ns() // 1000
    seconds, micros = divmod(wall_us, 1000000)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + ".%06dZ" % micros
    document = {"time": stamp, "schema": "gpu-ami/event/1", "kind": "seed_metrics"}  # type: Dict[str, Any]
    document.update(identity, **device)
    document.update(values, _aws={"Timestamp": wall_us // 1000, "CloudWatchMetrics": [directive]})
    return document


def _instance_type(root: str) -> str:
    """cloud-init's copy of the metadata; the firmware does not have it on every instance."""
    try:
        with open(os.path.join(root, _INSTANCE_DATA.lstrip("/")), encoding="utf-8") as file:
            found = json.load(file)["ds"]["meta_data"]["instance-type"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return str(found)[:64]


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""
