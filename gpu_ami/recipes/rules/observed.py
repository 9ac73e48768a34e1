"""How a component is observed in a system that gpu-ami did not build: the sources that name its version.

A component declares them beside how it is written; a site's role in meta/observed.yml. The reading program
(observation.py, which is sent to the machine) reads them all in one execution; a version is told by several sources,
which should agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_ami.errors import UsageError

KINDS = ("package", "file", "content", "module", "loaded", "program", "library")
# Version patterns; what their groups match, joined by dots, is the version. Empty groups: the source shows presence.
NUMBERS = r"^(?:\d+:)?v?(\d+(?:\.\d+){1,3})"
DRIVER = r"(?<![\d.])(\d{3}\.\d{1,3}(?:\.\d{1,2})?)(?![\d.])"
PRESENCE = r"()"


@dataclass(frozen=True)
class Source:
    """One source of a component's version.

    kind: of KINDS. target: package: pattern of names; file: a path with wildcards, or a library's file name that is
    looked for in all library folders (the version is in the name behind its links); content: paths of files; module,
    loaded: name of the kernel module on disk, in the kernel; program: command line, only on a running machine; library:
    `soname function`. pattern: of the version; of a library the rule of its number (cuda, nccl, cudnn). text: its name.
    """

    kind: str
    target: str
    pattern: str
    text: str

    def request(self) -> list[str]:
        """As the reading program is given it."""
        return [self.kind, self.target, self.pattern, self.text]


@dataclass(frozen=True)
class Observed:
    """The sources of a component. several: it may be there in several versions beside each other (CUDA toolkits)."""

    sources: tuple[Source, ...]
    several: bool = False


def package(names: str, pattern: str = NUMBERS) -> Source:
    return Source("package", names, pattern, "package database")


def file(target: str, pattern: str, text: str = "file") -> Source:
    return Source("file", target, pattern, text)


def content(target: str, pattern: str, text: str = "file") -> Source:
    return Source("content", target, pattern, text)


def record(target: str, pattern: str) -> Source:
    """What an installer wrote down."""
    return Source("content", target, pattern, "installer's record")


def module(name: str, pattern: str = NUMBERS) -> tuple[Source, Source]:
    """A kernel module: on disk for each kernel, and loaded."""
    on_disk = Source("module", name, pattern, "module on disk")
    return on_disk, Source("loaded", name, pattern, "module loaded")


def program(command: str, pattern: str) -> Source:
    return Source("program", command, pattern, "program")


def library(soname: str, function: str, rule: str) -> Source:
    return Source("library", f"{soname} {function}", rule, "library's own word")


def of_document(document: Any, where: str) -> Observed:
    """Sources of a site's role: a list of {kind, target, pattern}. UsageError names every mistake."""
    mistakes, sources = [], []
    for number, row in enumerate(document if isinstance(document, list) else [document]):
        if not isinstance(row, Mapping) or row.get("kind") not in KINDS or not isinstance(row.get("target"), str):
            mistakes.append(f"[{number}]: expected kind ({', '.join(KINDS)}), target and pattern, got {row!r}")
            continue
        pattern = str(row.get("pattern", NUMBERS))
        try:
            re.compile(pattern)
        except re.error as error:
            mistakes.append(f"[{number}].pattern: {pattern!r} is not a regular expression ({error})")
            continue
        sources.append(Source(row["kind"], row["target"], pattern, str(row.get("text", row["kind"]))))
    if mistakes:
        raise UsageError(f"{where}: {len(mistakes)} mistakes", details=mistakes)
    return Observed(tuple(sources))
