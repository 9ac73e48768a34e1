"""Support of the operating systems: until when they get free updates, and what may still be built on them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gpu_ami.recipes.facts import Facts

BEGIN = "<!-- support of each system: from variables/facts/operating_systems.yml and the local region's base images -->"
END = "<!-- end of the support of each system -->"


def support_of(facts: Facts, identity: str, version: str) -> str:
    """A sentence on the system with this ID and VERSION_ID: its end of free updates, with source; then what is left."""
    name, row = next(
        (name, row)
        for name, row in facts.operating_systems.items()
        if (row["id"], row["version"]) == (identity, version)
    )
    until, unverified = row["end_of_life"], ", not verified" if row.get("unverified") else ""
    if until >= facts.read_on:
        return f"{name} gets free updates until {until} ({row['source']}{unverified})"
    return f"{name} has had no free updates since {until} ({row['source']}{unverified}); {may_still_be_built(row)}"


def may_still_be_built(row: Any) -> str:
    """Of a system: the last releases that NVIDIA's repository has for it, if it has an end."""
    repository = row["nvidia_repository"]
    last = {
        name: repository[key]["last"]
        for name, key in (("driver R", "driver"), ("CUDA ", "cuda"))
        if "last" in repository[key]
    }
    architectures = " and ".join(repository["architectures"])
    if not last:
        return f"may be built: all planned releases ({architectures})"
    ends = " and ".join(f"{name}{release}" for name, release in last.items())
    return f"may still be built: up to {ends} of NVIDIA's {repository['name']} repository ({architectures})"


def table(facts: Facts, base_images: Collection[tuple[str, str]]) -> str:
    """Markdown of each system. base_images: system and architecture of those that the local region builds and boots."""
    rows = [
        "| system | free updates until | `plan`, locks | build and image files rehearsed | boot rehearsed | else |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in facts.operating_systems.items():
        here = ", ".join(item for item in row["architectures"] if (name, item) in base_images)
        ended = row["end_of_life"] < facts.read_on
        rest = [item for item in row["architectures"] if (name, item) not in base_images]
        notes = [f"**ended**: {row['cost']}; {may_still_be_built(row)}"] if ended else []
        notes += [f"{', '.join(rest)}: on AWS alone (`--where`)"] if rest else []
        notes += ["end of updates not verified"] if row.get("unverified") else []
        cells = [f"`{name}`", str(row["end_of_life"]), ", ".join(row["architectures"]), here or "no", here or "no"]
        rows.append(f"| {' | '.join([*cells, '; '.join(notes)])} |")
    return "\n".join(rows)
