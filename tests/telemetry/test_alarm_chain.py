"""Each alarm of the templates from its cause to the message in a queue, on the local region's API.

The stacks are those of `gpu-ami telemetry`, lines of the kernel go through the event parser of the image, alarms are
evaluated minute by minute. The table of causes in docs/telemetry.md is this module's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from moto import mock_aws
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from gpu_ami.cloud import Place
from gpu_ami.plan import make_plan
from gpu_ami.recipes import find_recipe
from gpu_ami.telemetry import alarms, templates
from localregion import alarms as evaluation
from localregion import backends
from tests.localregion.alarms.conftest import Account
from tests.onhost.event_parser.parser_bench import Bench, make_bench, record, settle, xid  # noqa: F401  (fixture `bench`)
from tests.telemetry.instance import FULL_CLOCK, HEALTHY, SILENT, Instance, Minute, raised, with_events
from tests.telemetry.stacks import make_stack, make_telemetry

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "telemetry.md"
BOOT_MINUTES = 8


@functools.cache
def texts() -> dict[str, str]:
    plan = make_plan(find_recipe(Path("al2023-any-gpu")), Place(name="aws", region="us-east-1")).document
    return templates.render(plan, "us-east-1")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server of moto with the region's models, on the loopback."""
    backends.install()
    evaluation.install()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def instance() -> Iterator[Instance]:
    backends.install()
    evaluation.install()
    with mock_aws():
        yield launched(Account())


def launched(aws: Account) -> Instance:
    """A g5.12xlarge with both stacks, whose topics lead to the queue; it boots now."""
    outputs = make_telemetry(aws, texts()["telemetry.yml"])
    instance = Instance(aws)
    given = {"InstanceId": instance.id, "InstanceType": "g5.12xlarge"}
    topics = {f"{topic}Arn": outputs[topic] for topic in ("PageTopic", "TicketTopic")}
    make_stack(aws, "i", texts()["instance-alarms.yml"], given | topics)
    return instance


def boot(instance: Instance, minutes: int = BOOT_MINUTES) -> set[str]:
    """The instance boots, and its snapshot says that no remap is pending."""
    lines = [instance.recovery("IGNORE", 0, 0) for _ in range(4)]
    return raised(instance.live(1, with_events(HEALTHY, *lines)) + instance.live(minutes - 1))


def written(bench: Bench, *records: bytes) -> list[str]:
    """The lines that the event parser writes for what the kernel prints."""
    service = bench.start()
    bench.print(*records)
    settle(service)
    kinds = ('"kind":"xid"', '"kind":"gpu_init_failed"')
    lines = Path(bench.options.json_log).read_text().splitlines()
    return [line for line in lines if any(kind in line for kind in kinds)]


def lasting(minute: Minute, minutes: int) -> Callable[[Instance], list[tuple[str, str]]]:
    return lambda instance: instance.live(minutes, minute)


def remap(action: str, pending: int, failed: int) -> Callable[[Instance], list[tuple[str, str]]]:
    return lambda instance: (
        instance.live(1, with_events(HEALTHY, instance.recovery(action, pending, failed))) + (instance.live(6))
    )


def snapshot(line: Callable[[Instance], str]) -> Callable[[Instance], list[tuple[str, str]]]:
    return lambda instance: instance.live(1, with_events(HEALTHY, line(instance))) + instance.live(6)


