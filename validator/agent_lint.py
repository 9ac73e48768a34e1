"""A linter for the CloudWatch agent's configuration, stricter than AWS's own schema.

The schema lets a misspelt plugin or measurement through (the agent then does not start, or never publishes it), knows
`nvidia_smi` but not the documented `nvidia_gpu`, and says nothing of placeholders. Sources: amazon-cloudwatch-agent
ab55b8da, translator/config/schema.json, translate/metrics/config/registered_metrics.go, translate/logs/logs_collected.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from validator.smi import PATHS

ERROR, WARNING = "error", "warning"

_TOP = ("agent", "metrics", "logs", "traces", "opentelemetry")
_AGENT = (
    "metrics_collection_interval", "region", "credentials", "debug", "aws_sdk_log_level", "logfile",
    "omit_hostname", "run_as_user", "user_agent", "quiet", "internal", "service.name", "deployment.environment",
    "use_dualstack_endpoint",
)  # fmt: skip
_METRICS = (
    "namespace", "append_dimensions", "aggregation_dimensions", "endpoint_override", "force_flush_interval",
    "metrics_collected", "metrics_destinations", "credentials", "service.name", "deployment.environment",
    "use_dualstack_endpoint",
)  # fmt: skip
_PLUGINS = (
    "collectd", "cpu", "disk", "diskio", "efa", "ethtool", "jmx", "mem", "net", "netstat", "nvidia_gpu", "otlp",
    "processes", "procstat", "prometheus", "statsd", "swap",
)  # fmt: skip
_GPU = ("measurement", "metrics_collection_interval", "append_dimensions", "drop_original_metrics")
_LOGS = (
    "logs_collected", "log_stream_name", "endpoint_override", "force_flush_interval", "credentials",
    "metrics_collected",
    "service.name", "deployment.environment", "concurrency", "use_dualstack_endpoint",
)  # fmt: skip
_FILE = (
    "file_path", "log_group_name", "log_stream_name", "log_group_class", "retention_in_days", "timestamp_format",
    "timezone", "trim_timestamp", "multi_line_start_pattern", "encoding", "filters", "auto_removal",
    "backpressure_mode", "blacklist",
    "publish_multi_logs", "service.name", "deployment.environment",
)  # fmt: skip
_JOURNALD = (
    "log_group_name",
    "log_stream_name",
    "log_group_class",
    "retention_in_days",
    "units",
    "priority",
    "matches",
    "filters",
)
_PRIORITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug", *map(str, range(8)))
_APPENDED = ("ImageId", "InstanceId", "InstanceType", "AutoScalingGroupName")
_PLACEHOLDERS = ("{instance_id}", "{hostname}", "{local_hostname}", "{ip_address}", "{date}")
_RETENTION = (
    -1, 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653,
)  # fmt: skip
_MOST_SECONDS = 172_800


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong ("error": the agent refuses it or does not do it) or doubtful ("warning"), and where."""

    severity: str
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.path or 'the file'}: {self.message}"


def lint(config: Any, *, files: Collection[str] | None = None) -> list[Finding]:
    """All findings, errors first, in the order of the file.

    files: paths that something on the image writes; a file to ship that is not among them is an error.
    """
    if not isinstance(config, dict):
        return [Finding(ERROR, "", f"expected an object, found {type(config).__name__}")]
    found = [*_unknown(config, _TOP, "")]
    parts: tuple[tuple[str, Callable[..., Iterator[Finding]]], ...] = (
        ("agent", _agent),
        ("metrics", _metrics),
        ("logs", lambda section: _logs(section, files)),
    )
    for name, rule in parts:
        if name in config:
            found += rule(config[name]) if isinstance(config[name], dict) else [_not_an_object(name, config[name])]
    found += _both_in_one(config)
    return sorted(found, key=lambda finding: finding.severity != ERROR)


