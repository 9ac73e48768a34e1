"""A linter for the CloudWatch agent's configuration (agent, metrics, system plugins), stricter than AWS's schema.

The schema accepts a misspelt plugin or measurement (the agent then does not start, or never publishes it), knows
`nvidia_smi` but not the documented `nvidia_gpu`, and does not check placeholders. Sources: amazon-cloudwatch-agent
v1.300071.0, translator/config/schema.json, translate/metrics/config/registered_metrics.go;
https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutMetricData.html (namespace), read 2026-11-22.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import cast

from onhost.agent_schema import suggestion
from validator.measurement import BY_NAME
from validator.probes.agent.findings import (
    ERROR,
    WARNING,
    Finding,
    endpoint,
    line_numbers,
    not_an_object,
    seconds,
    unknown_keys,
)
from validator.probes.agent.lint_logs import logs_findings
from validator.probes.agent.release_schema import release_schema, schema_findings

# Keys that the agent reads, and that its check neither lists nor refuses.
UNLISTED = (
    "run_as_user", "user_agent", "quiet", "internal", "use_dualstack_endpoint", "system_metrics_enabled",
)  # fmt: skip
_AGENT = release_schema().keys("agent") | set(UNLISTED)
_AGENT_TYPES: Mapping[str, type] = {"region": str, "run_as_user": str, "debug": bool, "omit_hostname": bool}
_TYPE_NAMES = {str: "name", bool: "boolean (true or false)"}
# The table has the internal name of the GPU plugin, which the agent takes, too, and documents nowhere.
_PLUGINS = release_schema().keys("metrics", "metrics_collected") - {"nvidia_smi"} | {"nvidia_gpu"}
_GPU = ("measurement", "metrics_collection_interval", "append_dimensions", "drop_original_metrics")
_APPENDED = ("ImageId", "InstanceId", "InstanceType", "AutoScalingGroupName")
_NAMESPACE = re.compile(r"(?!:)[0-9A-Za-z.\-_/#: ]{1,255}")


def lint_text(text: str, *, files: Collection[str] | None = None) -> list[Finding]:
    """All findings of a file's text, each with its line; a text that is not JSON is one finding."""
    try:
        config = json.loads(text)
        lines = line_numbers(text)
    except ValueError as error:
        reason, line = (error.msg, error.lineno) if isinstance(error, json.JSONDecodeError) else (str(error), None)
        return [Finding(ERROR, "", f"not JSON: {reason}", line)]
    except RecursionError:
        return [Finding(ERROR, "", "not JSON that an agent reads: its lists or objects are nested too deeply")]
    duplicates = [Finding(ERROR, path, "duplicate key", line) for path, line in lines.duplicates.items()]
    placed = [replace(finding, line=lines.nearest(finding.path)) for finding in lint(config, files=files)]
    return sorted([*duplicates, *placed], key=_severity_and_line)


def _severity_and_line(finding: Finding) -> tuple[bool, int]:
    return finding.severity != ERROR, finding.line or 0


def lint(config: object, *, files: Collection[str] | None = None) -> list[Finding]:
    """All findings, errors first, in the order of the file.

    files: paths that something on the image writes; a log file that is not among them is an error.
    """
    if not isinstance(config, dict):
        return [Finding(ERROR, "", f"expected an object, got {type(config).__name__}")]
    findings = [*unknown_keys(config, release_schema().keys(), "")]
    sections: tuple[tuple[str, Callable[..., Iterator[Finding]]], ...] = (
        ("agent", _agent),
        ("metrics", _metrics),
        ("logs", lambda section: logs_findings(section, files)),
    )
    for name, rules in sections:
        if name in config:
            section = config[name]
            findings += rules(section) if isinstance(section, dict) else [not_an_object(name, section)]
    findings += _both_in_one(config)
    known = {finding.path for finding in findings if finding.severity == ERROR}
    findings += [finding for finding in schema_findings(config) if finding.path not in known]
    return sorted(findings, key=lambda finding: finding.severity != ERROR)


def _agent(section: Mapping[str, object]) -> Iterator[Finding]:
    yield from unknown_keys(section, _AGENT, "agent")
    yield from seconds(section, "metrics_collection_interval", "agent")
    for key, kind in _AGENT_TYPES.items():
        value = section.get(key, kind("x"))
        if not isinstance(value, kind) or value == "":
            yield Finding(ERROR, f"agent.{key}", f"expected a {_TYPE_NAMES[kind]}, got {value!r}")


