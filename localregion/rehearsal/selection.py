"""Which recipes a run of CI builds: one of each system and node family, and those that a change affects.

The seed, a commit's digest, decides which: the same commit builds the same recipes, and the next ones build others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.errors import UsageError
from gpu_ami.plan import affected
from gpu_ami.recipes import section
from localregion.architectures import ARCHITECTURES
from localregion.images import source_ami
from localregion.rehearsal.candidates import region_files

if TYPE_CHECKING:
    from gpu_ami.recipes import ResolvedPlan
    from localregion.rehearsal.candidates import Candidate

# Seconds that a rehearsal takes beside another one, on two cores (2026-11-25).
_SECONDS = 90.0
# Debian's own driver is no replica: its module is compiled in full.
_REAL_DRIVER_SECONDS = 1800.0
# Of another architecture: its programs are emulated, a compiler above all.
_EMULATED_FACTOR = 8


@dataclass(frozen=True)
class Sample:
    """Images of the sample, and the one of them that is booted; "" for none."""

    images: frozenset[str]
    booted: str = ""


def draw(candidates: Sequence[Candidate], seed: str, *, boot: bool) -> Sample:
    """One image of each system and node family that has a base image. boot: one of them is booted.

    Of a family's recipes, the quickest to build take part: none with a real driver. None is of an architecture that is
    emulated here, also where its family has no other recipe: it takes as long as all the others together.
    """
    families: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in candidates:
        if candidate.base is not None and is_native(candidate):
            families.setdefault((candidate.base.system, candidate.base.family), []).append(candidate)
    chosen = []
    for key, members in sorted(families.items()):
        least = min(map(expected_seconds, members))
        quick = sorted(member.image for member in members if expected_seconds(member) == least)
        chosen.append(quick[_number(seed, *key) % len(quick)])
    return Sample(frozenset(chosen), chosen[_number(seed, "boot") % len(chosen)] if chosen and boot else "")


def changed_since(candidates: Sequence[Candidate], commit: str) -> dict[str, tuple[str, ...]]:
    """The images that must be built again after a change since a commit, each with the reasons.

    As `gpu-ami matrix --since` names them; the local region's programs, replicas and base images count, too.
    UsageError: no git repository, or an unknown commit.
    """
    recipes = [candidate.recipe for candidate in candidates if candidate.plan is not None]
    return {image.image: image.reasons for image in affected(recipes, commit, _of_the_region) if image.build}


def _of_the_region(_recipe: Path, document: ResolvedPlan) -> Iterable[Path]:
    try:
        return list(region_files(source_ami.base_of(document)))
    except UsageError:  # no base image: it is not built here
        return ()


def order(
    candidates: Sequence[Candidate], sample: Sample, changed: Collection[str], seed: str, what: str
) -> list[Candidate]:
    """The candidates in the order in which they are begun: the booted one, the sample, then what a change affects.

    The last are optional, the first of them chosen by the seed. Others are left out. what: the sample, in words.
    """
    unsettled = [candidate for candidate in candidates if not candidate.is_settled]
    first = [candidate for candidate in unsettled if candidate.image in sample.images]
    first.sort(key=lambda candidate: (candidate.image != sample.booted, candidate.image))
    rest = sorted((one for one in unsettled if one.image not in sample.images), key=lambda one: one.image)
    begin = _number(seed, "order") % len(rest) if rest else 0
    rotated = [*rest[begin:], *rest[:begin]]
    later = [replace(one, is_optional=True) for one in rotated if one.image in changed and is_native(one)]
    others = [one.left_out(_why_not(one, what)) for one in rotated if one.image not in changed or not is_native(one)]
    return [*first, *later, *others, *(one for one in candidates if one.is_settled)]


def _why_not(candidate: Candidate, what: str) -> str:
    return f"not in {what}" if is_native(candidate) else f"{candidate.row.architecture} is emulated here: not in {what}"


def described(sample: Sample, changed: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Lines that say what is built and why."""
    if sample.images:
        yield f"sample: {', '.join(sorted(sample.images))}" + f"; booted: {sample.booted}" * bool(sample.booted)
    for image, reasons in sorted(changed.items()):
        yield f"affected: {image}: {'; '.join(reasons)}"


def expected_seconds(candidate: Candidate) -> float:
    """About how long the rehearsal takes on two cores."""
    if candidate.plan is None:
        return 0.0
    document = candidate.plan.document
    is_real = section(document, "nvidia_driver").get("source") == "distribution"
    return (_REAL_DRIVER_SECONDS if is_real else _SECONDS) * (1 if is_native(candidate) else _EMULATED_FACTOR)


def is_native(candidate: Candidate) -> bool:
    """Whether this host runs the image's programs without emulation."""
    return candidate.plan is None or ARCHITECTURES[candidate.plan.document["architecture"]].is_native


def _number(seed: str, *purpose: str) -> int:
    """A number that follows from the seed, another one for each purpose."""
    return int.from_bytes(hashlib.sha256("\0".join((seed, *purpose)).encode()).digest()[:8])
