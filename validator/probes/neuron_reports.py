"""neuron-monitor's own report on the host, and the CloudWatch series that follow from it.

Not the publisher's code, so that a mistake of the publisher shows as a difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from validator.cloudwatch import Series
from validator.plan_document import NeuronMonitor

PROGRAM = "/opt/aws/neuron/bin/neuron-monitor"
SECONDS = 60  # the first report takes up to five seconds; under emulation beside other machines, more than twenty
_PERCENTILES = ("p0", "p1", "p25", "p50", "p75", "p99", "p100")
_INSTANCE = {"instance_id": "instance-id", "instance_type": "instance-type", "ami_id": "ami-id"}
_TAG = "neuron_runtime_tag"


@dataclass(frozen=True)
class Limits:
    """Of a datapoint, in its own unit: percent, bytes, seconds, counts."""

    least: float
    most: float


def first_report(host: Any) -> dict[str, Any] | str:
    """neuron-monitor's first report; a text says why there is none."""
    done = host.run(f"timeout {SECONDS} {PROGRAM} | head -n 1")
    if not done.stdout.strip():
        return f"neuron-monitor printed nothing within {SECONDS} s: {done.stderr.strip() or 'no error'}"
    try:
        report = json.loads(done.stdout)
    except ValueError as error:
        return f"not JSON ({error}): {done.stdout.strip()[:200]!r}"
    return report if isinstance(report, dict) else f"not a report: {done.stdout.strip()[:200]!r}"


def expected_series(
    report: Mapping[str, Any], planned: NeuronMonitor, metadata: Mapping[str, Any]
) -> dict[Series, Limits]:
    """Every series of a report → limits of its datapoints. Counters of devices and the device count are exact."""
    base = {name: str(metadata[_INSTANCE[name]]) for name in planned["dimensions"] if name != _TAG}
    series: dict[Series, Limits] = {}

    def add(name: str, dimensions: Mapping[str, str], limits: Limits) -> None:
        series[Series(planned["namespace"], name, tuple(sorted(dimensions.items())))] = limits

    hardware = report["neuron_hardware_info"]
    count = hardware["neuron_device_count"]
    add("reports", base, Limits(1, 1))
    add("report_errors", base, Limits(0, 0))
    add("neuron_device_count", base, Limits(count, count))
    for device in _part(report, "system_data", "neuron_hw_counters").get("neuron_devices") or []:
        dimensions = base | {"neuron_device_index": str(device["neuron_device_index"])}
        for name in (name for name in device if "_ecc_" in name):
            add(name, dimensions, Limits(device[name], device[name]))
    memory = count * hardware.get("neuron_device_memory_size", 0)
    for runtime in report.get("neuron_runtime_data") or []:
        tag = str(runtime.get(_TAG) or runtime.get("pid", ""))
        own = base | {_TAG: tag} if _TAG in planned["dimensions"] else base
        for name, names, limits in _of_runtime(runtime["report"], own, memory):
            add(name, names, limits)
    return series


def _of_runtime(
    report: Mapping[str, Any], own: Mapping[str, str], memory: int
) -> Iterator[tuple[str, Mapping[str, str], Limits]]:
    """They depend on load, and the two reports are of different times: the limits are those of the hardware."""
    for core in _part(report, "neuroncore_counters").get("neuroncores_in_use", {}):
        yield "neuroncore_utilization", {**own, "neuroncore_index": core}, Limits(0, 100)
    used = _part(report, "memory_used", "neuron_runtime_used_bytes")
    if "host" in used:
        yield "runtime_memory_host", own, Limits(0, 2**45)
    if {"neuron_device", "device"} & used.keys():  # `device`: an inf2.xlarge with runtime 2.30
        yield "runtime_memory_neuron_device", own, Limits(0, memory)
    stats = _part(report, "execution_stats")
    for prefix, group in (("execution_errors", "error_summary"), ("executions", "execution_summary")):
        for name in _part(stats, group):
            yield f"{prefix}_{name}", own, Limits(0, 2**40)
    for latency in ("total_latency", "device_latency"):
        for percentile in (name for name in _PERCENTILES if name in _part(stats, "latency_stats", latency)):
            yield f"{latency}_{percentile}", own, Limits(0, 86400)


def _part(report: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for key in path:
        report = report.get(key) or {}
    return report
