"""Where roles run: in a sandbox where one is possible, on a booted machine otherwise or if asked for."""

from __future__ import annotations

import io

import pytest

from gpu_ami.build import builder_kind
from gpu_ami.commands import options
from gpu_ami.errors import UsageError
from gpu_ami.local.sandbox import builder
from gpu_ami.progress import Progress

NO_ROOT = "it needs root"


@pytest.mark.parametrize(
    ("asked", "conditions", "reason", "sandbox", "said"),
    [
        ("auto", "", "", True, ""),
        ("sandbox", "", "", True, ""),
        ("machine", "", "", False, ""),
        ("machine", "aws-like:1", NO_ROOT, False, ""),
        ("auto", "", NO_ROOT, False, f"no sandbox, because {NO_ROOT}"),
        ("auto", "aws-like:1", "", False, "conditions aws-like:1 are of booted machines"),
    ],
)
def test_a_sandbox_is_taken_where_it_is_possible(
    monkeypatch: pytest.MonkeyPatch, asked: str, conditions: str, reason: str, sandbox: bool, said: str
) -> None:
    monkeypatch.setattr(builder, "unusable", lambda: reason)
    out = io.StringIO()
    assert builder_kind.choose(asked, conditions, Progress("plain", out)) is sandbox
    assert said in out.getvalue() and bool(said) == bool(out.getvalue())


@pytest.mark.parametrize(("conditions", "reason"), [("", NO_ROOT), ("aws-like:1", "")])
def test_a_sandbox_that_was_asked_for_and_is_not_possible_is_an_error(
    monkeypatch: pytest.MonkeyPatch, conditions: str, reason: str
) -> None:
    monkeypatch.setattr(builder, "unusable", lambda: reason)
    with pytest.raises(UsageError, match="--builder sandbox: ") as caught:
        builder_kind.choose("sandbox", conditions, Progress("quiet"))
    assert "--builder machine" in caught.value.hint


def test_the_command_line_offers_what_there_is() -> None:
    assert options.BUILDERS == builder_kind.BUILDERS
