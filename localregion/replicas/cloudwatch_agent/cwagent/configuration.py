"""The agent's JSON: reads a folder of parts, merges them, and refuses what the translator refuses.

Rules as in aws/amazon-cloudwatch-agent (v1.300071.0): translator/translate/metrics/config/registered_metrics.go
(allow-list), translator/jsonconfig/mergeJsonUtil (merging); schema.py has those of the JSON schema.
"""

from __future__ import annotations

import json
import os

from . import gpu, schema

Section = dict[str, object]

NVIDIA_MEASUREMENTS = tuple(gpu.PLACES)
# Plugin key → (prefix of the published names, what it measures).
PLUGINS: dict[str, tuple[str, tuple[str, ...]]] = {
    "nvidia_gpu": ("nvidia_smi", NVIDIA_MEASUREMENTS),
    "cpu": ("cpu", ("usage_active", "usage_idle", "usage_iowait", "usage_system", "usage_user")),
    "mem": ("mem", ("available", "available_percent", "free", "total", "used", "used_percent")),
    "disk": ("disk", ("free", "total", "used", "used_percent")),
}
# Plugins of the agent that this replica lacks: accepted, logged as unsupported, not collected.
FOREIGN_PLUGINS = (
    "collectd",
    "diskio",
    "efa",
    "ethtool",
    "jmx",
    "net",
    "netstat",
    "otlp",
    "processes",
    "procstat",
    "prometheus",
    "statsd",
    "swap",
)
APPENDABLE = ("AutoScalingGroupName", "ImageId", "InstanceId", "InstanceType")
# Objects that are merged key by key; of any other, all files must have the same.
_MERGED = (
    "/agent",
    "/metrics",
    "/metrics/metrics_collected",
    "/logs",
    "/logs/logs_collected",
    "/logs/logs_collected/files",
    "/logs/logs_collected/journald",
)
Mistakes = list[tuple[str, str]]  # path and message


