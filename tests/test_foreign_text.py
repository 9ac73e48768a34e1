"""gpu_ami.foreign_text: what a host says is obeyed by no terminal, CI system, browser or parser."""

from __future__ import annotations

import json

import pytest

from gpu_ami import foreign_text

ESCAPES = "a\x1b]0;title\x07\x9b2J\x1b[31mred\x1b[0m\u202e\x00"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("::set-output name=x::y", ": :set-output name=x::y"),
        ("ok\n  ::error::x", "ok\n  : :error::x"),
        ("::::x", ": :::x"),
        ("ok\n\u00a0\u3000\u2003::error::x", "ok\n\u00a0\u3000\u2003: :error::x"),
        ("\ufe0f::error::x", "⟨U+FE0F⟩::error::x"),
        ("#\u034f#[error]x", "#⟨U+034F⟩#[error]x"),
        ("a ##[error]x", "a # #[error]x"),
        ("##vso[task.setvariable]x", "# #vso[task.setvariable]x"),
        ("##teamcity[buildProblem]", "# #teamcity[buildProblem]"),
        ("a\u061cb\u00ad\ufff9\U000e0041", "a⟨U+061C⟩b⟨U+00AD⟩⟨U+FFF9⟩⟨U+E0041⟩"),
        ("check::test_it", "check::test_it"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("a\x1b]0;t\x07", "a⟨U+001B⟩]0;t⟨U+0007⟩"),
    ],
)
def test_no_line_is_a_command(text: str, shown: str) -> None:
    assert foreign_text.printed(text) == shown


def test_json_keeps_the_value_and_no_command() -> None:
    text = foreign_text.json_text({"a": f"##[error]{ESCAPES}"}, indent=2)
    assert json.loads(text) == {"a": f"##[error]{ESCAPES}"}
    assert "##[" not in text and not set(text) & set("\x1b\x9b\u202e\x00")


def test_json_shows_nothing_that_is_not_seen() -> None:
    value = "\u061c\ufff9\U000e0041\ud800"
    text = foreign_text.json_text([value])
    assert json.loads(text) == [value] and text.isascii()


def test_a_value_stays_on_its_line_of_markdown() -> None:
    """On a line of its own it was a heading of the certificate, a row of its table, or the address of an image."""
    evil = "x\n# image: certified\n| verdict | **PASS** |\n\n[r]: http://evil/x.png"
    assert foreign_text.markdown(evil) == "x # image: certified | verdict | **PASS** | [r]: http://evil/x.png"


def test_markdown_has_no_live_html() -> None:
    assert foreign_text.markdown("<img src=x> [a](javascript:x)") == "&lt;img src=x> [a]\\(javascript:x)"
