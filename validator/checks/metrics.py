"""Every planned measurement of every GPU arrives in CloudWatch, with the right dimensions and values."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from validator.cloudwatch import ApiRefused, CloudWatch, Point, Series, arrivals
from validator.measurement import BY_NAME, PREFIX
from validator.observe import Observe, unproven
from validator.plan import planned_instance_type
from validator.plan_document import Gpu as PlannedGpu
from validator.plan_document import PlanDocument
from validator.probes import Gpu, MachineUnderTest
from validator.probes.agent import config as agent_config
from validator.probes.agent import delivery
from validator.results import MetricSeries

# The agent measures only NVIDIA GPUs; a Neuron image's metrics are those of neuron_monitor.
pytestmark = [pytest.mark.planned("nvidia_driver"), pytest.mark.planned("telemetry.measurements")]


@dataclass(frozen=True)
class Arrival:
    """The expected series, and the newest datapoint of each (None if none arrived in time).

    never: expected series for which nvidia-smi shows no value, so the check does not wait for them. absent:
    measurements that these GPUs never have, by the plan or because MIG is enabled. history: of each series that
    arrived, all datapoints since the boot.
    """

    expected: Mapping[Series, Gpu | None]
    newest: Mapping[Series, Point | None]
    seconds: float  # from the start of the first counted period until all series arrived
    never: Collection[Series] = ()
    absent: Collection[str] = ()
    history: Collection[MetricSeries] = ()


@pytest.fixture(scope="module")
def config(host: Any, log_group_suffix: str) -> dict[str, object]:
    """The installed configuration of the agent, in the namespace of a proof's machines; it determines the series."""
    installed = agent_config.installed(host)
    if not agent_config.measurements(installed):
        pytest.fail("the installed agent configuration collects no nvidia_gpu measurement", pytrace=False)
    return agent_config.with_namespace_of(installed, agent_config.in_use(host)) if log_group_suffix else installed


@pytest.fixture(scope="module")
def arrival(
    config: dict[str, object], machine: MachineUnderTest, cloudwatch: CloudWatch, request: pytest.FixtureRequest
) -> Arrival:
    """The series that arrived, read once for all checks."""
    from validator.plugin import RUN

    plan = request.config.stash[RUN].plan
    arrived = collect(config, machine, cloudwatch, planned_absent(plan, machine))
    require_way_out(arrived, machine.host, cloudwatch.region, plan)
    return arrived


def require_way_out(arrival: Arrival, host: Any, region: str, plan: PlanDocument | None) -> None:
    """ApiRefused where nothing arrived because connections of the machine to CloudWatch are dropped."""
    if not any(arrival.newest.values()):
        delivery.raise_if_dropped(host, "monitoring", region, plan)


def planned_absent(plan: PlanDocument | None, machine: MachineUnderTest) -> list[str] | None:
    """Measurements that the GPUs of this instance type never have; None if no plan states them."""
    if plan is None or "telemetry" not in plan:
        return None
    return list(plan["telemetry"].get("absent", {}).get(machine.instance_type, []))


def collect(
    config: Mapping[str, object],
    machine: MachineUnderTest,
    cloudwatch: CloudWatch,
    absent: Collection[str] | None = None,
) -> Arrival:
    """Waits until each series of this machine has a datapoint that was measured after the proof began."""
    machine.require_clock()
    period = agent_config.period(config)
    expected = agent_config.expected_series(config, machine.gpus, _identity(machine), absent)
    shown = {measurement for gpu in machine.gpus for measurement in gpu.values}
    never = {
        series
        for series, gpu in expected.items()
        if series.name.removeprefix(PREFIX) not in (shown if gpu is None else gpu.values)
    }
    newest, seconds = arrivals(cloudwatch, expected, machine.boot_time, period, never)
    history = _history({series: expected[series] for series in newest if newest[series]}, machine, cloudwatch, period)
    return Arrival(expected, newest, seconds, never, absent or (), history)


def _history(
    arrived: Mapping[Series, Gpu | None], machine: MachineUnderTest, cloudwatch: CloudWatch, period: int
) -> list[MetricSeries]:
    """Every datapoint since the boot. It is for the report alone: where it cannot be read, no check fails."""
    with contextlib.suppress(ApiRefused):
        read = cloudwatch.points(list(arrived), machine.boot_time, period)
        return [
            MetricSeries.of_points(
                series.name, gpu.index if gpu else None, period, {point.time: point.value for point in read[series]}
            )
            for series, gpu in arrived.items()
            if read[series]
        ]
    return []


def _identity(machine: MachineUnderTest) -> dict[str, object]:
    return {**machine.metadata, "instance-id": machine.instance_id, "instance-type": machine.instance_type}


