"""The agent's JSON: reading a folder of parts, merging them, and refusing what the translator refuses.

Rules as in aws/amazon-cloudwatch-agent (ab55b8da): translator/translate/metrics/config/registered_metrics.go
(allow-list), translator/config/schema.json (sections), translator/jsonconfig/mergeJsonUtil (merging).
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

NVIDIA_MEASUREMENTS = (
    "utilization_gpu",
    "utilization_memory",
    "temperature_gpu",
    "power_draw",
    "fan_speed",
    "memory_total",
    "memory_used",
    "memory_free",
    "pcie_link_gen_current",
    "pcie_link_width_current",
    "encoder_stats_session_count",
    "encoder_stats_average_fps",
    "encoder_stats_average_latency",
    "clocks_current_graphics",
    "clocks_current_sm",
    "clocks_current_memory",
    "clocks_current_video",
)
# Plugin key → (prefix of the published names, what it measures).
PLUGINS: dict[str, tuple[str, tuple[str, ...]]] = {
    "nvidia_gpu": ("nvidia_smi", NVIDIA_MEASUREMENTS),
    "cpu": ("cpu", ("usage_active", "usage_idle", "usage_iowait", "usage_system", "usage_user")),
    "mem": ("mem", ("available", "available_percent", "free", "total", "used", "used_percent")),
    "disk": ("disk", ("free", "total", "used", "used_percent")),
}
# Plugins of the agent that this replica has not got: accepted, named in the log, not collected.
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
RETENTION_DAYS = (
    -1,
    1,
    3,
    5,
    7,
    14,
    30,
    60,
    90,
    120,
    150,
    180,
    365,
    400,
    545,
    731,
    1096,
    1827,
    2192,
    2557,
    2922,
    3288,
    3653,
)
_METRICS_KEYS = (
    "namespace",
    "append_dimensions",
    "aggregation_dimensions",
    "force_flush_interval",
    "metrics_collected",
    "metrics_destinations",
    "endpoint_override",
    "credentials",
    "service.name",
    "deployment.environment",
)
_STREAM_NAMES = re.compile(r"\{(?!instance_id\}|hostname\}|local_hostname\}|ip_address\}|date\})[^}]*\}")


class Refused(Exception):
    """The configuration is wrong: one line a mistake."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


