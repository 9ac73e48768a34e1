"""What is read from CloudWatch: GPUs, idle ones and their price, events without drills, the parsers' health."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpu_ami.telemetry import devices, readings
from tests.telemetry import fleet
from tests.telemetry.test_stack import aws
from validator.cloudwatch import CloudWatch

__all__ = ["aws"]


def read(aws: Any) -> readings.Readings:
    return readings.read(CloudWatch("us-east-1"), devices.gpus("CWAgent"), 1)


def test_fleet_is_read(aws: Any) -> None:
    fleet.fill(aws, time.time())
    found = read(aws)
    busy, idle = found.instances
    assert [(one.instance_id, one.instance_type, one.devices) for one in found.instances] == [
        (fleet.BUSY, "g5.12xlarge", 2), (fleet.IDLE, "g4dn.xlarge", 1),
    ]  # fmt: skip
    assert busy.mean("nvidia_smi_utilization_gpu") == pytest.approx(48)  # a line for each GPU, and not their aggregate
    assert (busy.idle, idle.idle) == ([1], [0])
    assert busy.idle_usd == pytest.approx(5.672 / 2) and idle.idle_usd == pytest.approx(0.526)
    assert [(one.instance_id, one.kind, one.code, one.count) for one in found.events] == [(fleet.BUSY, "xid", "48", 1)]
    assert (found.severities, found.drills) == ({"critical": 1}, 1)
    assert busy.parser and busy.parser.heartbeats == 1 and busy.parser.lag_seconds == 0.5
    assert idle.parser and idle.parser.heartbeat_age and idle.parser.heartbeat_age > 500


def test_instance_without_gpu_metrics_is_known_by_its_parser(aws: Any) -> None:
    """An instance whose GPU metrics stopped is what the page must not hide."""
    aws("logs").create_log_group(logGroupName=fleet.GROUP)
    fleet._put(aws, fleet.BUSY, [fleet.heartbeat(fleet.BUSY, time.time())])
    [found] = read(aws).instances
    assert (found.instance_id, found.devices, found.idle_usd) == (fleet.BUSY, 0, None)


def test_empty_account_has_no_instances(aws: Any) -> None:
    found = read(aws)
    assert (found.instances, found.events, found.severities, found.drills) == ([], [], {}, 0)