CAUSES: dict[str, tuple[Callable[[Instance], list[tuple[str, str]]], set[str]]] = {
    "the agent is silent": (lasting(SILENT, 15), {"agent-silent"}),
    "the event parser is silent": (lasting(replace(HEALTHY, heartbeat=False), 15), {"event-parser-silent"}),
    "no GPU reports": (lasting(replace(HEALTHY, gpus=0), 15), {"gpu-metrics-missing"}),
    "one GPU of four does not report": (lasting(replace(HEALTHY, gpus=3), 15), {"gpu-series-missing"}),
    "the event parser is 90 s late": (lasting(replace(HEALTHY, parser={"LagSeconds": 90}), 3), {"event-parser-behind"}),
    "the kernel has overwritten records": (
        lasting(replace(HEALTHY, parser={"RecordsLost": 3}), 3), {"event-parser-behind"},
    ),
    "a full disk drops events": (lasting(replace(HEALTHY, parser={"EventsDropped": 2}), 3), {"event-parser-behind"}),
    "GPUs are busy at half of their clock": (
        lasting(replace(HEALTHY, clock=FULL_CLOCK // 2), 20), {"gpu-clocks-throttled"},
    ),
    "GPUs are idle at half of their clock": (lasting(replace(HEALTHY, clock=FULL_CLOCK // 2, load=10), 20), set()),
    "a row remap is pending at boot": (remap("SCHEDULE_RESET", 1, 0), {"gpu-remap-after-boot", "gpu-memory-repair"}),
    "a row remap has failed at boot": (remap("ISOLATE", 0, 1), {"gpu-remap-after-boot", "gpu-aws-support"}),
    "a GPU is lost at boot": (snapshot(Instance.lost), {"gpu-unknown-after-boot", "gpu-reboot"}),
    "nvidia-smi fails at boot": (snapshot(Instance.unanswered), {"gpu-unknown-after-boot"}),
    "a reboot of three minutes": (lasting(SILENT, 3), set()),
    "GPU metrics are missing for three minutes": (lasting(replace(HEALTHY, gpus=0), 3), set()),
}  # fmt: skip
XIDS = {
    "Xid 13": "gpu-application-error", "Xid 48": "gpu-reset", "Xid 151": "gpu-reboot", "Xid 79": "gpu-stop-start",
    "Xid 64": "gpu-aws-support", "Xid 78": "gpu-check", "Xid 63": "gpu-memory-repair",
}  # fmt: skip
DEAD_GPU = ("RmInitAdapter failed! in the kernel log", "gpu-not-initialised")


def names(changes: set[str]) -> set[str]:
    return {name.partition("-")[2] for name in changes}


def in_alarm(instance: Instance) -> set[str]:
    return {name for name, state in instance.aws.states().items() if state == "ALARM"}


def test_healthy_instance_raises_nothing_from_its_boot_on(instance: Instance) -> None:
    assert boot(instance, 30) == set()
    assert set(instance.aws.states().values()) == {"OK"}


@pytest.mark.parametrize("cause", CAUSES)
def test_cause_raises_its_alarm_alone_and_it_ends(instance: Instance, cause: str) -> None:
    happen, expected = CAUSES[cause]
    assert boot(instance) == set()
    instance.aws.messages()
    assert names(raised(happen(instance))) == expected
    messages = [message for message in instance.aws.messages() if message["NewStateValue"] == "ALARM"]
    assert {message["AlarmName"].partition("-")[2] for message in messages} == expected and len(messages) == len(
        expected
    )
    for message in messages:
        runbook = f"Runbook: gpu-ami runbook {message['AlarmName'].partition('-')[2]}"
        assert message["AlarmDescription"].endswith(runbook)
    assert boot(instance, 14) == set()
    assert in_alarm(instance) == set()


@pytest.mark.parametrize("code", XIDS)
def test_kernel_line_raises_its_alarm_alone_and_a_drill_none(instance: Instance, bench: Bench, code: str) -> None:
    assert boot(instance) == set()
    number = int(code.partition(" ")[2])
    drill = written(bench, xid(1, number, priority=12))
    assert len(drill) == 1 and '"origin":"userland"' in drill[0]
    assert raised(instance.live(1, with_events(HEALTHY, *drill)) + instance.live(5)) == set()
    lines = [line for line in written(bench, xid(2, number)) if '"origin":"kernel"' in line]
    instance.aws.messages()
    assert raised(instance.live(1, with_events(HEALTHY, *lines)) + instance.live(2)) == {f"t-{XIDS[code]}"}
    [message] = [message for message in instance.aws.messages() if message["NewStateValue"] == "ALARM"]
    assert f"Runbook: gpu-ami runbook {XIDS[code]}" in message["AlarmDescription"]
    assert instance.live(12)[0] == (f"t-{XIDS[code]}", "OK") and in_alarm(instance) == set()


def test_dead_gpu_raises_its_alarm_alone_and_a_drill_none(instance: Instance, bench: Bench) -> None:
    text = "NVRM: GPU 0000:00:1e.0: RmInitAdapter failed! (0x22:0x56:894)"
    assert boot(instance) == set()
    drill = written(bench, record(1, text, priority=12))
    assert len(drill) == 1 and '"origin":"userland"' in drill[0] and '"DrillEvents":1' in drill[0]
    assert raised(instance.live(1, with_events(HEALTHY, *drill)) + instance.live(5)) == set()
    lines = [line for line in written(bench, record(2, text)) if '"origin":"kernel"' in line]
    assert '"GpuInitFailedEvents":1' in lines[0] and '"GpuInitError":"RM_INIT_FAILED"' in lines[0]
    assert raised(instance.live(1, with_events(HEALTHY, *lines)) + instance.live(2)) == {f"t-{DEAD_GPU[1]}"}


def test_chain_holds_over_http(endpoint: str, bench: Bench) -> None:
    """As above, with every call over the wire: the kernel's line, the alarm, and the message in the queue."""
    instance = launched(Account(endpoint))
    assert boot(instance, 4) == set()
    lines = written(bench, xid(2, 79))
    assert raised(instance.live(1, with_events(HEALTHY, *lines)) + instance.live(2)) == {"t-gpu-stop-start"}
    messages = [message for message in instance.aws.messages() if message["NewStateValue"] == "ALARM"]
    [message] = [message for message in messages if message["AlarmName"] == "t-gpu-stop-start"]
    assert message["Subject"] == 'ALARM: "t-gpu-stop-start" in US East (N. Virginia)'
    assert message["AlarmDescription"].endswith("Runbook: gpu-ami runbook gpu-stop-start")
    assert message["Trigger"]["MetricName"] == "t-GpuStopStartEvents"
    assert instance.live(8)[0] == ("t-gpu-stop-start", "OK")


def test_event_that_arrives_late_raises_its_alarm(instance: Instance, bench: Bench) -> None:
    """The network was away for five minutes: CloudWatch gets the event with the time at which it happened."""
    assert boot(instance) == set()
    lines = written(bench, xid(2, 79))
    late = replace(HEALTHY, events=lines, late=4)
    assert raised(instance.live(1, late) + instance.live(6)) == {"t-gpu-stop-start"}


def test_every_alarm_has_a_cause_that_raises_it() -> None:
    caused = {DEAD_GPU[1], *XIDS.values()}.union(*(expected for _, expected in CAUSES.values()))
    assert caused == {alarm.name for alarm in alarms.load_alarms() if alarm.kind != alarms.NEURON}


def test_page_has_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = [(cause, expected) for cause, (_, expected) in CAUSES.items()]
    rows += [(f"{code} in the kernel log", {name}) for code, name in XIDS.items()]
    rows.append((DEAD_GPU[0], {DEAD_GPU[1]}))
    lines = [f"| {cause} | {', '.join(f'`{n}`' for n in sorted(expected)) or 'none'} |" for cause, expected in rows]
    assert [line for line in lines if line not in text] == []
