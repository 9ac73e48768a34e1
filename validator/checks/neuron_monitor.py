"""neuron-monitor's reports are published: the service runs, and every value arrives in CloudWatch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from validator.cloudwatch import CloudWatch, Point, Series, arrivals
from validator.observe import Observe, output, unproven
from validator.plan_document import NeuronMonitor, PlanDocument, section
from validator.probes import MachineUnderTest, logrotate, neuron_reports, restarts
from validator.probes.agent import delivery

pytestmark = pytest.mark.planned("neuron_monitor")

_UNIT = "neuron-metrics.service"
_UNIT_FILE = f"/etc/systemd/system/{_UNIT}"
_CONFIGURATION = "/etc/gpu-ami/neuron-monitor.json"
_STATUS = "/run/gpu-ami-neuron/neuron-metrics.json"
_LATE = 30.0  # seconds beyond two intervals; a machine is slow after boot
_GROUPS = {"neuroncore_counters", "memory_used", "execution_stats", "neuron_hw_counters"}


def _unit(host: Any) -> dict[str, str]:
    shown = output(host, f"systemctl show -p ActiveState,SubState,MainPID,UnitFileState,NRestarts,Restart {_UNIT}")
    return dict(line.partition("=")[::2] for line in shown.splitlines() if "=" in line)


@pytest.mark.needs("promise")
@pytest.mark.survives
def test_publisher_is_running_and_enabled(host: Any, observe: Observe) -> None:
    """The service that publishes neuron-monitor's reports is running and enabled."""
    unit = _unit(host)
    expected = {"ActiveState": "active", "SubState": "running", "UnitFileState": "enabled"}
    observe.same({key: unit.get(key, "") for key in expected}, expected, _UNIT)


@pytest.mark.needs("promise")
@pytest.mark.survives
def test_publisher_does_not_restart(host: Any, observe: Observe) -> None:
    """The service did not restart in this boot, and systemd would restart it. It exits with neuron-monitor."""
    unit = _unit(host)
    state = {key: unit.get(key, "") for key in ("NRestarts", "Restart")}
    expected = {"NRestarts": "0", "Restart": "always"}
    observe(state, expected)
    restarts.check_none(host, _UNIT, state["NRestarts"], observe)
    observe.same(state, expected, _UNIT)


