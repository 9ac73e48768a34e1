"""The recipes of a run: each with its plan and its base image, or with the reason why it is not rehearsed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.errors import GpuAmiError, UsageError
from gpu_ami.local.images import source_ami
from gpu_ami.plan import Plan, make_plan
from gpu_ami.rehearsal import inputs, results
from gpu_ami.rehearsal.results import NO_BASE_IMAGE, Rehearsal

if TYPE_CHECKING:
    from gpu_ami.cloud import Place
    from gpu_ami.recipes import PlanDocument


@dataclass(frozen=True)
class Candidate:
    """A recipe. row: what is known of it before; is_settled: no more is to be found out in this run."""

    recipe: Path
    out: Path
    row: Rehearsal
    plan: Plan | None = None
    is_settled: bool = False

    @property
    def image(self) -> str:
        return self.recipe.stem


def find(recipes: Sequence[Path], out: Path, place: Place, *, boot: bool, fresh: bool) -> list[Candidate]:
    """A candidate for each recipe, in their order. out: each has a folder of its image's name there.

    boot: the smallest instance type is booted. fresh: results of earlier runs do not count.
    """
    return [_candidate(recipe, out / recipe.stem, place, boot=boot, fresh=fresh) for recipe in recipes]


def _candidate(recipe: Path, out: Path, place: Place, *, boot: bool, fresh: bool) -> Candidate:
    row = Rehearsal(recipe.stem, str(recipe), "", "", 0)
    try:
        plan = make_plan(recipe, place)
    except GpuAmiError as error:
        return Candidate(recipe, out, row.failing(error), is_settled=True)
    row = replace(row, architecture=plan.document["architecture"])
    try:
        base = source_ami.base_of(plan.document)
    except UsageError as error:
        without = replace(row, result=NO_BASE_IMAGE, reason=error.message)
        return Candidate(recipe, out, without, plan, is_settled=True)
    instance_type = smallest(plan.document) if boot else ""
    digest = inputs.digest(plan, base, place, instance_type)
    row = replace(row, base_image=base.name, instance_type=instance_type, inputs=digest)
    earlier = None if fresh else results.load(out)
    if earlier is not None and earlier.inputs == digest and earlier.is_judged:
        return Candidate(recipe, out, replace(earlier, recipe=str(recipe), unchanged=True), plan, is_settled=True)
    return Candidate(recipe, out, row, plan)


def smallest(plan: PlanDocument) -> str:
    """The plan's instance type with the fewest accelerators, then the least memory."""
    rows = plan["instance_types"]
    return min(rows, key=lambda row: (row["gpu_count"], row["memory_gib"], row["vcpus"]))["name"]
