"""CloudWatch's metrics as the vendor's agent and the validator use them, where moto answers otherwise than AWS.

moto drops the metrics of an entity silently, answers a query for one namespace with datapoints of another, compares
dimensions in an order that depends on how they were sent, and searches all datapoints for each query: after an hour of
one machine, a million.

Source: the API's PutMetricData (`EntityMetricData`) and GetMetricData; plugins/outputs/cloudwatch of
https://github.com/aws/amazon-cloudwatch-agent v1.300060.0, which puts every metric of an instance into entities.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from moto.cloudwatch.models import CloudWatchBackend, Dimension, MetricDatumBase
from moto.cloudwatch.responses import CloudWatchResponse


@dataclass(frozen=True)
class Delays:
    """Seconds. boot, stop: before an instance starts its machine, after its guest went down; console: since the
    launch, until there is output; list_metrics, metric_data, log_events: since arrival, until a reader sees it."""

    boot: float = 0.0
    stop: float = 0.0
    console: float = 0.0
    list_metrics: float = 0.0
    metric_data: float = 0.0
    log_events: float = 0.0


NO_DELAYS = Delays()


# Datapoints closer together than a minute are kept for three hours.
# Source: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_concepts.html (Metrics retention)
_KEPT = datetime.timedelta(hours=3)
_Key = tuple[str, str, tuple[tuple[str, str], ...]]
_looked_at: ContextVar[list[MetricDatumBase] | None] = ContextVar("looked_at", default=None)
current_delays = NO_DELAYS


def install(delays: Delays = NO_DELAYS) -> None:
    """Makes moto's CloudWatch keep metrics in this way, and show them `delays` after they arrived. Idempotent."""
    global current_delays  # moto's models are the process's, and so is this
    current_delays = delays
    if CloudWatchResponse.put_metric_data is _put_metric_data:
        return
    CloudWatchResponse.put_metric_data = _put_metric_data  # type: ignore[method-assign]
    Dimension.__lt__ = _is_before  # type: ignore[method-assign]
    CloudWatchBackend.metric_data = property(_kept, _keep)  # type: ignore[assignment]
    CloudWatchBackend.get_all_metrics = _get_all_metrics  # type: ignore[method-assign]
    CloudWatchBackend.get_metric_data = _get_metric_data  # type: ignore[method-assign]
    CloudWatchBackend.get_filtered_metrics = _get_filtered_metrics  # type: ignore[method-assign]


_plain_put = CloudWatchResponse.put_metric_data
_plain_all = CloudWatchBackend.get_all_metrics
_plain_get = CloudWatchBackend.get_metric_data


def _is_before(one: Dimension, other: Dimension) -> bool:
    """A total order, so that equal sets of dimensions are equal when they are sorted."""
    return (str(one.name), str(one.value)) < (str(other.name), str(other.value))


class Kept:
    """Datapoints by series, kept for three hours: replaces moto's list of all datapoints."""

    def __init__(self, data: Iterable[MetricDatumBase] = ()) -> None:
        self.series: dict[_Key, list[MetricDatumBase]] = {}
        self.first_arrivals: dict[_Key, float] = {}  # monotonic seconds
        self.arrivals: dict[int, float] = {}  # by the identity of a datum that is kept
        for datum in data:
            self.append(datum)

    def append(self, datum: MetricDatumBase) -> None:
        dimensions = tuple(sorted((str(each.name), str(each.value)) for each in datum.dimensions))
        key = (datum.namespace, datum.name, dimensions)
        self.first_arrivals.setdefault(key, time.monotonic())
        self.arrivals[id(datum)] = time.monotonic()
        data = self.series.setdefault(key, [])
        data.append(datum)
        while datum.timestamp - data[0].timestamp > _KEPT:
            self.arrivals.pop(id(data[0]), None)
            del data[0]

    def of(self, metric: dict[str, Any]) -> list[MetricDatumBase]:
        """The datapoints of exactly this metric (`Namespace`, `MetricName`, `Dimensions`)."""
        dimensions = tuple(sorted((each["Name"], each["Value"]) for each in metric.get("Dimensions") or ()))
        series = list(self.series.get((metric["Namespace"], metric["MetricName"], dimensions), ()))
        latest = time.monotonic() - current_delays.metric_data
        return [datum for datum in series if self.arrivals.get(id(datum), 0.0) <= latest]

    def listed(self) -> list[MetricDatumBase]:
        """The newest datapoint of each series that ListMetrics shows by now."""
        latest = time.monotonic() - current_delays.list_metrics
        return [data[-1] for key, data in list(self.series.items()) if self.first_arrivals[key] <= latest]

    def __iter__(self) -> Iterator[MetricDatumBase]:
        for data in list(self.series.values()):
            yield from data

    def __add__(self, other: Iterable[MetricDatumBase]) -> list[MetricDatumBase]:
        return [*self, *other]


