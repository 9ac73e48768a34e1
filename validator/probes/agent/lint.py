"""A linter for the CloudWatch agent's configuration, stricter than AWS's schema: agent, metrics, system plugins, logs.

The schema accepts a misspelt plugin or measurement (the agent then does not start, or never publishes it), knows
`nvidia_smi` but not the documented `nvidia_gpu`, and does not check placeholders. Sources: amazon-cloudwatch-agent
v1.300071.0, translator/config/schema.json, translate/metrics/config/registered_metrics.go;
https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutMetricData.html (namespace), read 2026-11-22.

The rules for logs are also those of the CloudWatch Logs API. Sources (read 2026-11-22):
https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_CreateLogGroup.html,
API_CreateLogStream.html, API_PutRetentionPolicy.html; https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/
CloudWatch-Agent-Configuration-File-Details.html (logs section); amazon-cloudwatch-agent ab55b8da,
translator/translate/logs/logs_collected.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from onhost.agent_schema import suggestion
from validator.measurement import BY_NAME
from validator.probes.agent.findings import (
    ERROR,
    WARNING,
    Finding,
    endpoint,
    line_numbers,
    not_an_object,
    release_schema,
    retention_days,
    schema_findings,
    seconds,
    unknown_keys,
)

# Keys that the agent reads, and that its check neither lists nor refuses.
UNLISTED = (
    "run_as_user", "user_agent", "quiet", "internal", "use_dualstack_endpoint", "system_metrics_enabled",
)  # fmt: skip
_AGENT = release_schema().keys("agent") | set(UNLISTED)
_AGENT_TYPES: Mapping[str, type] = {"region": str, "run_as_user": str, "debug": bool, "omit_hostname": bool}
_TYPE_NAMES = {str: "name", bool: "boolean (true or false)"}
# The table has the internal name of the GPU plugin, which the agent takes, too, and documents nowhere.
PLUGINS = release_schema().keys("metrics", "metrics_collected") - {"nvidia_smi"} | {"nvidia_gpu"}
GPU_KEYS = ("measurement", "metrics_collection_interval", "append_dimensions", "drop_original_metrics")
APPENDED_DIMENSIONS = ("ImageId", "InstanceId", "InstanceType", "AutoScalingGroupName")
# What the agent makes a unit of CloudWatch of (internal/cloudwatch/unit.go): its names, and those of UCUM.
_UNIT = re.compile(
    r"(?i)|none|count(/second)?|percent|(micro|milli)?seconds|(kilo|mega|giga|tera)?(bits|bytes)(/second)?"
    r"|1|%|[um]?s|ns|min|h|d|([kmgt]i?)?(b|by|bi)(/s)?"
)
_ZONE = re.compile(r"[a-z]{2}(-[a-z0-9]+)+-[0-9]+[a-z]")
_NAMESPACE = re.compile(r"(?!:)[0-9A-Za-z.\-_/#: ]{1,255}")
LOG_ENTRIES = {name: ("logs", "logs_collected", name, "collect_list", "[]") for name in ("files", "journald")}
_PRIORITIES = release_schema().rule(*LOG_ENTRIES["journald"], "priority")["values"]
_TIMEZONES = release_schema().rule(*LOG_ENTRIES["files"], "timezone")["values"]
_FILTER_TYPES = release_schema().rule(*LOG_ENTRIES["files"], "filters", "[]", "type")["values"]
_PLACEHOLDERS = ("{instance_id}", "{hostname}", "{local_hostname}", "{ip_address}", "{date}")
LOG_GROUP_CLASSES = ("STANDARD", "INFREQUENT_ACCESS")  # any other the agent leaves out, and the group becomes STANDARD
_MALFORMED = (
    "missing )",
    "unbalanced parenthesis",
    "unterminated",
    "nothing to repeat",
    "multiple repeat",
    "bad escape (end",
)
_MAX_NAME = 512
_LONGEST = {"{instance_id}": 19, "{hostname}": 63, "{local_hostname}": 63, "{ip_address}": 15, "{date}": 10}
_PLACEHOLDER = re.compile(r"(?<!\$)\{[^}]*\}")  # ${NAME} is a variable of the agent's environment


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
    region = section.get("region")
    if isinstance(region, str) and _ZONE.fullmatch(region):
        yield Finding(WARNING, "agent.region", f"{region!r} is an Availability Zone: the agent reaches no endpoint")


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
    yield from unknown_keys(documented, PLUGINS, "metrics.metrics_collected")
    yield from plugin_findings(plugins)
    if "nvidia_gpu" in plugins:
        yield from _gpu(plugins["nvidia_gpu"])
    yield from _aggregation(section, dimensions_by_plugin(plugins, appended), WARNING)  # the agent starts with it


def _is_counter_object(name: str, plugin: object) -> bool:
    """An object of Windows' performance counters, whatever its name, by the names of its counters."""
    measured = plugin.get("measurement") if isinstance(plugin, dict) else None
    if name in PLUGINS or not isinstance(measured, list) or "resources" not in cast(dict[str, object], plugin):
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
        if key not in APPENDED_DIMENSIONS:
            message = f"expected {', '.join(APPENDED_DIMENSIONS)}, got {key}{suggestion(key, APPENDED_DIMENSIONS)}"
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
    yield from unknown_keys(plugin, GPU_KEYS, where)
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
    for index, entry in enumerate(entries):
        unit = entry.get("unit") if isinstance(entry, dict) else None
        if isinstance(unit, str) and not _UNIT.fullmatch(unit):
            message = f"CloudWatch has no unit {unit!r}: the metric gets none"
            yield Finding(WARNING, f"{where}.measurement[{index}].unit", message)


