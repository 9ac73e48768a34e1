"""CloudWatch Logs: events that readers see some time after they arrived, as on AWS.

Filter patterns are evaluated as those of metric filters.
JSON log events: selectors of members, strings (=, !=), numbers (= != < > <= >=), `&&`, `||` and parentheses. Other log
events: terms and quoted phrases (all of them), `?term` (any of them), `-term` (none of them); "" matches every event.
What else AWS has (wildcards, array elements, IS, NOT EXISTS, regular expressions, delimited columns) is refused.
Source: CloudWatch Logs user guide, "Filter pattern syntax for metric filters", read 2026-11-23. `&&` binds more tightly
than `||`.

Metrics of log events, which moto does not make: of metric filters, and of embedded metric documents (`_aws`).

Source: CloudWatch Logs user guide, "Creating metrics from log events using filters"; "Embedded metric format
specification"; both read 2026-11-22.
"""

from __future__ import annotations

import copy
import datetime
import functools
import json
import operator
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from moto.cloudwatch.models import cloudwatch_backends
from moto.logs.exceptions import InvalidParameterException
from moto.logs.models import LogsBackend, LogStream

Test = Callable[[Mapping[str, Any]], bool]
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip
_TERM = re.compile(r'\s*([?-]?)(?:"((?:[^"\\]|\\.)+)"|(\w+))(?=\s|$)')
_TOKEN = re.compile(r'\s*(?:(\(|\)|&&|\|\||!=|<=|>=|=|<|>)|"((?:[^"\\]|\\.)*)"|(\$(?:\.[\w@]+)+)|(-?\d+(?:\.\d+)?))')


def matches(pattern: str, message: str) -> bool:
    """Whether a log event matches. ValueError: as of `check`."""
    return check(pattern)(message)


@functools.lru_cache
def check(pattern: str) -> Callable[[str], bool]:
    """The test of a log event's message. ValueError: the pattern is none, or uses what is not evaluated here."""
    inside = pattern.strip()
    if inside.startswith("{") and inside.endswith("}"):
        return functools.partial(_json_matches, _compiled(inside[1:-1], pattern))
    return _terms(inside)


def _json_matches(test: Test, message: str) -> bool:
    try:
        document = json.loads(message)
    except ValueError:
        return False
    return isinstance(document, Mapping) and test(document)


def _terms(pattern: str) -> Callable[[str], bool]:
    groups: dict[str, list[str]] = {"": [], "?": [], "-": []}
    position = 0
    while pattern[position:].strip():
        match = _TERM.match(pattern, position)
        if match is None:
            raise ValueError(f"cannot be read: {pattern[position:].strip()}")
        groups[match[1]].append(match[2] or match[3])
        position = match.end()
    if groups["?"] and (groups[""] or groups["-"]):
        raise ValueError(f"terms with ? beside others: {pattern}")
    return functools.partial(_terms_match, groups)


def _terms_match(groups: Mapping[str, list[str]], message: str) -> bool:
    optional = not groups["?"] or any(term in message for term in groups["?"])
    return optional and all(term in message for term in groups[""]) and not any(t in message for t in groups["-"])


def _compiled(inside: str, pattern: str) -> Test:
    parser = _Parser(inside)
    test = parser.either()
    if parser.tokens:
        raise ValueError(f"unexpected {parser.tokens[0]!r} in {pattern}")
    return test


class _Parser:
    """Recursive descent; `tokens` are those that are left: punctuation, ("text", …), ("field", …), ("number", …)."""

    def __init__(self, text: str) -> None:
        self.tokens: list[Any] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"cannot be read: {text[position:].strip()}")
            mark, quoted, field, number = match.groups()
            kinds = (("text", quoted), ("field", field), ("number", number))
            self.tokens.append(mark or next((kind, value) for kind, value in kinds if value is not None))
            position = match.end()

    def either(self) -> Test:
        tests = [self._both()]
        while self._taken("||"):
            tests.append(self._both())
        return lambda document: any(test(document) for test in tests)

    def _both(self) -> Test:
        tests = [self._one()]
        while self._taken("&&"):
            tests.append(self._one())
        return lambda document: all(test(document) for test in tests)

    def _one(self) -> Test:
        if self._taken("("):
            inside = self.either()
            if not self._taken(")"):
                raise ValueError("expected ) in the pattern")
            return inside
        if len(self.tokens) < 3 or self.tokens[0][0] != "field" or self.tokens[1] not in _COMPARISONS:
            raise ValueError(f"expected a comparison, got {self.tokens[:3]}")
        (_, field), comparison, (kind, value) = (self.tokens.pop(0) for _ in range(3))
        if kind == "text" and (comparison not in ("=", "!=") or "*" in value or "%" in value):
            raise ValueError(f"{comparison} with {value!r}: strings are compared by = and !=, without wildcards")
        expected = value if kind == "text" else float(value)
        return functools.partial(_compare, field.split(".")[1:], comparison, expected)

    def _taken(self, mark: str) -> bool:
        if self.tokens[:1] != [mark]:
            return False
        del self.tokens[0]
        return True


