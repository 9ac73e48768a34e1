"""A report of neuron-monitor as CloudWatch embedded metric documents. Pure functions.

Source of the report's format: "Neuron Monitor User Guide" (awsdocs-neuron.readthedocs-hosted.com, Neuron 2.33.0).
CloudWatch makes metrics of each document (Embedded Metric Format specification), so the instance needs no permission
but that of the agent to write logs.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, Dict, List, NamedTuple, Tuple, Union

SCHEMA = "gpu-ami/neuron/1"
RUNTIME_TAG = "neuron_runtime_tag"
DIMENSIONS = ("instance_id", "instance_type", "ami_id", RUNTIME_TAG)
_VALUE_LIMIT = 255  # of a tag (NEURON_PROCESS_TAG); a dimension's value may have 1024 characters
_ARRAY_LIMIT = 100  # values of one metric in a document
_PERCENTILES = ("p0", "p1", "p25", "p50", "p75", "p99", "p100")

Number = Union[int, float]
Values = Dict[str, Tuple[str, List[Number]]]  # metric → unit, values
Documents = List[Dict[str, Any]]


class Settings(NamedTuple):
    """`dimensions`: names of DIMENSIONS, in their order. `high_resolution`: stored by the second, not by the minute."""

    namespace: str
    dimensions: Tuple[str, ...]
    high_resolution: bool


def documents(report: Mapping[str, Any], settings: Settings, wall_us: int) -> Tuple[Documents, List[str]]:
    """The documents of a report, and what it could not say: errors of its parts, dimensions without a value."""
    problems = [*_problems(report), *_unreadable(report)]
    instance = _object(report, "instance_info")
    names = [name for name in settings.dimensions if name != RUNTIME_TAG]
    unknown = [name for name in names if not _text(instance.get(name))]
    if unknown:  # metrics without a dimension would be other series
        return [], [*problems, "instance_info has no %s" % " and no ".join(unknown)]
    base = {name: _text(instance[name]) for name in names}
    series = [(base, _own(report, len(problems))), *_devices(report, base), *_runtimes(report, base, settings)]
    return [_document(dimensions, values, settings, wall_us) for dimensions, values in series if values], problems


def _own(report: Mapping[str, Any], problems: int) -> Values:
    """Of the publisher itself: alarms on missing data and on reports with errors."""
    values: Values = {"reports": ("Count", [1]), "report_errors": ("Count", [problems])}
    count = _number(_object(report, "neuron_hardware_info").get("neuron_device_count"))
    if count is not None:
        values["neuron_device_count"] = ("Count", [count])
    return values


def _devices(report: Mapping[str, Any], base: Dict[str, str]) -> Iterator[Tuple[Dict[str, str], Values]]:
    """ECC counters of each device, since the driver was loaded."""
    for device in _items(_object(report, "system_data", "neuron_hw_counters").get("neuron_devices")):
        index = _number(device.get("neuron_device_index"))
        counters = {name: _number(value) for name, value in device.items() if re.search(r"_ecc_\w*corrected$", name)}
        values: Values = {name: ("Count", [value]) for name, value in sorted(counters.items()) if value is not None}
        if index is not None:
            yield {**base, "neuron_device_index": str(index)}, values


def _runtimes(
    report: Mapping[str, Any], base: Dict[str, str], settings: Settings
) -> Iterator[Tuple[Dict[str, str], Values]]:
    """Each runtime by its tag; without that dimension all runtimes of the instance together."""
    by_tag: Dict[str, List[Mapping[str, Any]]] = {}
    for entry in _items(report.get("neuron_runtime_data")):
        tag = _text(entry.get("neuron_runtime_tag")) or _text(entry.get("pid"))
        by_tag.setdefault(tag if RUNTIME_TAG in settings.dimensions else "", []).append(_object(entry, "report"))
    for tag, reports in by_tag.items():
        dimensions = {**base, RUNTIME_TAG: tag or "-"} if RUNTIME_TAG in settings.dimensions else base
        yield dimensions, _runtime(reports)
        for core, utilization in sorted(_cores(reports).items(), key=lambda item: (len(item[0]), item[0])):
            yield {**dimensions, "neuroncore_index": core}, {"neuroncore_utilization": ("Percent", utilization)}


def _cores(reports: List[Mapping[str, Any]]) -> Dict[str, List[Number]]:
    cores: Dict[str, List[Number]] = {}
    for report in reports:
        for core, data in _object(report, "neuroncore_counters", "neuroncores_in_use").items():
            utilization = _number(data.get("neuroncore_utilization")) if isinstance(data, Mapping) else None
            if utilization is not None and core.isdigit():
                cores.setdefault(core, []).append(utilization)
    return cores


# As documented, and as an inf2.xlarge with runtime 2.30 prints it.
_MEMORY = (("host", ("host",)), ("neuron_device", ("neuron_device", "device")))


def _runtime(reports: List[Mapping[str, Any]]) -> Values:
    """Memory and counts are added up; percentiles cannot be, so each runtime's are a value of their own."""
    values: Values = {}
    for report in reports:
        used = _object(report, "memory_used", "neuron_runtime_used_bytes")
        for name, keys in _MEMORY:
            for key in [key for key in keys if key in used][:1]:
                _add(values, "runtime_memory_%s" % name, "Bytes", used[key])
        stats = _object(report, "execution_stats")
        for kind, count in _object(stats, "error_summary").items():
            _add(values, "execution_errors_%s" % kind, "Count", count)
        for outcome, count in _object(stats, "execution_summary").items():
            _add(values, "executions_%s" % outcome, "Count", count)
        for latency in ("total_latency", "device_latency"):
            for percentile in _PERCENTILES:
                seconds = _number(_object(stats, "latency_stats", latency).get(percentile))
                if seconds is not None:
                    values.setdefault("%s_%s" % (latency, percentile), ("Seconds", []))[1].append(seconds)
    return {name: of for name, of in values.items() if of[1]}


