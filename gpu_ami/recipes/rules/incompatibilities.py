"""Combinations that are known not to work (facts/incompatibilities.yml): refused, unless the recipe accepts them.

With what a release of the CloudWatch agent reads of the driver's `nvidia-smi -q -x`; and the kernel series on which a
release of a module builds that is not of the kernel (facts/kernel_modules.yml; drivers of a system's own archive have
their own table of builds). Security bulletins of what a plan installs (facts/advisories.yml) are noted, or refused
where the recipe asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from gpu_ami.recipes.facts import UNVERIFIED_NAMES, Facts, Row, at_least, branch, measured, parts
from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, ResolveContext, Rule


def is_accepted(context: ResolveContext, name: str) -> bool:
    return name in context.values.get("accept", ())


def refusal(context: ResolveContext, name: str, what: str, nearest: str = "") -> Iterator[Conflict]:
    """The conflict of a row; none where the recipe accepts it. what: the combination that the plan would have."""
    row = context.facts.incompatibilities["rows"][name]
    if is_accepted(context, name):
        return
    component = row["change"]
    text = f"{what}: {row['why']}. It ends with {row['ends']}. `accept: [{name}]` builds it all the same"
    is_version = component in row["versions"]
    yield Conflict(
        f"{component}.version", text, row["source"], (component,) if is_version and not nearest else (), nearest
    )


def accepted_notes(context: ResolveContext, chosen: Assignment) -> Iterator[str]:
    """What the recipe accepts and the plan has, and names in `accept` that nothing of the plan needs."""
    for name in context.values.get("accept", ()):
        if name in UNVERIFIED_NAMES:
            yield f"accepted: {name}: it is built although no row of the facts and no source tells of it"
            continue
        row = context.facts.incompatibilities["rows"][name]
        if not row["versions"] or _applies(context, row, chosen):
            yield f"accepted: {name}: {row['why']} ({row['source']})"
        else:
            yield f"accept names {name}, which this plan does not have"


def _rule(names: tuple[str, ...]) -> Rule:
    """Of the rows between these components. Rules are judged by the components that they are between."""

    def known_incompatibility(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
        for name, row in context.facts.incompatibilities["rows"].items():
            if set(row["versions"]) == set(names) and _applies(context, row, chosen):
                yield from refusal(context, name, _combination(context, row, chosen))

    return known_incompatibility


def _applies(context: ResolveContext, row: Row, chosen: Assignment) -> bool:
    for component, limits in row["versions"].items():
        version = chosen.get(component)
        if version is None or component in context.provided:
            return False
        if "from" in limits and not at_least(version, limits["from"]):
            return False
        if "below" in limits and at_least(version, limits["below"]):
            return False
    gpus = {gpu.row["name"] for gpu in context.gpus}
    return (
        ("gpus" not in row or bool(gpus & set(row["gpus"])))
        and context.os_name in row.get("systems", [context.os_name])
        and context.values["architecture"] in row.get("architectures", [context.values["architecture"]])
        and ("driver_source" not in row or context.driver_source == row["driver_source"])
    )


def _combination(context: ResolveContext, row: Row, chosen: Assignment) -> str:
    parts = [f"{context.label(component)} {chosen[component]}" for component in row["versions"]]
    if "gpus" in row:
        parts.append(", ".join(gpu.named for gpu in context.gpus if gpu.row["name"] in row["gpus"]))
    return " with ".join([*parts, *row.get("systems", [])])


INCOMPATIBILITY_RULES = tuple(
    (names, _rule(names))
    for names in (("nvidia_driver", "efa"), ("container_toolkit",), ("nvidia_driver",), ("gds",), ("dcgm",))
)


def agent_release(context: ResolveContext) -> str:
    """The agent's release in the recipe, without its build number; for `newest` the newest in the facts."""
    asked = str(context.section("cloudwatch_agent").get("version", "newest")).partition("b")[0]
    known = context.facts.cloudwatch_agent["versions"]
    return asked if asked[:1].isdigit() else max(known, key=parts)


def measures_gpus(context: ResolveContext) -> list[str]:
    """The planned measurements of the agent's nvidia_gpu plugin."""
    asked = context.section("telemetry")
    return list(asked.get("measurements") or measured(context.facts, asked.get("profile", "")))