class Refused(Exception):
    """The configuration is invalid: one line a mistake."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


def get_section(config: Section, *names: str) -> Section:
    """The object at this path of a checked configuration; {} where it is missing."""
    for name in names:
        below = config.get(name)
        config = below if isinstance(below, dict) else {}
    return config


def get_text(config: Section, key: str, default: str = "") -> str:
    """A text of a checked configuration; `default` where it is missing."""
    value = config.get(key)
    return value if isinstance(value, str) else default


def get_number(config: Section, key: str, default: float) -> float:
    """A number of a checked configuration; `default` where it is missing."""
    value = config.get(key)
    return float(value) if isinstance(value, (int, float)) else default


def get_items(config: Section, key: str) -> list[object]:
    """A list of a checked configuration; [] where it is missing."""
    value = config.get(key)
    return value if isinstance(value, list) else []


def read_part(path: str) -> Section:
    try:
        with open(path, encoding="utf-8") as file:
            part = json.load(file)
    except (OSError, ValueError) as error:
        raise Refused([f"unable to parse JSON config {path}, error: {error}"]) from error
    if not isinstance(part, dict):
        raise Refused([f"{path}: expected an object, got {type(part).__name__}"])
    return part


def load_folder(folder: str) -> Section:
    """All parts of amazon-cloudwatch-agent.d, and the file of that name beside it; {} where there is none.

    The agent's own program passes both to its translator at each start (start-amazon-cloudwatch-agent.go).
    """
    return combine(part_files(folder))


def part_files(folder: str) -> list[str]:
    """Paths of the file beside the folder, if it is there, and of the parts in the folder."""
    beside = folder[: -len(".d")] + ".json"
    names = sorted(name for name in os.listdir(folder) if not name.startswith(".")) if os.path.isdir(folder) else []
    parts = [os.path.join(folder, name) for name in names if not name.endswith(".tmp")]
    return [*([beside] if os.path.isfile(beside) else []), *parts]


def combine(paths: list[str]) -> Section:
    """The merged configuration of these files; Refused with all mistakes at once."""
    mistakes: list[str] = []
    merged: Section = {}
    for path in paths:
        merged = _merge_sections(merged, read_part(path), "", mistakes)
    mistakes += check(merged)
    if mistakes:
        raise Refused(mistakes)
    return merged


def _merge_sections(first: Section, second: Section, path: str, mistakes: list[str]) -> Section:
    merged = dict(first)
    for key, value in second.items():
        where = f"{path}/{key}"
        if key in merged:
            merged[key] = _merge(merged[key], value, where, mistakes)
        elif isinstance(value, dict) and where in _MERGED:
            merged[key] = _merge_sections({}, value, where, mistakes)
        else:
            merged[key] = _without_duplicates(value) if key == "collect_list" and isinstance(value, list) else value
    return merged


def _merge(first: object, second: object, path: str, mistakes: list[str]) -> object:
    if path in _MERGED and isinstance(first, dict) and isinstance(second, dict):
        return _merge_sections(first, second, path, mistakes)
    if path.endswith("/collect_list") and isinstance(first, list) and isinstance(second, list):
        return _without_duplicates(first + second)
    if first != second:
        mistakes.append(f"Under path : {path} | Error : Different values are specified: {first!r} and {second!r}")
    return first


def _without_duplicates(items: list[object]) -> list[object]:
    return [item for index, item in enumerate(items) if item not in items[:index]]


def check(config: Section) -> list[str]:
    """Every mistake, as "Under path : /metrics/… | Error : …"."""
    mistakes: Mistakes = []
    for name in ("agent", "metrics", "logs"):
        if name in config and not isinstance(config[name], dict):
            mistakes.append((f"/{name}", "expected an object"))
    mistakes += schema.check(config)
    if get_section(config, "metrics"):
        _check_metrics(get_section(config, "metrics"), mistakes)
    return [f"Under path : {path} | Error : {error}" for path, error in mistakes]


def _check_metrics(metrics: Section, mistakes: Mistakes) -> None:
    collected = metrics.get("metrics_collected")
    if not isinstance(collected, dict) or not collected:
        mistakes.append(("/metrics/metrics_collected", "expected an object with at least one plugin"))
        collected = {}
    if not isinstance(metrics.get("append_dimensions", {}), dict):  # a name that it does not know is left out
        mistakes.append(("/metrics/append_dimensions", "expected an object"))
    rollups = metrics.get("aggregation_dimensions", [])
    if not isinstance(rollups, list) or not all(
        isinstance(item, list) and all(isinstance(k, str) for k in item) for item in rollups
    ):
        mistakes.append(("/metrics/aggregation_dimensions", "expected a list of lists of dimension names"))
    for name, plugin in collected.items():
        _check_plugin(name, plugin, mistakes)


def _check_plugin(name: str, plugin: object, mistakes: Mistakes) -> None:
    path = f"/metrics/metrics_collected/{name}"
    if name not in PLUGINS:
        return  # as the agent: a name it does not know falls into its generic branch and passes
    if not isinstance(plugin, dict):
        mistakes.append((path, f"expected an object, got {plugin!r}"))
        return
    if expected := schema.seconds(plugin.get("metrics_collection_interval", 1)):
        mistakes.append((f"{path}/metrics_collection_interval", f"expected {expected}"))
    measurements = plugin.get("measurement")
    if not isinstance(measurements, list) or not measurements:
        mistakes.append((f"{path}/measurement", "expected a list with at least one measurement"))
        return
    if any(item in measurements[:index] for index, item in enumerate(measurements)):
        mistakes.append((f"{path}/measurement", "array items must be unique"))
    for item in measurements:
        measurement = item.get("name") if isinstance(item, dict) else item
        if not isinstance(measurement, str) or bare_name(name, measurement) not in PLUGINS[name][1]:
            mistakes.append((f"{path}/measurement", f"measurement name {measurement!r} is invalid"))


def bare_name(plugin: str, measurement: str) -> str:
    """Without the plugin's prefix, which the agent takes too (mem_used_percent)."""
    return measurement.removeprefix(PLUGINS[plugin][0] + "_")
