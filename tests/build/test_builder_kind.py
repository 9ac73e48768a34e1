"""Where roles run: in a sandbox where one is possible, on a booted machine otherwise or if asked for."""

from __future__ import annotations

import pytest

from gpu_ami.build import builder_kind
from gpu_ami.commands import options
from gpu_ami.errors import UsageError
from gpu_ami.local.sandbox import builder

NO_ROOT = "it needs root"


@pytest.mark.parametrize(
    ("asked", "conditions", "reason", "sandbox", "said"),
    [
        ("auto", "", "", True, "the builder is a sandbox of this host"),
        ("sandbox", "", "", True, "the builder is a sandbox of this host"),
        ("machine", "", "", False, ""),
        ("machine", "aws-like:1", NO_ROOT, False, ""),
        ("auto", "", NO_ROOT, False, f"the builder is a booted machine, not a sandbox: {NO_ROOT}"),
        ("auto", "aws-like:1", "", False, "conditions aws-like:1 are of booted machines"),
    ],
)
def test_a_sandbox_is_taken_where_it_is_possible(
    monkeypatch: pytest.MonkeyPatch, asked: str, conditions: str, reason: str, sandbox: bool, said: str
) -> None:
    monkeypatch.setattr(builder, "unusable", lambda: reason)
    chosen, note = builder_kind.choose(asked, conditions)
    assert chosen is sandbox
    assert said in note and bool(said) == bool(note)


@pytest.mark.parametrize(("conditions", "reason"), [("", NO_ROOT), ("aws-like:1", "")])
def test_a_sandbox_that_was_asked_for_and_is_not_possible_is_an_error(
    monkeypatch: pytest.MonkeyPatch, conditions: str, reason: str
) -> None:
    monkeypatch.setattr(builder, "unusable", lambda: reason)
    with pytest.raises(UsageError, match="--builder sandbox: ") as caught:
        builder_kind.choose("sandbox", conditions)
    assert "--builder machine" in caught.value.hint


def test_the_command_line_offers_what_there_is() -> None:
    assert options.BUILDERS == builder_kind.BUILDERS
