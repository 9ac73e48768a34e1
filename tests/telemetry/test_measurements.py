"""What a plan measures, and what CloudWatch has of it: GPUs and Neuron devices."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_ami.cloud import Place
from gpu_ami.errors import UsageError
from gpu_ami.plan import make_plan
from gpu_ami.recipes import PlanDocument, find_recipe
from gpu_ami.telemetry import measurements, page, stack
from gpu_ami.telemetry.measurements import measured
from tests.onhost.neuron_monitor.programs import report, runtime
from tests.onhost.neuron_monitor.test_documents import made, series
from tests.telemetry import fleet, neuron_fleet
from tests.telemetry.test_stack import aws
from validator.cloudwatch import CloudWatch, Series

# What a plan measures: the period, the witness, the groups, the limits of its GPUs.


def plan(recipe: str, *overrides: str) -> PlanDocument:
    return make_plan(find_recipe(Path(recipe)), Place(name="aws", region="us-east-1"), overrides).document


def test_facts_of_a_plan() -> None:
    facts = measurements.measured(plan("al2023-any-gpu"))
    assert (facts.namespace, facts.period, facts.witness) == ("CWAgent", 60, "nvidia_smi_memory_total")
    assert facts.limits["g4dn.xlarge"] == measurements.InstanceTypeLimits(1, 795)
    assert facts.limits["p5.48xlarge"].gpus == 8
    assert list(facts.groups()) == ["Utilization", "Memory", "Power", "Temperature", "Clocks", "PCIe link"]


def test_each_measurement_is_in_one_group_and_most_have_a_unit() -> None:
    for recipe in ("al2023-any-gpu", "al2023-graphics"):
        facts = measurements.measured(plan(recipe))
        assert sorted(name for names in facts.groups().values() for name in names) == sorted(facts.measurements)
    assert measurements.unit_of("clocks_current_sm") == "MHz"


@pytest.mark.parametrize(("interval", "period"), [(10, 60), (60, 60), (90, 120)])
def test_period_is_the_shortest_minute_with_a_datapoint(interval: int, period: int) -> None:
    assert measurements.measured(plan("al2023-any-gpu", f"telemetry.interval_s={interval}")).period == period


def test_absent_measurements_are_not_relied_on() -> None:
    facts = measurements.measured(plan("al2023-compute"))
    assert facts.has("utilization_gpu", "clocks_current_sm") and not facts.has("encoder_stats_session_count")


def test_plan_of_neuron_devices_has_its_log_group_and_no_limits_of_gpus() -> None:
    facts = measurements.measured(plan("al2023-neuron"))
    assert facts.neuron and facts.neuron["namespace"] == "GpuAmi/Neuron"
    assert (facts.log_groups["NeuronLogGroup"], facts.limits) == ("/ec2/accelerated/neuron-metrics", {})
    assert len(measurements.measured(plan("al2023-any-gpu")).log_groups) == 2


def test_plan_that_measures_nothing_is_refused() -> None:
    document = {key: value for key, value in plan("al2023-neuron").items() if key != "neuron_monitor"}
    with pytest.raises(UsageError, match="measures no GPU and no Neuron device"):
        measurements.measured(cast(PlanDocument, document))


def test_plan_of_an_image_without_an_event_parser_is_refused() -> None:
    """As `gpu-ami observe` writes it of a team's image: no log would have the events of which its alarms are."""
    document = {key: value for key, value in plan("debian12-gpu").items() if key != "event_parser"}
    with pytest.raises(UsageError, match="it has no event parser"):
        measurements.measured(cast(PlanDocument, document))


