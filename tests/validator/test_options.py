"""Options: their types and defaults, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.options import add_options


@pytest.fixture
def parser() -> pytest.Parser:
    made = pytest.Parser(_ispytest=True)
    add_options(made)
    return made


def test_defaults(parser: pytest.Parser) -> None:
    options = parser.parse([])
    assert (options.command_deadline, options.check_deadline, options.arrival_seconds) == (120.0, 1200.0, 900.0)
    assert (options.connect_timeout, options.roles_path, options.serial, options.no_evidence) == (
        15.0,
        [],
        False,
        False,
    )
    assert (options.plan, options.results, options.evidence, options.waivers) == (None, None, None, None)


def test_types(parser: pytest.Parser) -> None:
    options = parser.parse(["--plan=plan.json", "--check-deadline=5", "--roles-path=a", "--roles-path=b", "--tier=T1"])
    assert (options.plan, options.check_deadline) == (Path("plan.json"), 5.0)
    assert (options.roles_path, options.tier) == ([Path("a"), Path("b")], "T1")


@pytest.mark.parametrize("option", ["--tier=T9", "--check-deadline=soon"])
def test_what_is_refused(parser: pytest.Parser, option: str) -> None:
    with pytest.raises(pytest.UsageError, match=option.partition("=")[2]):
        parser.parse([option])
