"""What a plan measures: the period, the witness, the groups, the limits of its GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from gpu_ami.cloud import Place
from gpu_ami.errors import UsageError
from gpu_ami.plan import make_plan
from gpu_ami.recipes import PlanDocument, find_recipe
from gpu_ami.telemetry import measurements


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