def _agent(section: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _unknown(section, _AGENT, "agent")
    yield from _seconds(section, "metrics_collection_interval", "agent")


def _metrics(section: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _unknown(section, _METRICS, "metrics")
    yield from _seconds(section, "force_flush_interval", "metrics")
    yield from _endpoint(section, "metrics")
    appended = section.get("append_dimensions", {})
    yield from _append_dimensions(appended)
    plugins = section.get("metrics_collected")
    if not isinstance(plugins, dict) or not plugins:
        yield Finding(ERROR, "metrics.metrics_collected", "collects nothing: the agent does not start with that")
        return
    if "nvidia_smi" in plugins:
        yield Finding(ERROR, "metrics.metrics_collected.nvidia_smi", "is the plugin's inner name: write nvidia_gpu")
    known = {name: value for name, value in plugins.items() if name != "nvidia_smi"}
    yield from _unknown(known, _PLUGINS, "metrics.metrics_collected")
    if "nvidia_gpu" in plugins:
        yield from _gpu(plugins["nvidia_gpu"])
        if set(plugins) == {"nvidia_gpu"}:
            yield from _aggregation(section, {"index", "name", "arch", *appended})


def _append_dimensions(appended: Any) -> Iterator[Finding]:
    where = "metrics.append_dimensions"
    if not isinstance(appended, dict):
        yield _not_an_object(where, appended)
        return
    for key, value in appended.items():
        if key not in _APPENDED:
            yield Finding(
                ERROR, f"{where}.{key}", f"the agent knows only {', '.join(_APPENDED)}{_meant(key, _APPENDED)}"
            )
        elif value != f"${{aws:{key}}}":
            yield Finding(ERROR, f"{where}.{key}", f"found {value!r}, the agent takes only '${{aws:{key}}}'")


def _aggregation(section: Mapping[str, Any], dimensions: set[str]) -> Iterator[Finding]:
    where = "metrics.aggregation_dimensions"
    for at, names in enumerate(section.get("aggregation_dimensions", [])):
        if not isinstance(names, list):
            yield Finding(ERROR, f"{where}[{at}]", f"expected a list of dimensions, found {names!r}")
            continue
        for name in names:
            if name not in dimensions:
                told = f"no metric has the dimension {name!r}, so nothing is aggregated"
                yield Finding(ERROR, f"{where}[{at}]", f"{told}{_meant(str(name), sorted(dimensions))}")


def _gpu(plugin: Any) -> Iterator[Finding]:
    where = "metrics.metrics_collected.nvidia_gpu"
    if not isinstance(plugin, dict):
        yield _not_an_object(where, plugin)
        return
    yield from _unknown(plugin, _GPU, where)
    yield from _seconds(plugin, "metrics_collection_interval", where)
    measured = plugin.get("measurement")
    if not isinstance(measured, list) or not measured:
        yield Finding(ERROR, f"{where}.measurement", "is missing or empty: the agent refuses the plugin")
        return
    names = [entry.get("name") if isinstance(entry, dict) else entry for entry in measured]
    for at, name in enumerate(names):
        plain = str(name).removeprefix("nvidia_smi_")
        if plain not in PATHS:
            told = f"{name!r} is no measurement of nvidia_gpu{_meant(plain, sorted(PATHS))}"
            yield Finding(ERROR, f"{where}.measurement[{at}]", told)
        if name in names[:at]:
            yield Finding(WARNING, f"{where}.measurement[{at}]", f"{name!r} stands there twice")


def _logs(section: Mapping[str, Any], files: Collection[str] | None) -> Iterator[Finding]:
    yield from _unknown(section, _LOGS, "logs")
    yield from _seconds(section, "force_flush_interval", "logs")
    yield from _endpoint(section, "logs")
    collected = section.get("logs_collected", {})
    if not isinstance(collected, dict):
        yield _not_an_object("logs.logs_collected", collected)
        return
    yield from _unknown(collected, ("files", "journald", "windows_events"), "logs.logs_collected")
    entries = list(_entries(collected, "files"))
    streams: dict[tuple[Any, Any], str] = {}
    for where, entry in entries:
        yield from _file(entry, where, files)
        stream = (entry.get("log_group_name"), entry.get("log_stream_name", section.get("log_stream_name")))
        if stream in streams:
            yield Finding(WARNING, where, f"goes to the same group and stream as {streams[stream]}")
        streams[stream] = where
    for where, entry in _entries(collected, "journald"):
        yield from _journald(entry, where)


def _entries(collected: Mapping[str, Any], name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    listed = collected.get(name, {}).get("collect_list", []) if isinstance(collected.get(name, {}), dict) else []
    for at, entry in enumerate(listed):
        if isinstance(entry, dict):
            yield f"logs.logs_collected.{name}.collect_list[{at}]", entry


def _file(entry: Mapping[str, Any], where: str, files: Collection[str] | None) -> Iterator[Finding]:
    yield from _unknown(entry, _FILE, where)
    path = entry.get("file_path")
    if not isinstance(path, str) or not path.startswith("/"):
        yield Finding(ERROR, f"{where}.file_path", f"found {path!r}, expected an absolute path")
    elif files is not None and path not in files:
        yield Finding(ERROR, f"{where}.file_path", f"nothing on the image writes {path}{_meant(path, sorted(files))}")
    if "timestamp_format" not in entry:
        yield Finding(
            WARNING, where, "no timestamp_format: events get the time at which they arrive, wrong after a pause"
        )
    yield from _destination(entry, where)


def _journald(entry: Mapping[str, Any], where: str) -> Iterator[Finding]:
    yield from _unknown(entry, _JOURNALD, where)
    if str(entry.get("priority", "info")) not in _PRIORITIES:
        yield Finding(ERROR, f"{where}.priority", f"found {entry['priority']!r}, known are {', '.join(_PRIORITIES)}")
    yield from _destination(entry, where)


def _destination(entry: Mapping[str, Any], where: str) -> Iterator[Finding]:
    if not entry.get("log_group_name"):
        yield Finding(ERROR, f"{where}.log_group_name", "is missing: the group would be called after the file")
    for key in ("log_group_name", "log_stream_name"):
        for placeholder in re.findall(r"\{[^}]*\}", str(entry.get(key, ""))):
            if placeholder not in _PLACEHOLDERS:
                told = f"the agent does not know {placeholder}{_meant(placeholder, _PLACEHOLDERS)}"
                yield Finding(ERROR, f"{where}.{key}", told)
    days = entry.get("retention_in_days", -1)
    if days not in _RETENTION:
        yield Finding(
            ERROR, f"{where}.retention_in_days", f"found {days!r}, CloudWatch takes {', '.join(map(str, _RETENTION))}"
        )


def _both_in_one(config: Mapping[str, Any]) -> Iterator[Finding]:
    metrics = config.get("metrics")
    plugins = metrics.get("metrics_collected", {}) if isinstance(metrics, dict) else {}
    if "nvidia_gpu" in plugins and "logs" in config:
        told = "in one file with logs: where nvidia-smi is missing the whole agent does not start; append it apart"
        yield Finding(WARNING, "metrics.metrics_collected.nvidia_gpu", told)


def _unknown(section: Mapping[str, Any], known: Collection[str], where: str) -> Iterator[Finding]:
    for key in section:
        if key not in known:
            path = f"{where}.{key}" if where else str(key)
            yield Finding(ERROR, path, f"is not known{_meant(str(key), list(known))}")


def _seconds(section: Mapping[str, Any], key: str, where: str) -> Iterator[Finding]:
    value = section.get(key, 1)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_SECONDS:
        yield Finding(ERROR, f"{where}.{key}", f"found {value!r}, expected whole seconds from 1 to {_MOST_SECONDS}")


def _endpoint(section: Mapping[str, Any], where: str) -> Iterator[Finding]:
    value = section.get("endpoint_override", "http://x")
    if not isinstance(value, str) or not re.fullmatch(r"https?://[^/\s]+\S*", value) or len(value) > 2048:
        yield Finding(ERROR, f"{where}.endpoint_override", f"found {value!r}, expected http(s)://host[:port]")


def _not_an_object(where: str, value: Any) -> Finding:
    return Finding(ERROR, where, f"expected an object, found {type(value).__name__}")


def _meant(word: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