@pytest.mark.needs("promise")
@pytest.mark.survives
def test_publisher_reads_reports(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The last report is recent and had no error. A service that hangs is active too."""
    interval = section(plan, "neuron_monitor", NeuronMonitor)["interval_s"]
    shown = host.run(f"cat {_STATUS} && echo && cut -d' ' -f1 /proc/uptime")
    if shown.rc != 0:
        observe.fail(f"no report was published in this boot: {shown.stderr.strip()}")
    document, _, uptime = shown.stdout.strip().rpartition("\n")
    status = json.loads(document)
    age, limit = float(uptime) - float(status["report_monotonic_s"]), 2 * interval + _LATE
    observe({"age": round(age), **status}, f"within {limit:.0f} s, no malformed or dropped report, no problem")
    if age > limit:
        observe.fail(f"the last report of neuron-monitor was {age:.0f} s ago, expected within {limit:.0f} s")
    if status["problems"] or status["malformed"] or status["dropped"]:
        counts = f"{status['malformed']} malformed lines, {status['dropped']} documents not written"
        observe.fail(
            f"neuron-monitor's reports are incomplete: {'; '.join(status['problems']) or 'no problem'}; {counts}"
        )


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_configuration_is_the_planned_one(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Namespace, dimensions, resolution, log and interval are the planned ones. Another namespace is another series."""
    planned = section(plan, "neuron_monitor", NeuronMonitor)
    started = re.findall(r"(?m)^ExecStart=\S+ -sSE \S+ (.+)$", output(host, f"cat {_UNIT_FILE}"))
    try:
        configured = json.loads(output(host, f"cat {_CONFIGURATION}"))
    except ValueError as error:
        observe.fail(f"{_CONFIGURATION} is not JSON: {error}")
    metrics = [
        *configured["system_metrics"],
        *(each for row in configured["neuron_runtimes"] for each in row["metrics"]),
    ]
    words = [
        "--log", planned["log"], "--namespace", planned["namespace"],
        f"--dimensions={','.join(planned['dimensions'])}",
        *(["--high-resolution"] if planned["high_resolution"] else []),
    ]  # fmt: skip
    observed = {
        "options": [line.split() for line in started],
        "period": configured["period"],
        "groups": sorted(str(metric["type"]) for metric in metrics),
    }
    expected = {"options": [words], "period": f"{planned['interval_s']}s", "groups": sorted(_GROUPS)}
    observe.same(observed, expected, f"{_UNIT_FILE} and {_CONFIGURATION}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_log_is_rotated(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The log is rotated without losing lines. It grows with each report."""
    logrotate.check_rotated(host, [section(plan, "neuron_monitor", NeuronMonitor)["log"]], observe)


@dataclass(frozen=True)
class Arrival:
    """The series that follow from neuron-monitor's own report, and the newest datapoint of each."""

    expected: Mapping[Series, neuron_reports.Limits]
    newest: Mapping[Series, Point | None]
    seconds: float


@pytest.fixture(scope="module")
def arrival(host: Any, machine: MachineUnderTest, cloudwatch: CloudWatch, request: pytest.FixtureRequest) -> Arrival:
    """The series that arrived, read once for all checks."""
    from validator.plugin import RUN

    plan = request.config.stash[RUN].plan
    if plan is None or "neuron_monitor" not in plan:
        unproven("no plan says how neuron-monitor's reports are published")
    arrived = collect(section(plan, "neuron_monitor", NeuronMonitor), machine, cloudwatch)
    if not any(arrived.newest.values()):
        delivery.raise_if_dropped(host, "logs", cloudwatch.region, plan)
    return arrived


def period_of(planned: NeuronMonitor) -> int:
    """The shortest period (seconds) in which every series has a datapoint: minutes, unless stored by the second."""
    if planned["high_resolution"]:
        return next((short for short in (1, 5, 10, 30) if planned["interval_s"] <= short), 60)
    return -(-planned["interval_s"] // 60) * 60


def collect(planned: NeuronMonitor, machine: MachineUnderTest, cloudwatch: CloudWatch) -> Arrival:
    """Waits until each series has a datapoint of a report that was made after this one."""
    machine.require_clock()
    report = neuron_reports.first_report(machine.host)
    if isinstance(report, str):
        unproven(f"{report}: see neuron::test_monitor_reports_every_device")
    metadata = {**machine.metadata, "instance-id": machine.instance_id, "instance-type": machine.instance_type}
    expected = neuron_reports.expected_series(report, planned, metadata)
    return Arrival(expected, *arrivals(cloudwatch, expected, machine.boot_time, period_of(planned)))


@pytest.mark.needs("promise")
@pytest.mark.tier("T3")
@pytest.mark.survives
def test_every_series_arrives(host: Any, arrival: Arrival, observe: Observe) -> None:
    """CloudWatch has a datapoint of this run for every device, core and runtime that neuron-monitor reports."""
    missing = [str(series) for series, point in arrival.newest.items() if point is None]
    count = len(arrival.expected)
    observe(f"{count - len(missing)} of {count} series after {arrival.seconds:.1f} s", f"{count} series")
    observe.hop("neuron-monitor → CloudWatch, all series", arrival.seconds)
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        delivery.raise_if_refused(host)
        observe.fail(f"{len(missing)} of {count} series did not arrive: {'; '.join(missing[:5])}{more}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T3")
def test_values_are_those_of_neuron_monitor(arrival: Arrival, observe: Observe) -> None:
    """Device counts and ECC counters are equal to neuron-monitor's; values that depend on load are in range."""
    arrived = {series: point.value for series, point in arrival.newest.items() if point is not None}
    observe({str(series): value for series, value in arrived.items()}, "as neuron-monitor on the host")
    if not arrived:
        unproven("no datapoint arrived")
    wrong = []
    for series, value in arrived.items():
        limits = arrival.expected[series]
        if not limits.least <= value <= limits.most:
            exact = f"{limits.least:g} (neuron-monitor)" if limits.least == limits.most else f"at most {limits.most:g}"
            wrong.append(f"{series}: expected {exact}, got {value:g}")
    if wrong:
        observe.fail("; ".join(wrong[:10]))


@pytest.mark.needs("promise")
@pytest.mark.tier("T3")
def test_no_unexpected_series(
    arrival: Arrival, machine: MachineUnderTest, plan: PlanDocument, cloudwatch: CloudWatch, observe: Observe
) -> None:
    """This instance publishes no series with other names or dimensions than planned. Each series is billed.

    Cores and runtimes come and go, so a series counts by its name and by the names of its dimensions.
    """
    planned = section(plan, "neuron_monitor", NeuronMonitor)
    if "instance_id" not in planned["dimensions"]:
        unproven("without the dimension instance_id an instance's series cannot be told from others")
    known = cloudwatch.known_series(planned["namespace"], {"instance_id": machine.instance_id})
    arrived = {series for series, point in arrival.newest.items() if point}
    extra = sorted({f"{_kind(series)}" for series in known if not _is_planned(series, planned)})
    observe(f"{len(known)} series known, {len(extra)} kinds unexpected", sorted(planned["dimensions"]))
    if extra:
        observe.fail(f"series with other dimensions than planned: {'; '.join(extra[:5])}")
    if not known & arrived:
        unproven("ListMetrics shows no series that has arrived yet")


def _is_planned(series: Series, planned: NeuronMonitor) -> bool:
    names = [name for name, _ in series.dimensions if name not in ("neuroncore_index", "neuron_device_index")]
    without_tag = [name for name in planned["dimensions"] if name != "neuron_runtime_tag"]
    return set(names) in ({*planned["dimensions"]}, {*without_tag})


def _kind(series: Series) -> str:
    return f"{series.name}{{{', '.join(name for name, _ in series.dimensions)}}}"
