"""The variables of Packer templates that carry a component's version: their names, and what their text says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gpu_ami.recipes.facts import NEWEST

LATEST = ("latest", "newest", "*", "current")


@dataclass(frozen=True)
class Understood:
    """The recipe's version (None: not understood), what is said of it, and words that were not understood."""

    version: str | None
    remarks: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def latest(text: str) -> Understood:
    """The newest release, with a remark."""
    return Understood(NEWEST, (f"{text!r} becomes {NEWEST}; the lock will pin it",))


def plain(text: str) -> Understood:
    """`4.4.2`, `v2.5`, `4`, `1.18.1-1`, `latest`."""
    if text in LATEST:
        return latest(text)
    version = re.fullmatch(r"v?(\d+(?:\.\d+){0,3})(?:-\d+)?(?:-aws)?\*?", text)
    return Understood(version[1]) if version else Understood(None, others=(text,))


@dataclass(frozen=True)
class TemplateVariable:
    """names: pattern of the variables that hold a component's version. read: a variable's text → what it says."""

    names: str
    read: Callable[[str], Understood] = plain
