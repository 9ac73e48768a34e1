"""The agent's JSON: reads a folder of parts, merges them, and refuses what the translator refuses.

Rules as in aws/amazon-cloudwatch-agent (ab55b8da): translator/translate/metrics/config/registered_metrics.go
(allow-list), translator/config/schema.json (sections), translator/jsonconfig/mergeJsonUtil (merging).
"""

from __future__ import annotations

import json
import os
import re

Section = dict[str, object]

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
    """All parts of amazon-cloudwatch-agent.d, merged and checked; {} when the folder holds none."""
    names = sorted(name for name in os.listdir(folder) if not name.startswith(".")) if os.path.isdir(folder) else []
    return combine([os.path.join(folder, name) for name in names if not name.endswith(".tmp")])


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
        merged[key] = _merge(merged[key], value, f"{path}/{key}", mistakes) if key in merged else value
    return merged


def _merge(first: object, second: object, path: str, mistakes: list[str]) -> object:
    if isinstance(first, dict) and isinstance(second, dict):
        return _merge_sections(first, second, path, mistakes)
    if path.endswith("/collect_list") and isinstance(first, list) and isinstance(second, list):
        return first + [item for item in second if item not in first]
    if first != second:
        mistakes.append(f"Under path : {path} | Error : Different values are specified: {first!r} and {second!r}")
    return first


def check(config: Section) -> list[str]:
    """Every mistake, as "Under path : /metrics/… | Error : …"."""
    mistakes: Mistakes = []
    for name in ("agent", "metrics", "logs"):
        if name in config and not isinstance(config[name], dict):
            mistakes.append((f"/{name}", "expected an object"))
    _check_interval(get_section(config, "agent"), "/agent", mistakes)
    if get_section(config, "metrics"):
        _check_metrics(get_section(config, "metrics"), mistakes)
    if get_section(config, "logs"):
        _check_logs(get_section(config, "logs"), mistakes)
    return [f"Under path : {path} | Error : {error}" for path, error in mistakes]


def _check_interval(config: Section, path: str, mistakes: Mistakes) -> None:
    for key in ("metrics_collection_interval", "force_flush_interval"):
        value = config.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 1:
            mistakes.append((f"{path}/{key}", f"expected a number of seconds of at least 1, got {value!r}"))


def _check_metrics(metrics: Section, mistakes: Mistakes) -> None:
    unknown = [key for key in metrics if key not in _METRICS_KEYS]
    mistakes += [(f"/metrics/{key}", "Additional property is not allowed") for key in unknown]
    _check_interval(metrics, "/metrics", mistakes)
    collected = metrics.get("metrics_collected")
    if not isinstance(collected, dict) or not collected:
        mistakes.append(("/metrics/metrics_collected", "expected an object with at least one plugin"))
        collected = {}
    appended = metrics.get("append_dimensions", {})
    for key, value in appended.items() if isinstance(appended, dict) else [("", appended)]:
        if key not in APPENDABLE or value != f"${{aws:{key}}}":
            mistakes.append(
                (f"/metrics/append_dimensions/{key}", f"expected one of {', '.join(APPENDABLE)}, got {value!r}")
            )
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
    _check_interval(plugin, path, mistakes)
    measurements = plugin.get("measurement")
    if not isinstance(measurements, list) or not measurements:
        mistakes.append((f"{path}/measurement", "expected a list with at least one measurement"))
        return
    for item in measurements:
        measurement = item.get("name") if isinstance(item, dict) else item
        if not isinstance(measurement, str) or bare_name(name, measurement) not in PLUGINS[name][1]:
            mistakes.append((f"{path}/measurement", f"measurement name {measurement!r} is invalid"))


def bare_name(plugin: str, measurement: str) -> str:
    """Without the plugin's prefix, which the agent takes too (mem_used_percent)."""
    return measurement.removeprefix(PLUGINS[plugin][0] + "_")


def _check_logs(logs: Section, mistakes: Mistakes) -> None:
    _check_interval(logs, "/logs", mistakes)
    collected = logs.get("logs_collected", {})
    files = collected.get("files", {}) if isinstance(collected, dict) else None
    entries = files.get("collect_list") if isinstance(files, dict) else None
    if entries is None and isinstance(files, dict) and not files:
        return
    if not isinstance(entries, list):
        mistakes.append(("/logs/logs_collected/files/collect_list", "expected a list"))
        return
    for index, entry in enumerate(entries):
        _check_file(entry, f"/logs/logs_collected/files/collect_list/{index}", mistakes)


def _check_file(entry: object, path: str, mistakes: Mistakes) -> None:
    if not isinstance(entry, dict) or not isinstance(entry.get("file_path"), str) or not entry["file_path"]:
        mistakes.append((f"{path}/file_path", "file_path is required"))
        return
    if entry.get("retention_in_days", -1) not in RETENTION_DAYS:
        mistakes.append((f"{path}/retention_in_days", f"{entry['retention_in_days']!r} is not one of {RETENTION_DAYS}"))
    for key in ("log_group_name", "log_stream_name"):
        unknown = _STREAM_NAMES.search(str(entry.get(key, "")))
        if unknown:
            mistakes.append((f"{path}/{key}", f"unknown placeholder {unknown.group()}"))
    if entry.get("timezone", "Local") not in ("Local", "LOCAL", "UTC"):
        mistakes.append((f"{path}/timezone", f"{entry['timezone']!r} is neither UTC nor Local"))
    for index, item in enumerate(entry.get("filters", [])):
        try:
            re.compile(item["expression"])
            if item["type"] not in ("include", "exclude"):
                raise KeyError(item["type"])
        except (KeyError, TypeError, re.error) as error:
            message = f"expected type include or exclude, and an expression ({error})"
            mistakes.append((f"{path}/filters/{index}", message))
