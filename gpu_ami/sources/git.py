"""Git repositories: the tags that a server advertises, over smart or dumb HTTP, without git (gitprotocol-http(5))."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpu_ami.recipes.facts import versions
from gpu_ami.sources.http import Client, NotThere, SourceError, Unreachable

_TAGS = "refs/tags/"
_PEELED = "^{}"
_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?$")


def read_tags(client: Client, url: str) -> dict[str, str]:
    """Tag → commit of a repository. NotThere: no repository there; SourceError: no git server; Unreachable."""
    address = f"{url.rstrip('/')}/info/refs?service=git-upload-pack"
    try:
        data = client.get(address, limit=64 << 20)
    except Unreachable as error:
        if error.code == "401":  # GitHub asks for a login where there is no public repository
            raise NotThere(f"{url}: no public repository: HTTP 401", code="401") from error
        raise
    lines = _packets(data, url) if data[4:14] == b"# service=" else data.splitlines()
    refs: dict[str, str] = {}
    for line in lines:
        commit, _, name = line.partition(b"\0")[0].decode("utf-8", "replace").strip().replace("\t", " ").partition(" ")
        if _HASH.match(commit) and name:
            refs[name] = commit
    if not refs:
        raise SourceError(f"{url}: expected the references of a git repository")
    # An annotated tag is an object of its own; what it names is advertised with a suffix.
    return {
        name.removeprefix(_TAGS): refs.get(name + _PEELED, commit)
        for name, commit in refs.items()
        if name.startswith(_TAGS) and not name.endswith(_PEELED)
    }


def _packets(data: bytes, url: str) -> list[bytes]:
    """The lines of pkt-lines: four hex digits of length, then the line; 0000 separates."""
    lines, at = [], 0
    try:
        while at < len(data):
            length = int(data[at : at + 4], 16)
            if length and at + length > len(data):
                raise ValueError("cut off")
            lines.append(data[at + 4 : at + length] if length > 4 else b"")
            at += max(length, 4)
    except ValueError as error:
        raise SourceError(f"{url}: expected references of a git repository: {error}") from error
    return lines


def newer_tags(tags: Iterable[str], tag: str, most: int = 3) -> list[str]:
    """Tags of the same form with a higher version, newest first: v2.5.1 of v2.5, not 2.5.1-rc."""
    form = re.sub(r"\d+", "0", tag)
    alike = [
        candidate for candidate in tags if _form(candidate, form) and versions.parts(candidate) > versions.parts(tag)
    ]
    return sorted(alike, key=versions.parts, reverse=True)[:most]


def _form(tag: str, form: str) -> bool:
    """The text around the numbers, which tags of the same form share; the number of numbers may differ."""
    shape = re.sub(r"\d+", "0", tag)
    return re.sub(r"0(?:\.0)*", "0", shape) == re.sub(r"0(?:\.0)*", "0", form)
