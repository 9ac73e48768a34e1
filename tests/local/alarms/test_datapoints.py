"""Statistics by period."""

from __future__ import annotations

import datetime

import pytest
from moto.cloudwatch.models import MetricAggregatedDatum, MetricDatum

from gpu_ami.local.alarms import datapoints
from gpu_ami.local.alarms.metric_math import Unsupported

END = datetime.datetime(2026, 11, 23, 6, 0)
RANGE = datapoints.EvaluationRange(END, 300, 3)


def value(number: float, minutes_before: float, unit: str = "None") -> MetricDatum:
    return MetricDatum("n", "m", number, [], END - datetime.timedelta(minutes=minutes_before), unit)


def test_datum_belongs_to_the_period_that_begins_at_its_time() -> None:
    data = [value(1, 15.5), value(2, 15), value(3, 10), value(4, 5.1), value(5, 0)]
    assert datapoints.series(data, "Sum", RANGE) == {0: 2, 1: 7}
    assert RANGE.time(1) == datetime.datetime(2026, 11, 23, 5, 50)


def test_time_with_a_zone_is_the_same_moment() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=5))
    assert RANGE.position(END.replace(tzinfo=datetime.UTC).astimezone(zone) - datetime.timedelta(minutes=1)) == 2


def test_other_units_are_other_data() -> None:
    assert datapoints.series([value(1, 1, "Count"), value(2, 1)], "Sum", RANGE, "Count") == {2: 1}


def test_statistic_sets_count_their_samples_and_have_no_percentile() -> None:
    many = MetricAggregatedDatum("n", "m", 1.0, 3.0, 4.0, 8.0, [], END - datetime.timedelta(minutes=1))
    one = MetricAggregatedDatum("n", "m", 7.0, 7.0, 2.0, 14.0, [], END - datetime.timedelta(minutes=1))
    assert datapoints.series([many, value(10, 1)], "SampleCount", RANGE) == {2: 5}
    assert datapoints.series([many, value(10, 1)], "Average", RANGE) == {2: 3.6}
    assert datapoints.series([many], "p50", RANGE) == {}
    assert datapoints.series([one, value(9, 1)], "p60", RANGE) == {2: 7}


@pytest.mark.parametrize("name", ["", "p101", "TM(10%:90%)", "sum"])
def test_other_statistics_are_refused(name: str) -> None:
    with pytest.raises(Unsupported, match="the statistic"):
        datapoints.check_statistic(name)
