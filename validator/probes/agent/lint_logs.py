"""Rules for the section `logs` of the CloudWatch agent's configuration, with those of the CloudWatch Logs API.

Sources (read 2026-11-22): https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_CreateLogGroup.html,
API_CreateLogStream.html, API_PutRetentionPolicy.html; https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/
CloudWatch-Agent-Configuration-File-Details.html (logs section); amazon-cloudwatch-agent ab55b8da,
translator/translate/logs/logs_collected.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from onhost.agent_schema import suggestion
from validator.probes.agent.findings import (
    ERROR,
    WARNING,
    Finding,
    endpoint,
    not_an_object,
    seconds,
    unknown_keys,
)
from validator.probes.agent.release_schema import release_schema, retention_days

_ENTRY = {name: ("logs", "logs_collected", name, "collect_list", "[]") for name in ("files", "journald")}
_PRIORITIES = release_schema().rule(*_ENTRY["journald"], "priority")["values"]
_TIMEZONES = release_schema().rule(*_ENTRY["files"], "timezone")["values"]
_FILTER_TYPES = release_schema().rule(*_ENTRY["files"], "filters", "[]", "type")["values"]
_PLACEHOLDERS = ("{instance_id}", "{hostname}", "{local_hostname}", "{ip_address}", "{date}")
_CLASSES = ("STANDARD", "INFREQUENT_ACCESS")  # any other the agent leaves out, and the group becomes STANDARD
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
    yield from unknown_keys(entry, release_schema().keys(*_ENTRY["files"]), where)
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
    yield from unknown_keys(entry, release_schema().keys(*_ENTRY["journald"]), where)
    priority = entry.get("priority", "info")
    if str(priority) not in _PRIORITIES:
        yield Finding(ERROR, f"{where}.priority", f"expected one of {', '.join(_PRIORITIES)}, got {priority!r}")
    yield from _destination(entry, where)


def _destination(entry: Mapping[str, object], where: str) -> Iterator[Finding]:
    group = entry.get("log_group_name")
    if not group:
        yield Finding(WARNING, f"{where}.log_group_name", "missing: the agent names the group after the file")
    else:
        yield from _placeholders(group, f"{where}.log_group_name")
        yield from _name(group, f"{where}.log_group_name", r"[.\-_/#A-Za-z0-9]", "letters, digits and . - _ / #")
        if str(group).startswith("aws/"):
            yield Finding(ERROR, f"{where}.log_group_name", "names that start with aws/ are reserved")
    yield from _stream_name(entry, where)
    yield from _choice(entry, "log_group_class", _CLASSES, where)
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
