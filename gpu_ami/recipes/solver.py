"""Chooses a version for every component, or reports all conflicts at once, each with the nearest versions that work.

Which releases are known for an operating system, which of them `newest` takes, and what of that is not established.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_ami.recipes.components import chosen as chosen_components
from gpu_ami.recipes.facts import (
    FROM_TAGS,
    NEWEST,
    NO_ROW,
    Row,
    Sources,
    around,
    branch,
    matching,
    nearest_branch_first,
    nearest_first,
    not_released,
    parts,
    released,
)
from gpu_ami.recipes.rules import (
    BRANCH_RULES,
    IMAGE_RULES,
    Assignment,
    Conflict,
    ResolveContext,
    Rule,
    base_keeps_its_own,
    runs_natively,
    volume_has_room,
)


@dataclass
class Solution:
    """The chosen versions, and their conflicts."""

    versions: dict[str, str] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)


def image_rules(context: ResolveContext) -> list[Rule]:
    """Checked once: they do not depend on the chosen versions."""
    of_components = [rule for one in context.components.values() for names, rule in one.rules if not names]
    of_components += [one.runs_on_the_system for one in context.components.values() if one.systems]
    return [*IMAGE_RULES, *of_components, volume_has_room, base_keeps_its_own, *BRANCH_RULES]


def with_kernel(context: ResolveContext) -> tuple[ResolveContext, Solution]:
    """The context with the kernel series to plan, and its solution.

    Where nothing sets the series, and what is planned does not build on the first: the series, of those that the
    system's packages bring, with the fewest conflicts. Where AMIs are found by their series, another series is another
    AMI, which the recipe has to name.
    """
    first = context, solve(context)
    if not first[1].conflicts or context.fixed_kernel or "{kernel}" in str(context.os["source_ami"]):
        return first
    others = [replace(context, series=series) for series in context.installable_kernels[1:]]
    return min([first, *((other, solve(other)) for other in others)], key=lambda tried: len(tried[1].conflicts))


def solve(context: ResolveContext) -> Solution:
    """The newest choice without conflicts, in the order of `chosen`; if there is none, the newest and its conflicts.

    Deterministic: the same recipe and facts give the same versions and the same conflicts in the same order.
    """
    order = chosen_components(context.components)
    constraints = {name: str(context.section(name)["version"]) for name in order if "version" in context.section(name)}
    constraints = {**context.provided, **constraints}
    candidates: dict[str, list[str]] = {}
    solution = Solution()
    for name in [component for component in order if component in constraints]:
        versions = matching(constraints[name], context.releases(name))
        if versions:
            candidates[name] = versions
        else:
            solution.conflicts.append(_unknown(context, name, constraints[name]))
    solution.versions = _search(context, candidates) or {name: versions[0] for name, versions in candidates.items()}
    for rule in image_rules(context):
        solution.conflicts += _established(rule(context, solution.versions))
    judged = [conflict for conflict in _judge(context, solution.versions) if conflict not in solution.conflicts]
    solution.conflicts += [_with_nearest(context, solution.versions, conflict) for conflict in judged]
    return solution


def _is_branch(constraint: str, version: str) -> bool:
    return len(parts(constraint)) < len(parts(version))


def _unknown(context: ResolveContext, name: str, constraint: str) -> Conflict:
    known = list(context.releases(name))
    where = _where(context) if name == "nvidia_driver" else "the facts"
    text = f"no {context.label(name)} {constraint} in {where}; {around(constraint, known)}"
    if context.driver_source in ("vendor", "base") or name != "nvidia_driver":
        if known_of := released(context.facts, name, constraint):
            add = f"gpu-ami facts --add {name} {constraint} --set source=… writes a row into site/facts/"
            text = f"{text}. {known_of[0].upper()}{known_of[1:]}, but what it needs is not in the tables: {add}"
        elif why := not_released(context.facts, name, constraint):
            text = f"{text}; {why}"
        elif (newest := max(known, key=parts)) and parts(constraint) > parts(newest) and _is_branch(constraint, newest):
            text = f"{text}. A newer one is planned, as unverified, if its whole version is named, as in {newest}"
        elif not _is_branch(constraint, newest):
            add = f"gpu-ami facts --add {name} {constraint} --set source=…"
            text = f"{text}. If there is such a release, {add} writes its row into site/facts/"
    if name in FROM_TAGS and "commit" not in context.section(name):
        url = context.facts.table(name)["repository"]
        text = (
            f"{text}. A newer version is planned with the commit of its tag: "
            f"`git ls-remote {url} refs/tags/v{constraint}` prints it, {name}.commit takes it"
        )
    if name == "nvidia_driver" and context.is_grid_driver and constraint.count("."):
        listed = "`aws s3 ls --no-sign-request s3://ec2-linux-nvidia-drivers/` prints the folders"
        text = f"{text}. Another version is planned with its folder: {listed}, nvidia_driver.folder takes it"
    if name == "mkl" and parts(constraint) > parts("2020.4-912"):
        text = f"{text}; MKL from 2021 on is in oneAPI's repository, which no role installs from"
    return Conflict(f"{name}.version", text, f"variables/facts/{_table(context, name)}.yml")


def _table(context: ResolveContext, name: str) -> str:
    if name != "nvidia_driver":
        return name
    return {"grid": "grid_drivers", "distribution": "distribution_drivers"}.get(context.driver_source, "nvidia_drivers")


def _where(context: ResolveContext) -> str:
    if context.is_grid_driver:
        return "AWS's bucket of GRID drivers, as far as the facts know it"
    return f"the archive of {context.os_name}" if context.distribution else "the facts"


def _judge(context: ResolveContext, chosen: Assignment, *, only: str | None = None) -> Iterator[Conflict]:
    """Conflicts of the versions chosen so far; of one component alone with `only`."""
    for names, rule in context.rules:
        if (only is None or only in names) and all(name in chosen for name in names):
            yield from _established(rule(context, chosen))


def _established(conflicts: Iterator[Conflict]) -> Iterator[Conflict]:
    """Without those that rest on the row of a neighbour: of the version itself nothing is known."""
    return (conflict for conflict in conflicts if conflict.source != NO_ROW)


def _search(context: ResolveContext, candidates: Mapping[str, Sequence[str]]) -> dict[str, str] | None:
    """Depth first, newest first. None where no choice is free of conflicts."""
    names = list(candidates)
    chosen: dict[str, str] = {}
    # A component's own conflicts do not depend on the others: checked once, not at every step of the search.
    alone = {
        name: [version for version in versions if not any(_judge_alone(context, name, version))]
        for name, versions in candidates.items()
    }
    if not all(alone.values()):
        return None

    def extend(depth: int) -> bool:
        if depth == len(names):
            return True
        name = names[depth]
        for version in _preferred_first(context, chosen, name, alone[name]):
            chosen[name] = version
            if not any(True for _ in _judge_new(context, chosen, name)) and extend(depth + 1):
                return True
            del chosen[name]
        return False

    return chosen if extend(0) else None


def _judge_alone(context: ResolveContext, name: str, version: str) -> Iterator[Conflict]:
    for names, rule in context.rules:
        if names == (name,):
            yield from _established(rule(context, {name: version}))


def _judge_new(context: ResolveContext, chosen: Assignment, name: str) -> Iterator[Conflict]:
    for names, rule in context.rules:
        if len(names) > 1 and name in names and all(each in chosen for each in names):
            yield from _established(rule(context, chosen))


def _with_nearest(context: ResolveContext, chosen: Assignment, conflict: Conflict) -> Conflict:
    """The conflict with the nearest versions that would resolve it, one component changed at a time."""
    remedies = []
    for name in conflict.change:
        version = _nearest(context, chosen, conflict, name)
        if version:
            remedies.append(f"{context.label(name)} {version}")
    if conflict.nearest:
        remedies.append(conflict.nearest)
    return Conflict(conflict.path, conflict.text, conflict.source, conflict.change, " or ".join(remedies))


def _nearest(context: ResolveContext, chosen: Assignment, conflict: Conflict, name: str) -> str | None:
    if name in context.provided:
        return None
    fallback = None
    for version in _by_nearness(context, chosen, name):
        changed = {**chosen, name: version}
        left = list(_judge(context, changed, only=name))
        if not left:
            return version
        if fallback is None and not any(other.path == conflict.path for other in left):
            fallback = version
    return fallback


def _by_nearness(context: ResolveContext, chosen: Assignment, name: str) -> list[str]:
    # A driver is taken from a branch that is maintained, so its newest; of all else, the next.
    by_nearness = nearest_branch_first if name == "nvidia_driver" else nearest_first
    order = by_nearness(chosen[name], list(context.releases(name)))
    return _preferred_first(context, chosen, name, order)


def _preferred_first(context: ResolveContext, chosen: Assignment, name: str, order: list[str]) -> list[str]:
    """Versions in their order, but first those that are better known to work.

    Where the recipe says `newest`: releases that are known for the system (`best_known_first`). Of CUDA, before all
    else: toolkits that the driver was made for, before those that it only tolerates.
    """
    known = best_known_first(context, name, order, chosen.get("cuda"))
    if name == "cuda" and "nvidia_driver" in chosen:
        driver = chosen["nvidia_driver"]
        return sorted(known, key=lambda version: not runs_natively(context, driver, version))
    return known


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