def logs_findings(section: Mapping[str, object], files: Collection[str] | None) -> Iterator[Finding]:
    """Findings of `logs`. files: paths that the image writes; None: not checked."""
    yield from unknown_keys(section, release_schema().keys("logs"), "logs")
    yield from seconds(section, "force_flush_interval", "logs")
    yield from endpoint(section, "logs")
    yield from _stream_name(section, "logs")
    if not {"logs_collected", "metrics_collected"} & section.keys() or section.get("logs_collected") == {}:
        yield Finding(ERROR, "logs.logs_collected", "missing or empty: the agent rejects the configuration")
        return
    collected = section.get("logs_collected", {})
    if not isinstance(collected, dict):
        yield not_an_object("logs.logs_collected", collected)
        return
    yield from unknown_keys(collected, release_schema().keys("logs", "logs_collected"), "logs.logs_collected")
    for name in ("files", "journald"):
        yield from _not_a_list(collected, name)
    log_files, journals = list(_entries(collected, "files")), list(_entries(collected, "journald"))
    for where, entry in log_files:
        yield from _file(entry, where, files)
    for where, entry in journals:
        yield from _journald(entry, where)
    yield from _conflicts([*log_files, *journals], section.get("log_stream_name", "{instance_id}"))


def _not_a_list(collected: Mapping[str, object], name: str) -> Iterator[Finding]:
    plugin = collected.get(name, {})
    if not isinstance(plugin, dict):
        yield not_an_object(f"logs.logs_collected.{name}", plugin)
    elif name in collected and not plugin.get("collect_list"):
        message = "missing or empty: the agent rejects the configuration"
        yield Finding(ERROR, f"logs.logs_collected.{name}.collect_list", message)
    elif not isinstance(plugin.get("collect_list", []), list):
        message = f"expected a list, got {type(plugin['collect_list']).__name__}"
        yield Finding(ERROR, f"logs.logs_collected.{name}.collect_list", message)


