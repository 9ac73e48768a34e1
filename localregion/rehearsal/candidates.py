"""The recipes of a run: each with its plan and its base image, or with the reason why it is not rehearsed.

Each with a digest of all that decides what its rehearsal finds: plan, roles, base image, packages, checks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import gpu_ami
import localregion
import validator
from gpu_ami.build import layering
from gpu_ami.errors import GpuAmiError, MissingTool, UsageError
from gpu_ami.files import data_root
from gpu_ami.plan import Plan, make_plan
from gpu_ami.recipes import section
from localregion.architectures import ARCHITECTURES, require_packages
from localregion.images import rootfs_layers, source_ami
from localregion.rehearsal import results
from localregion.rehearsal.results import LEFT_OUT, NO_BASE_IMAGE, Rehearsal

if TYPE_CHECKING:
    from gpu_ami.cloud import Place
    from gpu_ami.progress import Progress
    from gpu_ami.recipes import PlanDocument
    from localregion.images import Base


@dataclass(frozen=True)
class Candidate:
    """A recipe. row: what is known of it. base: None where it cannot be built here.

    is_settled: no more is to be found out in this run.
    """

    recipe: Path
    out: Path
    row: Rehearsal
    plan: Plan | None = None
    base: Base | None = None
    is_settled: bool = False

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


def check_host(found: Sequence[Candidate], progress: Progress) -> list[Candidate]:
    """The candidates, of which those are settled whose architecture needs packages that this host lacks."""
    errors: dict[str, MissingTool] = {}
    waiting = [candidate for candidate in found if not candidate.is_settled]
    for architecture in sorted({candidate.row.architecture for candidate in waiting}):
        try:
            require_packages(architecture)
        except MissingTool as error:
            errors[architecture] = error
            images = [candidate.image for candidate in waiting if candidate.row.architecture == architecture]
            progress.note(f"{', '.join(images)}: {error.message} ({error.hint})")
    return [
        replace(candidate, row=candidate.row.failing(errors[candidate.row.architecture]), is_settled=True)
        if not candidate.is_settled and candidate.row.architecture in errors
        else candidate
        for candidate in found
    ]


def smallest(plan: PlanDocument) -> str:
    """The plan's instance type with the fewest accelerators, then the least memory."""
    rows = plan["instance_types"]
    return min(rows, key=lambda row: (row["gpu_count"], row["memory_gib"], row["vcpus"]))["name"]


def draw(candidates: Sequence[Candidate], seed: str) -> list[str]:
    """The images of a sample: one of each system and node family that has a base image; to be booted is the first.

    The seed, such as a commit's digest, decides which: the same commit draws the same, and the next ones others. None
    takes half an hour: no driver that is compiled in full, no architecture that is emulated here.
    """
    families: dict[tuple[str, str], list[str]] = {}
    for candidate in candidates:
        if candidate.base is not None and _is_quick(candidate):
            families.setdefault((candidate.base.system, candidate.base.family), []).append(candidate.image)
    chosen = [sorted(images)[_number(seed, *key) % len(images)] for key, images in sorted(families.items())]
    first = _number(seed, "boot") % len(chosen) if chosen else 0
    return [*chosen[first:], *chosen[:first]]


def _is_quick(candidate: Candidate) -> bool:
    if candidate.plan is None:
        return False
    document = candidate.plan.document
    is_compiled = section(document, "nvidia_driver").get("source") == "distribution"
    return ARCHITECTURES[document["architecture"]].is_native and not is_compiled


def _number(seed: str, *purpose: str) -> int:
    """A number that follows from the seed, another one for each purpose."""
    return int.from_bytes(hashlib.sha256("\0".join((seed, *purpose)).encode()).digest()[:8])


_PROGRAM = Path(gpu_ami.__file__).parent
_LOCAL_REGION = Path(localregion.__file__).parent
# What builds, judges and boots; a base image's own files are in its digest.
_SUITE = ("build", "validate")
_BASE_IMAGES = "*_ami"


def inputs_digest(plan: Plan, base: Base, place: Place, instance_type: str) -> str:
    """`sha256:…` of the rehearsal of a plan on a base image. instance_type: that is booted, "" for files alone."""
    stack = layering.cut(plan, rootfs_layers.digest(base), place, data_root())
    checks = layering.files_digest([plan.site / "checks"]) if plan.site else ""
    parts = (plan.digest, stack[-1].digest, local_region(), suite(), checks, instance_type)
    return f"sha256:{hashlib.sha256(repr(parts).encode()).hexdigest()}"


@cache
def local_region() -> str:
    """Of the local region's programs and replicas, without the base images."""
    replicas = _LOCAL_REGION / "replicas"
    images = set(replicas.glob(_BASE_IMAGES))
    files = [path for path in _LOCAL_REGION.iterdir() if path != replicas]
    return layering.files_digest(sorted([*files, *(path for path in replicas.iterdir() if path not in images)]))


@cache
def suite() -> str:
    """Of what builds and judges."""
    return layering.files_digest([Path(validator.__file__).parent, *(_PROGRAM / name for name in _SUITE)])