def _metrics(section: Mapping[str, object]) -> Iterator[Finding]:
    yield from unknown_keys(section, release_schema().keys("metrics"), "metrics")
    yield from seconds(section, "force_flush_interval", "metrics")
    yield from endpoint(section, "metrics")
    yield from _namespace(section)
    appended = section.get("append_dimensions", {})
    yield from _append_dimensions(appended)
    plugins = section.get("metrics_collected")
    if not isinstance(plugins, dict) or not plugins:
        yield Finding(ERROR, "metrics.metrics_collected", "no plugin: the agent does not start")
        return
    if "nvidia_smi" in plugins:
        yield Finding(ERROR, "metrics.metrics_collected.nvidia_smi", "internal name of the plugin: use nvidia_gpu")
    counters = [name for name, plugin in plugins.items() if name[:1].isupper() or _is_counter_object(name, plugin)]
    for name in counters:
        where = f"metrics.metrics_collected.{name}"
        yield Finding(WARNING, where, "a performance counter of Windows: the agent on Linux does not collect it")
    documented = {name: value for name, value in plugins.items() if name not in ("nvidia_smi", *counters)}
    yield from unknown_keys(documented, _PLUGINS, "metrics.metrics_collected")
    yield from plugin_findings(plugins)
    if "nvidia_gpu" in plugins:
        yield from _gpu(plugins["nvidia_gpu"])
    yield from _aggregation(section, dimensions_by_plugin(plugins, appended), WARNING)  # the agent starts with it


def _is_counter_object(name: str, plugin: object) -> bool:
    """An object of Windows' performance counters, whatever its name, by the names of its counters."""
    measured = plugin.get("measurement") if isinstance(plugin, dict) else None
    if name in _PLUGINS or not isinstance(measured, list) or "resources" not in cast(dict[str, object], plugin):
        return False
    names = [str(entry.get("name") if isinstance(entry, dict) else entry) for entry in measured]
    return any(re.search(r"[ %/]|^[A-Z]|[a-z][A-Z]", one) for one in names)


def _namespace(section: Mapping[str, object]) -> Iterator[Finding]:
    namespace = section.get("namespace", "CWAgent")
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace) or not namespace.strip():
        expected = "1 to 255 letters, digits, spaces and . - _ / # :, not starting with :"
        yield Finding(ERROR, "metrics.namespace", f"expected {expected}, got {namespace!r}")
    elif namespace.startswith("AWS/"):
        yield Finding(ERROR, "metrics.namespace", f"namespaces that start with AWS/ are reserved, got {namespace!r}")


def _append_dimensions(appended: object) -> Iterator[Finding]:
    where = "metrics.append_dimensions"
    if not isinstance(appended, dict):
        yield not_an_object(where, appended)
        return
    for key, value in appended.items():
        if key not in _APPENDED:
            message = f"expected {', '.join(_APPENDED)}, got {key}{suggestion(key, _APPENDED)}"
            yield Finding(ERROR, f"{where}.{key}", message)
        elif value == f"${{!aws:{key}}}":
            message = f"${{!aws:{key}}} is not replaced: the agent leaves the dimension out"
            yield Finding(WARNING, f"{where}.{key}", message)
        elif value != f"${{aws:{key}}}":
            yield Finding(ERROR, f"{where}.{key}", f"expected '${{aws:{key}}}', got {value!r}")


def _aggregation(
    section: Mapping[str, object], by_plugin: Mapping[str, set[str] | None], severity: str
) -> Iterator[Finding]:
    """by_plugin: the dimensions of each plugin's metrics; None: what a program sends it decides."""
    where = "metrics.aggregation_dimensions"
    rollups = section.get("aggregation_dimensions", [])
    if not isinstance(rollups, list):
        yield Finding(ERROR, where, f"expected a list of lists of dimensions, got {rollups!r}")
        return
    for index, names in enumerate(rollups):
        if not isinstance(names, list):
            yield Finding(ERROR, f"{where}[{index}]", f"expected a list of dimensions, got {names!r}")
            continue
        if None in by_plugin.values():
            continue
        known = {name for dimensions in by_plugin.values() for name in dimensions or ()}
        unknown = [name for name in names if not isinstance(name, str) or name not in known]
        for name in unknown:
            message = f"no metric has the dimension {name!r}, so nothing is aggregated"
            yield Finding(severity, f"{where}[{index}]", f"{message}{suggestion(str(name), sorted(known))}")
        if (
            not unknown
            and not any(dimensions and set(names) <= dimensions for dimensions in by_plugin.values())
            and names
        ):
            message = f"no metric has all of {', '.join(names)}, so nothing is aggregated"
            yield Finding(severity, f"{where}[{index}]", message)


def _gpu(plugin: object) -> Iterator[Finding]:
    where = "metrics.metrics_collected.nvidia_gpu"
    if not isinstance(plugin, dict):
        yield not_an_object(where, plugin)
        return
    yield from unknown_keys(plugin, _GPU, where)
    yield from seconds(plugin, "metrics_collection_interval", where)
    yield from measurements(plugin, "nvidia_gpu", BY_NAME, where, prefix="nvidia_smi_")


def _both_in_one(config: Mapping[str, object]) -> Iterator[Finding]:
    metrics = config.get("metrics")
    plugins = metrics.get("metrics_collected", {}) if isinstance(metrics, dict) else {}
    if isinstance(plugins, dict) and "nvidia_gpu" in plugins and "logs" in config:
        message = "in one file with logs: without nvidia-smi the agent does not start and sends no log; use two files"
        yield Finding(WARNING, "metrics.metrics_collected.nvidia_gpu", message)


