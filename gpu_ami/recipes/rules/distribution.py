"""Rules of a driver from the operating system's own archive (`nvidia_driver.source: distribution`)."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_ami.recipes.facts import parts
from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, ResolveContext


def distribution_has_driver(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """The facts know drivers in the archive of the image's system and for its architecture."""
    if not context.is_distribution_driver:
        return
    path, systems = "nvidia_driver.source", context.facts.distribution_drivers["systems"]
    row, architecture = systems.get(context.os_name), context.values["architecture"]
    if row is None:
        text = f"the facts have no NVIDIA driver in the archive of {context.os_name}"
        nearest = f"leave out nvidia_driver.source (NVIDIA's repository), or os {' or '.join(systems)}"
        yield Conflict(path, text, "variables/facts/distribution_drivers.yml", nearest=nearest)
    elif architecture not in row["architectures"]:
        text = f"the facts have no NVIDIA driver in the archive of {context.os_name} for {architecture}"
        yield Conflict(path, text, row["source"], nearest="leave out nvidia_driver.source (NVIDIA's repository)")


def distribution_has_flavour(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    row = context.distribution_release(chosen["nvidia_driver"])
    if row and context.flavour not in row["modules"]:
        module = f"{context.flavour} kernel module of driver {chosen['nvidia_driver']}"
        text = f"the archive of {context.os_name} has no {module}"
        nearest = f"flavour {' or '.join(sorted(row['modules']))}"
        yield Conflict("nvidia_driver.flavour", text, row["source"], nearest=nearest)


def distribution_has_companions(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    """No archive has the fabric manager or IMEX, and NVIDIA's own must have exactly the driver's version."""
    row = context.distribution_release(chosen["nvidia_driver"])
    if not row:
        return
    asked = [name for name in ("fabric_manager", "imex") if name in context.values]
    needed = list(context.nvswitch) or [name for name in context.instance_types if context.family(name).get("imex")]
    if asked or needed:
        text = f"{', '.join(needed or asked)}: the archive of {context.os_name} has no fabric manager and no IMEX"
        nearest = "leave out nvidia_driver.source (NVIDIA's repository), or these instance types"
        yield Conflict("nvidia_driver.source", text, row["source"], nearest=nearest)


def module_builds_on_kernel(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    """A module that DKMS could not build on the newest kernel that was tried: the image would have no driver."""
    driver, flavour = chosen["nvidia_driver"], context.flavour
    tried = [
        row
        for row in context.distribution.get("builds", ())
        if (row["driver"], row["flavour"]) == (driver, flavour) and _is_of_series(row["kernel"], context.kernel)
    ]
    if not tried:
        return
    newest = max(tried, key=lambda row: parts(row["kernel"]))  # 6.1.0-56: the ABI is the number behind the version
    if not newest["builds"]:
        kernel = f"kernel {newest['kernel']}: {newest['error']}"
        text = f"the {flavour} kernel module of driver {driver} does not build on {kernel}"
        other = [row for row in context.distribution["builds"] if row["builds"] and row["kernel"] == newest["kernel"]]
        nearest = " or ".join(f"driver {row['driver']} with flavour {row['flavour']}" for row in other)
        yield Conflict("nvidia_driver.version", text, newest["source"], nearest=nearest)


def _is_of_series(release: str, series: str) -> bool:
    return release.startswith(f"{series}.")


DISTRIBUTION_RULES = (
    (("nvidia_driver",), distribution_has_flavour),
    (("nvidia_driver",), distribution_has_companions),
    (("nvidia_driver",), module_builds_on_kernel),
)
