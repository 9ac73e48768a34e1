"""Releases of components that no package index names: Neuron's manifest, EFA's changelog, the CloudWatch agent's tags.

The facts say where each is published (`releases_url`). A release is newer than all that the facts know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_ami.recipes import Facts
from gpu_ami.recipes.facts import versions
from gpu_ami.sources import git
from gpu_ami.sources.http import Client, SourceError

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
    newest = max(facts.releases(component), key=versions.parts)
    found = {release.version: release for release in _READERS[component](client, facts, url)}
    newer = [version for version in found if versions.parts(version) > versions.parts(newest)]
    return [found[version] for version in sorted(newer, key=versions.parts)]


def _neuron(client: Client, facts: Facts, url: str) -> Iterator[Release]:
    try:
        releases = json.loads(client.get(url, limit=_PAGE_LIMIT))["neuron_releases"]
        for release in releases:
            yield _neuron_release(release, facts, url)
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"{url}: expected Neuron's manifest (neuron_releases): {error!r}") from error


def _neuron_release(release: Mapping[str, Any], facts: Facts, url: str) -> Release:
    packages = {row["name"]: row for row in release["packages"]}
    row: dict[str, Any] = {key: packages[name]["version"] for name, key in _NEURON.items()}
    families = packages["aws-neuronx-runtime-lib"]["supported_instances"]
    row["devices"] = sorted({_DEVICES[name] for name in families if name in _DEVICES})
    known = facts.neuron["releases"]
    row["operating_systems"] = known[max(known, key=versions.parts)]["operating_systems"]
    return Release("neuron", release["neuron_version"], f"{url} ({release['neuron_version']})", row)


def _efa(client: Client, _facts: Facts, url: str) -> Iterator[Release]:
    page = client.get(url, limit=_PAGE_LIMIT).decode("utf-8", "replace")
    releases = dict.fromkeys(_EFA_RELEASE.findall(page))
    if not releases:
        raise SourceError(f"{url}: expected a table of EFA installer releases")
    needed = "its kernel module, libfabric, rdma-core and plugin"
    yield from (Release("efa", version, url, missing=needed) for version in releases)


def _agent(client: Client, facts: Facts, url: str) -> Iterator[Release]:
    newest = max(facts.releases("cloudwatch_agent"), key=versions.parts)
    needed = "the build number of its download directory"
    for tag in git.newer_tags(git.read_tags(client, url), f"v{newest}", most=20):
        yield Release("cloudwatch_agent", tag.removeprefix("v"), f"{url} (tags)", missing=needed)


_READERS = {"efa": _efa, "cloudwatch_agent": _agent, "neuron": _neuron}
