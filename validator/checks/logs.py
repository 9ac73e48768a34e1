"""Each planned log file arrives in its log group, in the stream of this instance, complete and without others."""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict, deque
from operator import itemgetter
from typing import Any, Literal

import pytest

from validator.cloudwatch import CloudWatch, LogEvent
from validator.observe import Observe, unproven
from validator.plan_document import PlanDocument, Publisher, section
from validator.probes import MachineUnderTest
from validator.probes.agent import LogFile, delivery
from validator.probes.agent import config as agent_config

# Without NVIDIA's driver no boot writes a line into the raw log: there the drill's is the first one.
_NEEDS_A_DRILL = pytest.mark.after_live("neuron")
_INSTANCE_ID = re.compile(r"\bi-(?:[0-9a-f]{17}|[0-9a-f]{8})\b")
_NEXT_CALL = 60.0  # seconds; a machine is slow after boot
_LINES = 200  # compared lines from the beginning of each file


@pytest.fixture(scope="module")
def files(host: Any, machine: MachineUnderTest, log_group_suffix: str) -> list[LogFile]:
    """The log files of the installed configuration, with stream and the group that this machine's agent sends to."""
    metadata = {**machine.metadata, "instance-id": machine.instance_id}
    installed = agent_config.with_group_suffix(agent_config.installed(host), log_group_suffix)
    return agent_config.log_files(installed, metadata)


@pytest.mark.planned("cloudwatch_agent")
@pytest.mark.needs("observed")
@pytest.mark.asked("log_group_suffix")
@pytest.mark.survives
def test_agent_sends_to_the_log_groups_of_the_proof(
    host: Any, plan: PlanDocument, log_group_suffix: str, observe: Observe
) -> None:
    """The running agent has the planned log configuration, with the proof's log groups as the only difference."""
    in_use = agent_config.in_use(host)
    if in_use is None:
        unproven("the agent is not running: see cloudwatch_agent::test_agent_is_active_and_enabled")
    agent_config.require_group_suffix(in_use, log_group_suffix)
    planned = agent_config.with_group_suffix(plan["cloudwatch_agent"]["config"], log_group_suffix)["logs"]
    observe(in_use.get("logs"), planned)
    differences = agent_config.differences(in_use.get("logs"), planned, "logs")
    if differences:
        observe.fail(f"the running agent's configuration differs from the plan: {'; '.join(differences)}")


@pytest.mark.needs("promise")
def test_planned_streams_are_configured(
    files: list[LogFile], machine: MachineUnderTest, plan: PlanDocument, observe: Observe
) -> None:
    """The planned logs are sent to their groups, in this instance's stream, and nothing else is sent."""
    parser, telemetry = plan["event_parser"], plan["telemetry"]
    stream = telemetry["log_stream"].replace("{instance_id}", machine.instance_id)
    planned = {
        parser["raw_log"]: (telemetry["raw_log_group"], stream),
        parser["json_log"]: (telemetry["json_log_group"], stream),
    }
    for name in ("neuron_monitor", "drain_hook"):
        if own := section(plan, name, Publisher):
            planned[own["log"]] = (own["log_group"], stream)
    observe.same({file.path: (file.group, file.stream) for file in files}, planned, "log files, groups and streams")


@pytest.mark.planned("event_parser")
@pytest.mark.needs("observed")
@pytest.mark.parametrize("which", [pytest.param("raw_log", marks=_NEEDS_A_DRILL), "json_log"])
@pytest.mark.survives
def test_file_arrives_in_its_stream(
    which: Literal["raw_log", "json_log"],
    host: Any,
    files: list[LogFile],
    plan: PlanDocument,
    machine: MachineUnderTest,
    cloudwatch: CloudWatch,
    observe: Observe,
) -> None:
    """Every line of the file arrives in the stream once, in the order of time and then of the file.

    A stream is ordered by event time. The parser writes an Xid with the time at which the kernel logged it, so a
    heartbeat on the line before it may have a later time.
    """
    machine.require_clock()
    path = plan["event_parser"][which]
    file = next((file for file in files if file.path == path), None)
    if file is None:
        observe.fail(f"the agent's configuration does not have {path}")
    written = [line for line in host.run("head -n %s -- %s", str(_LINES), path).stdout.splitlines() if line.strip()]
    if not written:
        unproven(_nothing(path))

    def look() -> list[LogEvent] | None:
        events = cloudwatch.events(file.group, file.stream) or []
        return None if _missing(written, events) else events

    complete = cloudwatch.wait(look, cloudwatch.arrival_seconds, parked=True)
    if complete is None:
        delivery.raise_if_refused(host)
    events = complete if complete is not None else cloudwatch.events(file.group, file.stream) or []
    if complete is not None and _mistake(written, events, file):  # a page may repeat events: the stream is read again
        events = cloudwatch.events(file.group, file.stream) or events
    if not events:
        delivery.raise_if_dropped(host, "logs", cloudwatch.region, plan)
    _compare(written, events, file, observe)


