"""The checks of an image as found, once green and once red with their message."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.validator.checks.conftest import METADATA, FakeMachine, Judge
from validator.checks import observed
from validator.plan import as_plan

WAY = {"source": "/var/log/kern.log", "group": "/fleet/kernel", "stream": "{instance_id}", "written_by": "rsyslog",
       "captures": True, "reason": "rsyslog writes new kernel lines"}  # fmt: skip
SNAPSHOT = WAY | {"source": "/var/log/gpuevent.log", "captures": False, "reason": "a snapshot of dmesg"}


def plan(*ways: dict[str, Any]) -> Any:
    sections = {"request": {}, "absent": [], "absent_by": [], "captures": list(ways), "agent_from": []}
    return as_plan({"observed": sections, "nvidia_driver": {"version": "580.178.04"}})


def reading(source: str, version: str) -> dict[str, str]:
    return {"source": source, "version": version}


DRIVER = [reading("package database", "580.178.04"), reading("module loaded", "580.178.04")]
TOOLKITS = [reading("package database", "12.9"), reading("package database", "13.0"), reading("link", "12.9")]


@pytest.mark.parametrize(
    ("readings", "verdict", "message"),
    [
        ({"nvidia_driver": DRIVER}, "PASS", ""),
        ({"cuda": TOOLKITS}, "PASS", ""),
        ({"cuda": [*TOOLKITS[:2], reading("link", "12.4")]}, "FAIL", "sources differ: cuda"),
        (
            {"nvidia_driver": [*DRIVER, reading("library file", "580.159.03")]}, "FAIL",
            "sources differ: nvidia_driver: package database 580.178.04",
        ),
        ({"nvidia_driver": DRIVER[:1]}, "UNPROVEN", "no component of the image has two sources"),
        ({}, "UNPROVEN", "no component of the image has two sources"),
    ],
)  # fmt: skip
def test_agreement_of_sources(judge: Judge, readings: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(observed.test_sources_agree, {}, readings=readings, plan=plan())
    assert (found.verdict, message in found.message) == (verdict, True), found


class FakeCloudWatch:
    """A log group that has what was written to /dev/kmsg, if anything arrives there."""

    region, arrival_seconds = "us-east-1", 60.0

    def __init__(self, *messages: str) -> None:
        self.messages = messages
        self.asked: list[tuple[str, str]] = []

    def events(self, group: str, stream: str, _since: float) -> list[Any]:
        self.asked.append((group, stream))
        return [SimpleNamespace(message=message) for message in self.messages]

    def wait(self, look: Any, _seconds: float) -> Any:
        return look()


HOST = {"ls /proc/driver*": "", "printf*": "", "hostname*": "ip-10-0-0-4\n", "cat *amazon-cloudwatch-agent.log": ""}


@pytest.mark.parametrize(
    ("ways", "messages", "verdict", "message"),
    [
        ((WAY,), ("kernel: NVRM: Xid … nonce=0011",), "PASS", ""),
        ((WAY,), (), "FAIL", "did not reach /fleet/kernel-proof / i-"),
        ((SNAPSHOT,), (), "FAIL", "never captures: /var/log/gpuevent.log → /fleet/kernel: a snapshot of dmesg"),
        ((WAY | {"captures": None},), (), "UNPROVEN", "it is not known whether kernel lines are sent"),
    ],
)
def test_xid_is_followed_to_where_kernel_lines_go(
    judge: Judge,
    monkeypatch: pytest.MonkeyPatch,
    ways: tuple[dict[str, Any], ...],
    messages: tuple[str, ...],
    verdict: str,
    message: str,
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _bytes: "0011")
    monkeypatch.setattr("validator.probes.agent.config.in_use", lambda _host: {})
    cloudwatch = FakeCloudWatch(*messages)
    given = {"machine": FakeMachine(METADATA), "cloudwatch": cloudwatch, "log_group_suffix": "-proof"}
    found = judge(observed.test_an_xid_arrives_where_kernel_lines_are_sent, HOST, plan=plan(*ways), **given)
    assert (found.verdict, message in found.message) == (verdict, True), found
    if verdict == "PASS":
        assert cloudwatch.asked == [("/fleet/kernel-proof", METADATA["instance-id"])]


def test_plan_of_the_checks_is_json() -> None:
    assert json.loads(json.dumps(plan(WAY)))["observed"]["captures"] == [WAY]
