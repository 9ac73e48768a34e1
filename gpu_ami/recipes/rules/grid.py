"""Rules of NVIDIA's GRID driver from AWS's bucket (`nvidia_driver.source: grid`)."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, ResolveContext

_SOURCE, _VENDORS = "nvidia_driver.source", "leave out nvidia_driver.source (NVIDIA's repository)"
_OF_GRID = ("sha256", "virtual_applications")


def grid_keys_have_grid(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """Keys that say something of the GRID driver alone."""
    for key in _OF_GRID:
        if key in context.section("nvidia_driver") and not context.is_grid_driver:
            text = f"nvidia_driver.{key} is of the GRID driver, and the image has another"
            table = "variables/facts/grid_drivers.yml"
            yield Conflict(f"nvidia_driver.{key}", text, table, nearest=f"source grid, or leave out {key}")


def base_has_no_driver(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """A base AMI with a driver of its own would have two of them."""
    if context.driver_source == "base" and context.section("nvidia_driver").get("source") == "grid":
        text = f"the base AMI of {context.base_ami} has its own driver {context.provided['nvidia_driver']}"
        yield Conflict(_SOURCE, text, context.base_ami_source, nearest="leave out nvidia_driver.source")


def grid_is_for_the_image(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """AWS publishes the driver for some systems and architectures."""
    facts, architecture = context.facts.grid_drivers, context.values["architecture"]
    if not context.is_grid_driver:
        return
    if architecture not in facts["architectures"]:
        text = f"the GRID driver is for {', '.join(facts['architectures'])}, the image is {architecture}"
        yield Conflict(_SOURCE, text, facts["source"], nearest=_VENDORS)
    if context.os_name not in facts["systems"]:
        text = f"the role installs the GRID driver on {', '.join(facts['systems'])}, not on {context.os_name}"
        yield Conflict(_SOURCE, text, facts["source"], nearest=f"os {' or '.join(facts['systems'])}")


def grid_is_licensed_for_types(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """The licence is paid with some instance families alone: elsewhere the driver loses performance after a day."""
    facts = context.facts.grid_drivers
    families = _families(context)
    for name, row in context.instance_types.items():
        if context.is_grid_driver and row["family"] not in families:
            text = f"{name}: AWS's GRID licence covers {', '.join(families)}"
            yield Conflict(_SOURCE, text, facts["families"]["source"], nearest=f"{_VENDORS}, or other instance types")


def grid_has_gsp_off(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """AWS's guide asks for it on some families; the open kernel module cannot do without the firmware."""
    without = {family for family, row in _families(context).items() if row.get("gsp") is False}
    needs = [name for name, row in context.instance_types.items() if row["family"] in without]
    if context.is_grid_driver and needs and context.section("nvidia_driver").get("gsp") is not False:
        text = f"the GRID driver on {', '.join(needs)} needs the GSP firmware off"
        source = context.facts.grid_drivers["families"]["source"]
        yield Conflict("nvidia_driver.gsp", text, source, nearest="gsp false with flavour proprietary")


def grid_has_flavour(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    if context.is_grid_driver and context.flavour == "boot":
        text = "the GRID driver's installer installs one kernel module, open or proprietary"
        source = context.facts.grid_drivers["source"]
        yield Conflict("nvidia_driver.flavour", text, source, nearest="flavour open or proprietary")


def grid_has_companions(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """Fabric manager and IMEX are packages of NVIDIA's repository, which need its driver packages' version."""
    asked = [name for name in ("fabric_manager", "imex") if name in context.values]
    if context.is_grid_driver and asked:
        text = f"{' and '.join(asked)} with the GRID driver: no instance type that its licence covers needs them"
        yield Conflict(asked[0], text, context.facts.grid_drivers["source"], nearest=f"leave out {' and '.join(asked)}")


def _families(context: ResolveContext) -> dict[str, dict[str, object]]:
    rows = context.facts.grid_drivers["families"]
    return {name: row for name, row in rows.items() if isinstance(row, dict)}


GRID_RULES = (
    grid_keys_have_grid,
    base_has_no_driver,
    grid_is_for_the_image,
    grid_is_licensed_for_types,
    grid_has_gsp_off,
    grid_has_flavour,
    grid_has_companions,
)
