"""Neuron devices on the page: what is read of them from CloudWatch, and what the page says."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud import Place
from gpu_ami.plan import make_plan
from gpu_ami.recipes import find_recipe
from gpu_ami.telemetry import devices, page, readings
from gpu_ami.telemetry.measurements import measured
from tests.telemetry import neuron_fleet
from tests.telemetry.test_stack import aws
from validator.cloudwatch import CloudWatch, Series

__all__ = ["aws"]
NEURON = devices.of_plan(
    measured(make_plan(find_recipe(Path("al2023-neuron")), Place(name="aws", region="us-east-1")).document)
)


def read(aws: Any) -> readings.Readings:
    neuron_fleet.fill(aws, time.time())
    return readings.read(CloudWatch("us-east-1"), NEURON, 1)


def test_instances_are_read(aws: Any) -> None:
    found = read(aws)
    works, idle = found.instances
    assert [(one.instance_id, one.instance_type, one.devices) for one in found.instances] == [
        (neuron_fleet.WORKS, "trn1.32xlarge", 16), (neuron_fleet.IDLE, "inf2.48xlarge", 12),
    ]  # fmt: skip
    assert (works.mean("neuroncore_utilization"), idle.mean("neuroncore_utilization")) == (pytest.approx(40.5), None)
    # No price of a device: which of its cores are idle is not known.
    assert not works.idle and not idle.idle and works.idle_usd is None
    events = {(one.instance_id, one.kind, one.code, one.count) for one in found.events}
    assert events == {(neuron_fleet.WORKS, "neuron", code, 1) for code in ("HBM_UNCORRECTABLE_ERROR", "NEW_ERROR")}
    assert (found.severities, found.drills) == ({"fatal": 1, "warning": 1}, 1)
    assert all(one.parser and one.parser.heartbeats == 1 for one in found.instances)


def test_counters_of_a_period_are_added_up_and_those_since_boot_are_not(aws: Any) -> None:
    works = read(aws).instances[0]
    values = {one.metric: max(value for value in one.values if value is not None) for one in works.series}
    expected = {"executions_completed": 123, "mem_ecc_uncorrected": 1, "neuron_device_count": 16}
    assert {name: values[name] for name in expected} == expected
    assert sum(one.metric == "mem_ecc_uncorrected" for one in works.series) == 16  # a line a device


def test_page_says_what_is_wrong_and_nothing_of_gpus(aws: Any) -> None:
    html = page.render(read(aws), "production")
    for words in (
        "Neuron usage", "GpuAmi/Neuron", "<b>28</b> Neuron devices", "40 %", "mean core utilization", "<b>1</b> drill",
        "Neuron HBM_UNCORRECTABLE_ERROR", "Uncorrectable HBM error", "gpu-ami runbook gpu-stop-start",
        "Neuron NEW_ERROR", "gpu-ami runbook gpu-aws-support", "Uncorrected ECC errors of HBM", "16 Neuron devices",
    ):  # fmt: skip
        assert words in html, words
    body = html.partition("</head>")[2]
    for words in ("GPU", "idle", "Xid", "nvidia"):
        assert words not in body.replace("runbook gpu-", "").replace("GpuAmi", ""), words


def test_page_without_metrics_names_neuron_monitor_s_runbook(aws: Any) -> None:
    assert "no metric of Neuron devices in this namespace" in page.render(
        readings.Readings("r", "n", 0.0, 60.0, [], devices=NEURON), "p"
    )
    lone = readings.Instance("i-1", "", (), None)
    html = page.render(readings.Readings("r", "n", 0.0, 60.0, [lone], devices=NEURON), "p")
    assert "gpu-ami runbook neuron-monitor-silent" in html


def test_series_that_the_page_does_not_show_are_not_read() -> None:
    """Each costs a request; and a series without the instance belongs to none."""
    dimensions = (("instance_id", "i-1"), ("neuroncore_index", "3"))
    shown = Series("GpuAmi/Neuron", "neuroncore_utilization", dimensions)
    assert (NEURON.statistic(shown), NEURON.index(shown)) == ("Average", 3)
    assert NEURON.statistic(Series("GpuAmi/Neuron", "device_latency_p1", dimensions)) == ""
    assert NEURON.statistic(Series("GpuAmi/Neuron", "neuroncore_utilization", dimensions[1:])) == ""
    aggregated = Series("CWAgent", "nvidia_smi_utilization_gpu", (("InstanceId", "i-1"),))
    assert devices.gpus("CWAgent").statistic(aggregated) == ""
