"""Each check of Neuron's metrics, once green and once red with its message."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.onhost.neuron_monitor.programs import report, runtime
from tests.scripted_host import table_host
from tests.validator.checks.conftest import INSTANCE, METADATA, FakeMachine, Judge
from tests.validator.checks.test_metrics import FakeCloudWatch
from validator.checks import neuron_monitor
from validator.cloudwatch import Series
from validator.plan import as_plan

PLANNED: dict[str, Any] = {
    "namespace": "GpuAmi/Neuron", "dimensions": ["instance_id", "instance_type"], "high_resolution": False,
    "interval_s": 60, "log": "/var/log/neuron-metrics.jsonl", "log_group": "neuron",
}  # fmt: skip
PLAN = as_plan({"neuron_monitor": PLANNED, "instance_types": [{"name": "g5.12xlarge"}]})
HIGH = as_plan({"neuron_monitor": PLANNED | {"high_resolution": True}, "instance_types": []})
UNIT = "ActiveState=active\nSubState=running\nMainPID=7\nUnitFileState=enabled\nNRestarts=0\nRestart=always\n"
STATUS = {"report_monotonic_s": 100.0, "problems": [], "malformed": 0, "dropped": 0}
EXEC = (
    "ExecStart=/usr/bin/python3 -sSE /opt/aws/cloudwatch/neuron/neuron-metrics.py --log /var/log/neuron-metrics.jsonl"
    " --namespace GpuAmi/Neuron --dimensions=instance_id,instance_type\n"
)
GROUPS = [{"type": "neuroncore_counters"}, {"type": "memory_used"}, {"type": "execution_stats"}]
CONFIGURATION = {
    "period": "60s", "neuron_runtimes": [{"tag_filter": ".*", "metrics": GROUPS}],
    "system_metrics": [{"type": "neuron_hw_counters"}],
}  # fmt: skip
RULE = "/var/log/neuron-metrics.jsonl {\n rotate 2\n}\n"


def status(uptime: float, **changed: Any) -> str:
    return f"{json.dumps(STATUS | changed)}\n{uptime}\n"


def configured(unit: str = EXEC, configuration: str = json.dumps(CONFIGURATION)) -> dict[str, str]:
    return {"cat /etc/systemd*": unit, "cat /etc/gpu-ami*": configuration}


CASES: list[tuple[Any, Any, dict[str, Any], str, str]] = [
    (neuron_monitor.test_publisher_is_running_and_enabled, PLAN, {"systemctl*": UNIT}, "PASS", ""),
    (
        neuron_monitor.test_publisher_is_running_and_enabled, PLAN,
        {"systemctl*": UNIT.replace("SubState=running", "SubState=auto-restart")}, "FAIL", "auto-restart",
    ),
    (neuron_monitor.test_publisher_does_not_restart, PLAN, {"systemctl*": UNIT}, "PASS", ""),
    (
        neuron_monitor.test_publisher_does_not_restart, PLAN,
        {
            "systemctl*": UNIT.replace("NRestarts=0", "NRestarts=1"),
            "journalctl*": "neuron-metrics.service: Failed with result 'watchdog'.\n",
        },
        "FAIL", "neuron-metrics.service was restarted once in this boot; results of its runs: watchdog",
    ),
    (neuron_monitor.test_publisher_reads_reports, PLAN, {"cat*": status(249.0)}, "PASS", ""),
    (
        neuron_monitor.test_publisher_reads_reports, PLAN, {"cat*": status(400.0)}, "FAIL",
        "the last report of neuron-monitor was 300 s ago, expected within 150 s",
    ),
    (
        neuron_monitor.test_publisher_reads_reports, PLAN, {"cat*": (1, "", "No such file")}, "FAIL",
        "no report was published in this boot: No such file",
    ),
    (
        neuron_monitor.test_publisher_reads_reports, PLAN, {"cat*": status(110.0, problems=["no driver"], dropped=2)},
        "FAIL", "reports are incomplete: no driver; 0 malformed lines, 2 documents not written",
    ),
    (neuron_monitor.test_configuration_is_the_planned_one, PLAN, configured(), "PASS", ""),
    (
        neuron_monitor.test_configuration_is_the_planned_one, HIGH,
        configured(EXEC.replace("instance_type\n", "instance_type --high-resolution\n")), "PASS", "",
    ),
    (
        neuron_monitor.test_configuration_is_the_planned_one, PLAN, configured(EXEC.replace("GpuAmi/Neuron", "Other")),
        "FAIL", "'Other'",
    ),
    (
        neuron_monitor.test_configuration_is_the_planned_one, PLAN,
        configured(configuration=json.dumps(CONFIGURATION | {"period": "5s"})), "FAIL", "'5s'",
    ),
    (
        neuron_monitor.test_configuration_is_the_planned_one, PLAN, configured(configuration="{"), "FAIL",
        "/etc/gpu-ami/neuron-monitor.json is not JSON",
    ),
    (
        neuron_monitor.test_log_is_rotated, PLAN,
        {"logrotate*": "considering log /var/log/neuron-metrics.jsonl\n", "cat*": RULE}, "PASS", "",
    ),
    (
        neuron_monitor.test_log_is_rotated, PLAN, {"logrotate*": "considering log /var/log/wtmp\n", "cat*": RULE},
        "FAIL", "no logrotate rule for /var/log/neuron-metrics.jsonl",
    ),
    (
        neuron_monitor.test_log_is_rotated, PLAN,
        {
            "logrotate*": "considering log /var/log/neuron-metrics.jsonl\n",
            "cat*": RULE.replace("rotate 2", "rotate 2\n copytruncate"),
        },
        "FAIL", "copytruncate",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("check", "given", "table", "verdict", "message"), CASES)
def test_neuron_monitor(
    judge: Judge, check: Any, given: Any, table: dict[str, Any], verdict: str, message: str
) -> None:
    found = judge(check, table, plan=given)
    assert (found.verdict, message in found.message) == (verdict, True), found


TOLD = report(runtime("train", 0, 1), devices=2, uncorrected=3)
METADATA_OF_IT = METADATA | {"instance-type": "g5.12xlarge"}


class Cloud(FakeCloudWatch):
    """Knows the series that arrived, and `extra`."""

    def known_series(self, namespace: str, dimensions: dict[str, str]) -> set[Series]:
        assert (namespace, dimensions) == ("GpuAmi/Neuron", {"instance_id": INSTANCE})
        return {*self.arrived, *self.extra}


def right(series: Series, look: int = 0) -> float:
    exact = {"reports": 1.0, "report_errors": 0.0, "neuron_device_count": 2.0, "mem_ecc_uncorrected": 3.0}
    return exact.get(series.name, 0.0)


def arrival(values: Callable[[Series, int], float | None] = right, extra: tuple[Series, ...] = ()) -> tuple[Any, Cloud]:
    machine = FakeMachine(METADATA_OF_IT)
    machine.host = table_host({"timeout*": json.dumps(TOLD)})  # type: ignore[attr-defined]
    cloud = Cloud(values, extra)
    arrived = neuron_monitor.collect(PLANNED, machine, cloud)  # type: ignore[arg-type]
    cloud.arrived = [series for series, point in arrived.newest.items() if point]  # type: ignore[attr-defined]
    return arrived, cloud


def test_every_series_arrives(judge: Judge) -> None:
    check = neuron_monitor.test_every_series_arrives
    assert judge(check, {}, arrival=arrival()[0]).verdict == "PASS"
    late, _ = arrival(lambda series, look: None if series.name == "mem_ecc_corrected" else right(series))
    found = judge(check, {"*agent*": ""}, arrival=late)
    assert found.verdict == "FAIL"
    assert "2 of 26 series did not arrive: GpuAmi/Neuron/mem_ecc_corrected{instance_id=" in found.message


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("mem_ecc_uncorrected", 0.0, "neuron_device_index=0}: expected 3 (neuron-monitor), got 0"),
        ("neuroncore_utilization", 101.0, "expected at most 100, got 101"),
        ("report_errors", 1.0, "expected 0 (neuron-monitor), got 1"),
    ],
)
def test_values_are_those_of_neuron_monitor(judge: Judge, name: str, value: float, message: str) -> None:
    check = neuron_monitor.test_values_are_those_of_neuron_monitor
    assert judge(check, {}, arrival=arrival()[0]).verdict == "PASS"
    wrong, _ = arrival(lambda series, look: value if series.name == name else right(series))
    found = judge(check, {}, arrival=wrong)
    assert (found.verdict, message in found.message) == ("FAIL", True), found
    assert judge(check, {}, arrival=arrival(lambda series, look: None)[0]).verdict == "UNPROVEN"


def test_no_unexpected_series(judge: Judge) -> None:
    check = neuron_monitor.test_no_unexpected_series
    arrived, cloud = arrival()
    assert judge(check, {}, arrival=arrived, cloudwatch=cloud, plan=PLAN).verdict == "PASS"
    more = (("ami_id", "ami-1"), ("instance_id", INSTANCE), ("instance_type", "g5.12xlarge"))
    arrived, cloud = arrival(extra=(Series("GpuAmi/Neuron", "reports", more),))
    found = judge(check, {}, arrival=arrived, cloudwatch=cloud, plan=PLAN)
    assert found.message == "series with other dimensions than planned: reports{ami_id, instance_id, instance_type}"
    arrived, cloud = arrival(lambda series, look: None)
    assert judge(check, {}, arrival=arrived, cloudwatch=cloud, plan=PLAN).verdict == "UNPROVEN"
    anonymous = as_plan({"neuron_monitor": PLANNED | {"dimensions": ["ami_id"]}})
    assert judge(check, {}, arrival=arrived, cloudwatch=cloud, plan=anonymous).verdict == "UNPROVEN"


def test_a_silent_neuron_monitor_is_not_the_publisher_s_fault() -> None:
    machine = FakeMachine(METADATA_OF_IT)
    machine.host = table_host({"timeout*": ""})  # type: ignore[attr-defined]
    with pytest.raises(pytest.skip.Exception, match="printed nothing within 60 s"):
        neuron_monitor.collect(PLANNED, machine, Cloud(right))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("interval", "high", "period"), [(60, False, 60), (10, False, 60), (90, False, 120), (10, True, 10), (60, True, 60)]
)
def test_period_holds_a_datapoint(interval: int, high: bool, period: int) -> None:
    planned: Any = PLANNED | {"interval_s": interval, "high_resolution": high}
    assert neuron_monitor.period_of(planned) == period
