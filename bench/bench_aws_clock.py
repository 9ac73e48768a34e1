"""What a proof on AWS waits for: minutes and US dollars of one machine, on a simulated clock.

    python bench/bench_aws_clock.py                                   # p5.48xlarge
    python bench/bench_aws_clock.py p4d.24xlarge --delay boot=300 --delay stop=120

Nothing is launched. The waits for CloudWatch are those of the checks (`CloudWatch.wait`, `arrivals`, with their polling
intervals), on a clock that only they move, against an account that shows things as late as AWS documents. Boots and
stops take as long as reports of the field say. The checks' own work on the machine is not counted: seconds to a minute
on a real one. Waits of a pass run side by side, so that the longest counts; those of the checks that inject events
follow each other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gpu_ami.plan import cost  # noqa: E402
from localregion.api import conditions  # noqa: E402
from validator import cloudwatch  # noqa: E402

AWS_LIKE = "aws-like"
PERIOD, FLUSH = 60, 5.0  # seconds of a plan: the agent's interval of metrics, and until it sends a log event
# Waits of the checks that inject events, one after the other: an Xid of the driver and its fence, a drill, the hook's.
INJECTED = ("xid: kernel", "xid: fence", "xid: drill", "drain hook")
# What is late, in seconds, and who says so.
DELAYS: Mapping[str, tuple[float, str]] = {
    "boot": (600, "field reports of p5: ten minutes and more (variables/facts/deadlines.yml)"),
    "stop": (600, "field reports of p5: ten minutes and more (variables/facts/deadlines.yml)"),
    "list_metrics": (900, "up to 15 minutes (CloudWatch API reference, ListMetrics)"),
    "metric_data": (120, "minutes (localregion/conditions/late-telemetry.yml); two are assumed"),
    "log_events": (60, "seconds to a minute (localregion/conditions/late-telemetry.yml); a minute is assumed"),
}
REBOOT, STOP_START = "reboot", "stop-start"


class Clock:
    """Time that passes only while somebody sleeps. Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 1_764_000_030.0  # in the middle of a minute

    def time(self) -> float:
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@contextmanager
def simulated(clock: Clock) -> Iterator[None]:
    """The waits of `validator.cloudwatch` read this clock."""
    kept = cloudwatch.time
    cloudwatch.time = SimpleNamespace(time=clock.time, monotonic=clock.monotonic, sleep=clock.sleep)  # type: ignore[assignment]
    try:
        yield
    finally:
        cloudwatch.time = kept


class Account(cloudwatch.CloudWatch):
    """CloudWatch of an account that shows what a machine has sent as late as `delays` say. booted: when it was up."""

    def __init__(self, clock: Clock, delays: Mapping[str, float], booted: float) -> None:
        super().__init__("us-east-1")
        self.sleep = self.park = clock.sleep
        self.clock, self.delays, self.booted = clock, delays, booted

    def points(
        self, series: Sequence[cloudwatch.Series], since: float, period: int, statistic: str = "Average"
    ) -> dict[cloudwatch.Series, list[cloudwatch.Point]]:
        shown = since + period + FLUSH + self.delays["metric_data"] <= self.clock.now
        return {one: [cloudwatch.Point(since, 1.0)] if shown else [] for one in series}

    def known_series(self, namespace: str, dimensions: dict[str, str]) -> set[cloudwatch.Series]:
        shown = self.booted + PERIOD + FLUSH + self.delays["list_metrics"] <= self.clock.now
        return {_SERIES} if shown else set()


_SERIES = cloudwatch.Series("CWAgent", "nvidia_smi_utilization_gpu", (("InstanceId", "i-1"),))


@dataclass(frozen=True)
class Wait:
    """One wait of a run. billed: the instance is paid for meanwhile; EC2 does not bill one that is stopping (EC2 user
    guide, "Instance lifecycle")."""

    stage: str
    what: str
    seconds: float
    billed: bool = True


def of_metrics(account: Account) -> None:
    cloudwatch.arrivals(account, {_SERIES}, account.booted, PERIOD)


def of_the_list(account: Account) -> None:
    """As metrics::test_no_unexpected_series: ListMetrics shows what has arrived."""
    of_metrics(account)
    account.wait(lambda: account.known_series("CWAgent", {}) or None, account.arrival_seconds, parked=True)


def of_events(account: Account) -> None:
    for _ in INJECTED:
        sent = account.clock.now
        late = FLUSH + account.delays["log_events"]
        account.wait(lambda: True if account.clock.now >= sent + late else None, account.arrival_seconds)  # noqa: B023