def _entries(collected: Mapping[str, object], name: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    plugin = collected.get(name, {})
    entries = plugin.get("collect_list", []) if isinstance(plugin, dict) else []
    for index, entry in enumerate(entries if isinstance(entries, list) else []):
        if isinstance(entry, dict):
            yield f"logs.logs_collected.{name}.collect_list[{index}]", entry


def _conflicts(entries: list[tuple[str, Mapping[str, object]]], default_stream: object) -> Iterator[Finding]:
    """Entries that use the same stream, or give one group two retentions or classes, which the agent rejects."""
    streams: dict[tuple[str, str], str] = {}
    settings: dict[tuple[str, str], tuple[Any, str]] = {}
    for where, entry in entries:
        group = str(entry.get("log_group_name") or entry.get("file_path"))
        stream = (group, str(entry.get("log_stream_name", default_stream)))
        if stream in streams:
            yield Finding(ERROR, where, f"duplicate stream {group}/{stream[1]}, already used by {streams[stream]}")
        streams.setdefault(stream, where)
        for key in ("retention_in_days", "log_group_class"):
            value = entry.get(key, -1)
            if value == -1:  # leaves the group as it is
                continue
            first, first_entry = settings.setdefault((group.lower(), key), (value, where))
            if value != first:
                message = f"group {group}: expected {first!r} as in {first_entry}, got {value!r}"
                yield Finding(ERROR, f"{where}.{key}", message)


def _file(entry: Mapping[str, object], where: str, files: Collection[str] | None) -> Iterator[Finding]:
    yield from unknown_keys(entry, release_schema().keys(*LOG_ENTRIES["files"]), where)
    path = entry.get("file_path")
    if not isinstance(path, str) or not path.startswith("/"):
        # Valid in a configuration for Windows, as AWS's samples have it.
        severity = WARNING if isinstance(path, str) and re.match(r"[A-Za-z]:\\|%\w+%", path) else ERROR
        yield Finding(severity, f"{where}.file_path", f"expected an absolute path, got {path!r}")
    elif files is not None and path not in files:
        message = f"nothing on the image writes {path}{suggestion(path, sorted(files))}"
        yield Finding(ERROR, f"{where}.file_path", message)
    if "timestamp_format" not in entry:
        yield Finding(WARNING, where, "no timestamp_format: events get their arrival time, wrong after an interruption")
    yield from _choice(entry, "timezone", _TIMEZONES, where)
    yield from _encoding(entry, where)
    if entry.get("multi_line_start_pattern", "{timestamp_format}") != "{timestamp_format}":
        yield from _expression(entry["multi_line_start_pattern"], f"{where}.multi_line_start_pattern")
    yield from _filters(entry, where)
    yield from _destination(entry, where)


def _filters(entry: Mapping[str, object], where: str) -> Iterator[Finding]:
    filters = entry.get("filters", [])
    if not isinstance(filters, list):
        yield Finding(ERROR, f"{where}.filters", f"expected a list, got {type(filters).__name__}")
        return
    for index, rule in enumerate(filters):
        path = f"{where}.filters[{index}]"
        if not isinstance(rule, dict):
            yield not_an_object(path, rule)
        elif rule.get("type") not in _FILTER_TYPES:
            yield Finding(ERROR, f"{path}.type", f"expected include or exclude, got {rule.get('type')!r}")
        elif not isinstance(rule.get("expression"), str) or not rule["expression"]:
            yield Finding(ERROR, f"{path}.expression", "expected a regular expression")
        else:
            yield from _expression(rule["expression"], f"{path}.expression")


def _expression(pattern: object, path: str) -> Iterator[Finding]:
    """A regular expression of Go (RE2): it has no look-around and no back-references."""
    try:
        re.compile(str(pattern))
    except re.error as error:
        if error.msg.startswith(_MALFORMED):  # Python lacks some of Go's syntax, such as (?i) within an expression
            yield Finding(ERROR, path, f"not a regular expression: {error}")
        return
    foreign = re.search(r"(?<!\\)(?:\\\\)*(\(\?<?[=!]|\\[1-9])", str(pattern))
    if foreign:
        yield Finding(ERROR, path, f"expected a regular expression of Go (RE2), which has no {foreign[1]}")


def _encoding(entry: Mapping[str, object], where: str) -> Iterator[Finding]:
    name = entry.get("encoding", "utf-8")
    try:
        codecs.lookup(str(name))
    except LookupError:
        yield Finding(ERROR, f"{where}.encoding", f"expected a character encoding, as in utf-8, got {name!r}")


def _journald(entry: Mapping[str, object], where: str) -> Iterator[Finding]:
    yield from unknown_keys(entry, release_schema().keys(*LOG_ENTRIES["journald"]), where)
    priority = entry.get("priority", "info")
    if str(priority) not in _PRIORITIES:
        yield Finding(ERROR, f"{where}.priority", f"expected one of {', '.join(_PRIORITIES)}, got {priority!r}")
    yield from _destination(entry, where)


def _destination(entry: Mapping[str, object], where: str) -> Iterator[Finding]:
    group = entry.get("log_group_name")
    if not group and "file_path" in entry:
        yield Finding(WARNING, f"{where}.log_group_name", "missing: the agent names the group after the file")
    elif group:  # the table says where it is required
        yield from _placeholders(group, f"{where}.log_group_name")
        yield from _name(group, f"{where}.log_group_name", r"[.\-_/#A-Za-z0-9]", "letters, digits and . - _ / #")
        if str(group).startswith("aws/"):
            yield Finding(ERROR, f"{where}.log_group_name", "names that start with aws/ are reserved")
    yield from _stream_name(entry, where)
    yield from _choice(entry, "log_group_class", LOG_GROUP_CLASSES, where)
    days = entry.get("retention_in_days", -1)
    if days not in retention_days() or isinstance(days, bool):
        expected = ", ".join(map(str, retention_days()))
        yield Finding(ERROR, f"{where}.retention_in_days", f"expected one of {expected}, got {days!r}")


def _stream_name(entry: Mapping[str, object], where: str) -> Iterator[Finding]:
    if "log_stream_name" in entry:
        stream, path = entry["log_stream_name"], f"{where}.log_stream_name"
        yield from _placeholders(stream, path)
        yield from _name(stream, path, r"[^:*]", "any characters except : and *")


def _placeholders(name: object, path: str) -> Iterator[Finding]:
    for placeholder in _PLACEHOLDER.findall(str(name)):
        if placeholder not in _PLACEHOLDERS:
            expected = ", ".join(_PLACEHOLDERS)
            message = f"expected {expected}, got {placeholder}{suggestion(placeholder, _PLACEHOLDERS)}"
            yield Finding(ERROR, path, message)


def _name(name: object, path: str, allowed: str, description: str) -> Iterator[Finding]:
    """Characters and length of a name; a placeholder counts as the longest value that it can have."""
    if not isinstance(name, str):
        yield Finding(ERROR, path, f"expected a string, got {type(name).__name__}")
        return
    fixed = _PLACEHOLDER.sub("", name)
    wrong = sorted(set(re.sub(allowed, "", fixed)))
    if wrong:
        yield Finding(ERROR, path, f"expected {description}, got {' '.join(map(repr, wrong))}")
    length = len(fixed) + sum(_LONGEST.get(placeholder, 0) for placeholder in _PLACEHOLDER.findall(name))
    if not 1 <= length <= _MAX_NAME:
        yield Finding(ERROR, path, f"expected 1 to {_MAX_NAME} characters, got {length}")


def _choice(entry: Mapping[str, object], key: str, allowed: Collection[str], where: str) -> Iterator[Finding]:
    value = entry.get(key)
    if key in entry and value not in allowed:
        message = f"expected {' or '.join(allowed)}, got {value!r}{suggestion(str(value), allowed)}"
        yield Finding(ERROR, f"{where}.{key}", message)
