"""Which releases are known for an operating system, which of them `newest` takes, and what of that is not established.

NVIDIA's repository has a folder for each system, so a release that one system has another may lack. The tables name
the systems of the vendor's documentation (`systems.names`) and the releases that were seen in a system's repository
(`systems.seen`). An EFA installer supports a range of systems; the other components are the same for all systems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_ami.recipes.facts import NEWEST, Row, Sources, branch
from gpu_ami.recipes.rules import ResolveContext

_PER_SYSTEM = ("nvidia_driver", "cuda", "nccl", "cudnn", "dcgm")
_TABLES = {"nvidia_driver": "nvidia_drivers"}


def seen(context: ResolveContext, component: str) -> frozenset[str]:
    """Releases that were seen in the repository for the recipe's system; empty where none was."""
    if component == "nvidia_driver" and context.distribution:
        return frozenset(context.distribution["releases"])
    if component == "nvidia_driver" and context.is_grid_driver:
        return frozenset(context.facts.grid_drivers["releases"])
    row = _systems(context, component).get("seen", {}).get(context.os_name, {})
    return frozenset(str(release) for release in row.get("releases", ()))


def best_known_first(context: ResolveContext, component: str, releases: Sequence[str], cuda: str | None) -> list[str]:
    """Releases in their order, but those first that are better known; the recipe's order where it asks for no `newest`.

    Of NCCL first what is packaged for the chosen CUDA (any, where none is chosen); then what was seen in the system's
    repository; then what has a verified source.
    """
    if context.section(component).get("version") != NEWEST:
        return list(releases)
    rows, on_system = context.facts.releases(component), seen(context, component)

    def doubts(release: str) -> tuple[bool, bool, bool]:
        packaged = component != "nccl" or _is_packaged(rows[release], cuda)
        return (not packaged, release not in on_system, bool(rows[release].get("unverified")))

    return sorted(releases, key=doubts)


def remark(context: ResolveContext, versions: Mapping[str, str], sources: Sources) -> None:
    """Adds a note to the plan for each chosen release of which it is not established that the system has it."""
    for component, version in versions.items():
        if component in context.provided:
            continue
        if note := _undocumented(context, component) or _unseen(context, component, version):
            sources.note(note)


def _undocumented(context: ResolveContext, component: str) -> str:
    systems = _systems(context, component)
    names = systems.get("names", ())
    if component == "nvidia_driver" and context.is_grid_driver:
        is_known = context.os_name in context.facts.grid_drivers["systems"]
    elif component == "efa":
        is_known = context.os_name in systems
    else:
        is_known = not names or context.os_name in names or bool(seen(context, component))
    if is_known:
        return ""
    where = f"{context.os_name}; not in {systems['source']}"
    return f"not established: that {context.label(component)} is packaged for {where}"


def _unseen(context: ResolveContext, component: str, version: str) -> str:
    asked = context.section(component).get("version")
    if asked != NEWEST or component not in _PER_SYSTEM or version in seen(context, component):
        return ""
    return (
        f"{component}.version newest: {context.label(component)} {version} is the newest in the facts that fits; "
        f"not established: that NVIDIA's repository for {context.os_name} has it"
    )


def _systems(context: ResolveContext, component: str) -> Row:
    table = context.facts.table(_TABLES.get(component, component))
    return table.get("systems", {})  # type: ignore[no-any-return]


def _is_packaged(row: Row, cuda: str | None) -> bool:
    return any(cuda is None or branch(version) == branch(cuda) for version in row.get("packaged", []))