def agent_reads_power_draw(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    """Agents read the element that older drivers have: on a newer one power_draw is never published."""
    driver, agent = chosen["nvidia_driver"], agent_release(context)
    if "power_draw" not in measures_gpus(context):
        return
    rows = [
        row
        for row in context.facts.cloudwatch_agent["nvidia_smi"]["power_draw"]
        if at_least(driver, row["driver_from"])
    ]
    missing = [row for row in rows if not at_least(agent, row["agent_from"])]
    if missing:
        row = missing[-1]
        text = f"CloudWatch agent {agent} publishes no power_draw of driver {driver}: needs ≥ {row['agent_from']}"
        nearest = f"cloudwatch_agent.version {row['agent_from']} or newer, or telemetry.measurements without power_draw"
        yield Conflict("cloudwatch_agent.version", text, row["source"], nearest=nearest)


def unknown_layout(context: ResolveContext, driver: str) -> str:
    """A note where the agent does not know the layout of the driver's nvidia-smi; "" where it does."""
    if not measures_gpus(context):
        return ""
    layouts = [
        row for row in context.facts.cloudwatch_agent["nvidia_smi"]["layouts"] if at_least(driver, row["driver_from"])
    ]
    if not layouts:
        return ""
    row, agent = layouts[-1], agent_release(context)
    if "agent_from" in row and at_least(agent, row["agent_from"]):
        return ""
    return (
        f"CloudWatch agent {agent} does not know the layout {row['name']} of nvidia-smi {driver}: it logs a warning and"
        f" reads it as the newest that it knows, so check that the metrics of GPUs arrive ({row['source']})"
    )


TELEMETRY_RULES = ((("nvidia_driver",), agent_reads_power_draw),)


_KERNEL_SERIES = "kernel-module-series"


def rows_for(context: ResolveContext, component: str) -> list[Row]:
    """The rows of a module that hold for the image's kernel series, one for each flavour that they name."""
    by_flavour: dict[str, Row] = {}
    for row in context.facts.kernel_modules["modules"].get(component, ()):
        if at_least(context.kernel, row["kernel_from"]) and row.get("flavour", context.flavour) == context.flavour:
            by_flavour[row.get("flavour", "")] = row
    return list(by_flavour.values())


def built_release(context: ResolveContext, component: str, version: str) -> str | None:
    """The release of the module that a component's version brings, or at most; None where the facts do not say."""
    if component != "efa":
        return version
    row = context.facts.efa["releases"].get(version, {})
    module = row.get("kernel_module") or row.get("at_most", {}).get("kernel_module")
    return str(module) if module else None


def does_not_build(context: ResolveContext, component: str, version: str) -> Row | None:
    """The row by which a version's module does not build on the image's kernel series; None where none says so."""
    release = built_release(context, component, version)
    for row in rows_for(context, component) if release else ():
        first = row["first"]
        if isinstance(first, dict):
            if branch(str(release)) in row.get("none", ()):
                return row
            first = first.get(branch(str(release)), "0")
        if not at_least(str(release), str(first)):
            return row
    return None


def unestablished_modules(context: ResolveContext, versions: Assignment) -> Iterator[str]:
    """A sentence for each module whose first release that builds is not established."""
    for component, version in versions.items():
        rows = rows_for(context, component) if component not in context.provided else ()
        for row in rows:
            if row.get("unverified") and does_not_build(context, component, version) is None:
                label = context.label(component)
                yield f"{label} {version} on kernel {context.kernel}: {row['why']} ({row['source']})"


def kernel_module_rule(component: str) -> tuple[tuple[str, ...], Rule]:
    """The rule of one component, with the name under which it is judged."""

    def builds_on_kernel(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
        """DKMS would stop in the build, after the machine was paid for; or the module would not load."""
        if component in context.provided or is_accepted(context, _KERNEL_SERIES):
            return
        if component == "nvidia_driver" and context.is_distribution_driver:
            return
        row = does_not_build(context, component, chosen[component])
        if row is None:
            return
        label, version = context.label(component), chosen[component]
        module = built_release(context, component, version)
        at_most = "at most " if component == "efa" and "unknown" in context.facts.efa["releases"][version] else ""
        of_module = f" (its module {at_most}{module})" if module != version else ""
        text = f"{label} {version}{of_module} does not build on kernel {context.kernel}: {row['why']}"
        text = f"{text}. `accept: [{_KERNEL_SERIES}]` builds it all the same"
        yield Conflict(f"{component}.version", text, row["source"], (component,))

    return (component,), builds_on_kernel


SEVERITIES = ("medium", "high", "critical")


def open_advisories(context: ResolveContext, component: str, version: str) -> Iterator[tuple[str, str, Row]]:
    """Bulletins whose fix a version lacks: its name in the facts, what to say of it, and its row."""
    for name, row in context.facts.advisories["rows"].items():
        if row["component"] != component:
            continue
        fixed = row["fixed"].get(branch(version))
        if fixed and not at_least(version, str(fixed)):
            fix = f"fixed in {fixed}"
        elif not fixed and component == "nvidia_driver" and _had_ended(context, version, row):
            fix = f"fixed in no release of R{branch(version)}, whose support had ended"
        else:
            continue
        yield name, f"{row['cve']} ({row['severity']}) is {fix}", row


def _had_ended(context: ResolveContext, version: str, row: Row) -> bool:
    """Whether a bulletin names no fix of a driver's branch because the branch had ended: newer branches have one."""
    of_branch = context.facts.nvidia_drivers["branches"].get(branch(version), {})
    is_older = int(branch(version)) < max(map(int, row["fixed"]))
    return is_older and str(of_branch.get("end_of_support", "9999")) < str(row.get("published", ""))


def runtime_advisories(facts: Facts, system: str, packages: Mapping[str, str]) -> Iterator[tuple[str, str, bool, Row]]:
    """Bulletins of container runtimes whose fix an image's packages lack: package, what to say, whether it is certain.

    packages: name → the whole version. Not certain: the version is older than upstream's fix, and the system's vendor
    may have put the fix into it.
    """
    table = facts.advisories["runtimes"]
    for name, full in packages.items():
        release = full.rpartition(":")[2]  # without the epoch
        upstream = re.split(r"[-+~]", release, maxsplit=1)[0]
        for row in table["rows"].values():
            if name not in table["names"][row["project"]] or not upstream[:1].isdigit():
                continue
            own = row.get("packages", {}).get(system)
            if not _is_before(upstream, row["fixed"]) or (own and parts(release) >= parts(own)):
                continue
            fix = own or " and ".join(row["fixed"])
            yield name, f"{row['cve']} ({row['severity']}) is fixed in {fix}", bool(own), row


def _is_before(version: str, fixed: Sequence[str]) -> bool:
    """Whether a release is older than the fix of its series; of a series without one, than the newest fix."""
    of_series = [fix for fix in fixed if parts(fix)[:2] == parts(version)[:2]]
    return not at_least(version, of_series[0] if of_series else max(fixed, key=parts))


def advisory_notes(context: ResolveContext, versions: Mapping[str, str]) -> Iterator[str]:
    """Of all chosen and provided versions, one each."""
    for component, version in versions.items():
        lacking = [f"{text} ({name})" for name, text, _ in open_advisories(context, component, version)]
        if lacking:
            fixes = (
                "the fix of a security bulletin" if len(lacking) == 1 else f"fixes of {len(lacking)} security bulletins"
            )
            shown = "; ".join(lacking)
            yield f"{context.label(component)} {version} lacks {fixes}: {shown}: variables/facts/advisories.yml"


def advisory_rule(component: str) -> tuple[tuple[str, ...], Rule]:
    """The rule of `refuse_advisories`, with the component's name."""

    def has_fixes(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
        least = context.values.get("refuse_advisories")
        version = chosen[component]
        for _, text, row in open_advisories(context, component, version) if least else ():
            if SEVERITIES.index(row["severity"]) >= SEVERITIES.index(str(least)):
                told = f"{context.label(component)} {version}: {text}"
                yield Conflict(f"{component}.version", told, row["source"], (component,))

    return (component,), has_fixes
