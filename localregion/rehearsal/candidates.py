"""The recipes of a run: each with its plan and its base image, or with the reason why it is not rehearsed.

Each with a digest of all that decides what its rehearsal finds: plan, roles, base image, packages, checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.errors import GpuAmiError, UsageError
from gpu_ami.plan import Plan, make_plan
from localregion.images import source_ami
from localregion.rehearsal import results
from localregion.rehearsal.results import LEFT_OUT, NO_BASE_IMAGE, Rehearsal

if TYPE_CHECKING:
    from gpu_ami.cloud import Place
    from gpu_ami.recipes import PlanDocument
    from localregion.images import Base


import hashlib
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import gpu_ami
import localregion
import validator
from gpu_ami.build import layering
from gpu_ami.files import data_root
from localregion.images import rootfs_layers

if TYPE_CHECKING:
    from gpu_ami.cloud import Place
    from gpu_ami.plan import Plan
    from localregion.images import Base


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
    digest = inputs_digest(candidate.plan, candidate.base, place, instance_type)
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


_PROGRAM = Path(gpu_ami.__file__).parent
_LOCAL_REGION = Path(localregion.__file__).parent
# What builds, judges and boots; a base image's own files are in its digest.
_SUITE = ("build", "validate")
_BASE_IMAGES = "*_ami"


def inputs_digest(plan: Plan, base: Base, place: Place, instance_type: str) -> str:
    """`sha256:…` of the rehearsal of a plan on a base image. instance_type: that is booted, "" for files alone."""
    stack = layering.cut(plan, rootfs_layers.digest(base), place, data_root())
    checks = layering.files_digest([plan.site / "checks"]) if plan.site else ""
    parts = (plan.digest, stack[-1].digest, _local_region(), _suite(), checks, instance_type)
    return f"sha256:{hashlib.sha256(repr(parts).encode()).hexdigest()}"


@cache
def _local_region() -> str:
    """Of the local region's programs and replicas, without the base images."""
    return layering.files_digest(_region_files())


def _region_files() -> list[Path]:
    replicas = _LOCAL_REGION / "replicas"
    images = set(replicas.glob(_BASE_IMAGES))
    files = [path for path in _LOCAL_REGION.iterdir() if path != replicas]
    return sorted([*files, *(path for path in replicas.iterdir() if path not in images)])


def region_files(base: Base) -> Iterator[Path]:
    """Folders and files of the local region that decide what is built on a base image: those of others do not."""
    yield from _region_files()
    replicas = _LOCAL_REGION / "replicas"
    yield replicas / rootfs_layers.system_folder(base.system).name
    yield from (replicas / f"{name}_ami" for name in ("debian", base.family))
    if base.variant:
        yield replicas / f"{base.family}_{base.variant}_ami"


@cache
def _suite() -> str:
    """Of what builds and judges."""
    return layering.files_digest([Path(validator.__file__).parent, *(_PROGRAM / name for name in _SUITE)])
