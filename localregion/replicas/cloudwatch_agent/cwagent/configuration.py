"""The agent's JSON: reads a folder of parts, merges them, and refuses what the translator refuses.

Rules as in aws/amazon-cloudwatch-agent (v1.300071.0): translator/translate/metrics/config/registered_metrics.go
(allow-list), translator/jsonconfig/mergeJsonUtil (merging); schema.py has those of the JSON schema and of log files.
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
FOREIGN_PLUGINS = schema.SCHEMA.keys("metrics", "metrics_collected") - PLUGINS.keys() - {"nvidia_smi"}
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
    mistakes = list(schema.check(config))
    collected = get_section(config, "metrics", "metrics_collected")
    for name in collected.keys() & PLUGINS.keys():  # a name that the agent does not know passes, as any other object
        _check_measurements(name, get_section(collected, name), mistakes)
    return [f"Under path : {path} | Error : {error}" for path, error in mistakes]


def _check_measurements(plugin: str, section: Section, mistakes: Mistakes) -> None:
    path = f"/metrics/metrics_collected/{plugin}/measurement"
    measurements = get_items(section, "measurement")
    if not measurements and isinstance(section.get("measurement"), list):
        mistakes.append((path, "expected a list with at least one measurement"))
    for item in measurements:
        measurement = item.get("name") if isinstance(item, dict) else item
        if not isinstance(measurement, str) or bare_name(plugin, measurement) not in PLUGINS[plugin][1]:
            mistakes.append((path, f"measurement name {measurement!r} is invalid"))


def bare_name(plugin: str, measurement: str) -> str:
    """Without the plugin's prefix, which the agent takes too (mem_used_percent)."""
    return measurement.removeprefix(PLUGINS[plugin][0] + "_")