_CPU_STATES = (
    "active", "guest", "guest_nice", "idle", "iowait", "irq", "nice", "softirq", "steal", "system", "user",
)  # fmt: skip
_VOLUME = (
    "total_read_ops", "total_write_ops", "total_read_bytes", "total_write_bytes", "total_read_time",
    "total_write_time", "performance_exceeded_iops", "performance_exceeded_tp", "volume_queue_length",
)  # fmt: skip
_EBS = (
    "total_read_ops", "total_write_ops", "total_read_bytes", "total_write_bytes", "total_read_time",
    "total_write_time", "volume_performance_exceeded_iops", "volume_performance_exceeded_tp",
    "ec2_instance_performance_exceeded_iops", "ec2_instance_performance_exceeded_tp", "volume_queue_length",
)  # fmt: skip
MEASUREMENTS: Mapping[str, Collection[str]] = {
    "cpu": (*(f"time_{state}" for state in _CPU_STATES), *(f"usage_{state}" for state in _CPU_STATES)),
    "disk": ("free", "inodes_free", "inodes_total", "inodes_used", "total", "used", "used_percent"),
    "diskio": (
        "iops_in_progress", "io_time", "reads", "read_bytes", "read_time", "writes", "write_bytes", "write_time",
        *(f"ebs_{name}" for name in _EBS), *(f"instance_store_{name}" for name in _VOLUME),
    ),
    "mem": (
        "active", "available", "available_percent", "buffered", "cached", "free", "inactive", "shared", "total", "used",
        "used_percent",
    ),
    "net": (
        "bytes_sent", "bytes_recv", "drop_in", "drop_out", "err_in", "err_out", "packets_sent", "packets_recv",
    ),
    "netstat": (
        "tcp_close", "tcp_close_wait", "tcp_closing", "tcp_established", "tcp_fin_wait1", "tcp_fin_wait2",
        "tcp_last_ack", "tcp_listen", "tcp_none", "tcp_syn_sent", "tcp_syn_recv", "tcp_time_wait", "udp_socket",
    ),
    "processes": (
        "blocked", "dead", "idle", "paging", "running", "sleeping", "stopped", "total", "total_threads", "wait",
        "zombies",
    ),
    "swap": ("free", "used", "used_percent"),
}  # fmt: skip


# Dimensions of each plugin's own. None: those of what a program sends, or of a file.
_DIMENSIONS: Mapping[str, Collection[str] | None] = {
    "cpu": ("cpu",), "disk": ("path", "device", "fstype"), "diskio": ("name", "VolumeId", "InstanceStoreId"),
    "mem": (), "net": ("interface",), "netstat": (), "processes": (), "swap": (),
    "nvidia_gpu": ("index", "name", "arch"), "ethtool": ("driver", "interface"),
    "procstat": ("exe", "pid", "pid_file", "pattern", "process_name", "user"),
}  # fmt: skip


def dimensions_by_plugin(plugins: Mapping[str, object], appended: object) -> dict[str, set[str] | None]:
    """Plugin → the dimensions that its metrics have; None where the configuration does not tell.

    append_dimensions of a plugin are added to those of all.
    """
    shared = {"host", *(appended if isinstance(appended, dict) else ())}
    found: dict[str, set[str] | None] = {}
    for name, plugin in plugins.items():
        own = _DIMENSIONS.get(name)
        entries = plugin if isinstance(plugin, list) else [plugin]
        added = [entry.get("append_dimensions") for entry in entries if isinstance(entry, dict)]
        further = {key for one in added if isinstance(one, dict) for key in one}
        found[name] = None if own is None else {*own, *shared, *further}
    return found


def plugin_findings(plugins: Mapping[str, object]) -> Iterator[Finding]:
    """Findings of the system plugins among those of metrics_collected."""
    for name in MEASUREMENTS.keys() & plugins.keys():
        plugin, where = plugins[name], f"metrics.metrics_collected.{name}"
        if isinstance(plugin, dict):
            yield from seconds(plugin, "metrics_collection_interval", where)
            yield from measurements(plugin, name, MEASUREMENTS[name], where, prefix=f"{name}_")
        else:
            yield not_an_object(where, plugin)


def measurements(
    plugin: Mapping[str, object], name: str, known: Collection[str], where: str, prefix: str
) -> Iterator[Finding]:
    """Findings of `measurement`. prefix: of the published names, which the agent takes too (mem_used_percent)."""
    entries = plugin.get("measurement")
    if not isinstance(entries, list) or not entries:
        yield Finding(ERROR, f"{where}.measurement", "missing or empty: the agent rejects the plugin")
        return
    names = [entry.get("name") if isinstance(entry, dict) else entry for entry in entries]
    for index, entry in enumerate(names):
        path, measurement = f"{where}.measurement[{index}]", str(entry).removeprefix(prefix)
        if measurement not in known:
            yield Finding(
                ERROR, path, f"{entry!r} is not a measurement of {name}{suggestion(measurement, sorted(known))}"
            )
        if entry in names[:index]:
            yield Finding(ERROR, path, f"duplicate measurement {entry!r}")
