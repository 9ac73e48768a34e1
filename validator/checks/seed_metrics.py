"""The former system's metrics, where the plan has them: AcceleratorMetrics and EFAMetrics arrive as it sent them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from onhost import readings
from validator.cloudwatch import CloudWatch, Point, Series, arrivals
from validator.observe import Observe, output, unproven
from validator.plan_document import PlanDocument
from validator.probes import MachineUnderTest, rdma
from validator.probes.agent import delivery

pytestmark = pytest.mark.planned("event_parser.seed_metrics_s")

# Name → property of nvidia-smi, and the largest possible value (None: not known before).
_GPU = {
    "Mem_used": ("memory.used", None),
    "Mem_free": ("memory.free", None),
    "Util_gpu": ("utilization.gpu", 100.0),
    "Util_mem": ("utilization.memory", 100.0),
    "Clock_sm": ("clocks.current.sm", None),
    "Clock_mem": ("clocks.current.memory", None),
    "Uncorr_ecc": ("ecc.errors.uncorrected.volatile.total", None),
}
_QUERY = f"nvidia-smi --query-gpu=index,name,driver_version,{','.join(name for name, _ in _GPU.values())}"
_EFA = {"Rx_bytes": "rx_bytes", "Tx_bytes": "tx_bytes", "Rdma_read": "rdma_read_bytes"}
_COUNTERS = (
    "cat /sys/module/efa/version; cd /sys/class/infiniband && for d in *; do for f in %s;"
    ' do [ -r "$d/ports/1/hw_counters/$f" ] && echo "$d $f"; done; done'
)


@dataclass(frozen=True)
class Arrival:
    """Expected series with the value of the host where it is constant (else None), and their newest datapoints."""

    expected: Mapping[Series, float | None]
    newest: Mapping[Series, Point | None]
    seconds: float


def expected_series(host: Any, instance_id: str, instance_type: str) -> dict[Series, float | None]:
    """The series of each GPU and EFA that the host shows, and those of the instance without the index."""
    identity = {"Id": instance_id, "InstanceType": instance_type}
    series: dict[Series, float | None] = {}
    for line in output(host, f"{_QUERY} --format=csv,noheader,nounits").splitlines():
        index, name, driver, *cells = (cell.strip() for cell in line.split(","))
        own = identity | {"AcceleratorIndex": index, "AcceleratorName": name, "AcceleratorDriver": driver}
        for metric, cell in zip(_GPU, cells, strict=True):
            reading = readings.read_number(cell)
            if reading.state != readings.ABSENT:  # an unknown value is expected, and will be missed
                exact = reading.number_or_none() if metric == "Uncorr_ecc" else None
                _add(series, "AcceleratorMetrics", metric, own, "AcceleratorIndex", exact)
    version, *rows = host.run(_COUNTERS % " ".join(_EFA.values())).stdout.splitlines() or [""]
    adapters = {device.name for device in rdma.efa_devices(host)} if rows else set()
    counters = [(name, file) for name, file in (row.split() for row in rows) if name in adapters]
    names = sorted({name for name, _ in counters})
    for name, file in counters:
        own = identity | {"EFAIndex": str(names.index(name)), "EFAName": name, "EFADriver": version.strip()}
        metric = next(metric for metric, counter in _EFA.items() if counter == file)
        _add(series, "EFAMetrics", metric, own, "EFAIndex", None)
    return series


def _add(
    series: dict[Series, float | None],
    namespace: str,
    name: str,
    own: Mapping[str, str],
    index: str,
    exact: float | None,
) -> None:
    series[Series(namespace, name, tuple(sorted(own.items())))] = exact
    rest = tuple(sorted((key, value) for key, value in own.items() if key != index))
    series[Series(namespace, name, rest)] = None


@pytest.fixture(scope="module")
def arrival(host: Any, machine: MachineUnderTest, cloudwatch: CloudWatch, request: pytest.FixtureRequest) -> Arrival:
    """The series that arrived, read once for all checks."""
    from validator.plugin import RUN

    arrived = collect(host, machine, cloudwatch)
    if not any(arrived.newest.values()):
        delivery.raise_if_dropped(host, "logs", cloudwatch.region, request.config.stash[RUN].plan)
    return arrived


def collect(host: Any, machine: MachineUnderTest, cloudwatch: CloudWatch) -> Arrival:
    """Waits until each series has a datapoint of a minute that began after the proof."""
    machine.require_clock()
    expected = expected_series(host, machine.instance_id, machine.instance_type)
    if not expected:
        unproven("nvidia-smi shows no GPU: see nvidia_driver")
    return Arrival(expected, *arrivals(cloudwatch, expected, machine.boot_time, 60))


@pytest.mark.needs("promise")
@pytest.mark.tier("T3")
@pytest.mark.survives
def test_every_series_of_the_former_system_arrives(host: Any, arrival: Arrival, observe: Observe) -> None:
    """Dashboards of the former system find each of its metrics, for every GPU and EFA, with exactly its dimensions."""
    missing = [str(series) for series, point in arrival.newest.items() if point is None]
    count = len(arrival.expected)
    observe(f"{count - len(missing)} of {count} series after {arrival.seconds:.1f} s", f"{count} series")
    if missing:
        delivery.raise_if_refused(host)
        observe.fail(f"{len(missing)} of {count} series did not arrive: {'; '.join(missing[:5])}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T3")
def test_values_of_the_former_system_are_possible(
    arrival: Arrival, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """ECC counts are those of nvidia-smi, utilizations are percentages, and no EFA counts more in a period than it can.

    A total since boot in place of a difference grows beyond what a network card carries.
    """
    period = float(plan["event_parser"]["seed_metrics_s"])
    arrived = {series: point.value for series, point in arrival.newest.items() if point is not None}
    observe({str(series): value for series, value in arrived.items()}, "as nvidia-smi, or possible")
    if not arrived:
        unproven("no datapoint arrived")
    wrong = [
        text for series, value in arrived.items() if (text := _judge(series, value, arrival.expected[series], period))
    ]
    if wrong:
        observe.fail("; ".join(wrong[:10]))


def _judge(series: Series, value: float, exact: float | None, period: float) -> str:
    if exact is not None and value != exact:
        return f"{series}: expected {exact:g} (nvidia-smi), got {value:g}"
    most = _GPU.get(series.name, ("", None))[1]
    if series.namespace == "EFAMetrics":
        most = period * 400e9 / 8  # a network card of 400 Gbit/s
    if value < 0 or (most is not None and value > most):
        return f"{series}: expected 0 to {most or 0:g}, got {value:g}"
    return ""
