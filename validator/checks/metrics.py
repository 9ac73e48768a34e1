"""Every planned measurement of every GPU arrives in CloudWatch, under the right dimensions, with the board's values."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from validator import agent_config
from validator.cloudwatch import CloudWatch, Point, Series
from validator.machine import MachineUnderTest
from validator.observe import Observe, unproven
from validator.smi import Gpu

# Measurement → how far a datapoint may lie from what nvidia-smi shows on the host, in its own unit. The two are taken
# at different moments: what the board holds constant must be equal, what moves with load only stays within its limits.
_EQUAL = {"memory_total": 0.5, "pcie_link_width_current": 0.5}
_PREFIX = "nvidia_smi_"


@dataclass(frozen=True)
class Arrival:
    """What the agent should publish, and the newest datapoint of each series (None where none came in time)."""

    expected: Mapping[Series, Gpu | None]
    newest: Mapping[Series, Point | None]
    seconds: float  # from the first look until all were there


@pytest.fixture(scope="module")
def config(host: Any) -> dict[str, Any]:
    """The agent's configuration as it is installed: what it says is what must arrive."""
    found = agent_config.installed(host)
    if not agent_config.measurements(found):
        pytest.fail("the installed agent configuration collects no nvidia_gpu measurement", pytrace=False)
    return found


@pytest.fixture(scope="module")
def arrival(config: dict[str, Any], machine: MachineUnderTest, cloudwatch: CloudWatch) -> Arrival:
    """What has arrived, looked for once for all checks."""
    return collect(config, machine, cloudwatch)


def collect(config: Mapping[str, Any], machine: MachineUnderTest, cloudwatch: CloudWatch) -> Arrival:
    """Waits for all series of this machine: for a datapoint of each that was measured after the proof began."""
    machine.require_clock()
    period = agent_config.period(config)
    expected = agent_config.expected_series(config, machine.gpus, _identity(machine))
    # The period in which the machine came up may hold datapoints of the boot before it: the next one is this boot's.
    since = max(time.time() - period, -(-machine.boot_time // period) * period)
    started = time.monotonic()
    newest: dict[Series, Point | None] = dict.fromkeys(expected)

    def look() -> bool | None:
        missing = [series for series, point in newest.items() if point is None]
        found = cloudwatch.points(missing, since, period)
        newest.update({series: points[0] if points else None for series, points in found.items()})
        return True if all(newest.values()) else None

    cloudwatch.wait(look, cloudwatch.arrival_seconds)
    return Arrival(expected, newest, time.monotonic() - started)


def _identity(machine: MachineUnderTest) -> dict[str, str]:
    known = {"instance-id": machine.instance_id, "instance-type": machine.instance_type}
    return machine.metadata | known


@pytest.mark.tier("T3")
@pytest.mark.survives
def test_every_series_arrives(arrival: Arrival, observe: Observe) -> None:
    """For every GPU and every configured measurement CloudWatch has a datapoint of this very run, dimensions exact."""
    missing = [str(series) for series, point in arrival.newest.items() if point is None]
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


def _judge(measurement: str, value: float, gpu: Gpu, board: Mapping[str, Any]) -> list[str]:
    shown = gpu.values.get(measurement)
    slack = _EQUAL.get(measurement)
    if shown is not None and slack is not None and abs(value - shown) > slack:
        return [f"GPU {gpu.index} {measurement}: CloudWatch has {value:g}, the host shows {shown:g}"]
    least, most = limits(measurement, board)
    if not least <= value <= most:
        return [f"GPU {gpu.index} {measurement}: {value:g} is outside {least:g} to {most:g}"]
    return []


def limits(measurement: str, board: Mapping[str, Any]) -> tuple[float, float]:
    """Least and most that a board can report (MiB, MHz, W, °C, percent); `board` is the plan's `gpu`."""
    memory, clocks = float(board["memory_mib"]), board["max_clock_mhz"]
    known = {
        "temperature_gpu": (10.0, 100.0),
        "power_draw": (1.0, board["power_limit_w"] * 1.1),
        "memory_total": (memory, memory),
        "memory_used": (0.0, memory),
        "memory_free": (0.0, memory),
        "pcie_link_gen_current": (1.0, float(board["pcie_gen"])),
        "pcie_link_width_current": (1.0, float(board["pcie_width"])),
        "encoder_stats_session_count": (0.0, 64.0),
        "encoder_stats_average_fps": (0.0, 10_000.0),
        "encoder_stats_average_latency": (0.0, 10_000_000.0),
    }
    if measurement.startswith("clocks_current_"):
        return 0.0, float(clocks[measurement.removeprefix("clocks_current_")])
    return known.get(measurement, (0.0, 100.0))  # utilization and fan speed are percentages


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
        observe.fail(f"{len(extra)} series that the configuration does not make: {'; '.join(extra[:5])}")
