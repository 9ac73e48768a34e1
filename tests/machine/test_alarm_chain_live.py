"""The alarm chain as a whole, from the kernel of a booted machine to the message in a queue.

    pytest -m machine -s tests/machine/test_alarm_chain_live.py

One machine (g5.12xlarge, emulated) of the newest image of debian12-gpu that was built here, launched with the instance
profile of the stack that `gpu-ami telemetry` wrote. The driver's module prints the Xids: what a process writes to
/dev/kmsg has another facility, and is a drill. The image's parser and agent and the region's alarms run by themselves,
each at its own pace. The hop times in docs/telemetry.md are printed by this module.

Silence is tried on a machine with Neuron devices, too (inf2.48xlarge, the newest image of al2023-neuron):

    gpu-ami plan al2023-neuron -o OUT; gpu-ami build OUT
    pytest -m machine -s tests/machine/test_alarm_chain_live.py -k neuron
"""

from __future__ import annotations

import datetime
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud import Cloud, Place
from gpu_ami.files import write_json
from gpu_ami.plan import PLAN_FILE, make_plan
from gpu_ami.progress import Progress
from gpu_ami.recipes import find_recipe
from gpu_ami.telemetry import alarms
from tests.localregion.alarms.conftest import Account
from tests.machine.guest import GPU_TYPE, UNIT, Guest, Machine, debian_region, launched, newest_image
from tests.telemetry.stacks import make_stack, make_telemetry
from tests.waiting import until

pytestmark = pytest.mark.machine

GROUP = "/ec2/accelerated/accel-event-json"
EVALUATIONS = 125  # seconds: two of them, one a minute
SILENCE = 600  # seconds: five minutes without a datapoint, and what is on its way
Look = Callable[[], float | None]


@dataclass
class Chain:
    """The machine, the region's account, and the messages that arrived in the queue.

    ahead: seconds by which the machine's clock was ahead of the region's when the last Xid was printed. own_alarms:
    template of the machine's own alarms; topics: its parameters.
    """

    machine: Machine
    aws: Account
    own_alarms: str
    topics: dict[str, str]
    ahead: float = 0.0
    received: list[dict[str, Any]] = field(default_factory=list)

    @property
    def guest(self) -> Guest:
        return self.machine.guest

    def xid(self, code: int) -> str:
        """The kernel prints an Xid; the word by which it is found."""
        tag = self.guest.tag(f"xid{code}")
        self.ahead = self.guest.clock_ahead()
        self.guest.xid(f"{code}, {tag}")
        return tag

    def follow(self, tag: str, name: str, seconds: float = 180) -> dict[str, float]:
        """When the event with this tag passed each hop (Unix seconds), as far as the message of alarm `name`."""
        deadline = time.monotonic() + seconds
        looks: dict[str, Look] = {
            "line in the parser's file": lambda: self.written(tag),
            "log event in CloudWatch": lambda: self.ingested(tag),
            "datapoint of the metric": lambda: self.counted(name),
            "ALARM": lambda: self.alarmed(name),
            "message in the queue": lambda: self.sent(name),
        }
        hops: dict[str, float] = {}
        for hop, look in looks.items():
            while (passed := look()) is None:
                assert time.monotonic() < deadline, f"no {hop} within {seconds:.0f} s; passed: {list(hops)}"
                time.sleep(0.5)
            hops[hop] = passed
        [document] = self.guest.documents(tag)
        return {"record of the kernel": next(iter(hops.values())) - document["LagSeconds"], **hops}

    def written(self, tag: str) -> float | None:
        for document in self.guest.documents(tag):
            recorded = datetime.datetime.fromisoformat(document["time"]).timestamp()
            return recorded + float(document["LagSeconds"]) - self.ahead
        return None

    def logged(self, tag: str) -> list[dict[str, Any]]:
        """Log events of the machine with this tag."""
        pages = self.aws("logs").get_paginator("filter_log_events").paginate(logGroupName=GROUP)
        events = [event for page in pages for event in page["events"]]
        return [event for event in events if tag in event["message"]]

    def ingested(self, tag: str) -> float | None:
        return min((event["ingestionTime"] / 1000 for event in self.logged(tag)), default=None)

    def counted(self, name: str) -> float | None:
        """When the datapoint is seen: CloudWatch does not tell when it made it."""
        metric = next(alarm.metric for alarm in alarms.load_alarms() if alarm.name == name)
        return time.time() if self.total(Namespace="GpuAmi/Alarms", MetricName=f"t-{metric}") else None

    def total(self, **metric: Any) -> float:
        """The sum of a metric in the last ten minutes."""
        now = datetime.datetime.now(datetime.UTC)
        span = {"StartTime": now - datetime.timedelta(minutes=10), "EndTime": now + datetime.timedelta(minutes=1)}
        query = {"Id": "m", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}}
        [result] = self.aws("cloudwatch").get_metric_data(MetricDataQueries=[query], **span)["MetricDataResults"]
        return float(sum(result["Values"]))

    def events(self, counted_as: str) -> float:
        """The machine's embedded metric of the events that are counted so."""
        dimensions = [{"Name": "InstanceId", "Value": self.machine.instance_id}]
        return self.total(Namespace="GpuAmi/Events", MetricName=counted_as, Dimensions=dimensions)

    def alarmed(self, name: str) -> float | None:
        history = {"AlarmName": f"t-{name}", "HistoryItemType": "StateUpdate"}
        items = self.aws("cloudwatch").describe_alarm_history(**history)["AlarmHistoryItems"]
        times = [item["Timestamp"].timestamp() for item in items if item["HistorySummary"].endswith("to ALARM")]
        return max(times, default=None)

    def raised(self) -> dict[str, dict[str, Any]]:
        """The messages of alarms in ALARM, by the alarm's name."""
        self.received += self.aws.messages()
        return {one["AlarmName"].removeprefix("t-"): one for one in self.received if one["NewStateValue"] == "ALARM"}

    def sent(self, name: str) -> float | None:
        message = self.raised().get(name)
        return float(message["Sent"]) if message else None


