"""CloudWatch's calls about alarms: what is refused, states that a caller sets, history."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.aws_requests import refused_by_aws
from tests.localregion.alarms.conftest import Account


def expression(text: str, **extra: Any) -> dict[str, Any]:
    metric = {"Namespace": "n", "MetricName": "m", "Dimensions": [{"Name": "I", "Value": "1"}]}
    stat = {"Id": "m", "ReturnData": False, "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}}
    return {"Metrics": [{"Id": "e", "Expression": text, "ReturnData": True, **extra}, stat]}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (expression("SEARCH('{CWAgent,InstanceId}', 'Sum', 300)"), "SEARCH"),
        (expression("ANOMALY_DETECTION_BAND(m)"), "the function ANOMALY_DETECTION_BAND"),
        (expression("m + other"), "'other'"),
        ({"ExtendedStatistic": "tm90", "Statistic": None}, "ExtendedStatistic"),
        ({"Statistic": "IQM"}, "the statistic IQM"),
        ({"ComparisonOperator": "GreaterThanUpperThreshold"}, "the comparison operator GreaterThanUpperThreshold"),
        ({"TreatMissingData": "fine"}, "TreatMissingData fine"),
        ({"AlarmActions": ["arn:aws:automate:us-east-1:ec2:stop"]}, "the action arn:aws:automate"),
        (expression("SELECT MAX(m) FROM n GROUP BY I", Period=60), "GROUP BY without ORDER BY"),
    ],
)
def test_what_is_not_evaluated_is_refused_by_its_name(aws: Account, given: dict[str, Any], named: str) -> None:
    with pytest.raises(ClientError) as refusal, refused_by_aws("PutMetricAlarm"):
        aws.alarm(**given)
    assert named in refusal.value.response["Error"]["Message"]
    assert aws.states() == {}


def test_refused_change_leaves_the_alarm_as_it_was(aws: Account) -> None:
    aws.alarm()
    with pytest.raises(ClientError):
        aws.alarm(TreatMissingData="fine", Threshold=7.0)
    [alarm] = aws("cloudwatch").describe_alarms()["MetricAlarms"]
    assert alarm["Threshold"] == 1.0


def test_changed_alarm_keeps_its_state(aws: Account) -> None:
    aws.alarm()
    aws.put(1.0)
    aws.step()
    aws.alarm(Threshold=5.0)
    assert aws.states() == {"a": "ALARM"}
    assert aws.step() == [("a", "OK")]


def test_state_that_is_set_acts_until_the_next_evaluation(aws: Account) -> None:
    aws.alarm(TreatMissingData="notBreaching")
    aws.step()
    aws.messages()
    aws("cloudwatch").set_alarm_state(AlarmName="a", StateValue="ALARM", StateReason="drill")
    [message] = aws.messages()
    assert (message["NewStateValue"], message["NewStateReason"]) == ("ALARM", "drill")
    assert aws.step() == [("a", "OK")]
    with pytest.raises(ClientError) as refusal:
        aws("cloudwatch").set_alarm_state(AlarmName="none", StateValue="ALARM", StateReason="drill")
    assert refusal.value.response["Error"]["Code"] == "ResourceNotFound"


def test_history_has_configuration_states_and_actions(aws: Account) -> None:
    aws.alarm()
    aws.put(1.0)
    aws.step()
    aws("cloudwatch").delete_alarms(AlarmNames=["a"])
    items = aws("cloudwatch").describe_alarm_history(AlarmName="a", ScanBy="TimestampAscending")["AlarmHistoryItems"]
    assert [(item["HistoryItemType"], item["HistorySummary"]) for item in items] == [
        ("ConfigurationUpdate", 'Alarm "a" created'),
        ("StateUpdate", "Alarm updated from INSUFFICIENT_DATA to ALARM"),
        ("Action", f"Successfully executed action {aws.topic}"),
        ("ConfigurationUpdate", 'Alarm "a" deleted'),
    ]
