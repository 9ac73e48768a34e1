"""Datapoints of a metric, one a period, as an alarm retrieves them.

An alarm is evaluated every minute whatever its period: its window slides ("Alarm evaluation window", SlidingWindow).
Percentiles: "Statistics definitions" of the CloudWatch user guide; of a statistic set there is one only where it holds
one value. Both read 2026-11-23.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from moto.cloudwatch.models import MetricAggregatedDatum, MetricDatum, MetricDatumBase

from gpu_ami.local.alarms.metric_math import Series, Unsupported

_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,10})?|100)")


@dataclass(frozen=True)
class EvaluationRange:
    """The newest `count` periods (s each) before `end`; times are UTC without a zone, as moto's."""

    end: datetime.datetime
    period: int
    count: int

    @property
    def start(self) -> datetime.datetime:
        return self.end - datetime.timedelta(seconds=self.period * self.count)

    def time(self, position: int) -> datetime.datetime:
        """The beginning of a period, which is the timestamp of its datapoint."""
        return self.start + datetime.timedelta(seconds=self.period * position)

    def position(self, time: datetime.datetime) -> int | None:
        if time.tzinfo:
            time = time.astimezone(datetime.UTC).replace(tzinfo=None)
        if not self.start <= time < self.end:
            return None
        return int((time - self.start).total_seconds() // self.period)


@dataclass(frozen=True)
class Sample:
    """A value that was put, or a statistic set."""

    minimum: float
    maximum: float
    total: float
    count: float


def _percentile(rank: float, samples: Sequence[Sample]) -> float | None:
    """The smallest value that at least `rank` percent of the values do not exceed."""
    values = sorted((one.maximum, one.count) for one in samples if one.minimum == one.maximum)
    if len(values) < len(samples):
        return None
    needed, reached = math.ceil(rank / 100 * sum(count for _, count in values)), 0.0
    for value, count in values:
        reached += count
        if reached >= needed:
            return value
    return None


_STATISTICS: dict[str, Callable[[Sequence[Sample]], float]] = {
    "Sum": lambda samples: sum(one.total for one in samples),
    "SampleCount": lambda samples: sum(one.count for one in samples),
    "Minimum": lambda samples: min(one.minimum for one in samples),
    "Maximum": lambda samples: max(one.maximum for one in samples),
    "Average": lambda samples: sum(one.total for one in samples) / sum(one.count for one in samples),
}


def check_statistic(name: str) -> None:
    """Unsupported: neither a statistic nor a percentile."""
    if name not in _STATISTICS and not _PERCENTILE.fullmatch(name):
        raise Unsupported(f"the statistic {name}")


def series(data: Iterable[MetricDatumBase], statistic: str, within: EvaluationRange, unit: str | None = None) -> Series:
    """The statistic of each period that has data."""
    by_period: dict[int, list[Sample]] = {}
    for datum in data:
        position = within.position(datum.timestamp)
        if position is not None and unit in (None, datum.unit):
            by_period.setdefault(position, []).append(_sample(datum))
    computed = {position: _computed(statistic, samples) for position, samples in sorted(by_period.items())}
    return {position: value for position, value in computed.items() if value is not None}


def _computed(statistic: str, samples: Sequence[Sample]) -> float | None:
    percentile = _PERCENTILE.fullmatch(statistic)
    return _percentile(float(percentile[1]), samples) if percentile else _STATISTICS[statistic](samples)


def _sample(datum: MetricDatumBase) -> Sample:
    if isinstance(datum, MetricAggregatedDatum):
        return Sample(datum.min, datum.max, datum.sum, datum.sample_count)
    assert isinstance(datum, MetricDatum)
    return Sample(datum.value, datum.value, datum.value, 1.0)