@pytest.mark.tier("T3")
@pytest.mark.survives
def test_every_series_arrives(host: Any, arrival: Arrival, observe: Observe) -> None:
    """CloudWatch has a datapoint of this run for every GPU and configured measurement, with exact dimensions."""
    missing = [
        f"{series}{' (nvidia-smi shows no value)' if series in arrival.never else ''}"
        for series, point in arrival.newest.items()
        if point is None
    ]
    arrived, namespaces = len(arrival.expected) - len(missing), {series.namespace for series in arrival.expected}
    observe(
        f"{arrived} of {len(arrival.expected)} series in {', '.join(sorted(namespaces))} after {arrival.seconds:.1f} s",
        f"{len(arrival.expected)} series",
    )
    observe.hop("nvidia-smi → CloudWatch, all series", arrival.seconds)
    observe.series(arrival.history)
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        delivery.raise_if_refused(host)
        observe.fail(f"{len(missing)} of {len(arrival.expected)} series did not arrive: {'; '.join(missing[:5])}{more}")


@pytest.mark.needs("observed")
@pytest.mark.tier("T3")
def test_values_are_the_boards(
    arrival: Arrival, machine: MachineUnderTest, plan: PlanDocument, observe: Observe
) -> None:
    """Every value is within the limits of the board, and constant values are equal to those of nvidia-smi."""
    board = planned_instance_type(plan, machine.instance_type)["gpu"]
    own = {series: gpu for series, gpu in arrival.expected.items() if gpu is not None}
    values: dict[int, dict[str, float]] = {}
    wrong = []
    for series, gpu in own.items():
        point = arrival.newest[series]
        if point is not None:
            measurement = series.name.removeprefix(PREFIX)
            values.setdefault(gpu.index, {})[measurement] = point.value
            wrong += judge(measurement, point.value, gpu, board)
    observe(values, "within the board's limits; memory_total and PCIe width as on the host")
    if not values:
        unproven("no datapoint arrived")
    if wrong:
        observe.fail("; ".join(wrong[:10]))


def judge(name: str, value: float, gpu: Gpu, board: PlannedGpu) -> list[str]:
    row, shown = BY_NAME.get(name), gpu.values.get(name)
    if row is None:
        return [f"GPU {gpu.index} {name}: {value:g}, but no tolerance is defined"]
    if shown is not None and row.slack is not None and abs(value - shown) > row.slack:
        return [f"GPU {gpu.index} {name}: expected {shown:g} (nvidia-smi), got {value:g} (CloudWatch)"]
    least, most = row.least, row.most(board, gpu.values)
    if not least <= value <= most:
        return [f"GPU {gpu.index} {name}: expected {least:g} to {most:g}, got {value:g}"]
    return []


@pytest.mark.tier("T3")
def test_memory_adds_up(arrival: Arrival, observe: Observe) -> None:
    """Used and free memory of a GPU add up to 90 to 100 % of its total. No series is a copy of another."""
    values: dict[int, dict[str, float]] = {}
    for series, gpu in arrival.expected.items():
        point = arrival.newest[series]
        measurement = series.name.removeprefix(PREFIX)
        if gpu is not None and point is not None and measurement.startswith("memory_"):
            values.setdefault(gpu.index, {})[measurement.removeprefix("memory_")] = point.value
    complete = {index: memory for index, memory in values.items() if memory.keys() >= {"total", "used", "free"}}
    if not complete:
        unproven("memory_total, memory_used and memory_free are not all measured")
    observe(complete, "90 % to 100 % of total, within 1 MiB")
    wrong = [
        f"GPU {index}: {memory['used']:g} used + {memory['free']:g} free of {memory['total']:g} MiB"
        for index, memory in complete.items()
        if not 0.9 * memory["total"] - 1 <= memory["used"] + memory["free"] <= memory["total"] + 1
    ]
    if wrong:
        observe.fail("; ".join(wrong))


@pytest.mark.tier("T3")
def test_no_unexpected_series(
    arrival: Arrival, machine: MachineUnderTest, cloudwatch: CloudWatch, observe: Observe
) -> None:
    """This instance publishes no series that its configuration does not have. Each series is billed.

    ListMetrics shows a new series up to 15 minutes late: this is judged when it shows those that have arrived.
    """
    namespace = next(iter(arrival.expected)).namespace
    arrived = {
        series
        for series, point in arrival.newest.items()
        if point and ("InstanceId", machine.instance_id) in series.dimensions
    }

    def look() -> set[Series] | None:
        listed = cloudwatch.known_series(namespace, {"InstanceId": machine.instance_id})
        known.update(listed)
        return listed if arrived <= listed else None

    known: set[Series] = set()
    complete = bool(arrived) and cloudwatch.wait(look, cloudwatch.arrival_seconds, parked=True) is not None
    extra = sorted(str(series) for series in known - arrival.expected.keys())
    observe(f"{len(known)} series known, {len(extra)} unexpected", f"at most {len(arrival.expected)}")
    if extra:
        never = [name for name in arrival.absent if any(f"/{PREFIX}{name}{{" in series for series in extra)]
        note = f" (these GPUs never have {', '.join(never)})" if never else ""
        observe.fail(f"{len(extra)} series that are not configured: {'; '.join(extra[:5])}{note}")
    if not arrived:
        unproven("no series of this instance arrived, so ListMetrics has none to show")
    if not complete:
        unproven(
            f"ListMetrics shows {len(known & arrived)} of {len(arrived)} series that have arrived:"
            " a further one may not be shown yet"
        )