def _compare(path: list[str], comparison: str, expected: str | float, document: Mapping[str, Any]) -> bool:
    """A field that is missing, or of another type, compares with nothing."""
    value: Any = document
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    if isinstance(value, bool) or not isinstance(value, str if isinstance(expected, str) else int | float):
        return False
    return _COMPARISONS[comparison](value, expected)


_plain_get = LogStream.get_log_events
_plain_filter = LogStream.filter_log_events
event_delay = 0.0


def install(delay_seconds: float) -> None:
    """Shows each event `delay_seconds` after it arrived."""
    global event_delay  # moto's models are the process's, and so is this
    event_delay = delay_seconds
    LogStream.get_log_events = _get_log_events  # type: ignore[method-assign]
    LogStream.filter_log_events = _filter_log_events  # type: ignore[method-assign]


def _visible(stream: LogStream) -> LogStream:
    """The stream with the events that can be read now."""
    if not event_delay:
        return stream
    latest = (time.time() - event_delay) * 1000
    shown = copy.copy(stream)
    shown.events = [event for event in stream.events if event.ingestion_time <= latest]
    return shown


def _get_log_events(self: LogStream, *arguments: Any, **options: Any) -> Any:
    return _plain_get(_visible(self), *arguments, **options)


def _filter_log_events(self: LogStream, *arguments: Any, **options: Any) -> Any:
    return _plain_filter(_visible(self), *arguments, **options)


_plain_put = LogsBackend.put_log_events
_plain_put_filter = LogsBackend.put_metric_filter
_Datum = dict[str, Any]


def install_metrics() -> None:
    """Makes each PutLogEvents put the metrics of its events, and PutMetricFilter refuse patterns. Idempotent."""
    LogsBackend.put_log_events = _put_log_events  # type: ignore[method-assign]
    LogsBackend.put_metric_filter = _put_metric_filter  # type: ignore[method-assign]


def _put_metric_filter(
    self: LogsBackend, filter_name: str, filter_pattern: str, log_group_name: str, metric_transformations: Any
) -> None:
    """A pattern that is not evaluated here is refused: its metric would stay without data. So are values of fields."""
    try:
        check(filter_pattern)
    except ValueError as refusal:
        raise InvalidParameterException(f"Invalid metric filter pattern: {refusal}") from None
    for transformation in metric_transformations:
        if transformation.get("dimensions"):
            raise InvalidParameterException("The local region does not evaluate dimensions of metric filters")
        if not _is_number(transformation["metricValue"]):
            given = transformation["metricValue"]
            raise InvalidParameterException(f"The local region does not evaluate the metricValue {given}: use a number")
    _plain_put_filter(self, filter_name, filter_pattern, log_group_name, metric_transformations)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _put_log_events(self: LogsBackend, log_group_name: str, log_stream_name: str, log_events: list[Any]) -> Any:
    answer = _plain_put(self, log_group_name, log_stream_name, log_events)
    cloudwatch = cloudwatch_backends[self.account_id][self.region_name]
    filters = self.filters.get_matching_filters(None, log_group_name, None, None)
    for event in log_events:
        message, arrived = event["message"], _time(event["timestamp"])
        for namespace, datum in [*_filtered(filters, message), *_embedded(message)]:
            cloudwatch.put_metric_data(namespace, [datum | {"Timestamp": datum.get("Timestamp", arrived)}])
    return answer


def _filtered(filters: list[dict[str, Any]], message: str) -> Iterator[tuple[str, _Datum]]:
    """A value for each filter that the event matches, and the default value of those that it does not."""
    for entry in filters:
        is_match = matches(entry["filterPattern"], message)
        for transformation in entry["metricTransformations"]:
            value = transformation["metricValue"] if is_match else transformation.get("defaultValue")
            if value is not None:
                datum = {"MetricName": transformation["metricName"], "Value": float(value)}
                yield transformation["metricNamespace"], datum


def _embedded(message: str) -> Iterator[tuple[str, _Datum]]:
    try:
        document = json.loads(message)
    except ValueError:
        return
    if not isinstance(document, dict) or "_aws" not in document:
        return
    described = document["_aws"]
    for directive in described["CloudWatchMetrics"]:
        for names in directive["Dimensions"]:
            dimensions = [{"Name": name, "Value": document[name]} for name in names]
            for metric in directive["Metrics"]:
                value = document[metric["Name"]]  # a number, or several
                for number in value if isinstance(value, list) else [value]:
                    yield directive["Namespace"], _datum(metric, number, dimensions, _time(described["Timestamp"]))


def _datum(metric: Mapping[str, Any], value: float, dimensions: list[Any], time: datetime.datetime) -> _Datum:
    return {
        "MetricName": metric["Name"],
        "Value": float(value),
        "Unit": metric.get("Unit", "None"),
        "Dimensions": dimensions,
        "Timestamp": time,
    }


def _time(milliseconds: int) -> datetime.datetime:
    """Of milliseconds since 1970; moto compares times of UTC without a zone."""
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC).replace(tzinfo=None)
