"""Systemd's reasons of restarts, in the message of a check."""

from __future__ import annotations

import re

import pytest

from tests.scripted_host import table_host
from validator.observe import Observe
from validator.probes import restarts
from validator.results import CheckRecord, RunningCheck

FAILED = "a.service: Failed with result"


@pytest.mark.parametrize(
    ("count", "journal", "message"),
    [
        ("1", f"{FAILED} 'timeout'.\n", "a.service was restarted once in this boot; results of its runs: timeout"),
        ("5", f"{FAILED} 'exit-code'.\n" * 5, "results of its runs: exit-code, exit-code, exit-code and 2 more"),
        ("2", "", "a.service was restarted 2 times in this boot; the journal has no failed run"),
        ("", "", "a.service was restarted an unknown number of times in this boot"),
    ],
)
def test_reasons_are_systemds(count: str, journal: str, message: str) -> None:
    host = table_host({"journalctl*": journal})
    with pytest.raises(pytest.fail.Exception, match=re.escape(message)):
        restarts.check_none(host, "a.service", count, Observe(RunningCheck(CheckRecord("x", "", "T1", ""))))


def test_a_service_that_was_not_restarted_asks_nothing() -> None:
    restarts.check_none(table_host({}), "a.service", "0", Observe(RunningCheck(CheckRecord("x", "", "T1", ""))))