def show(hops: dict[str, float]) -> None:
    start = next(iter(hops.values()))
    print("\n| hop | after the kernel's record |\n|---|---|")
    print("\n".join(f"| {hop} | {passed - start:.2f} s |" for hop, passed in hops.items()))


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    with chain_of("debian12-gpu", GPU_TYPE, "admin", "instance-alarms.yml", tmp_path_factory.mktemp("gpu")) as made:
        yield made


@pytest.fixture(scope="module")
def neuron_chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    folder = tmp_path_factory.mktemp("neuron")
    with chain_of("al2023-neuron", "inf2.48xlarge", "ec2-user", "neuron-instance-alarm.yml", folder) as made:
        give_own_alarms(made, {"InstanceId": made.machine.instance_id})
        yield made


@contextmanager
def chain_of(recipe: str, instance_type: str, user: str, own_alarms: str, folder: Path) -> Iterator[Chain]:
    """A machine of the recipe's newest image. user: of its login. own_alarms: name of the template of its alarms."""
    progress = Progress("plain")
    with debian_region(progress) as place:
        aws = Account(place.api.endpoint)
        templates = write_templates(recipe, place, folder)
        outputs = make_telemetry(aws, (templates / "telemetry.yml").read_text())
        cloud = Cloud(replace(place, instance_profile=outputs["InstanceProfile"]))
        image = newest_image(cloud, f"gpu-ami_{recipe}")
        with launched(cloud, image, instance_type, progress, user=user) as machine:
            machine.guest.quiet()
            topics = {f"{topic}Arn": outputs[topic] for topic in ("PageTopic", "TicketTopic")}
            yield Chain(machine, aws, (templates / own_alarms).read_text(), topics)


def write_templates(recipe: str, place: Place, folder: Path) -> Path:
    """The folder of what `gpu-ami telemetry` writes."""
    write_json(folder / PLAN_FILE, make_plan(find_recipe(Path(recipe)), place).document)
    subprocess.run([sys.executable, "-m", "gpu_ami", "telemetry", folder, "-o", folder, "-q"], check=True, timeout=120)
    return folder


def test_drill_raises_nothing(chain: Chain) -> None:
    tag = chain.guest.tag("drill")
    line = f"<4>NVRM: Xid (PCI:0000:00:1b): 79, pid=1, name=drill, {tag}"
    chain.guest.sudo(f"echo {shlex.quote(line)} > /dev/kmsg")
    chain.guest.until("the drill is in CloudWatch", lambda: bool(chain.logged(tag)), 120)
    deadline = time.monotonic() + EVALUATIONS
    while time.monotonic() < deadline:
        assert chain.raised() == {}
        time.sleep(1)
    assert (chain.events("DrillEvents"), chain.events("XidEvents")) == (1, 0)


