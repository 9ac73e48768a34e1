"""Versions as vendors write them, and the constraints of a recipe: exact, a branch, or the newest that fits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

NEWEST = "newest"


@lru_cache(maxsize=4096)
def parts(version: str) -> tuple[int, ...]:
    """`550.163.01` → (550, 163, 1); `2020.0-088` → (2020, 0, 88). Letters separate numbers, as dots do."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def at_least(version: str, floor: str) -> bool:
    """Is it the floor or newer? A floor that is a branch (`580`) holds for everything in it."""
    return parts(version) >= parts(floor)


def at_most(version: str, ceiling: str) -> bool:
    """Is it the ceiling or older? A ceiling that is a branch (`580`) holds for everything in it."""
    bound = parts(ceiling)
    return parts(version)[: len(bound)] <= bound


def branch(version: str) -> str:
    """`550.163.01` → `550`, `12.4` → `12`."""
    return re.split(r"[.-]", version, maxsplit=1)[0]


def matching(constraint: str, known: Iterable[str]) -> list[str]:
    """Known versions that a constraint allows, newest first: itself, all of its branch, or all."""
    if constraint == NEWEST:
        allowed = list(known)
    else:
        prefix = parts(constraint)
        allowed = [version for version in known if version == constraint or parts(version)[: len(prefix)] == prefix]
    return sorted(allowed, key=parts, reverse=True)


def nearest_first(version: str, known: Sequence[str]) -> list[str]:
    """Known versions, the nearest in their order first; of two as near, the newer."""
    order = sorted({*known, version}, key=parts)
    here = order.index(version)
    return sorted(known, key=lambda other: (abs(order.index(other) - here), -order.index(other)))


def nearest_branch_first(version: str, known: Sequence[str]) -> list[str]:
    """Known versions by their branches' nearness; of a branch, the newest release first."""
    here = int(branch(version))
    return sorted(known, key=lambda other: (abs(int(branch(other)) - here), *(-number for number in parts(other))))


def around(version: str, known: Sequence[str]) -> str:
    """The nearest known version below and above, and the newest: `nearest below 12.6, above 12.8; newest 13.0`."""
    order = sorted(known, key=parts)
    below = [other for other in order if parts(other) < parts(version)]
    above = [other for other in order if parts(other) > parts(version)]
    nearest = [f"below {other}" for other in below[-1:]] + [f"above {other}" for other in above[:1]]
    return f"nearest {', '.join(nearest)}; newest {order[-1]}"
