"""Renders the templates in templates/ (Jinja2). HTML is escaped by default; jinja2 is imported at the first use.

Everything that a report holds may come from the machine under test, so every value that a template prints goes through
`foreign_text` first: what cannot be seen is written out, and Markdown has no live HTML of it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami import foreign_text

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
SHORT = 96  # characters of a value in a check's own line


def render(template: str, **values: object) -> str:
    """The text of a template with these values."""
    return jinja_environment(template.endswith(".md.j2")).get_template(template).render(**values)


@functools.cache
def jinja_environment(is_markdown: bool) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: not (name or "").endswith(".md.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=foreign_text.markdown if is_markdown else foreign_text.visible,
    )
    filters: dict[str, Callable[..., Any]] = {
        "full": full, "short": short, "plural": plural, "cell": cell, "seconds": seconds,
        "json_block": json_block,
    }  # fmt: skip
    environment.filters.update(filters)
    return environment


def full(value: object) -> str:
    """A value for people, whole: text as it is, anything else as indented JSON."""
    if value is None:
        return "nothing"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, default=str)


def one_line(value: object) -> str:
    """A value without line breaks; an empty list or mapping as `none`."""
    if value in ([], {}, ()):
        return "none"
    if value is None or isinstance(value, str):
        return " ".join(full(value).split())
    return " ".join(json.dumps(value, ensure_ascii=False, default=str).split())


def short(value: object, most: int = SHORT) -> str:
    """A value on one line, cut with an ellipsis."""
    text = one_line(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def cell(value: object, most: int = 120) -> str:
    """A value as a cell of a Markdown table, or within a line."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(str(foreign_text.markdown(text)).split()).replace("|", "\\|")
    return text if len(text) <= most else text[: most - 1] + "…"


def json_block(value: object) -> object:
    """A value as a code block of Markdown, which no text in it ends."""
    from markupsafe import Markup

    text = foreign_text.json_text(value, indent=1).replace("`", "\\u0060").replace("<", "\\u003c")
    return Markup(f"```json\n{text}\n```")


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def seconds(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}f} s"
