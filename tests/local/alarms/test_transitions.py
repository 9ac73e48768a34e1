"""Actions of states; history is in test_api, contributors are in test_insights."""

from __future__ import annotations

import json

from tests.local.alarms.conftest import Account


def test_each_state_has_its_own_actions(aws: Account) -> None:
    aws.alarm(AlarmActions=[], OKActions=[], InsufficientDataActions=[aws.topic])
    for value in (0.0, 1.0):
        aws.put(value)
        aws.step()
    assert aws.messages() == []
    aws.step(3)
    [message] = aws.messages()
    assert (message["OldStateValue"], message["NewStateValue"]) == ("ALARM", "INSUFFICIENT_DATA")


def test_action_is_not_repeated_while_the_state_lasts(aws: Account) -> None:
    aws.alarm()
    for _ in range(3):
        aws.put(1.0)
        aws.step()
    assert len(aws.messages()) == 1


def test_history_of_a_change_has_both_states(aws: Account) -> None:
    aws.alarm()
    aws.put(1.0)
    aws.step()
    [item] = aws("cloudwatch").describe_alarm_history(HistoryItemType="StateUpdate")["AlarmHistoryItems"]
    data = json.loads(item["HistoryData"])
    assert data["oldState"]["stateValue"] == "INSUFFICIENT_DATA"
    assert data["newState"]["stateReasonData"]["recentDatapoints"] == [1.0]
