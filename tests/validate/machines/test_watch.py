"""An instance that no longer runs is seen; a poll that AWS refuses says nothing."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from gpu_ami.errors import CloudError
from gpu_ami.validate.machines import console
from gpu_ami.validate.machines.console import Watch, trouble


def instance(state: str, code: str = "", message: str = "") -> dict[str, Any]:
    reason = {"Code": code, "Message": message}
    return {
        "InstanceId": "i-1",
        "State": {"Name": state},
        "StateReason": {key: text for key, text in reason.items() if text},
    }


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        (instance("running"), ""),
        (instance("pending"), ""),
        (instance("running", "Client.UserInitiatedShutdown", "by the user"), ""),
        ({"State": {"Name": "running"}, "StateReason": None}, ""),
        (instance("running", "Server.Paused", "paused: no space"), "instance i-1 does not run: paused: no space"),
        (instance("stopped", "Server.InternalError"), "instance i-1 is stopped: Server.InternalError"),
        (instance("shutting-down"), "instance i-1 is shutting-down: no reason given"),
        ({"State": {"Name": "terminated"}}, "instance is terminated: no reason given"),
    ],
)  # fmt: skip
def test_states(described: dict[str, Any], reason: str) -> None:
    assert trouble(described) == reason


class Ec2:
    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def instance(self, _: str) -> dict[str, Any]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]


def join_watch() -> None:
    """Waits until the thread of a watch that was closed has ended."""
    for thread in threading.enumerate():
        if thread.name == "watch i-1":
            thread.join(30)
            assert not thread.is_alive()


def test_trouble_is_reported_once_and_a_refused_poll_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "POLL_SECONDS", 0.01)
    seen, reported = list[str](), threading.Event()

    def report(reason: str) -> None:
        seen.append(reason)
        reported.set()

    ec2: Any = Ec2(CloudError("RequestLimitExceeded"), instance("running"), instance("stopped", message="taken"))
    with Watch(ec2, "i-1", report) as looking:
        assert reported.wait(30)
    join_watch()
    assert seen == [looking.reason] == ["instance i-1 is stopped: taken"]


def test_the_code_of_the_state_reason_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "POLL_SECONDS", 0.01)
    reported = threading.Event()
    lost = instance("shutting-down", "Server.SpotInstanceTermination", "Server.SpotInstanceTermination: it was taken")
    with Watch(cast("Any", Ec2(lost)), "i-1", lambda _: reported.set()) as looking:
        assert reported.wait(30)
    join_watch()
    assert looking.code == "Server.SpotInstanceTermination"


def test_nothing_is_reported_of_a_machine_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "POLL_SECONDS", 0.01)
    ec2: Any = Ec2(instance("running"))
    with Watch(ec2, "i-1", pytest.fail) as looking:
        threading.Event().wait(0.1)
    join_watch()
    assert looking.reason == ""
