"""Each log check, once green and once red with its message."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.validator.checks.conftest import INSTANCE, PLAN, Judge
from validator.checks import logs
from validator.cloudwatch import LogEvent
from validator.probes.agent import config as agent_config

FILES = agent_config.log_files(PLAN["cloudwatch_agent"]["config"], {"instance-id": INSTANCE})
LINES = ["[    4.1] NVRM: loading", "[    4.2] NVRM: GPU at PCI:0000:00:1b: GPU-0"]


class FakeCloudWatch:
    """Streams by (group, stream); each look shows one event more."""

    arrival_seconds = 30.0

    def __init__(
        self, streams: dict[tuple[str, str], list[LogEvent]], retention: int | None = 90, absent: tuple[str, ...] = ()
    ) -> None:
        self.streams, self.retention, self.looks = streams, retention, 0
        self.absent = absent
        self.waited: list[float] = []

    def events(self, group: str, stream: str, since: float = 0.0) -> list[LogEvent] | None:
        self.looks += 1
        events = self.streams.get((group, stream))
        return events if events is None else events[: self.looks]

    def wait(self, look: Callable[[], Any], seconds: float, *, parked: bool = False) -> Any:
        self.waited.append(seconds)
        return next((answer for answer in (look() for _ in range(10)) if answer is not None), None)

    def retention_days(self, group: str) -> int | None:
        if group in self.absent:
            raise LookupError(group)
        return self.retention


def events(*messages: str, at: float = 2000.0) -> list[LogEvent]:
    return [LogEvent(at, at, message) for message in messages]


@pytest.mark.parametrize(
    ("arrived", "verdict", "message"),
    [
        (LINES, "PASS", ""),
        ([*LINES, "later"], "PASS", ""),
        (LINES[:1], "FAIL", f"are not in group raw, stream {INSTANCE}, the first: {LINES[1]}"),
        ([LINES[0], *LINES], "FAIL", f"duplicate events in group raw, stream {INSTANCE}: {LINES[0]}"),
        (LINES[::-1], "FAIL",
         "the lines of /var/log/gpuevent.log have another order in group raw, stream i-0123456789abcdef0"),
    ],
)  # fmt: skip
def test_file_arrives(judge: Judge, arrived: list[str], verdict: str, message: str) -> None:
    cloudwatch = FakeCloudWatch({("raw", INSTANCE): events(*arrived)})
    table = {"head*": "\n".join(LINES) + "\n", "cat*amazon-cloudwatch-agent.log": ""}
    if verdict == "FAIL" and len(arrived) > 2:
        cloudwatch.looks = 9
    outcome = judge(logs.test_file_arrives_in_its_stream, table, which="raw_log", files=FILES, cloudwatch=cloudwatch)
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome


@pytest.mark.parametrize("page", [[LINES[0], *LINES], LINES[::-1]], ids=["twice", "another order"])
def test_a_page_that_is_wrong_once_is_not_the_images_fault(judge: Judge, page: list[str]) -> None:
    class Repeating(FakeCloudWatch):
        def events(self, group: str, stream: str, since: float = 0.0) -> list[LogEvent] | None:
            self.looks += 1
            return events(*(page if self.looks == 1 else LINES))

    table = {"head*": "\n".join(LINES) + "\n", "cat*amazon-cloudwatch-agent.log": ""}
    outcome = judge(logs.test_file_arrives_in_its_stream, table, which="raw_log", files=FILES, cloudwatch=Repeating({}))
    assert outcome.verdict == "PASS", outcome


@pytest.mark.parametrize(("first", "verdict"), [(2000.1, "PASS"), (2000.0, "FAIL"), (1999.9, "FAIL")])
def test_lines_are_ordered_by_event_time(judge: Judge, first: float, verdict: str) -> None:
    """What was written second is first in the stream: right only if its time says so."""
    arrived = [*events(*LINES[1:], at=2000.0), *events(LINES[0], at=first)]
    cloudwatch = FakeCloudWatch({("raw", INSTANCE): arrived})
    table = {"head*": "\n".join(LINES) + "\n", "cat*amazon-cloudwatch-agent.log": ""}
    outcome = judge(logs.test_file_arrives_in_its_stream, table, which="raw_log", files=FILES, cloudwatch=cloudwatch)
    assert outcome.verdict == verdict, outcome


@pytest.mark.parametrize(
    ("arrived", "step", "verdict"),
    [
        (("a", "b", "a"), 1.0, "PASS"),
        (("a", "b", "a"), 0.0, "PASS"),
        (("a", "a", "b"), 0.0, "FAIL"),
        (("a", "b"), 1.0, "FAIL"),
    ],
)
def test_duplicate_lines_have_separate_times(judge: Judge, arrived: tuple[str, ...], step: float, verdict: str) -> None:
    """A program that writes the parser's lines too leaves them twice: that is another check's to tell."""
    stream = [event for number, line in enumerate(arrived) for event in events(line, at=2000.0 + number * step)]
    table = {"head*": "a\nb\na\n"}
    cloudwatch = FakeCloudWatch({("raw", INSTANCE): stream})
    outcome = judge(logs.test_file_arrives_in_its_stream, table, which="raw_log", files=FILES, cloudwatch=cloudwatch)
    assert outcome.verdict == verdict, outcome


def test_empty_file_is_unproven_and_unconfigured_file_fails(judge: Judge) -> None:
    nothing = FakeCloudWatch({})
    empty = judge(logs.test_file_arrives_in_its_stream, {"head*": ""}, which="raw_log", files=FILES, cloudwatch=nothing)
    assert (empty.verdict, empty.message) == ("UNPROVEN", "/var/log/gpuevent.log is empty: no line could arrive")
    other = judge(logs.test_file_arrives_in_its_stream, {}, which="json_log", files=FILES[:1], cloudwatch=nothing)
    assert (other.verdict, other.message) == ("FAIL", "the agent's configuration does not have /var/log/gpuevent.jsonl")


def test_streams_are_the_planned_ones(judge: Judge) -> None:
    assert judge(logs.test_planned_streams_are_configured, {}, files=FILES).verdict == "PASS"
    moved = [agent_config.LogFile(file.path, "elsewhere", file.stream, 90) for file in FILES]
    outcome = judge(logs.test_planned_streams_are_configured, {}, files=moved)
    assert (outcome.verdict, "'/var/log/gpuevent.log': ('elsewhere'" in outcome.message) == ("FAIL", True)


@pytest.mark.parametrize(
    ("stored", "verdict", "message"),
    [
        (events(f'{{"instance": "{INSTANCE}"}}'), "PASS", ""),
        (
            events("of the builder", at=900.0),
            "FAIL",
            "1 events in json/i-0123456789abcdef0 are older",
        ),
        (events('{"instance": "i-0bbbbbbbbbbbbbbbb"}'), "FAIL", "names other instances: i-0bbbbbbbbbbbbbbbb"),
        ([], "UNPROVEN", "group json has no events in stream i-0123456789abcdef0"),
    ],
)
def test_stream_is_this_instances(judge: Judge, stored: list[LogEvent], verdict: str, message: str) -> None:
    cloudwatch = FakeCloudWatch({("json", INSTANCE): stored})
    written = {"test -s*": ""}
    outcome = judge(logs.test_stream_is_this_instances_alone, written, which="json_log_group", cloudwatch=cloudwatch)
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome
    assert cloudwatch.waited == [30.0]


@pytest.mark.parametrize(
    ("check", "more"),
    [
        (logs.test_stream_is_this_instances_alone, {"which": "raw_log_group"}),
        (logs.test_retention_is_the_planned_one, {"files": FILES}),
    ],
)
def test_empty_logs_are_not_awaited(judge: Judge, check: Any, more: dict[str, Any]) -> None:
    cloudwatch = FakeCloudWatch({}, absent=("raw",))
    table = {"test -s /var/log/gpuevent.log": (1, ""), "test -s*": ""}
    outcome = judge(check, table, cloudwatch=cloudwatch, **more)
    assert (outcome.verdict, "is empty: no line could arrive" in outcome.message) == ("UNPROVEN", True)
    assert cloudwatch.waited[:1] == [0.0]


@pytest.mark.parametrize(
    ("days", "verdict", "message"),
    [
        (90, "PASS", ""),
        (None, "FAIL", "retention in days: expected {'raw': 90, 'json': 90}, got {'raw': None, 'json': None}"),
        (30, "FAIL", "retention in days: expected {'raw': 90, 'json': 90}, got {'raw': 30, 'json': 30}"),
    ],
)
def test_retention(judge: Judge, days: int | None, verdict: str, message: str) -> None:
    written = {"test -s*": ""}
    outcome = judge(logs.test_retention_is_the_planned_one, written, files=FILES, cloudwatch=FakeCloudWatch({}, days))
    assert (outcome.verdict, outcome.message) == (verdict, message)


@pytest.mark.parametrize(
    ("days", "verdict", "message"),
    [
        (90, "UNPROVEN", "log group json does not exist"),
        (30, "FAIL", "retention in days: expected {'raw': 90}, got {'raw': 30}"),
    ],
)
def test_retention_of_existing_groups(judge: Judge, days: int, verdict: str, message: str) -> None:
    cloudwatch = FakeCloudWatch({}, days, absent=("json",))
    outcome = judge(logs.test_retention_is_the_planned_one, {"test -s*": ""}, files=FILES, cloudwatch=cloudwatch)
    assert (outcome.verdict, outcome.message) == (verdict, message)


def test_retention_that_comes_after_its_group(judge: Judge) -> None:
    cloudwatch = FakeCloudWatch({})
    retention = iter(
        [None, None, None, 90, 90]
    )  # both groups are there; the first one's retention comes with the next call
    cloudwatch.retention_days = lambda group: next(retention)  # type: ignore[method-assign]
    outcome = judge(logs.test_retention_is_the_planned_one, {"test -s*": ""}, files=FILES, cloudwatch=cloudwatch)
    assert (outcome.verdict, outcome.message) == ("PASS", "")
    assert cloudwatch.waited == [30.0, 60.0, 30.0]


SUFFIX = "-proof/20260101-000000-0a1b2c"
SENT: dict[str, Any] = agent_config.with_group_suffix(PLAN["cloudwatch_agent"]["config"], SUFFIX)


def own_groups(judge: Judge, config: Any, pid: str = "77") -> Any:
    table = {"systemctl show*": f"{pid}\n", "cd /proc/77/root/opt/*": f"file_base.json\n{json.dumps(config)}\x1e"}
    return judge(logs.test_agent_sends_to_the_log_groups_of_the_proof, table, log_group_suffix=SUFFIX)


def test_agent_has_the_groups_of_the_proof(judge: Judge) -> None:
    assert own_groups(judge, SENT).verdict == "PASS"
    assert own_groups(judge, SENT, pid="0").message.startswith("the agent is not running")


def test_agent_in_production_groups_blames_nobody(judge: Judge) -> None:
    outcome = own_groups(judge, PLAN["cloudwatch_agent"]["config"])
    assert (outcome.verdict, "the agent sends to json, raw, not to the log groups" in outcome.message) == (
        "UNPROVEN",
        True,
    )


def test_any_other_difference_fails(judge: Judge) -> None:
    changed = json.loads(json.dumps(SENT).replace("90", "7"))
    outcome = own_groups(judge, changed)
    assert outcome.verdict == "FAIL" and "retention_in_days: expected 90, got 7" in outcome.message


def test_unreadable_process_is_unproven(judge: Judge) -> None:
    table = {"systemctl show*": "77\n", "cd /proc/77/root/opt/*": (1, "", "No such file or directory")}
    outcome = judge(logs.test_agent_sends_to_the_log_groups_of_the_proof, table, log_group_suffix=SUFFIX)
    assert (outcome.verdict, "No such file or directory" in outcome.message) == ("UNPROVEN", True)