@pytest.mark.parametrize(
    ("recipe", "set_keys", "logical_id", "section"),
    [
        ("al2023-any-gpu", ["drain_hook.enabled=true"], "DrainLogGroup", "drain_hook"),
        ("al2023-neuron", [], "NeuronLogGroup", "neuron_monitor"),
    ],
)
def test_a_log_of_a_component_s_own_is_collected_and_may_be_written(
    recipe: str, set_keys: list[str], logical_id: str, section: str
) -> None:
    """The stack's agent configuration, log groups and role know each log that the image's own configuration sends."""
    document = plan(recipe, *set_keys)
    own: Any = document[section]  # type: ignore[literal-required]
    collected: Any = stack.agent_document(document)["logs"]
    assert own["log_group"] in [row["log_group_name"] for row in collected["logs_collected"]["files"]["collect_list"]]
    assert collected == document["cloudwatch_agent"]["config"]["logs"]
    facts = measurements.measured(document)
    assert facts.log_groups[logical_id] == own["log_group"]
    assert f"log-group:{own['log_group']}:*" in str(stack.statements(facts))


# What is read from CloudWatch: GPUs, idle ones and their price, events without drills, the parsers' health.


__all__ = ["aws"]


def read(aws: Any) -> page.Readings:
    return page.read(CloudWatch("us-east-1"), measurements.gpus("CWAgent"), 1)


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
    fleet.put(aws, fleet.BUSY, [fleet.heartbeat(fleet.BUSY, time.time())])
    [found] = read(aws).instances
    assert (found.instance_id, found.devices, found.idle_usd) == (fleet.BUSY, 0, None)


def test_empty_account_has_no_instances(aws: Any) -> None:
    found = read(aws)
    assert (found.instances, found.events, found.severities, found.drills) == ([], [], {}, 0)


# What is shown of neuron-monitor's metrics is what its publisher writes.


def test_each_metric_is_published_and_shown_once() -> None:
    documents, _ = made(report(runtime("job", 0, 1)))
    published = {name for name, *_ in series(documents)}
    names = [one.metric for one in measurements.SHOWN]
    assert set(names) <= published and len(set(names)) == len(names)
    assert {measurements.UTILIZATION, measurements.DEVICES} <= set(names)


NEURON = measurements.of_plan(
    measured(make_plan(find_recipe(Path("al2023-neuron")), Place(name="aws", region="us-east-1")).document)
)


def read_devices(aws: Any) -> page.Readings:
    neuron_fleet.fill(aws, time.time())
    return page.read(CloudWatch("us-east-1"), NEURON, 1)


def test_instances_are_read(aws: Any) -> None:
    found = read_devices(aws)
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
    works = read_devices(aws).instances[0]
    values = {one.metric: max(value for value in one.values if value is not None) for one in works.series}
    expected = {"executions_completed": 123, "mem_ecc_uncorrected": 1, "neuron_device_count": 16}
    assert {name: values[name] for name in expected} == expected
    assert sum(one.metric == "mem_ecc_uncorrected" for one in works.series) == 16  # a line a device


def test_page_says_what_is_wrong_and_nothing_of_gpus(aws: Any) -> None:
    html = page.render(read_devices(aws), "production")
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
        page.Readings("r", "n", 0.0, 60.0, [], devices=NEURON), "p"
    )
    lone = page.Instance("i-1", "", (), None)
    html = page.render(page.Readings("r", "n", 0.0, 60.0, [lone], devices=NEURON), "p")
    assert "gpu-ami runbook neuron-monitor-silent" in html


def test_series_that_the_page_does_not_show_are_not_read() -> None:
    """Each costs a request; and a series without the instance belongs to none."""
    dimensions = (("instance_id", "i-1"), ("neuroncore_index", "3"))
    shown = Series("GpuAmi/Neuron", "neuroncore_utilization", dimensions)
    assert (NEURON.statistic(shown), NEURON.index(shown)) == ("Average", 3)
    assert NEURON.statistic(Series("GpuAmi/Neuron", "device_latency_p1", dimensions)) == ""
    assert NEURON.statistic(Series("GpuAmi/Neuron", "neuroncore_utilization", dimensions[1:])) == ""
    aggregated = Series("CWAgent", "nvidia_smi_utilization_gpu", (("InstanceId", "i-1"),))
    assert measurements.gpus("CWAgent").statistic(aggregated) == ""
