"""Subject and message of a notification; the message of a metric alarm is in test_evaluator."""

from __future__ import annotations

import pytest

from gpu_ami.local.alarms import notifications
from tests.local.alarms.conftest import Account


@pytest.mark.parametrize(
    ("region", "title"),
    [("us-east-1", "US East (N. Virginia)"), ("eu-central-1", "Europe (Frankfurt)"), ("x-1", "x-1")],
)
def test_region_has_the_name_of_the_console(region: str, title: str) -> None:
    assert notifications.region_title(region) == title


def test_long_subject_is_cut(aws: Account) -> None:
    aws.alarm(AlarmName="a" * 200)
    aws.put(1.0)
    aws.step()
    [message] = aws.messages()
    assert len(message["Subject"]) == notifications.SUBJECT_CHARACTERS


def test_percentile_alarm_names_its_extended_statistic(aws: Account) -> None:
    aws.alarm(ExtendedStatistic="p99", Statistic=None, DatapointsToAlarm=1)
    aws.put(1.0)
    aws.step()
    [message] = aws.messages()
    trigger = message["Trigger"]
    assert (trigger["StatisticType"], trigger["ExtendedStatistic"]) == ("ExtendedStatistic", "p99")
    assert trigger["DatapointsToAlarm"] == 1


def test_contributor_has_one_id() -> None:
    first, second = (("I", "i-1"),), (("I", "i-2"),)
    assert notifications.contributor_id(first) == notifications.contributor_id(first)
    assert len({notifications.contributor_id(first), notifications.contributor_id(second)}) == 2