FIRST: Mapping[str, Callable[[Account], None]] = {
    "datapoints of all GPUs": of_metrics,
    "ListMetrics": of_the_list,
    f"log events of {len(INJECTED)} injections": of_events,
}
# What survives a restart is checked again; which series are billed is not.
AFTER_RESTART = {name: wait for name, wait in FIRST.items() if name != "ListMetrics"}


def pass_of(clock: Clock, delays: Mapping[str, float], waits: Mapping[str, Callable[[Account], None]]) -> Wait:
    """The longest wait of a pass whose waits begin now, side by side. The clock is at its end afterwards."""
    began = clock.now
    took: dict[str, float] = {}
    for name, wait in waits.items():
        clock.now = began
        wait(Account(clock, delays, began))
        took[name] = clock.now - began
    longest = max(took, key=lambda name: took[name])
    clock.now = began + took[longest]
    return Wait("checks", longest, took[longest])


def run(delays: Mapping[str, float], restarts: Sequence[str]) -> list[Wait]:
    """Every wait of a proof of one machine, in order."""
    clock = Clock()
    consistent = float(conditions.load(AWS_LIKE).consistency.most)
    waits = [Wait("launch", "eventual consistency", consistent), Wait("boot", "boot", delays["boot"])]
    clock.sleep(sum(wait.seconds for wait in waits))
    with simulated(clock):
        waits.append(pass_of(clock, delays, FIRST))
        for how in restarts:
            stopped = [Wait(how, "stop", delays["stop"], billed=False)] if how == STOP_START else []
            again = [*stopped, Wait(how, "boot", delays["boot"])]
            clock.sleep(sum(wait.seconds for wait in again))
            checked = pass_of(clock, delays, AFTER_RESTART)
            waits += [*again, Wait(f"checks after {how}", checked.what, checked.seconds)]
    return waits


def dominating(waits: Sequence[Wait]) -> tuple[str, float]:
    """What is waited for longest, over all stages, and for how many seconds."""
    total: dict[str, float] = {}
    for wait in waits:
        total[wait.what] = total.get(wait.what, 0.0) + wait.seconds
    return max(total.items(), key=lambda entry: entry[1])


def usd(instance_type: str, waits: Sequence[Wait]) -> float | None:
    """At the On-Demand price; None where there is none."""
    return cost.MachineTime(instance_type, sum(wait.seconds for wait in waits if wait.billed)).usd


def report(instance_type: str, delays: Mapping[str, float]) -> Iterator[str]:
    rows = {"with both restarts": run(delays, (REBOOT, STOP_START)), "without restarts": run(delays, ())}
    yield f"{instance_type}; {cost.basis()}; what is late:"
    for name, seconds in delays.items():
        why = DELAYS[name][1] if seconds == DELAYS[name][0] else "--delay"
        yield f"  {name} {seconds:g} s: {why}"
    yield ""
    yield "| proof | minutes | USD | longest in sum |"
    yield "|---|---|---|---|"
    for name, waits in rows.items():
        price, (what, seconds) = usd(instance_type, waits), dominating(waits)
        whole = sum(wait.seconds for wait in waits)
        paid = "price unknown" if price is None else f"{price:.2f}"
        yield f"| {name} | {whole / 60:.1f} | {paid} | {what}: {seconds / 60:.1f} min, {seconds / whole:.0%} |"
    yield ""
    yield "| stage | waits for | minutes |"
    yield "|---|---|---|"
    for wait in rows["with both restarts"]:
        yield f"| {wait.stage} | {wait.what} | {wait.seconds / 60:.1f} |"


def parsed(options: Sequence[str], parser: argparse.ArgumentParser) -> dict[str, float]:
    """`NAME=SECONDS` of the command line over DELAYS."""
    delays = {name: seconds for name, (seconds, _) in DELAYS.items()}
    for option in options:
        name, _, seconds = option.partition("=")
        if name not in delays or not seconds.isdigit():
            parser.error(f"--delay {option}: expected NAME=SECONDS with a name of {', '.join(delays)}")
        delays[name] = float(seconds)
    return delays


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("instance_type", nargs="?", default="p5.48xlarge")
    parser.add_argument("--delay", action="append", default=[], metavar="NAME=SECONDS", help=f"of {', '.join(DELAYS)}")
    asked: Any = parser.parse_args(words)
    print(*report(asked.instance_type, parsed(asked.delay, parser)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
