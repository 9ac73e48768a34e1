"""neuron-monitor's own word: the first report, and the series that follow from it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.onhost.neuron_monitor.programs import report, runtime
from tests.scripted_host import table_host
from validator.cloudwatch import Series
from validator.probes import neuron_reports
from validator.probes.neuron_reports import Limits

METADATA = {"instance-id": "i-1", "instance-type": "trn1.32xlarge", "ami-id": "ami-1"}


def planned(*dimensions: str) -> Any:
    return {"namespace": "N", "dimensions": list(dimensions), "interval_s": 60, "high_resolution": False}


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((0, "", ""), "neuron-monitor printed nothing within 60 s: no error"),
        ((124, "", "not found"), "neuron-monitor printed nothing within 60 s: not found"),
        ((0, "table\n"), "not JSON"),
        ((0, "[]\n"), "not a report: '[]'"),
        ((0, '{"a": 1}\n'), {"a": 1}),
    ],
)
def test_first_report(reply: Any, said: Any) -> None:
    told = neuron_reports.first_report(table_host({"timeout*": reply}))
    assert told == said if isinstance(said, dict) else said in told


def test_counters_are_exact_and_load_has_the_hardware_s_limits() -> None:
    told = report(runtime("train", 3), devices=2, uncorrected=4)
    series = neuron_reports.expected_series(told, planned("instance_id"), METADATA)
    own = ("instance_id", "i-1")
    assert series[Series("N", "mem_ecc_uncorrected", (own, ("neuron_device_index", "1")))] == Limits(4, 4)
    assert series[Series("N", "neuroncore_utilization", (own, ("neuroncore_index", "3")))] == Limits(0, 100)
    assert series[Series("N", "runtime_memory_neuron_device", (own,))] == Limits(0, 64 << 30)
    assert Series("N", "device_latency_p50", (own,)) not in series
    assert len(series) == 3 + 2 * 4 + 1 + 2 + 4 + 7


def test_dimensions_are_the_machine_s_not_the_report_s() -> None:
    told = report(runtime("train", 0), instance_id="i-other")
    series = neuron_reports.expected_series(told, planned("instance_id", "ami_id", "neuron_runtime_tag"), METADATA)
    assert {dict(each.dimensions)["instance_id"] for each in series} == {"i-1"}
    assert {dict(each.dimensions).get("neuron_runtime_tag") for each in series} == {None, "train"}
