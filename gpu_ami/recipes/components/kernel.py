"""The kernel series of the image; its key in the recipe is one of the system's (gpu_ami/recipes/layers.py)."""

from __future__ import annotations

from dataclasses import replace

from gpu_ami.recipes.facts import ARCHITECTURES, Row, Sources
from gpu_ami.recipes.rules import NO_KEYS, Assignment, Component, ResolveContext, does_not_build
from validator.plan_document import Kernel


def kernel_section(system: Row, series: str, architecture: str, *, is_fixed: bool = False) -> Kernel:
    """Packages of a kernel series on an operating system. `headers` may contain {release}: the output of `uname -r`.

    is_fixed: the image stays on the series, also where the system's own package has gone on to another one.
    """
    rows = system["kernel_packages"]
    row, deb = rows.get(series) or rows["default"], ARCHITECTURES[architecture].deb
    if is_fixed:
        row = {**row, **row.get("fixed", {})}
    return {
        "version": series,
        "package": row["package"].replace("{deb}", deb),
        "headers": row["headers"],
        "hold": [name.replace("{deb}", deb) for name in row["hold"]],
    }


def _section(context: ResolveContext, versions: Assignment, sources: Sources) -> Kernel:
    is_named = "version" in context.section("kernel") and not context.base_kernel
    section = kernel_section(context.os, context.kernel, context.values["architecture"], is_fixed=is_named)
    followed = [series for series in context.followed_kernels if _all_build(replace(context, series=series), versions)]
    if len(followed) > 1:
        section["follows"] = followed
    stays = "fixed" in context.kernel_packages(context.kernel)
    if not context.base_kernel and context.kernel not in context.installable_kernels and not stays:
        _note_series_of_older_amis(context, section["package"], sources)
    if context.series:
        _note_other_series(context, versions, sources)
    return section


def _note_series_of_older_amis(context: ResolveContext, package: str, sources: Sources) -> None:
    of_series = context.kernel_packages(context.kernel)["package"]
    brings = next(one for one in context.installable_kernels if context.kernel_packages(one)["package"] == of_series)
    sources.note(
        f"kernel {context.kernel}: {package} of {context.os_name} brings {brings} today, so the build stops unless the "
        f"source AMI boots {context.kernel} (name an older AMI in source_ami)"
    )


def _all_build(context: ResolveContext, versions: Assignment) -> bool:
    return not any(does_not_build(context, name, version) for name, version in versions.items())


def _note_other_series(context: ResolveContext, versions: Assignment, sources: Sources) -> None:
    """Says why the image does not have the kernel of its base AMI."""
    first = replace(context, series="")
    stopped = [
        f"{context.label(name)} {version} does not build on {first.kernel} ({row['source']})"
        for name, version in versions.items()
        if (row := does_not_build(first, name, version))
    ]
    why = "; ".join(stopped) or f"the plan does not fit {first.kernel}"
    sources.note(f"kernel {context.kernel}, not {first.kernel} of the newest AMIs of {context.os_name}: {why}")


COMPONENT = Component("kernel", layer="kernel", is_in_every_plan=True, keys=NO_KEYS, section=Kernel, write=_section)
