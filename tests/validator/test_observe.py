"""What a check records beside its verdict, and the messages of the checks that fail."""

from __future__ import annotations

import pytest

from tests.validator.checks.conftest import table_host
from validator.observe import Observe, output, unproven
from validator.results import Hop, RunningCheck


def test_unproven_ends_the_check_with_its_reason() -> None:
    with pytest.raises(pytest.skip.Exception, match="no GPU is idle"):
        unproven("no GPU is idle")


def test_output_of_a_command_that_succeeds() -> None:
    assert output(table_host({"uname -r": (0, "6.1.0\n", "warning\n")}), "uname %s", "-r") == "6.1.0\n"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((2, "partial", "denied\n"), "`uname -r` exited with status 2: denied"),
        ((2, "only this\n", ""), "`uname -r` exited with status 2: only this"),
        ((127, "", ""), "`uname -r` exited with status 127: no output"),
    ],
)
def test_output_of_a_command_that_fails(reply: tuple[int, str, str], message: str) -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        output(table_host({"uname -r": reply}), "uname %s", "-r")
    assert str(failure.value) == message


def test_long_output_is_truncated() -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        output(table_host({"make": (1, "", "a" * 1000 + "last words")}), "make")
    assert str(failure.value) == "`make` exited with status 1: " + "a" * 490 + "last words"


def test_same_records_both_values_and_names_the_difference(observe: Observe, running: RunningCheck) -> None:
    observe.same("580.1", "580.1", "driver")
    assert (running.record.observed, running.record.planned) == ("580.1", "580.1")
    with pytest.raises(pytest.fail.Exception, match=r"^driver: expected '580\.1', got '570\.1'$"):
        observe.same("570.1", "580.1", "driver")
    assert (running.record.observed, running.record.planned) == ("570.1", "580.1")


def test_nothing_fails_with_every_entry(observe: Observe, running: RunningCheck) -> None:
    observe.nothing([], "files that no package owns")
    assert (running.record.observed, running.record.planned) == ([], [])
    with pytest.raises(pytest.fail.Exception, match=r"^files that no package owns: /etc/a, /etc/b$"):
        observe.nothing(["/etc/a", "/etc/b"], "files that no package owns")
    assert running.record.observed == ["/etc/a", "/etc/b"]


def test_long_values_are_shortened_in_the_message(observe: Observe, running: RunningCheck) -> None:
    values = [f"/etc/file{number}" for number in range(1000)]
    with pytest.raises(pytest.fail.Exception) as failure:
        observe.nothing(values, "files")
    assert len(str(failure.value)) == len("files: ") + 1500 and str(failure.value).endswith("...")
    assert running.record.observed == values


def test_hops_are_kept_in_order_and_rounded(observe: Observe, running: RunningCheck) -> None:
    observe.hop("kernel → raw log", 0.12345)
    observe.hop("raw log → CloudWatch", 2)
    assert running.record.hops == (Hop("kernel → raw log", 0.123), Hop("raw log → CloudWatch", 2))


def test_event_and_failure(observe: Observe, running: RunningCheck) -> None:
    observe.event({"kind": "xid", "code": 31})
    assert running.record.event == {"kind": "xid", "code": 31}
    with pytest.raises(pytest.fail.Exception, match="seen 1 line, expected 2"):
        observe.fail("seen 1 line, expected 2")
