"""The one filter of foreign text: what hosts, images, files and AWS say, before people, CI systems or parsers read it.

Everything that a report or a message holds may come from a machine under test. A terminal would obey its escape
sequences, a CI system its workflow commands, a browser its markup, and XML has no place for control characters.
"""

from __future__ import annotations

import json
import re
from typing import Any

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Control characters, and marks that change the direction of writing: they could make a line read as another one. Tags
# (U+E0000 on) are shown by nobody, and read by programs that are given the text. The rest of Unicode's default
# ignorable characters: comparisons of a culture (.NET's StartsWith and IndexOf in GitHub's runner) leave them out.
_UNSEEN = (
    "\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff"
    "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_INVISIBLE = re.compile(f"[\x00-\x08\x0b-\x1f{_UNSEEN}]")
_OF_JSON = re.compile(f"[{_UNSEEN}]")
_LINES = re.compile(r"[ \t]*\n\s*")
# Workflow commands: GitHub reads `::name` at the begin of a line and `##[name]` anywhere, Azure Pipelines `##vso[`,
# TeamCity `##teamcity[`. The runner trims every space of Unicode from a line first (actions/runner, ActionCommand.cs).
_COMMAND_LINE = re.compile(r"(?m)^([^\S\n]*):(?=:)")
_COMMAND = re.compile(r"##(?=\[|vso\[|teamcity\[)")


def visible(value: Any) -> Any:
    """A value as text without terminal colours and with invisible characters written out. Markup stays as it is."""
    if hasattr(value, "__html__"):
        return value
    text = _COLOUR.sub("", str(value).replace("\r\n", "\n"))
    return _INVISIBLE.sub(lambda match: f"⟨U+{ord(match.group()):04X}⟩", text)


def printed(text: str) -> str:
    """Text for a terminal or the log of a CI job: visible, and no line of it is a command to either."""
    return _COMMAND.sub("# #", _COMMAND_LINE.sub(r"\1: ", str(visible(text))))


def json_text(value: object, indent: int | None = None) -> str:
    """A value as JSON for a terminal or a CI log: the same value, with escapes for what those would obey."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    text = _OF_JSON.sub(_escaped, text)
    return _COMMAND.sub(r"\\u0023#", text)


def _escaped(match: re.Match[str]) -> str:
    return json.dumps(match.group())[1:-1]


def markdown(value: Any) -> Any:
    """A value within a line of Markdown: visible, without live HTML, links and images.

    It stays on its line: on one of its own it could be a heading, a row of a table or the address of an image.
    """
    if hasattr(value, "__html__"):
        return value
    return _LINES.sub(" ", str(visible(value))).replace("<", "&lt;").replace("](", "]\\(")
