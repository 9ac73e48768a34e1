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
from gpu_ami.rehearsal.results import LEFT_OUT, NO_BASE_IMAGE, Rehearsal

if TYPE_CHECKING:
    from gpu_ami.cloud import Place
    from gpu_ami.local.images import Base
    from gpu_ami.recipes import PlanDocument


@dataclass(frozen=True)
class Candidate:
    """A recipe. row: what is known of it. base: None where it cannot be built here.

    is_settled: no more is to be found out in this run. is_optional: left out where the run has no time left for it.
    """

    recipe: Path
    out: Path
    row: Rehearsal
    plan: Plan | None = None
    base: Base | None = None
    is_settled: bool = False
    is_optional: bool = False

    @property
    def image(self) -> str:
        return self.recipe.stem

    def left_out(self, reason: str) -> Candidate:
        """Not rehearsed in this run; the row says why."""
        return replace(self, row=replace(self.row, result=LEFT_OUT, reason=reason), is_settled=True)


def find(recipes: Sequence[Path], out: Path, place: Place) -> list[Candidate]:
    """A candidate for each recipe, in their order. out: each has a folder of its image's name there."""
    return [_candidate(recipe, out / recipe.stem, place) for recipe in recipes]


def _candidate(recipe: Path, out: Path, place: Place) -> Candidate:
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
    return Candidate(recipe, out, replace(row, base_image=base.name), plan, base)


def prepare(candidate: Candidate, place: Place, *, boot: bool, fresh: bool) -> Candidate:
    """The candidate with the digest of its inputs, or settled by what an earlier run found of the same inputs.

    boot: the smallest instance type is booted. fresh: results of earlier runs do not count.
    """
    if candidate.is_settled or candidate.plan is None or candidate.base is None:
        return candidate
    instance_type = smallest(candidate.plan.document) if boot else ""
    digest = inputs.digest(candidate.plan, candidate.base, place, instance_type)
    row = replace(candidate.row, instance_type=instance_type, inputs=digest)
    earlier = None if fresh else results.load(candidate.out)
    if earlier is not None and earlier.inputs == digest and earlier.is_judged:
        row = replace(earlier, recipe=str(candidate.recipe), unchanged=True)
        return replace(candidate, row=row, is_settled=True)
    return replace(candidate, row=row)


def smallest(plan: PlanDocument) -> str:
    """The plan's instance type with the fewest accelerators, then the least memory."""
    rows = plan["instance_types"]
    return min(rows, key=lambda row: (row["gpu_count"], row["memory_gib"], row["vcpus"]))["name"]
