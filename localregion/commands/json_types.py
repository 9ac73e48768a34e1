"""The type of what the region's commands print under `--json`, which gpu-ami reads through localregion/entry.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from localregion import housekeeping, region
from localregion.rehearsal import Rehearsal


class DiskUse(TypedDict):
    """How many things of a kind there are, and their bytes on the disk."""

    count: int
    bytes: int


class RegionDocument(region.RegionReport):
    """`region up`, `region status`. space: what takes disk space, by kind. The keys after `acceleration` are there
    while the region is up. holds: what keeps it up. problem: why an instance is not as it should be, else empty.
    """

    space: dict[str, DiskUse]


class RegionDown(TypedDict):
    """`region down`."""

    was_up: bool


class Console(TypedDict):
    """`region console`."""

    instance: str
    console: str


class UserData(TypedDict):
    """`region user-data`."""

    user_data: str


class Command(TypedDict):
    """`region ssh`: the command line."""

    command: list[str]


class Pruned(TypedDict):
    """`region prune`: what was removed (with --dry-run: would be), and what stays."""

    removed: list[housekeeping.Item]
    kept: list[housekeeping.Item]


class RehearsalDocument(TypedDict):
    """A row for each recipe."""

    recipes: list[Rehearsal]


RESULTS: Mapping[str, Any] = {
    "region": RegionDocument | RegionDown | Console | UserData | Command | Pruned,
    "rehearse": RehearsalDocument,
}