def read_part(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            part = json.load(file)
    except (OSError, ValueError) as error:
        raise Refused([f"unable to parse JSON config {path}, error: {error}"]) from error
    if not isinstance(part, dict):
        raise Refused([f"{path}: an object is wanted at the top, found {type(part).__name__}"])
    return part


def load_folder(folder: str) -> dict[str, Any]:
    """All parts of amazon-cloudwatch-agent.d, merged and checked; {} when the folder holds none."""
    names = sorted(name for name in os.listdir(folder) if not name.startswith(".")) if os.path.isdir(folder) else []
    return combine([os.path.join(folder, name) for name in names if not name.endswith(".tmp")])


def combine(paths: list[str]) -> dict[str, Any]:
    """The merged configuration of these files; Refused with all mistakes at once."""
    mistakes: list[str] = []
    merged: dict[str, Any] = {}
    for path in paths:
        merged = _merge(merged, read_part(path), "", mistakes)
    mistakes += check(merged)
    if mistakes:
        raise Refused(mistakes)
    return merged


def _merge(one: Any, other: Any, path: str, mistakes: list[str]) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        both = dict(one)
        for key, value in other.items():
            both[key] = _merge(both[key], value, f"{path}/{key}", mistakes) if key in both else value
        return both
    if path.endswith("/collect_list") and isinstance(one, list) and isinstance(other, list):
        return one + [item for item in other if item not in one]
    if one != other:
        mistakes.append(f"Under path : {path} | Error : Different values are specified: {one!r} and {other!r}")
    return one


def check(config: dict[str, Any]) -> list[str]:
    """Every mistake, as "Under path : /metrics/… | Error : …"."""
    found: list[tuple[str, str]] = []
    for name in ("agent", "metrics", "logs"):
        if name in config and not isinstance(config[name], dict):
            found.append((f"/{name}", "an object is wanted"))
            config = {**config, name: {}}
    _check_interval(config.get("agent", {}), "/agent", found)
    if config.get("metrics"):
        _check_metrics(config["metrics"], found)
    if config.get("logs"):
        _check_logs(config["logs"], found)
    return [f"Under path : {path} | Error : {error}" for path, error in found]


def _check_interval(section: dict[str, Any], path: str, found: list[tuple[str, str]]) -> None:
    for key in ("metrics_collection_interval", "force_flush_interval"):
        value = section.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 1:
            found.append((f"{path}/{key}", f"a number of seconds of at least 1 is wanted, found {value!r}"))


def _check_metrics(metrics: dict[str, Any], found: list[tuple[str, str]]) -> None:
    found += [(f"/metrics/{key}", "Additional property is not allowed") for key in metrics if key not in _METRICS_KEYS]
    _check_interval(metrics, "/metrics", found)
    collected = metrics.get("metrics_collected")
    if not isinstance(collected, dict) or not collected:
        found.append(("/metrics/metrics_collected", "an object with at least one plugin is wanted"))
        collected = {}
    appended = metrics.get("append_dimensions", {})
    for key, value in appended.items() if isinstance(appended, dict) else [("", appended)]:
        if key not in APPENDABLE or value != f"${{aws:{key}}}":
            found.append(
                (f"/metrics/append_dimensions/{key}", f"{value!r} is none of the dimensions that EC2 can give")
            )
    rollups = metrics.get("aggregation_dimensions", [])
    if not isinstance(rollups, list) or not all(
        isinstance(item, list) and all(isinstance(k, str) for k in item) for item in rollups
    ):
        found.append(("/metrics/aggregation_dimensions", "a list of lists of dimension names is wanted"))
    for name, section in collected.items():
        _check_plugin(name, section, found)


def _check_plugin(name: str, section: Any, found: list[tuple[str, str]]) -> None:
    path = f"/metrics/metrics_collected/{name}"
    if name not in PLUGINS:
        return  # as the agent: a name it does not know falls into its generic branch and passes
    if not isinstance(section, dict):
        found.append((path, f"an object is wanted, found {section!r}"))
        return
    _check_interval(section, path, found)
    wanted = section.get("measurement")
    if not isinstance(wanted, list) or not wanted:
        found.append((f"{path}/measurement", "a list with at least one measurement is wanted"))
        return
    for item in wanted:
        measurement = item.get("name") if isinstance(item, dict) else item
        if not isinstance(measurement, str) or bare_name(name, measurement) not in PLUGINS[name][1]:
            found.append((f"{path}/measurement", f"measurement name {measurement!r} is invalid"))


def bare_name(plugin: str, measurement: str) -> str:
    """Without the plugin's prefix, which the agent takes too (mem_used_percent)."""
    return measurement.removeprefix(PLUGINS[plugin][0] + "_")


def _check_logs(logs: dict[str, Any], found: list[tuple[str, str]]) -> None:
    _check_interval(logs, "/logs", found)
    collected = logs.get("logs_collected", {})
    files = collected.get("files", {}) if isinstance(collected, dict) else None
    entries = files.get("collect_list") if isinstance(files, dict) else None
    if entries is None and isinstance(files, dict) and not files:
        return
    if not isinstance(entries, list):
        found.append(("/logs/logs_collected/files/collect_list", "a list is wanted"))
        return
    for index, entry in enumerate(entries):
        _check_file(entry, f"/logs/logs_collected/files/collect_list/{index}", found)


def _check_file(entry: Any, path: str, found: list[tuple[str, str]]) -> None:
    if not isinstance(entry, dict) or not isinstance(entry.get("file_path"), str) or not entry["file_path"]:
        found.append((f"{path}/file_path", "file_path is required"))
        return
    if entry.get("retention_in_days", -1) not in RETENTION_DAYS:
        found.append((f"{path}/retention_in_days", f"{entry['retention_in_days']!r} is not one of {RETENTION_DAYS}"))
    for key in ("log_group_name", "log_stream_name"):
        unknown = _STREAM_NAMES.search(str(entry.get(key, "")))
        if unknown:
            found.append((f"{path}/{key}", f"unknown placeholder {unknown.group()}"))
    if entry.get("timezone", "Local") not in ("Local", "LOCAL", "UTC"):
        found.append((f"{path}/timezone", f"{entry['timezone']!r} is neither UTC nor Local"))
    for index, item in enumerate(entry.get("filters", [])):
        try:
            re.compile(item["expression"])
            if item["type"] not in ("include", "exclude"):
                raise KeyError(item["type"])
        except (KeyError, TypeError, re.error) as error:
            found.append((f"{path}/filters/{index}", f"type include or exclude and an expression are wanted ({error})"))
