"""A recipe becomes a plan: resolved by the facts, with the source AMI that its lock records, carried to its place.

Adapts a plan to a place: URLs of its mirror, the agent's endpoint, its source AMI, its kernel.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_ami.cloud import Mirror, Place
from gpu_ami.plan.document import Plan, with_digest
from gpu_ami.plan.lock import locks_folder, recorded_ami
from gpu_ami.recipes import CloudWatchAgent, ResolvedPlan, facts_of, read_recipe, resolve
from validator.agent_document import AgentLogs


def at_place(document: ResolvedPlan, place: Place) -> ResolvedPlan:
    """The document for a place: vendors' URLs become the mirror's, the agent uses its endpoint and source AMI."""
    placed: ResolvedPlan = _mirrored(document, place.mirror) if place.mirror else copy.copy(document)
    if place.guest_endpoint:
        placed["cloudwatch_agent"] = _agent_at(placed["cloudwatch_agent"], place.guest_endpoint)
    if place.source_ami:
        placed["source_ami"] = {"id": place.source_ami}
    if place.kernel and place.kernel != placed["kernel"]["version"]:
        _change_kernel(placed, place)
    return placed


def _change_kernel(document: ResolvedPlan, place: Place) -> None:
    """The series that machines of the place boot, whatever the image's own AMI boots, and a note.

    The packages stay those of the planned series: the place's base images have them by their names.
    """
    assumed = document["kernel"]["version"]
    note = f"not proven here: kernel {assumed}; machines of {place.name} boot {place.kernel}"
    document["kernel"] = {**document["kernel"], "version": str(place.kernel)}
    document["notes"] = [*document["notes"], note]


def _agent_at(agent: CloudWatchAgent, endpoint: str) -> CloudWatchAgent:
    """The agent's two documents for a guest that reaches AWS's API at `endpoint` alone.

    The Auto Scaling group's name is an EC2 tag, which the agent asks for at AWS's own address whatever the override
    says, and it publishes no metric until it has an answer (plugins/processors/ec2tagger): that dimension goes.
    """
    logs: AgentLogs = {**agent["config"]["logs"], "endpoint_override": endpoint}
    placed: CloudWatchAgent = {**agent, "config": {**agent["config"], "logs": logs}}
    if agent["gpu_config"]:  # empty if the plan measures no GPU
        metrics = agent["gpu_config"]["metrics"]
        planned = metrics["append_dimensions"].items()
        dimensions = {name: value for name, value in planned if name != "AutoScalingGroupName"}
        placed["gpu_config"] = {"metrics": {**metrics, "append_dimensions": dimensions, "endpoint_override": endpoint}}
    return placed


def _mirrored(value: Any, mirror: Mirror) -> Any:
    """`https://HOST/PATH` in `url` and `*_url` becomes `{mirror}/HOST/PATH`, signed with the mirror's key; a tag's
    commit becomes the one that the mirror's git repository has.

    A repository with a `keyring` is an operating system's own archive: it keeps its signatures, and so its key.
    `sources` are citations, not addresses to fetch from; they have no such keys.
    """
    if isinstance(value, list):
        return [_mirrored(item, mirror) for item in value]
    if not isinstance(value, dict):
        return value
    if "keyring" in value:
        base = (mirror.archives or mirror.url).rstrip("/")
        further = [_mirrored(item, mirror) for item in value.get("further", ())]
        return {**value, "url": f"{base}/{value['url'].removeprefix('https://')}"} | (
            {"further": further} if further else {}
        )
    placed = {key: _mirrored_entry(key, item, mirror) for key, item in value.items()}
    if {"url", "tag", "commit"} <= value.keys():
        placed["commit"] = mirror.commit(value["url"], value["tag"]) or value["commit"]
    return placed


def _mirrored_entry(key: str, item: Any, mirror: Mirror) -> Any:
    if (key == "url" or key.endswith("_url")) and isinstance(item, str) and item.startswith("https://"):
        return f"{mirror.url.rstrip('/')}/{item.removeprefix('https://')}"
    return mirror.key_fingerprint if key == "key_fingerprint" else _mirrored(item, mirror)


def make_plan(recipe: Path, place: Place, overrides: Sequence[str] = ()) -> Plan:
    """Resolves a recipe for a place. overrides: `KEY.PATH=VALUE`, above all layers.

    UsageError lists all mistakes of the recipe at once.
    """
    facts = facts_of(recipe)
    layered = read_recipe(recipe, facts, overrides)
    document = resolve(layered, facts)
    return Plan(with_digest(at_place(_with_recorded_ami(document, place, locks_folder(recipe)), place)), layered.site)


def _with_recorded_ami(document: ResolvedPlan, place: Place, locks: Path) -> ResolvedPlan:
    """The source AMI that the image's lock records for the region; ids mean something only in AWS itself."""
    if place.endpoint or place.guest_endpoint or place.source_ami:
        return document
    recorded = recorded_ami(document, place.region, locks)
    return {**document, "source_ami": {"id": recorded}} if recorded else document