def _kept(backend: CloudWatchBackend) -> Kept:
    kept: Kept = backend.__dict__.setdefault("kept_metrics", Kept())
    return kept


def _keep(backend: CloudWatchBackend, data: Iterable[MetricDatumBase]) -> None:
    backend.__dict__["kept_metrics"] = Kept(data)


def metric_data(backend: CloudWatchBackend, metric: dict[str, Any]) -> list[MetricDatumBase]:
    """The datapoints of exactly this metric (`Namespace`, `MetricName`, `Dimensions`) that can be read by now."""
    own = [] if not str(metric["Namespace"]).startswith("AWS/") else backend.aws_metric_data
    wanted = sorted((each["Name"], each["Value"]) for each in metric.get("Dimensions") or ())
    of_aws = [
        datum
        for datum in own
        if (datum.namespace, datum.name) == (metric["Namespace"], metric["MetricName"])
        and sorted((str(each.name), str(each.value)) for each in datum.dimensions) == wanted
    ]
    return [*_kept(backend).of(metric), *of_aws]


def metric_series(
    backend: CloudWatchBackend, namespace: str, name: str
) -> Iterator[tuple[dict[str, str], list[MetricDatumBase]]]:
    """Dimensions and datapoints of each metric with this name."""
    for (of_namespace, of_name, dimensions), _ in list(_kept(backend).series.items()):
        if (of_namespace, of_name) == (namespace, name):
            named = [{"Name": key, "Value": value} for key, value in dimensions]
            data = _kept(backend).of({"Namespace": namespace, "MetricName": name, "Dimensions": named})
            yield dict(dimensions), data


def _put_metric_data(self: CloudWatchResponse) -> Any:
    """All metrics of the call: those that belong to nothing, and those of each entity."""
    namespace = self._get_param("Namespace")
    of_entities = [
        datum for entity in self._get_param("EntityMetricData", []) for datum in entity.get("MetricData", [])
    ]
    if of_entities:
        self.cloudwatch_backend.put_metric_data(namespace, of_entities)
    return _plain_put(self)


def _get_metric_data(
    self: CloudWatchBackend,
    queries: list[dict[str, Any]],
    start_time: datetime.datetime,
    end_time: datetime.datetime,
    scan_by: str = "TimestampAscending",
) -> list[dict[str, Any]]:
    """moto's own answer to each query, from the datapoints of its metric alone. Expressions are moto's as they are."""
    if any("MetricStat" not in query for query in queries):
        return _plain_get(self, queries, start_time, end_time, scan_by)
    results = []
    for query in queries:
        metric = query["MetricStat"]["Metric"]
        of_aws = self.aws_metric_data if str(metric["Namespace"]).startswith("AWS/") else []
        with _only([*_kept(self).of(metric), *of_aws]):
            results += _plain_get(self, [query], start_time, end_time, scan_by)
    return results


def _get_all_metrics(self: CloudWatchBackend) -> list[MetricDatumBase]:
    data = _looked_at.get()
    return _plain_all(self) if data is None else data


@contextlib.contextmanager
def _only(data: list[MetricDatumBase]) -> Iterator[None]:
    token = _looked_at.set(data)
    try:
        yield
    finally:
        _looked_at.reset(token)


def _get_filtered_metrics(
    self: CloudWatchBackend, metric_name: str, namespace: str, dimensions: list[dict[str, str]]
) -> list[MetricDatumBase]:
    """One datum a series, which stands for it."""
    return [
        datum
        for datum in [*_kept(self).listed(), *self.aws_metric_data]
        if datum.filter(namespace, metric_name, dimensions)
    ]
