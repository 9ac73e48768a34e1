"""What every part of report.html is made of: text as HTML, values for people, badges, lists, bars."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from gpu_ami.report import FAIL, FLAKY, PASS, UNAVAILABLE, UNPROVEN

Json = Mapping[str, Any]

# Each verdict as sign, and as what it says of the image: the colour is never alone.
VERDICTS = {
    PASS: ("✓", "Every core promise of the image was checked, and held."),
    FAIL: ("✗", "The image broke a promise: a check failed."),
    FLAKY: ("≈", "A check passed only at a later attempt. That is no pass."),
    "ERROR": ("!", "Cloud, network or machine kept the proof from its end. The image was not judged."),
    UNAVAILABLE: ("∅", "There was no capacity to boot on. The image was not judged."),
    UNPROVEN: ("?", "Something that was promised has not been checked. That is no pass."),
}
SHORT = 96  # characters of a value in a check's own line
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Controls, and marks that turn the direction of writing: they could make a line read as another one.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def t(value: object) -> str:
    """Text of a report as HTML: escaped, colours of a terminal removed, what cannot be seen made visible."""
    return html.escape(_UNSEEN.sub(_visible, _COLOUR.sub("", str(value).replace("\r\n", "\n"))))


def _visible(found: re.Match[str]) -> str:
    return f"⟨U+{ord(found.group()):04X}⟩"


def full(value: object) -> str:
    """A value for people, whole: text as it is, anything else as indented JSON."""
    if value is None:
        return "nothing"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, default=str)


def one_line(value: object) -> str:
    """A value without line breaks; nothing in a list or a mapping is said in a word."""
    if value in ([], {}):
        return "none"
    text = (
        full(value) if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    )
    return " ".join(text.split())


def short(value: object, most: int = SHORT) -> str:
    """A value on one line, cut with an ellipsis."""
    text = one_line(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def kind_of(verdict: object) -> str:
    return str(verdict) if verdict in VERDICTS else UNPROVEN


def badge(verdict: object, more: str = "") -> str:
    kind = kind_of(verdict)
    return f'<span class="badge {kind}">{VERDICTS[kind][0]} {t(verdict)}{more}</span>'


def plural(count: int, one: str) -> str:
    return f"{count} {one}" if count == 1 else f"{count} {one}s"


def rows_of(pairs: Iterable[tuple[str, str]]) -> str:
    """A description list; the values are HTML."""
    return "<dl>" + "".join(f"<dt>{t(key)}</dt><dd>{value}</dd>" for key, value in pairs if value) + "</dl>"


def sentence(names: Iterable[str]) -> str:
    return f"<p>{', '.join(t(one) for one in names)}</p>"


def bullets(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{t(one)}</li>" for one in lines) + "</ul>"


def bar(name: str, said: str, start: float, end: float, total: float, kind: str = "") -> str:
    scale = 100 / total if total > 0 else 0
    place = f"--from:{start * scale:.2f}%;--wide:{max(0.0, end - start) * scale:.2f}%"
    return (
        f'<li class="{kind}"><span class="what"><span>{t(name)}</span><span>{t(said)}</span></span>'
        f'<span class="track" aria-hidden="true"><span class="bar" style="{place}"></span></span></li>'
    )


def waiver_text(waiver: Json) -> str:
    state = waiver.get("state", "used")
    scope = ", ".join(f"{key} {value}" for key, value in (waiver.get("scope") or {}).items())
    return (
        f"Waiver ({t(state)}) of <code>{t(waiver.get('check', ''))}</code>{' for ' + t(scope) if scope else ''} by "
        f"{t(waiver.get('owner', 'nobody'))} until {t(waiver.get('expires', '?'))}: {t(waiver.get('reason', ''))}"
    )
