"""Lines that were cut: by a pager (`less -S` ends a line with `>`), by a journal or a terminal of so many columns.

What is left counts if the code is readable; what is missing is said. Pure functions.
"""

from __future__ import annotations

import re
from typing import Tuple

SXID_DIGITS = 5
NUMBER = "in the number"
_ADDRESS, _BEFORE_NUMBER = "in the address", "before the number"
_END, _MESSAGE, _PROCESS = "the end of the message", "the message", "process and message"
_OPEN_ADDRESS = re.compile(r"[^)]*$")
_NO_NUMBER = re.compile(r"[^)]*\)\s*:?\s*$")
_MAY_END_A_CUT = ("\u2026", ".", ">", " ", "\t", "\r", "\n", "\x0b", "\x0c", "\xa0", "\u2009", "\u202f", "\u3000")
_MIDDLE = re.compile(r"\S\u2026\S")
# How the follow-up lines of an SXid begin (error_nvswitch.c).
_FOLLOW_UPS = ("Severity 0 Engine instance", "Severity 1 Engine instance", "Data {")
_PROCESS_CUT = re.compile(r"(?:p|pi|pid|pid='?\d*|pid='?<[^>]*|n|na|nam|name=?)$")
_RECOVERY = re.compile(r"GPU recovery action changed\b")
_RECOVERY_END = re.compile(r" to 0x[0-9a-fA-F]+ \([^)]*\)")


def without_mark(text: str) -> Tuple[str, bool]:
    """(the text without the mark of a cut, whether there was one): `>` that closes nothing, or an ellipsis."""
    if text[-1:] not in _MAY_END_A_CUT:
        return text, False
    text = text.rstrip()
    if text.endswith("\u2026"):
        return text[:-1].rstrip(), True
    if text.endswith("...") and not text.endswith("...."):
        return text[:-3].rstrip(), True
    if text.endswith(">") and text.count("<") < text.count(">") and not text.endswith("->"):
        return text[:-1].rstrip(), True
    return text, False


def place(text: str) -> str:
    """Where a line without a readable number was cut; "" for another format."""
    tail = text.partition("Xid")[2]
    if _NO_NUMBER.match(tail):
        return _BEFORE_NUMBER
    return _ADDRESS if _OPEN_ADDRESS.match(tail) else ""


def ends_in_number(match: "re.Match[str]") -> bool:
    """Whether nothing stands after the number's digits, so that others may have."""
    return match.end("code") == len(match.string)


def missing_of_xid(match: "re.Match[str]", message: str, paged: bool) -> str:
    """What an Xid line lacks; "" for a whole one. Drivers print `, ` after the number and after the process."""
    rest = match.group("rest").strip()
    if ends_in_number(match):
        return "the message; the number may be longer"
    if _PROCESS_CUT.match(rest):
        return _PROCESS
    if rest.startswith(("pid=", "name=")) and not message and not rest.endswith(",") and "<unknown>" not in rest[-10:]:
        return "the message; the process may be cut"
    if "\u2026" in message and _MIDDLE.search(message):
        return "the middle of the message"
    if paged or (_RECOVERY.match(message) and not _RECOVERY_END.search(message)):
        return _END if message else _MESSAGE
    return ""


def missing_of_sxid(message: str, paged: bool) -> str:
    if not message:
        return _MESSAGE
    unfinished = paged or is_cut_follow_up(message) or any(
        word.startswith(message) and word != message for word in ("Fatal,", "Non-fatal,", "Correctable,")
    )
    return _END if unfinished else ""


def is_cut_follow_up(message: str) -> bool:
    """Whether this is the beginning of a follow-up line, cut before what tells it from a first line."""
    return bool(message) and any(start.startswith(message) for start in _FOLLOW_UPS)
