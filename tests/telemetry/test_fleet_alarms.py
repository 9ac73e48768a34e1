"""Alarms for instances that come and go: one stack, a contributor for each instance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from gpu_ami.cloud import Place
from gpu_ami.plan import make_plan
from gpu_ami.recipes import find_recipe
from gpu_ami.telemetry import instance_alarms, templates
from gpu_ami.telemetry.alarms import named
from gpu_ami.telemetry.measurements import measured
from localregion import alarms as evaluation
from localregion import backends
from tests.localregion.alarms.conftest import Account
from tests.telemetry.instance import GROUP, HEALTHY, SILENT, Instance, Minute, with_events

PLAN = make_plan(find_recipe(Path("al2023-any-gpu")), Place(name="aws", region="us-east-1")).document
TYPE = "g5.12xlarge"


@pytest.fixture
def fleet() -> Iterator[list[Instance]]:
    """Two instances of a group, and the stack; its topics lead to the queue."""
    backends.install()
    evaluation.install()
    with mock_aws():
        aws = Account()
        aws("logs").create_log_group(logGroupName=GROUP)
        topics = [{"ParameterKey": f"{name}TopicArn", "ParameterValue": aws.topic} for name in ("Page", "Ticket")]
        body = templates.render(PLAN, "us-east-1")["fleet-alarms.yml"]
        aws("cloudformation").create_stack(StackName="f", TemplateBody=body, Parameters=topics)
        dimensions = {"InstanceType": TYPE, "AutoScalingGroupName": "train", "ImageId": "ami-1"}
        yield [Instance(aws, f"i-{number:017x}", dimensions) for number in (1, 2)]


def live(fleet: list[Instance], minutes: int, **one: Minute) -> list[tuple[str, str, str]]:
    """The first instance sends `first`; returns alarm, new state and instance of each message."""
    aws = fleet[0].aws
    for _ in range(minutes):
        fleet[0].send(one.get("first", HEALTHY))
        for other in fleet[1:]:
            other.send(HEALTHY)
        aws.step()
    return [
        (
            message["AlarmName"],
            message["NewStateValue"],
            message.get("AlarmContributorAttributes", {}).get("InstanceId"),
        )
        for message in aws.messages()
    ]


def test_missing_gpu_is_of_the_instance_that_has_it(fleet: list[Instance]) -> None:
    name, of = f"f-{TYPE}-gpu-series-missing", fleet[0].id
    assert live(fleet, 8) == []
    assert live(fleet, 10, first=replace(HEALTHY, gpus=3)) == [(name, "ALARM", of)]
    assert live(fleet, 8) == [(name, "OK", of)]


@pytest.mark.parametrize(
    ("field", "label"), [("LagSeconds", "late"), ("RecordsLost", "lost"), ("EventsDropped", "dropped")]
)
def test_parser_that_is_behind_is_named(fleet: list[Instance], field: str, label: str) -> None:
    live(fleet, 3)
    behind = replace(HEALTHY, parser={field: 61})
    assert live(fleet, 2, first=behind) == [(f"f-{label}-event-parser-behind", "ALARM", fleet[0].id)]


def test_pending_remap_is_of_the_instance_that_booted(fleet: list[Instance]) -> None:
    line = fleet[0].recovery("SCHEDULE_RESET", 1, 0)
    assert live(fleet, 2, first=with_events(HEALTHY, line)) == [
        ("f-pending-gpu-remap-after-boot", "ALARM", fleet[0].id)
    ]


def test_instances_that_come_and_go_raise_nothing(fleet: list[Instance]) -> None:
    live(fleet, 5)
    assert live(fleet, 20, first=SILENT) == []
    fleet.append(Instance(fleet[0].aws, "i-00000000000000003", fleet[0].more))
    assert live(fleet, 10, first=SILENT) == []


def test_alarms_have_names_that_the_runbook_knows() -> None:
    made: dict[str, Any] = instance_alarms.fleet_resources(measured(PLAN))
    texts = [one["Properties"]["AlarmName"]["Fn::Sub"] for one in made.values()]
    assert len(texts) == len(set(texts)) and all(named(text) for text in texts)
    assert "g4dn.xlarge" not in str(texts)  # of one GPU nothing is missing beside others
