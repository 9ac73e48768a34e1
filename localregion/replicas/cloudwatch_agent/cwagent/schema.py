"""The translator's JSON schema, as far as configurations of an image meet it.

Source: aws/amazon-cloudwatch-agent v1.300071.0, translator/config/schema.json; translator/translate/logs/util
(validate_fields.go) and logs_collected/files/collect_list (ruleEncoding.go, ruleLogFilters.go).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator

Section = dict[str, object]
Mistake = tuple[str, str]  # path and message
_Check = Callable[[object], str]  # "" for a value that the schema allows, else what it expects

RETENTION_DAYS = (
    -1, 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653,
)  # fmt: skip
CLASSES = ("STANDARD", "INFREQUENT_ACCESS")
_LOOK_AROUND = re.compile(r"\(\?<?[=!]")  # Go's regular expressions have none


def _text(low: int, high: int) -> _Check:
    expected = f"a string of {low} to {high} characters"
    return lambda value: "" if isinstance(value, str) and low <= len(value) <= high else expected


def _one_of(*values: object) -> _Check:
    return lambda value: "" if value in values and not isinstance(value, bool) else f"one of {values}"


def _boolean(value: object) -> str:
    return "" if isinstance(value, bool) else "a boolean"


def _anything(_: object) -> str:
    return ""


def seconds(value: object) -> str:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return "" if whole and 1 <= value <= 172_800 else "whole seconds from 1 to 172800"  # type: ignore[operator]


def _unique(value: object) -> str:
    if not isinstance(value, list) or not value:
        return "a list with at least one entry"
    return "different entries" if any(entry in value[:index] for index, entry in enumerate(value)) else ""


def _whole(value: object) -> str:
    return "" if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else "a number of at least 1"


_NAMES = {"service.name": _text(1, 255), "deployment.environment": _text(1, 259)}
_DESTINATION = {
    "log_group_name": _text(1, 512),
    "log_stream_name": _text(1, 512),
    "log_group_class": _anything,  # the translator leaves out what it does not know
    "retention_in_days": _one_of(*RETENTION_DAYS),
    "filters": _anything,
}
_AGENT = {
    "metrics_collection_interval": seconds, "logfile": _text(0, 4096), "region": _text(1, 64), "debug": _boolean,
    "aws_sdk_log_level": _text(0, 4096), "omit_hostname": _boolean, **_NAMES,
}  # fmt: skip
_METRICS = {
    "namespace": _text(1, 255), "append_dimensions": _anything, "aggregation_dimensions": _unique,
    "force_flush_interval": seconds, "metrics_collected": _anything, "metrics_destinations": _anything,
    "endpoint_override": _text(1, 2048), "credentials": _anything, **_NAMES,
}  # fmt: skip
_LOGS = {
    "logs_collected": _anything, "metrics_collected": _anything, "log_stream_name": _text(1, 512),
    "force_flush_interval": seconds, "credentials": _anything, "endpoint_override": _text(1, 2048),
    "concurrency": _whole, **_NAMES,
}  # fmt: skip
_FILE = {
    "file_path": _text(0, 4096), "multi_line_start_pattern": _text(1, 4096), "timestamp_format": _text(1, 4096),
    "timezone": _one_of("Local", "LOCAL", "UTC"), "trim_timestamp": _boolean, "encoding": _text(1, 4096),
    "auto_removal": _boolean, "backpressure_mode": _one_of("fd_release"), "blacklist": _text(1, 4096),
    "publish_multi_logs": _boolean, **_DESTINATION, **_NAMES,
}  # fmt: skip
_PRIORITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug", *map(str, range(8)))
_JOURNALD = {"units": _unique, "priority": _one_of(*_PRIORITIES), "matches": _unique, **_DESTINATION}
_ENTRIES = {"files": (_FILE, "file_path"), "journald": (_JOURNALD, "log_group_name")}
_COLLECTED = ("files", "journald", "windows_events", "application_signals")


def check(config: Section) -> Iterator[Mistake]:
    """Every mistake in the agent's section, metrics and logs; plugins are not looked at."""
    for name, keys, is_open in (("agent", _AGENT, True), ("metrics", _METRICS, False), ("logs", _LOGS, False)):
        section = config.get(name)
        if isinstance(section, dict):
            yield from _object(section, keys, f"/{name}", is_open)
    logs = config.get("logs")
    if isinstance(logs, dict):
        yield from _logs(logs)


def _object(section: Section, keys: dict[str, _Check], path: str, is_open: bool = False) -> Iterator[Mistake]:
    for key, value in section.items():
        if key not in keys:
            if not is_open:
                yield f"{path}/{key}", "Additional property is not allowed"
        elif expected := keys[key](value):
            yield f"{path}/{key}", f"expected {expected}, got {value!r}"


def _logs(logs: Section) -> Iterator[Mistake]:
    if "logs_collected" not in logs and "metrics_collected" not in logs:
        yield "/logs", "Must validate at least one schema (anyOf): logs_collected, metrics_collected"
        return
    collected, path = logs.get("logs_collected", {"files": {"collect_list": [{}]}}), "/logs/logs_collected"
    if not isinstance(collected, dict) or not collected:
        yield path, "expected an object with at least one entry"
        return
    if "logs_collected" not in logs:
        return
    for key in collected:
        if key not in _COLLECTED:
            yield f"{path}/{key}", "Additional property is not allowed"
    for name, (keys, required) in _ENTRIES.items():
        if name in collected:
            yield from _entries(collected[name], keys, required, f"{path}/{name}")


def _entries(plugin: object, keys: dict[str, _Check], required: str, path: str) -> Iterator[Mistake]:
    entries = plugin.get("collect_list") if isinstance(plugin, dict) else None
    if expected := _unique(entries):
        yield f"{path}/collect_list", f"expected {expected}, got {entries!r}"
        return
    for index, entry in enumerate(entries):  # type: ignore[arg-type]
        where = f"{path}/collect_list/{index}"
        if not isinstance(entry, dict) or not entry.get(required):
            yield f"{where}/{required}", f"{required} is required"
            continue
        yield from _object(entry, keys, where)
        yield from _filters(entry.get("filters", []), f"{where}/filters")
        yield from _encoding(entry.get("encoding", "utf-8"), f"{where}/encoding")
    yield from _conflicts([entry for entry in entries if isinstance(entry, dict)], f"{path}/collect_list")  # type: ignore[union-attr]


def _filters(filters: object, path: str) -> Iterator[Mistake]:
    if not isinstance(filters, list):
        yield path, f"expected a list, got {filters!r}"
        return
    for index, item in enumerate(filters):
        try:
            re.compile(item["expression"])
            if item["type"] not in ("include", "exclude") or _LOOK_AROUND.search(item["expression"]):
                raise KeyError(item)
        except (KeyError, TypeError, re.error) as error:
            yield f"{path}/{index}", f"expected type include or exclude, and an expression ({error})"


def _encoding(name: object, path: str) -> Iterator[Mistake]:
    try:
        codecs.lookup(str(name))
    except LookupError:
        yield path, f"Encoding {name} is an invalid value."


def _conflicts(entries: list[Section], path: str) -> Iterator[Mistake]:
    """One log group has one retention and one class; entries without one leave it to the others."""
    first: dict[tuple[str, str], object] = {}
    for entry in entries:
        for key in ("retention_in_days", "log_group_class"):
            value = entry.get(key, -1)
            group = str(entry.get("log_group_name", "")).lower()
            known = value in CLASSES if key == "log_group_class" else value != -1
            if known and first.setdefault((group, key), value) != value:
                yield path, f"Different {key} values can't be set for the same log group: {group}"
