"""A recipe becomes a plan: resolved by the facts, with the source AMI that its lock records, carried to its place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpu_ami.cloud import Place
from gpu_ami.plan.document import Plan, with_digest
from gpu_ami.plan.lock import locks_folder, recorded_ami
from gpu_ami.plan.placement import at_place
from gpu_ami.recipes import ResolvedPlan, facts_of, read_recipe, resolve


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