def _arrival_seconds(host: Any, path: str, cloudwatch: CloudWatch) -> float:
    """Seconds within which the lines of the file must arrive; 0 if it is empty, as without an NVIDIA GPU."""
    return cloudwatch.arrival_seconds if host.run("test -s %s", path).rc == 0 else 0.0


def _nothing(path: str) -> str:
    return f"{path} is empty: no line could arrive"


def _missing(written: list[str], events: list[LogEvent]) -> list[str]:
    return list((Counter(written) - Counter(event.message.rstrip("\n") for event in events)).elements())


def _compare(written: list[str], events: list[LogEvent], file: LogFile, observe: Observe) -> None:
    observe(f"{len(events)} events", f"{len(written)} lines of {file.path}")
    if mistake := _mistake(written, events, file):
        observe.fail(mistake)


def _mistake(written: list[str], events: list[LogEvent], file: LogFile) -> str:
    """How the stream differs from the file; "" where it does not."""
    arrived = [event.message.rstrip("\n") for event in events]
    missing = _missing(written, events)
    duplicates = sorted({line for line in written if arrived.count(line) > written.count(line)})
    order = [line for line in arrived if line in set(written)]
    where = f"group {file.group}, stream {file.stream}"
    if missing:
        return f"{len(missing)} of {len(written)} lines of {file.path} are not in {where}, the first: {missing[0]}"
    if duplicates:
        return f"duplicate events in {where}: {duplicates[0]}"
    times: dict[str, deque[float]] = defaultdict(deque)  # equal lines are matched in their order
    for line, event in zip(arrived, events, strict=True):
        times[line].append(event.time)
    timed = sorted(((times[line].popleft(), line) for line in written), key=itemgetter(0))
    if order != [line for _, line in timed]:
        return f"the lines of {file.path} have another order in {where}"
    return ""


@pytest.mark.planned("event_parser")
@pytest.mark.needs("observed")
@pytest.mark.parametrize("which", [pytest.param("raw_log_group", marks=_NEEDS_A_DRILL), "json_log_group"])
def test_stream_is_this_instances_alone(
    which: Literal["raw_log_group", "json_log_group"],
    host: Any,
    plan: PlanDocument,
    machine: MachineUnderTest,
    cloudwatch: CloudWatch,
    observe: Observe,
) -> None:
    """The stream has no event from before this instance and names no other instance."""
    paths = {
        "raw_log_group": plan["event_parser"]["raw_log"],
        "json_log_group": plan["event_parser"]["json_log"],
    }
    group, path = plan["telemetry"][which], paths[which]
    stream = plan["telemetry"]["log_stream"].replace("{instance_id}", machine.instance_id)
    seconds = _arrival_seconds(host, path, cloudwatch)
    events = cloudwatch.wait(lambda: cloudwatch.events(group, stream) or None, seconds, parked=True)
    if not events:
        unproven(f"group {group} has no events in stream {stream}" if seconds else _nothing(path))
    early = [event for event in events if event.ingested < machine.first_boot_time - 60]
    other_instances = sorted(
        {name for event in events for name in _INSTANCE_ID.findall(event.message) if name != machine.instance_id}
    )
    observe(f"{len(events)} events", "none before the first boot, no other instance")
    if early:
        observe.fail(
            f"{len(early)} events in {group}/{stream} are older than this instance, the first: {early[0].message}"
        )
    if other_instances:
        observe.fail(f"{group}/{stream} names other instances: {', '.join(other_instances)}")


@pytest.mark.needs("promise")
@_NEEDS_A_DRILL
def test_retention_is_the_planned_one(
    host: Any,
    files: list[LogFile],
    plan: PlanDocument,
    cloudwatch: CloudWatch,
    log_group_suffix: str,
    observe: Observe,
) -> None:
    """The log groups have the planned retention. Without one the cost grows; a short one loses evidence."""
    groups = {file.group: file.path for file in files}
    config = agent_config.with_group_suffix(plan["cloudwatch_agent"]["config"], log_group_suffix)
    planned = {file.group: file.retention_days for file in agent_config.log_files(config, {})}
    retention: dict[str, int | None] = {}
    absent = {}
    for group, path in groups.items():
        seconds = _arrival_seconds(host, path, cloudwatch)
        days = cloudwatch.wait(functools.partial(_retention, cloudwatch, group), seconds, parked=True)
        if days is None:
            absent[group] = f"log group {group} does not exist" if seconds else _nothing(path)
            continue
        # The agent sets the retention in a call after it has created the group.
        retention[group] = days[0] or cloudwatch.wait(
            functools.partial(cloudwatch.retention_days, group), _NEXT_CALL, parked=True
        )
    expected = {group: days for group, days in planned.items() if group not in absent}
    observe.same(retention, expected, "retention in days")
    if absent:
        unproven("; ".join(absent.values()))


def _retention(cloudwatch: CloudWatch, group: str) -> tuple[int | None] | None:
    try:
        return (cloudwatch.retention_days(group),)
    except LookupError:
        return None