def test_xid_of_the_kernel_raises_its_alarm_alone(chain: Chain) -> None:
    tag = chain.xid(79)
    hops = chain.follow(tag, "gpu-stop-start")
    show(hops)
    times = list(hops.values())
    assert times[:2] == sorted(times[:2]) and times[2:] == sorted(times[2:]), "by the machine's and the region's clock"
    assert list(chain.raised()) == ["gpu-stop-start"]
    message = chain.raised()["gpu-stop-start"]
    assert message["AlarmDescription"].endswith("Runbook: gpu-ami runbook gpu-stop-start")
    assert message["Subject"] == 'ALARM: "t-gpu-stop-start" in US East (N. Virginia)'
    assert chain.events("XidEvents") == 1


def test_xid_while_the_parser_is_stopped_raises_its_alarm_when_it_starts(chain: Chain) -> None:
    chain.guest.sudo(f"systemctl stop {UNIT}")
    tag = chain.xid(48)
    with pytest.raises(AssertionError, match="no line in the parser's file within 70 s"):
        chain.follow(tag, "gpu-reset", 70)
    assert chain.logged(tag) == [] and "gpu-reset" not in chain.raised()
    chain.guest.sudo(f"systemctl start {UNIT}")
    show(chain.follow(tag, "gpu-reset"))


def test_without_the_alarm_no_message_comes(chain: Chain) -> None:
    chain.aws("cloudwatch").delete_alarms(AlarmNames=["t-gpu-reboot"])
    tag = chain.xid(151)
    with pytest.raises(AssertionError, match=r"no ALARM within .*datapoint of the metric"):
        chain.follow(tag, "gpu-reboot", EVALUATIONS)
    assert "gpu-reboot" not in chain.raised()


@pytest.fixture(scope="module")
def own_alarms(chain: Chain) -> None:
    """The alarms of the machine alone; after those that look at every message."""
    give_own_alarms(chain, {"InstanceId": chain.machine.instance_id, "InstanceType": GPU_TYPE})


def give_own_alarms(chain: Chain, given: dict[str, str]) -> None:
    """Deploys the stack of the machine's own alarms, and waits till none is in ALARM.

    An Xid that a test before had the parser read late is a parser that was behind: that alarm has to end first.
    """
    takes = chain.own_alarms.partition("Resources")[0]
    make_stack(
        chain.aws, "i", chain.own_alarms, given | {key: arn for key, arn in chain.topics.items() if key in takes}
    )
    time.sleep(EVALUATIONS)
    until(lambda: "ALARM" not in {state for name, state in chain.aws.states().items() if name[:2] == "i-"}, SILENCE)


@pytest.mark.parametrize(
    ("unit", "alarm"),
    [(UNIT, "event-parser-silent"), ("amazon-cloudwatch-agent", "agent-silent")],
    ids=["event parser", "agent"],
)
def test_what_has_stopped_raises_the_alarm_of_its_silence(
    chain: Chain, own_alarms: None, unit: str, alarm: str
) -> None:
    """And the alarm ends when it runs again."""
    silence(chain, unit, [alarm])


@pytest.mark.parametrize(
    ("unit", "alarms"),
    [
        (UNIT, ["event-parser-silent"]),
        ("neuron-metrics.service", ["neuron-monitor-silent"]),
        ("amazon-cloudwatch-agent", ["event-parser-silent", "neuron-monitor-silent"]),
    ],
    ids=["event parser", "neuron-monitor", "agent"],
)
def test_what_has_stopped_on_a_neuron_machine_raises_the_alarms_of_its_silence(
    neuron_chain: Chain, unit: str, alarms: list[str]
) -> None:
    silence(neuron_chain, unit, alarms)


def silence(chain: Chain, unit: str, alarms: list[str]) -> None:
    """The unit is stopped till exactly these alarms are raised; they end when it runs again."""
    chain.raised()  # what came before
    chain.received.clear()
    chain.guest.sudo(f"systemctl stop {unit}")
    stopped = time.time()
    names = sorted(f"i-{alarm}" for alarm in alarms)
    try:
        for name in names:
            until(lambda name=name: name in chain.raised(), SILENCE + 300)  # type: ignore[misc]
            print(f"\n{unit} stopped: {name} after {time.time() - stopped:.0f} s", flush=True)
        assert sorted(name for name in chain.raised() if name.startswith("i-")) == names
    finally:
        chain.guest.sudo(f"systemctl start {unit}")
    until(lambda: {chain.aws.states()[name] for name in names} == {"OK"}, SILENCE)
