"""Concurrency, errors and deadlines of a command."""

from __future__ import annotations

import pytest

from gpu_ami.local.backends.systems_manager.commands import Command, Invocation, PluginResult, limit
from gpu_ami.local.backends.systems_manager.documents import Step

STEP = Step("shell", "aws:runShellScript", {"timeoutSeconds": "60"})


def command(count: int, concurrency: str = "50", errors: str = "0") -> Command:
    invocations = {name: Invocation(name, [STEP]) for name in (f"i-{number}" for number in range(count))}
    return Command("D", {}, invocations, 0.0, 100.0, concurrency, errors)


def running(_: str) -> bool:
    return True


@pytest.mark.parametrize(("text", "of", "expected"), [("10", 3, 10), ("50%", 5, 2), ("100%", 7, 7), ("0", 9, 0)])
def test_a_limit_is_a_number_or_a_percentage(text: str, of: int, expected: int) -> None:
    assert limit(text, of) == expected


def test_only_so_many_run_at_a_time() -> None:
    one = command(3, concurrency="2")
    assert [bool(one.next_for(f"i-{number}", 1.0)) for number in range(3)] == [True, True, False]
    one.take_reply("i-0", [PluginResult("shell", "Success", 0)], 2.0)
    assert one.next_for("i-2", 3.0)


def test_a_delivery_timeout_is_no_error() -> None:
    one = command(2)
    one.next_for("i-0", 1.0)
    one.advance(101.0, running)
    assert one.invocations["i-1"].details == "DeliveryTimedOut" and not one.invocations["i-1"].counts_as_error
    one.take_reply("i-0", [PluginResult("shell", "Success", 0)], 102.0)
    assert one.status == ("Failed", "Incomplete")


def test_what_never_answers_is_an_execution_timeout() -> None:
    one = command(1)
    one.next_for("i-0", 1.0)
    one.advance(161.0, running)
    assert one.status == ("InProgress", "InProgress")
    one.advance(161.1, running)
    assert one.invocations["i-0"].details == "ExecutionTimedOut"
    one.take_reply("i-0", [PluginResult("shell", "Success", 0)], 300.0)  # too late
    assert one.invocations["i-0"].status == "TimedOut"


def test_a_cancelled_command_is_cancelled() -> None:
    one = command(1)
    one.cancel(1.0)
    assert one.status == ("Cancelled", "Cancelled") and one.describe()["CompletedCount"] == 1
