"""bench/bench_aws_clock.py: the waits of a proof on a clock that only they move."""

from __future__ import annotations

import pytest

from bench import bench_aws_clock as bench
from validator import cloudwatch

DELAYS = {name: seconds for name, (seconds, _) in bench.DELAYS.items()}


@pytest.mark.parametrize(
    ("changed", "restarts", "what"),
    [
        ({}, ("reboot", "stop-start"), "boot"),
        ({}, (), "ListMetrics"),
        ({"list_metrics": 0.0, "metric_data": 300.0, "boot": 60.0}, (), "datapoints of all GPUs"),
        ({"list_metrics": 0.0, "metric_data": 0.0, "boot": 60.0}, (), "log events of 4 injections"),
    ],
)
def test_the_longest_wait(changed: dict[str, float], restarts: tuple[str, ...], what: str) -> None:
    assert bench.dominating(bench.run(DELAYS | changed, restarts))[0] == what


def test_waits_are_those_of_the_checks_and_take_no_time() -> None:
    """A list that never shows a series is waited for until the checks' own limit, on the simulated clock."""
    waits = bench.run(DELAYS | {"list_metrics": 10_000.0}, ())
    arrival = cloudwatch.CloudWatch("us-east-1").arrival_seconds
    data = max(wait.seconds for wait in bench.run(DELAYS | {"list_metrics": 0.0}, ()) if wait.stage == "checks")
    (checks,) = [wait.seconds for wait in waits if wait.stage == "checks"]
    assert arrival <= checks <= arrival + data
    assert cloudwatch.time.monotonic() < 1e9  # the real clock again


def test_a_stopping_instance_is_not_billed() -> None:
    waits = [bench.Wait("boot", "boot", 3600.0), bench.Wait("stop-start", "stop", 3600.0, billed=False)]
    assert bench.usd("p5.48xlarge", waits) == bench.cost.hourly_usd("p5.48xlarge")
    assert bench.usd("x9.metal", waits) is None


def test_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["p4d.24xlarge", "--delay", "boot=300", "--delay", "stop=120"]) == 0
    printed = capsys.readouterr().out
    assert "boot 300 s: --delay" in printed and "ListMetrics" in printed
    assert printed.splitlines()[-1].startswith("| checks after stop-start | log events of 4 injections |")
    with pytest.raises(SystemExit):
        bench.main(["--delay", "boots=300"])
    assert "--delay boots=300: expected NAME=SECONDS with a name of boot, stop" in capsys.readouterr().err
