"""Each metrics check, once green and once red with its message."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.validator.checks.conftest import INSTANCE, METADATA, PLAN, FakeMachine, Judge
from validator.checks import metrics
from validator.cloudwatch import ApiRefused, Point, Series
from validator.plan import as_plan
from validator.probes.agent import config as agent_config
from validator.probes.nvidia_smi import Gpu

CONFIG = agent_config.merged([PLAN["cloudwatch_agent"]["config"], PLAN["cloudwatch_agent"]["gpu_config"]])
GPUS = tuple(
    Gpu(
        index,
        "NVIDIA A10G",
        "Ampere",
        f"GPU-{index}",
        f"0000:00:1{index}.0",
        {"memory_total": 23028.0, "utilization_gpu": 3.0},
    )
    for index in (0, 1)
)
MACHINE = FakeMachine(METADATA, gpus=GPUS)
EXPECTED = agent_config.expected_series(CONFIG, GPUS, METADATA)


class FakeCloudWatch:
    """Holds points; time passes by a poll at each wait."""

    arrival_seconds = 30.0

    def __init__(self, values: Callable[[Series, int], float | None], extra: tuple[Series, ...] = ()) -> None:
        self.values, self.extra, self.looks = values, extra, itertools.count()

    def points(self, series: list[Series], since: float, period: int) -> dict[Series, list[Point]]:
        look = next(self.looks)
        values = {each: self.values(each, look) for each in series}
        return {each: [] if value is None else [Point(since, value)] for each, value in values.items()}

    def wait(self, look: Callable[[], Any], seconds: float, *, parked: bool = False) -> Any:
        return next((answer for answer in (look() for _ in range(5)) if answer is not None), None)

    def known_series(self, namespace: str, dimensions: dict[str, str]) -> set[Series]:
        assert (namespace, dimensions) == ("CWAgent", {"InstanceId": INSTANCE})
        return {*EXPECTED, *self.extra}


def value(series: Series, look: int = 0) -> float:
    return {"nvidia_smi_memory_total": 23028.0}.get(series.name, 5.0)


def arrive(
    cloudwatch: FakeCloudWatch, machine: FakeMachine = MACHINE, absent: list[str] | None = None
) -> metrics.Arrival:
    return metrics.collect(CONFIG, machine, cloudwatch, absent)


def test_every_gpu_and_the_aggregate_are_expected() -> None:
    dims = [dict(series.dimensions) for series in EXPECTED]
    assert len(EXPECTED) == 2 * 2 + 2
    assert {"InstanceId": INSTANCE, "index": "1", "name": "NVIDIA A10G", "arch": "Ampere"} in dims
    assert {"InstanceId": INSTANCE} in dims
    assert not any("AutoScalingGroupName" in names or "host" in names for names in dims)


def test_datapoints_since_the_boot_are_recorded(judge: Judge) -> None:
    cloudwatch = FakeCloudWatch(lambda series, look: value(series))
    check = judge(metrics.test_every_series_arrives, {}, arrival=arrive(cloudwatch)).check
    assert {(series.metric, series.gpu) for series in check.series} == {
        (series.name, gpu.index if gpu else None) for series, gpu in EXPECTED.items()
    }
    assert {series.start for series in check.series} == {MACHINE.boot_time}
    assert {series.values for series in check.series} == {(5.0,), (23028.0,)}


def test_datapoints_that_cannot_be_read_again_fail_no_check(judge: Judge) -> None:
    def refuse(series: Series, look: int) -> float:
        if look:
            raise ApiRefused("cloudwatch:GetMetricData", "Throttling", "slow down", "")
        return value(series)

    outcome = judge(metrics.test_every_series_arrives, {}, arrival=arrive(FakeCloudWatch(refuse)))
    assert (outcome.verdict, outcome.check.series) == ("PASS", ())


def test_series_that_arrive_late_pass(judge: Judge) -> None:
    late = FakeCloudWatch(lambda series, look: value(series) if look >= 3 else None)
    outcome = judge(metrics.test_every_series_arrives, {}, arrival=arrive(late))
    assert outcome.verdict == "PASS"
    assert outcome.check.observed.startswith("6 of 6 series in CWAgent after ")
    assert outcome.check.hops[0].hop == "nvidia-smi → CloudWatch, all series"


def test_a_missing_series_is_named(judge: Judge) -> None:
    lost = next(series for series in EXPECTED if dict(series.dimensions).get("index") == "1")
    arrival = arrive(FakeCloudWatch(lambda series, look: None if series == lost else value(series)))
    outcome = judge(metrics.test_every_series_arrives, {"cat*": ""}, arrival=arrival)
    assert outcome.verdict == "FAIL"
    assert f"1 of 6 series did not arrive: {lost}" in outcome.message


def test_datapoints_of_an_earlier_run_do_not_count() -> None:
    asked: list[tuple[float, int]] = []
    cloudwatch = FakeCloudWatch(value)
    real = cloudwatch.points
    cloudwatch.points = lambda series, since, period: (asked.append((since, period)), real(series, since, period))[1]  # type: ignore[method-assign]
    before = time.time()
    arrive(cloudwatch)
    (since, period) = asked[0]
    assert period == 10 and since % 10 == 0
    assert before <= since <= time.time() + 10  # a period that began before the proof may hold what was measured before


@pytest.mark.parametrize(
    ("changed", "verdict", "message"),
    [
        ({}, "PASS", ""),
        (
            {"nvidia_smi_memory_total": 22731.0},
            "FAIL",
            "0 memory_total: expected 23028 (nvidia-smi), got 22731 (CloudWatch); GPU 1",
        ),
        ({"nvidia_smi_memory_total": 23028.25}, "FAIL", "GPU 1 memory_total: expected 23028 (nvidia-smi), got"),
        ({"nvidia_smi_utilization_gpu": 101.0}, "FAIL", "GPU 1 utilization_gpu: expected 0 to 100, got 101"),
    ],
)
def test_values(judge: Judge, changed: dict[str, float], verdict: str, message: str) -> None:
    arrival = arrive(FakeCloudWatch(lambda series, look: changed.get(series.name, value(series))))
    outcome = judge(metrics.test_values_are_the_boards, {}, arrival=arrival, machine=MACHINE)
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome


def test_no_value_is_unproven(judge: Judge) -> None:
    arrival = arrive(FakeCloudWatch(lambda series, look: None))
    outcome = judge(metrics.test_values_are_the_boards, {}, arrival=arrival, machine=MACHINE)
    assert (outcome.verdict, outcome.message) == ("UNPROVEN", "no datapoint arrived")


@pytest.mark.parametrize(
    ("used", "free", "verdict"), [(1000.0, 21700.0, "PASS"), (21700.0, 21700.0, "FAIL"), (1000.0, 1000.0, "FAIL")]
)
def test_memory(judge: Judge, used: float, free: float, verdict: str) -> None:
    def series(name: str) -> Series:
        return Series("CWAgent", f"nvidia_smi_memory_{name}", (("index", "0"),))

    values = {series("total"): 23028.0, series("used"): used, series("free"): free}
    arrival = metrics.Arrival(
        dict.fromkeys(values, GPUS[0]), {series: Point(0, at) for series, at in values.items()}, 0.0
    )
    outcome = judge(metrics.test_memory_adds_up, {}, arrival=arrival)
    assert outcome.verdict == verdict
    assert (f"GPU 0: {used:g} used + {free:g} free of 23028 MiB" in outcome.message) == (verdict == "FAIL")


def test_unexpected_series_fails(judge: Judge) -> None:
    extra = Series("CWAgent", "nvidia_smi_fan_speed", (("InstanceId", INSTANCE), ("index", "9")))
    good, bad = FakeCloudWatch(value), FakeCloudWatch(value, (extra,))
    arrival = arrive(good)
    assert judge(metrics.test_no_unexpected_series, {}, arrival=arrival, cloudwatch=good).verdict == "PASS"
    outcome = judge(metrics.test_no_unexpected_series, {}, arrival=arrival, cloudwatch=bad)
    assert outcome.verdict == "FAIL"
    assert f"1 series that are not configured: {extra}" in outcome.message


def test_listmetrics_that_lags_proves_nothing(judge: Judge) -> None:
    """ListMetrics may show a series 15 minutes after it arrived."""

    class Lagging(FakeCloudWatch):
        def __init__(self, polls: int) -> None:
            super().__init__(value)
            self.left = polls

        def known_series(self, namespace: str, dimensions: dict[str, str]) -> set[Series]:
            self.left -= 1
            return set(EXPECTED) if self.left < 0 else set()

    late, never = Lagging(2), Lagging(99)
    arrival = arrive(FakeCloudWatch(value))
    assert judge(metrics.test_no_unexpected_series, {}, arrival=arrival, cloudwatch=late).verdict == "PASS"
    outcome = judge(metrics.test_no_unexpected_series, {}, arrival=arrival, cloudwatch=never)
    assert outcome.verdict == "UNPROVEN"
    assert "ListMetrics shows 0 of" in outcome.message


def test_missing_series_of_a_refused_agent_do_not_blame_the_image(judge: Judge) -> None:
    arrival = arrive(FakeCloudWatch(lambda series, look: None))
    denied = "E! cloudwatch: code: AccessDenied, message: not authorized to perform: cloudwatch:PutMetricData"
    assert judge(metrics.test_every_series_arrives, {"cat*": denied}, arrival=arrival).verdict == "ERROR"
    assert judge(metrics.test_every_series_arrives, {"cat*": ""}, arrival=arrival).verdict == "FAIL"


def test_memory_is_compared_with_the_host_not_with_the_fact(judge: Judge) -> None:
    gpus = tuple(replace(gpu, values={**gpu.values, "memory_total": 22731.0}) for gpu in GPUS)
    machine = FakeMachine(METADATA, gpus=gpus)
    for arrived, verdict in ((22731.0, "PASS"), (23028.0, "FAIL")):
        cloudwatch = FakeCloudWatch(lambda series, look, arrived=arrived: arrived if "memory" in series.name else 5.0)  # type: ignore[misc]
        outcome = judge(metrics.test_values_are_the_boards, {}, arrival=arrive(cloudwatch, machine), machine=machine)
        assert outcome.verdict == verdict, outcome


def test_a_measurement_without_a_row_has_no_limits() -> None:
    board = PLAN["instance_types"][0]["gpu"]
    assert metrics.judge("brightness", 1.0, GPUS[0], board) == ["GPU 0 brightness: 1, but no tolerance is defined"]


def test_absent_measurements_of_the_plan_are_not_awaited(judge: Judge) -> None:
    cloudwatch = FakeCloudWatch(lambda series, look: None if "utilization" in series.name else value(series))
    arrival = arrive(cloudwatch, absent=["utilization_gpu"])
    assert next(cloudwatch.looks) == 2, "one look was enough; then all datapoints are read"
    assert {series.name for series in arrival.expected} == {"nvidia_smi_memory_total"}
    assert judge(metrics.test_every_series_arrives, {}, arrival=arrival).verdict == "PASS"
    extra = next(series for series in EXPECTED if "utilization" in series.name)
    outcome = judge(metrics.test_no_unexpected_series, {}, arrival=arrival, cloudwatch=cloudwatch)
    assert outcome.verdict == "FAIL"
    assert str(extra) in outcome.message and "(these GPUs never have utilization_gpu)" in outcome.message


def test_values_missing_in_nvidia_smi_are_not_awaited(judge: Judge) -> None:
    bare = tuple(replace(gpu, values={"memory_total": 23028.0}) for gpu in GPUS)
    cloudwatch = FakeCloudWatch(lambda series, look: None if "utilization" in series.name else value(series))
    arrival = arrive(cloudwatch, FakeMachine(METADATA, gpus=bare), absent=[])
    assert next(cloudwatch.looks) == 2, "one look, and the read of all datapoints"
    outcome = judge(metrics.test_every_series_arrives, {"cat*": ""}, arrival=arrival)
    assert outcome.verdict == "FAIL"
    assert "3 of 6 series did not arrive" in outcome.message and "(nvidia-smi shows no value)" in outcome.message


@pytest.mark.parametrize(
    ("telemetry", "absent"),
    [({}, []), ({"absent": {"g5.12xlarge": ["fan_speed"]}}, ["fan_speed"]), ({"absent": {"p5.48xlarge": ["x"]}}, [])],
)
def test_absent_measurements_come_from_the_plan(telemetry: dict[str, Any], absent: list[str]) -> None:
    plan = as_plan(PLAN | {"telemetry": PLAN["telemetry"] | telemetry})
    assert metrics.planned_absent(plan, MACHINE) == absent
    assert metrics.planned_absent(None, MACHINE) is None
    assert metrics.planned_absent(as_plan({}), MACHINE) is None


def test_absent_measurements_come_from_nvidia_smi_without_a_plan() -> None:
    config = {"metrics": {"metrics_collected": {"nvidia_gpu": {"measurement": ["fan_speed", "memory_total"]}}}}
    assert {series.name for series in agent_config.expected_series(config, GPUS, METADATA)} == {
        "nvidia_smi_memory_total"
    }
    assert len(agent_config.expected_series(config, GPUS, METADATA, [])) == 4
