"""Each check of the former system's metrics, once green and once red with its message."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
from moto import mock_aws

from localregion import backends
from tests.onhost.event_parser.test_seed import ROWS, efa, metrics, run
from tests.scripted_host import table_host
from tests.validator.checks.conftest import INSTANCE, METADATA, FakeMachine, Judge
from tests.validator.checks.test_metrics import FakeCloudWatch
from validator.checks import seed_metrics
from validator.cloudwatch import CloudWatch, Series
from validator.plan import as_plan

PLAN = as_plan({"event_parser": {"seed_metrics_s": 10}, "instance_types": []})
COUNTERS = "3.3.0g\nrdmap0s6 rx_bytes\nrdmap0s6 tx_bytes\n"
EFA = "device|rdmap0s6|../../../../bus/pci/drivers/efa|\n"
HOST = {"nvidia-smi*": ROWS, "cat /sys/module/efa*": COUNTERS, "for d in*": EFA}
RIGHT = Callable[[Series, int], float | None]


def arrival(values: RIGHT = lambda series, look: 0.0, table: dict[str, Any] | None = None) -> Any:
    machine: Any = FakeMachine(METADATA)
    cloud: Any = FakeCloudWatch(values)
    return seed_metrics.collect(table_host(table or HOST), machine, cloud)


def test_expected_series_are_the_former_system_s() -> None:
    series = seed_metrics.expected_series(table_host(HOST), INSTANCE, "g5.12xlarge")
    kinds = {(each.namespace, tuple(name for name, _ in each.dimensions)) for each in series}
    gpu = ("AcceleratorDriver", "AcceleratorIndex", "AcceleratorName", "Id", "InstanceType")
    card = ("EFADriver", "EFAIndex", "EFAName", "Id", "InstanceType")
    assert kinds == {
        (space, tuple(name for name in names if not (bare and name.endswith("Index"))))
        for space, names in (("AcceleratorMetrics", gpu), ("EFAMetrics", card)) for bare in (False, True)
    }  # fmt: skip
    assert len(series) == 7 + 6 + 7 + 2 * 2, "13 of two GPUs, 7 of the instance, 2 of an EFA twice"


def test_every_series_arrives(judge: Judge) -> None:
    check = seed_metrics.test_every_series_of_the_former_system_arrives
    assert judge(check, {}, arrival=arrival()).verdict == "PASS"
    late = arrival(lambda series, look: None if series.name == "Rx_bytes" else 0.0)
    found = judge(check, {"*agent*": ""}, arrival=late)
    assert (found.verdict, "2 of 24 series did not arrive: EFAMetrics/Rx_bytes{EFADriver=3.3.0g" in found.message) == (
        "FAIL", True,
    )  # fmt: skip


def test_values_are_possible(judge: Judge) -> None:
    check = seed_metrics.test_values_of_the_former_system_are_possible
    assert judge(check, {}, arrival=arrival(), plan=PLAN).verdict == "PASS"
    for name, value, message in (
        ("Uncorr_ecc", 7.0, "expected 0 (nvidia-smi), got 7"),
        ("Util_gpu", 107.0, "expected 0 to 100, got 107"),
        ("Rx_bytes", 1e15, "expected 0 to 5e+11, got 1e+15"),
    ):
        wrong = arrival(lambda series, look, name=name, value=value: value if series.name == name else 0.0)  # type: ignore[misc]
        found = judge(check, {}, arrival=wrong, plan=PLAN)
        assert (found.verdict, message in found.message) == ("FAIL", True), found
    assert judge(check, {}, arrival=arrival(lambda series, look: None), plan=PLAN).verdict == "UNPROVEN"


def test_a_host_without_gpus_is_unproven(judge: Judge) -> None:
    def check(host: Any) -> None:
        seed_metrics.collect(host, FakeMachine(METADATA), FakeCloudWatch(lambda series, look: 0.0))  # type: ignore[arg-type]

    assert judge(check, {"nvidia-smi*": "", "cat /sys*": ""}).verdict == "UNPROVEN"


def test_what_the_parser_writes_arrives_as_a_former_dashboard_asks(tmp_path: Path) -> None:
    """From nvidia-smi and the adapter's counters through CloudWatch's extraction to the series of the checks."""
    efa(tmp_path, "rdmap0s6", rx_bytes=100, tx_bytes=5)
    found = metrics(f"printf '{ROWS}'", tmp_path, tmp_path)
    identity = {"InstanceId": INSTANCE, "InstanceType": "g5.12xlarge"}
    run(found, identity)
    efa(tmp_path, "rdmap0s6", rx_bytes=300, tx_bytes=5)
    documents = run(found, identity)
    expected = seed_metrics.expected_series(table_host(HOST), INSTANCE, "g5.12xlarge")
    backends.install()
    with mock_aws():
        session = boto3.session.Session("test", "test", region_name="us-east-1")
        logs = session.client("logs")
        logs.create_log_group(logGroupName="g")
        logs.create_log_stream(logGroupName="g", logStreamName="s")
        now = int(time.time() * 1000)
        events = [{"timestamp": now, "message": json.dumps(document)} for document in documents]
        logs.put_log_events(logGroupName="g", logStreamName="s", logEvents=events)
        points = CloudWatch("us-east-1", session=session).points(list(expected), time.time() - 60, 60)
    assert [str(series) for series in expected if not points[series]] == []
    received = [points[series][0].value for series in expected if series.name == "Rx_bytes"]
    assert received == [200.0, 200.0]
