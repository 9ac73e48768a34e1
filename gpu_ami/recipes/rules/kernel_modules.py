"""Rules of modules that are built outside the kernel: a release of them builds on some kernel series alone.

One table (facts/kernel_modules.yml), one rule; drivers of a system's own archive have their own table of builds.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_ami.recipes.facts import Row, at_least, branch
from gpu_ami.recipes.rules.incompatibilities import is_accepted
from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, ResolveContext, Rule

ACCEPTED = "kernel-module-series"


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


def kernel_module_rule(component: str) -> tuple[tuple[str, ...], Rule]:
    """The rule of one component, with the name under which it is judged."""

    def builds_on_kernel(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
        """DKMS would stop in the build, after the machine was paid for; or the module would not load."""
        if component in context.provided or is_accepted(context, ACCEPTED):
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
        text = f"{text}. `accept: [{ACCEPTED}]` builds it all the same"
        yield Conflict(f"{component}.version", text, row["source"], (component,))

    return (component,), builds_on_kernel
