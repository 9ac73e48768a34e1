"""A report of neuron-monitor as embedded metric documents: series, values, and what is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.onhost.neuron_monitor.programs import publisher_module, report, runtime

module = publisher_module("documents")
INSTANCE = ("instance_id", "instance_type")
ALL = (*INSTANCE, "ami_id", "neuron_runtime_tag")
WALL = 1_700_000_000_250_000


def made(told: dict[str, Any], dimensions: tuple[str, ...] = INSTANCE, high: bool = False) -> tuple[Any, Any]:
    found, problems = module.documents(told, module.Settings("GpuAmi/Neuron", dimensions, high), WALL)
    return found, problems


def series(documents: list[dict[str, Any]]) -> dict[tuple[str, ...], Any]:
    """(metric, dimension values…) → value, as CloudWatch would make them of the documents."""
    return {
        (metric["Name"], *(document[name] for name in names)): document[metric["Name"]]
        for document in documents
        for directive in document["_aws"]["CloudWatchMetrics"]
        for names in directive["Dimensions"]
        for metric in directive["Metrics"]
    }


WHERE = ("i-0011223344556677a", "trn1.32xlarge")


def test_idle_instance_has_its_devices_counters() -> None:
    documents, problems = made(report(devices=2, uncorrected=3))
    assert problems == []
    assert series(documents) == {
        ("reports", *WHERE): 1, ("report_errors", *WHERE): 0, ("neuron_device_count", *WHERE): 2,
        **{
            (f"{memory}_ecc_{kind}", *WHERE, str(index)): 3 if (memory, kind) == ("mem", "uncorrected") else 0
            for memory in ("mem", "sram") for kind in ("corrected", "uncorrected") for index in (0, 1)
        },
    }  # fmt: skip


def test_application_has_cores_memory_latencies_and_errors() -> None:
    documents, _ = made(report(runtime("train", 0, 10, errors=4), devices=0))
    found = series(documents)
    assert (found["neuroncore_utilization", *WHERE, "0"], found["neuroncore_utilization", *WHERE, "10"]) == (40.0, 50.0)
    assert (found["runtime_memory_host", *WHERE], found["runtime_memory_neuron_device", *WHERE]) == (1000, 2000)
    assert (found["execution_errors_generic", *WHERE], found["executions_completed", *WHERE]) == (4, 123)
    assert found["total_latency_p99", *WHERE] == 0.011
    assert not [key for key in found if key[0].startswith("device_latency")], "null: no model was executed"


def test_memory_of_devices_has_its_older_and_newer_name() -> None:
    """`neuron_device` as documented; `device` as an inf2.xlarge with runtime 2.30 printed it."""
    text = json.dumps(report(runtime("train", 0), devices=0))
    older, newer = (series(made(json.loads(each))[0]) for each in (text, text.replace('"neuron_device":', '"device":')))
    assert older == newer and older["runtime_memory_neuron_device", *WHERE] == 2000


def test_runtimes_without_the_tag_are_one_series() -> None:
    """Counts and memory add up; each latency stays a value."""
    found = series(made(report(runtime("a", 0), runtime("b", 1, host=5, errors=1, latency=0.5)))[0])
    assert found["runtime_memory_host", *WHERE] == 1005
    assert found["execution_errors_generic", *WHERE] == 1
    assert found["total_latency_p50", *WHERE] == [0.011, 0.5]


def test_every_dimension_is_optional_and_has_its_place() -> None:
    told = report(runtime("train", 0))
    tagged = series(made(told, ALL)[0])
    assert tagged["neuroncore_utilization", *WHERE, "ami-1", "train", "0"] == 40.0
    assert tagged["mem_ecc_corrected", *WHERE, "ami-1", "0"] == 0, "a device is no runtime's"
    assert series(made(told, ())[0])["neuroncore_utilization", "0"] == 40.0


@pytest.mark.parametrize(
    ("tag", "value"), [("", "7"), ("träin\n", "tr?in?"), (":a", "_a"), ("x" * 300, "x" * 255), (" ", "7")]
)
def test_tag_is_a_possible_dimension(tag: str, value: str) -> None:
    """Without a tag it is the pid, as neuron-monitor's."""
    assert ("runtime_memory_host", value) in series(made(report(runtime(tag, 0)), ("neuron_runtime_tag",))[0])


def test_high_resolution_is_of_each_metric() -> None:
    for high in (False, True):
        documents, _ = made(report(runtime("a", 0)), high=high)
        metrics = [metric for document in documents for metric in document["_aws"]["CloudWatchMetrics"][0]["Metrics"]]
        assert {metric.get("StorageResolution") for metric in metrics} == ({1} if high else {None})


def test_units_are_cloudwatch_s() -> None:
    documents, _ = made(report(runtime("a", 0)))
    units = {
        metric["Name"]: metric["Unit"]
        for document in documents
        for metric in document["_aws"]["CloudWatchMetrics"][0]["Metrics"]
    }
    assert units["neuroncore_utilization"] == "Percent"
    assert units["runtime_memory_neuron_device"] == "Bytes"
    assert units["total_latency_p50"] == "Seconds"
    assert units["execution_errors_generic"] == units["mem_ecc_corrected"] == "Count"


def test_errors_of_parts_are_counted_and_named() -> None:
    broken = runtime("a")
    broken["report"]["execution_stats"] = {"period": 5.0, "error": "timed out"}
    told = report(broken, {"pid": 9, "neuron_runtime_tag": "b", "error": "unreachable", "report": None})
    told["system_data"]["neuron_hw_counters"] |= {"neuron_devices": None, "error": "no driver"}
    documents, problems = made(told)
    assert problems == [
        "neuron_hw_counters: no driver", "runtime a: execution_stats: timed out", "runtime b: unreachable",
    ]  # fmt: skip
    assert series(documents)["report_errors", *WHERE] == 3


def test_metrics_without_a_planned_dimension_are_not_published() -> None:
    """They would be other series than those that alarms watch."""
    told = report(runtime("a", 0), instance_type="", error="no metadata")
    assert made(told) == ([], ["instance_info: no metadata", "instance_info has no instance_type"])


def test_documents_have_time_and_fit_the_format() -> None:
    documents, _ = made(report(runtime("a", *range(64)), devices=16))
    for document in documents:
        assert document["time"] == "2023-11-14T22:13:20.250000Z"
        assert document["_aws"]["Timestamp"] == 1_700_000_000_250
        assert len(document["_aws"]["CloudWatchMetrics"][0]["Metrics"]) <= 100
        assert len(json.dumps(document)) < 16 * 1024


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(
    part=st.sampled_from(["neuron_runtime_data", "system_data", "instance_info", "neuron_hardware_info"]), value=JSON
)
def test_no_report_stops_the_publisher(part: str, value: Any) -> None:
    for document in made(report(runtime("a", 0)) | {part: value}, ALL)[0]:
        json.dumps(document, allow_nan=False)
