"""Every planned measurement of every GPU arrives in CloudWatch, under the right dimensions, with the board's values."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from validator import agent_config
from validator.cloudwatch import CloudWatch, Point, Series
from validator.machine import MachineUnderTest
from validator.observe import Observe, unproven
from validator.plan import Plan
from validator.smi import Gpu

# A Neuron image promises no metric: the agent measures NVIDIA's GPUs alone.
pytestmark = pytest.mark.planned("nvidia_driver")

_PREFIX = "nvidia_smi_"
Board = Mapping[str, Any]  # the plan's `gpu`
Shown = Mapping[str, float]  # what nvidia-smi shows of the same GPU on the host


@dataclass(frozen=True)
class Tolerance:
    """How a datapoint is judged, in its own unit (MiB, MHz, W, °C, percent).

    slack: how far it may lie from what nvidia-smi shows on the host; None: the two are taken at different moments and
    the value moves with load, so only the board's limits hold. least, most: those limits.
    """

    slack: float | None
    least: float
    most: Callable[[Board, Shown], float]


def _percent(_board: Board, _shown: Shown) -> float:
    return 100.0


def _total(board: Board, shown: Shown) -> float:
    # The fact is the data sheet's; what a driver reserves is not in its total, so the host's own comes first.
    return shown.get("memory_total", float(board["memory_mib"]))


def _clock(name: str) -> Callable[[Board, Shown], float]:
    return lambda board, _: float(board["max_clock_mhz"][name])


TOLERANCES: Mapping[str, Tolerance] = {
    "utilization_gpu": Tolerance(None, 0.0, _percent),
    "utilization_memory": Tolerance(None, 0.0, _percent),
    "temperature_gpu": Tolerance(None, 10.0, lambda *_: 100.0),
    "power_draw": Tolerance(None, 1.0, lambda board, _: board["power_limit_w"] * 1.1),  # peaks between two regulations
    "fan_speed": Tolerance(None, 0.0, _percent),
    "memory_total": Tolerance(0.0, 0.0, _total),
    "memory_used": Tolerance(None, 0.0, _total),
    "memory_free": Tolerance(None, 0.0, _total),
    "pcie_link_gen_current": Tolerance(None, 1.0, lambda board, _: board["pcie_gen"]),  # an idle link slows down
    "pcie_link_width_current": Tolerance(0.0, 1.0, lambda board, _: board["pcie_width"]),
    "encoder_stats_session_count": Tolerance(None, 0.0, lambda *_: 64.0),
    "encoder_stats_average_fps": Tolerance(None, 0.0, lambda *_: 10_000.0),
    "encoder_stats_average_latency": Tolerance(None, 0.0, lambda *_: 10_000_000.0),
    "clocks_current_graphics": Tolerance(None, 0.0, _clock("graphics")),
    "clocks_current_sm": Tolerance(None, 0.0, _clock("sm")),
    "clocks_current_memory": Tolerance(None, 0.0, _clock("memory")),
    "clocks_current_video": Tolerance(None, 0.0, _clock("video")),
}


@dataclass(frozen=True)
class Arrival:
    """What the agent should publish, and the newest datapoint of each series (None where none came in time).

    never: those of them for which nvidia-smi shows no value, so that nobody waited for them. absent: measurements that
    these GPUs never have, by the plan.
    """

    expected: Mapping[Series, Gpu | None]
    newest: Mapping[Series, Point | None]
    seconds: float  # from the beginning of the first period that counts until all were there
    never: Collection[Series] = ()
    absent: Collection[str] = ()


@pytest.fixture(scope="module")
def config(host: Any) -> dict[str, Any]:
    """The agent's configuration as it is installed: what it says is what must arrive."""
    found = agent_config.installed(host)
    if not agent_config.measurements(found):
        pytest.fail("the installed agent configuration collects no nvidia_gpu measurement", pytrace=False)
    return found


@pytest.fixture(scope="module")
def arrival(
    config: dict[str, Any], machine: MachineUnderTest, cloudwatch: CloudWatch, request: pytest.FixtureRequest
) -> Arrival:
    """What has arrived, looked for once for all checks."""
    from validator.plugin import RUN

    return collect(config, machine, cloudwatch, planned_absent(request.config.stash[RUN].plan, machine))


def planned_absent(plan: Plan | None, machine: MachineUnderTest) -> list[str] | None:
    """Measurements that the GPUs of this instance type never have; None where no plan says it."""
    if plan is None or "telemetry" not in plan:
        return None
    return list(plan["telemetry"].plain().get("absent", {}).get(machine.instance_type, []))