def _add(values: Values, name: str, unit: str, value: Any) -> None:
    """A total with an unknown part is unknown: an empty list, which `_runtime` leaves out."""
    number = _number(value)
    total = values.get(name, (unit, [0]))[1]
    values[name] = (unit, [] if number is None or not total else [total[0] + number])


def _document(dimensions: Dict[str, str], values: Values, settings: Settings, wall_us: int) -> Dict[str, Any]:
    resolution = {"StorageResolution": 1} if settings.high_resolution else {}
    directive = {
        "Namespace": settings.namespace,
        "Dimensions": [list(dimensions)],
        "Metrics": [{"Name": name, "Unit": unit, **resolution} for name, (unit, _) in values.items()],
    }
    seconds, micros = divmod(wall_us, 1000000)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + ".%06dZ" % micros
    numbers = {name: of[0] if len(of) == 1 else of[:_ARRAY_LIMIT] for name, (_, of) in values.items()}
    described = {"Timestamp": wall_us // 1000, "CloudWatchMetrics": [directive]}
    return {"time": stamp, "schema": SCHEMA, **dimensions, **numbers, "_aws": described}


def _problems(report: Mapping[str, Any]) -> Iterator[str]:
    """The `error` of each part of the report that has one."""
    for name in ("instance_info", "neuron_hardware_info"):
        if _text(_object(report, name).get("error")):
            yield "%s: %s" % (name, _text(report[name]["error"]))
    yield from _group_problems("", _object(report, "system_data"))
    for entry in _items(report.get("neuron_runtime_data")):
        tag = _text(entry.get("neuron_runtime_tag")) or _text(entry.get("pid"))
        if _text(entry.get("error")):
            yield "runtime %s: %s" % (tag, _text(entry["error"]))
        yield from _group_problems("runtime %s: " % tag, _object(entry, "report"))


def _unreadable(report: Mapping[str, Any]) -> Iterator[str]:
    """Values that are there and are no number. They are published as nothing, not as 0."""
    for device in _items(_object(report, "system_data", "neuron_hw_counters").get("neuron_devices")):
        named = "device %s" % _text(device.get("neuron_device_index"))
        if _number(device.get("neuron_device_index")) is None:
            yield "%s: no neuron_device_index" % named
        for name, value in device.items():
            if re.search(r"_ecc_\w*corrected$", name) and _number(value) is None:
                yield "%s: %s is unknown: %.60r" % (named, name, value)
    for entry in _items(report.get("neuron_runtime_data")):
        own = _object(entry, "report")
        groups = {
            "memory_used": _object(own, "memory_used", "neuron_runtime_used_bytes"),
            "error_summary": _object(own, "execution_stats", "error_summary"),
            "execution_summary": _object(own, "execution_stats", "execution_summary"),
        }
        tag = _text(entry.get("neuron_runtime_tag")) or _text(entry.get("pid"))
        for group, values in groups.items():
            for name, value in values.items():
                if not isinstance(value, (Mapping, list)) and _number(value) is None:
                    yield "runtime %s: %s: %s is unknown: %.60r" % (tag, group, name, value)


def _group_problems(of: str, groups: Mapping[str, Any]) -> Iterator[str]:
    for name, group in groups.items():
        if isinstance(group, Mapping) and _text(group.get("error")):
            yield "%s%s: %s" % (of, name, _text(group["error"]))


def _object(value: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """The object at a path of keys; empty where there is none: a group that was not collected is null."""
    for key in path:
        below = value.get(key)
        value = below if isinstance(below, Mapping) else {}
    return value


def _items(value: Any) -> List[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _number(value: Any) -> Union[Number, None]:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if is_number else None


def _text(value: Any) -> str:
    """As a dimension's value: printable ASCII that does not begin with a colon."""
    text = re.sub(r"[^\x20-\x7e]", "?", str(value)).strip() if isinstance(value, (str, int)) else ""
    return re.sub(r"^:", "_", text)[:_VALUE_LIMIT]
