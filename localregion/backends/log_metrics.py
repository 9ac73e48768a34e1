"""Metrics of log events, which moto does not make: of metric filters, and of embedded metric documents (`_aws`).

Source: CloudWatch Logs user guide, "Creating metrics from log events using filters"; "Embedded metric format
specification"; both read 2026-11-22.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from typing import Any

from moto.cloudwatch.models import cloudwatch_backends
from moto.logs.exceptions import InvalidParameterException
from moto.logs.models import LogsBackend

from localregion.backends import logs

_plain_put = LogsBackend.put_log_events
_plain_filter = LogsBackend.put_metric_filter
_Datum = dict[str, Any]


def install() -> None:
    """Makes each PutLogEvents put the metrics of its events, and PutMetricFilter refuse patterns. Idempotent."""
    LogsBackend.put_log_events = _put_log_events  # type: ignore[method-assign]
    LogsBackend.put_metric_filter = _put_metric_filter  # type: ignore[method-assign]


def _put_metric_filter(
    self: LogsBackend, filter_name: str, filter_pattern: str, log_group_name: str, metric_transformations: Any
) -> None:
    """A pattern that is not evaluated here is refused: its metric would stay without data. So are values of fields."""
    try:
        logs.check(filter_pattern)
    except ValueError as refusal:
        raise InvalidParameterException(f"Invalid metric filter pattern: {refusal}") from None
    for transformation in metric_transformations:
        if transformation.get("dimensions"):
            raise InvalidParameterException("The local region does not evaluate dimensions of metric filters")
        if not _is_number(transformation["metricValue"]):
            given = transformation["metricValue"]
            raise InvalidParameterException(f"The local region does not evaluate the metricValue {given}: use a number")
    _plain_filter(self, filter_name, filter_pattern, log_group_name, metric_transformations)


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
        is_match = logs.matches(entry["filterPattern"], message)
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