def collect(
    config: Mapping[str, Any], machine: MachineUnderTest, cloudwatch: CloudWatch, absent: Collection[str] | None = None
) -> Arrival:
    """Waits for all series of this machine: for a datapoint of each that was measured after the proof began."""
    machine.require_clock()
    period = agent_config.period(config)
    expected = agent_config.expected_series(config, machine.gpus, _identity(machine), absent)
    shown = {measurement for gpu in machine.gpus for measurement in gpu.values}
    never = {
        series
        for series, gpu in expected.items()
        if series.name.removeprefix(_PREFIX) not in (shown if gpu is None else gpu.values)
    }
    # The period that lasts now holds datapoints of before the proof, at worst of the boot before: the next one counts.
    since = -(-max(time.time(), machine.boot_time) // period) * period
    newest: dict[Series, Point | None] = dict.fromkeys(expected)

    def look() -> bool | None:
        missing = [series for series, point in newest.items() if point is None]
        found = cloudwatch.points(missing, since, period)
        newest.update({series: points[0] if points else None for series, points in found.items()})
        return True if all(point for series, point in newest.items() if series not in never) else None

    cloudwatch.wait(look, cloudwatch.arrival_seconds)
    return Arrival(expected, newest, max(0.0, time.time() - since), never, absent or ())


def _identity(machine: MachineUnderTest) -> dict[str, str]:
    known = {"instance-id": machine.instance_id, "instance-type": machine.instance_type}
    return machine.metadata | known


@pytest.mark.tier("T3")
@pytest.mark.survives
def test_every_series_arrives(arrival: Arrival, observe: Observe) -> None:
    """For every GPU and every configured measurement CloudWatch has a datapoint of this very run, dimensions exact."""
    missing = [
        f"{series}{' (nvidia-smi shows no value)' if series in arrival.never else ''}"
        for series, point in arrival.newest.items()
        if point is None
    ]
    here = len(arrival.expected) - len(missing)
    observe(
        f"{here} of {len(arrival.expected)} series after {arrival.seconds:.1f} s", f"{len(arrival.expected)} series"
    )
    observe.hop("nvidia-smi → CloudWatch, all series", arrival.seconds)
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        observe.fail(f"{len(missing)} of {len(arrival.expected)} series did not arrive: {'; '.join(missing[:5])}{more}")


@pytest.mark.tier("T3")
def test_values_are_the_boards(arrival: Arrival, machine: MachineUnderTest, plan: Any, observe: Observe) -> None:
    """Every value lies within the board's limits, and what a board holds constant equals what nvidia-smi shows."""
    board = plan.instance_type(machine.instance_type)["gpu"].plain()
    own = {series: gpu for series, gpu in arrival.expected.items() if gpu is not None}
    values: dict[int, dict[str, float]] = {}
    wrong = []
    for series, gpu in own.items():
        point = arrival.newest[series]
        if point is not None:
            measurement = series.name.removeprefix(_PREFIX)
            values.setdefault(gpu.index, {})[measurement] = point.value
            wrong += _judge(measurement, point.value, gpu, board)
    observe(values, "within the board's limits; memory_total and PCIe width as on the host")
    if not values:
        unproven("no datapoint has arrived")
    if wrong:
        observe.fail("; ".join(wrong[:10]))


def _judge(measurement: str, value: float, gpu: Gpu, board: Board) -> list[str]:
    told, shown = TOLERANCES.get(measurement), gpu.values.get(measurement)
    if told is None:
        return [f"GPU {gpu.index} {measurement}: {value:g}, but no tolerance is stated for it"]
    if shown is not None and told.slack is not None and abs(value - shown) > told.slack:
        return [f"GPU {gpu.index} {measurement}: CloudWatch has {value:g}, the host shows {shown:g}"]
    least, most = told.least, told.most(board, gpu.values)
    if not least <= value <= most:
        return [f"GPU {gpu.index} {measurement}: {value:g} is outside {least:g} to {most:g}"]
    return []


@pytest.mark.tier("T3")
def test_memory_adds_up(arrival: Arrival, observe: Observe) -> None:
    """Used and free memory of a GPU do not exceed its total, and make up most of it: no series is another's copy."""
    values: dict[int, dict[str, float]] = {}
    for series, gpu in arrival.expected.items():
        point = arrival.newest[series]
        measurement = series.name.removeprefix(_PREFIX)
        if gpu is not None and point is not None and measurement.startswith("memory_"):
            values.setdefault(gpu.index, {})[measurement.removeprefix("memory_")] = point.value
    whole = {index: one for index, one in values.items() if one.keys() >= {"total", "used", "free"}}
    if not whole:
        unproven("memory_total, memory_used and memory_free are not all measured")
    observe(whole, "90 % to 100 % of total, within 1 MiB")
    wrong = [
        f"GPU {index}: {one['used']:g} used + {one['free']:g} free of {one['total']:g} MiB"
        for index, one in whole.items()
        if not 0.9 * one["total"] - 1 <= one["used"] + one["free"] <= one["total"] + 1
    ]
    if wrong:
        observe.fail("; ".join(wrong))


@pytest.mark.tier("T3")
def test_no_series_too_many(
    arrival: Arrival, machine: MachineUnderTest, cloudwatch: CloudWatch, observe: Observe
) -> None:
    """This instance publishes no series beyond those that its configuration makes: nobody pays for surprises."""
    namespace = next(iter(arrival.expected)).namespace
    known = cloudwatch.known_series(namespace, {"InstanceId": machine.instance_id})
    extra = sorted(str(series) for series in known - arrival.expected.keys())
    observe(f"{len(known)} series known, {len(extra)} unexpected", f"at most {len(arrival.expected)}")
    if extra:
        never = [one for one in arrival.absent if any(f"/{_PREFIX}{one}{{" in series for series in extra)]
        told = f" (by the plan these GPUs never have {', '.join(never)})" if never else ""
        observe.fail(f"{len(extra)} series that the configuration does not make: {'; '.join(extra[:5])}{told}")
