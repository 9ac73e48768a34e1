"""Releases that no package index names: Neuron's manifest, EFA's changelog, the CloudWatch agent's tags, git tags.

The facts say where each is published (`releases_url`). A release is newer than all that the facts know.

Tags of git repositories: those that a server advertises, over smart or dumb HTTP, without git (gitprotocol-http(5)).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_ami.recipes import Facts
from gpu_ami.recipes.facts import tables
from gpu_ami.sources.http import Client, NotThere, SourceError, Unreachable

COMPONENTS = ("efa", "cloudwatch_agent", "neuron")
_PAGE_LIMIT = 8 << 20
_NEURON = {
    "aws-neuronx-dkms": "driver",
    "aws-neuronx-runtime-lib": "runtime",
    "aws-neuronx-collectives": "collectives",
    "aws-neuronx-tools": "tools",
}
# Instance families of the manifest, by the accelerator whose name the facts have.
_DEVICES = {"inf1": "Inferentia", "inf2": "Inferentia2", "trn1": "Trainium", "trn2": "Trainium2", "trn3": "Trainium3"}
# A cell of the changelog's first column: the release alone.
_EFA_RELEASE = re.compile(r"<td[^>]*>\s*(?:<[^>]+>\s*)*(1\.\d+\.\d+)\s*<")


@dataclass(frozen=True)
class Release:
    """A release, oldest first. row: what its source says of it; missing: what a person has to add."""

    component: str
    version: str
    source: str
    row: Mapping[str, Any] = field(default_factory=dict)
    missing: str = ""


def newer_releases(client: Client, facts: Facts, component: str) -> list[Release]:
    """Releases that the facts do not have. SourceError: their list cannot be read."""
    url = getattr(facts, component)["releases_url"]
    newest = max(facts.releases(component), key=tables.parts)
    found = {release.version: release for release in _READERS[component](client, facts, url)}
    if odd := [version for version in found if not re.fullmatch(r"[0-9]+(?:\.[0-9]+)+", version)]:
        raise SourceError(f"{url}: expected releases like {newest}, got {odd[0]!r}")
    newer = [version for version in found if tables.parts(version) > tables.parts(newest)]
    return [found[version] for version in sorted(newer, key=tables.parts)]


def _neuron(client: Client, facts: Facts, url: str) -> Iterator[Release]:
    try:
        releases = json.loads(client.get(url, limit=_PAGE_LIMIT))["neuron_releases"]
        for release in releases:
            yield _neuron_release(release, facts, url)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SourceError(f"{url}: expected Neuron's manifest (neuron_releases): {error!r}") from error


def _neuron_release(release: Mapping[str, Any], facts: Facts, url: str) -> Release:
    packages = {row["name"]: row for row in release["packages"]}
    row: dict[str, Any] = {key: packages[name]["version"] for name, key in _NEURON.items()}
    families = packages["aws-neuronx-runtime-lib"]["supported_instances"]
    row["devices"] = sorted({_DEVICES[name] for name in families if name in _DEVICES})
    known = facts.neuron["releases"]
    row["operating_systems"] = known[max(known, key=tables.parts)]["operating_systems"]
    return Release("neuron", release["neuron_version"], f"{url} ({release['neuron_version']})", row)


def _efa(client: Client, _facts: Facts, url: str) -> Iterator[Release]:
    page = client.get(url, limit=_PAGE_LIMIT, page=True).decode("ascii", "replace")
    releases = dict.fromkeys(_EFA_RELEASE.findall(page))
    if not releases:
        raise SourceError(f"{url}: expected a table of EFA installer releases")
    needed = "its kernel module, libfabric, rdma-core and plugin"
    yield from (Release("efa", version, url, missing=needed) for version in releases)


def _agent(client: Client, facts: Facts, url: str) -> Iterator[Release]:
    newest = max(facts.releases("cloudwatch_agent"), key=tables.parts)
    needed = "the build number of its download directory"
    for tag in newer_tags(read_tags(client, url), f"v{newest}", most=20):
        yield Release("cloudwatch_agent", tag.removeprefix("v"), f"{url} (tags)", missing=needed)


_READERS = {"efa": _efa, "cloudwatch_agent": _agent, "neuron": _neuron}


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
        commit, _, name = line.partition(b"\0")[0].decode("ascii", "replace").strip().replace("\t", " ").partition(" ")
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
    alike = [candidate for candidate in tags if _form(candidate, form) and tables.parts(candidate) > tables.parts(tag)]
    return sorted(alike, key=tables.parts, reverse=True)[:most]


def _form(tag: str, form: str) -> bool:
    """The text around the numbers, which tags of the same form share; the number of numbers may differ."""
    shape = re.sub(r"\d+", "0", tag)
    return re.sub(r"0(?:\.0)*", "0", shape) == re.sub(r"0(?:\.0)*", "0", form)
