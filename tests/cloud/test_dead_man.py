"""The end of an instance from outside: its schedule, and that nothing runs without one where the place wants it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from moto import mock_aws

from gpu_ami.cloud import Cloud, Place, dead_man, runs
from gpu_ami.errors import CloudError
from tests.cloud.conftest import launch

ROLE = "arn:aws:iam::123456789012:role/gpu-ami-dead-man"


@pytest.fixture
def guarded() -> Iterator[Cloud]:
    with mock_aws():
        yield Cloud(Place(name="aws", region="us-east-1", ssh_interface="private_ip", dead_man_role=ROLE))


def schedules(cloud: Cloud) -> list[str]:
    return [row["Name"] for row in cloud.client("scheduler").list_schedules()["Schedules"]]


def test_an_instance_is_terminated_by_aws_at_its_expiry(guarded: Cloud, run: runs.Run) -> None:
    instance = launch(guarded, run)
    assert schedules(guarded) == [dead_man.schedule_name(instance)]
    schedule = guarded.client("scheduler").get_schedule(Name=dead_man.schedule_name(instance))
    tags = {tag["Key"]: tag["Value"] for tag in guarded.instance(instance)["Tags"]}
    assert schedule["ScheduleExpression"] == f"at({tags[runs.TAG_EXPIRES].removesuffix('Z')})"
    assert schedule["ScheduleExpressionTimezone"] == "UTC" and schedule["ActionAfterCompletion"] == "DELETE"
    target = schedule["Target"]
    assert (target["Arn"], target["RoleArn"]) == ("arn:aws:scheduler:::aws-sdk:ec2:terminateInstances", ROLE)
    assert json.loads(target["Input"]) == {"InstanceIds": [instance]}
    guarded.terminate([instance])
    assert schedules(guarded) == []
    guarded.terminate([instance])  # the schedule has gone already


def test_no_instance_stays_without_its_schedule(guarded: Cloud, run: runs.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise CloudError("CreateSchedule: AccessDeniedException")

    monkeypatch.setattr(dead_man, "arm", refuse)
    with pytest.raises(CloudError, match="CreateSchedule"):
        launch(guarded, run)
    (reservation,) = guarded.ec2.describe_instances()["Reservations"]
    assert reservation["Instances"][0]["State"]["Name"] == "terminated"


def test_a_place_without_a_role_has_no_schedules(cloud: Cloud, run: runs.Run) -> None:
    cloud.terminate([launch(cloud, run)])
    assert schedules(cloud) == []
