"""Rules of the network: EFA installer, libfabric, aws-ofi-nccl, NCCL, and how EFA reaches GPU memory."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_ami.recipes.resolve_context import Assignment, Conflict, World
from gpu_ami.recipes.versions import at_least, at_most


def bundled_plugin(world: World, efa: str) -> str | None:
    """Version of aws-ofi-nccl that the EFA installer installs on the image's system; None if it installs none."""
    facts = world.facts.efa
    row = facts["releases"][efa]
    if not row["bundled"] or world.section("efa").get("mode", "full") == "minimal":
        return None
    first = facts["plugin_systems"].get(world.os_name, {}).get(world.values["architecture"])
    return str(row["ofi_nccl"]) if first and at_least(efa, first) else None


def nccl_fits_efa(world: World, chosen: Assignment) -> Iterator[Conflict]:
    """Pairs of versions that are known to fail together."""
    for pair in world.facts.nccl["known_bad"]:
        if at_least(chosen["nccl"], pair["nccl_from"]) and not at_least(chosen["efa"], pair["efa_below"]):
            text = f"NCCL {chosen['nccl']} with EFA {chosen['efa']}: {pair['why']}"
            yield Conflict("efa.version", text, pair["source"], ("efa", "nccl"))


def efa_regression(world: World, chosen: Assignment) -> Iterator[Conflict]:
    row = world.facts.efa["releases"][chosen["efa"]]
    if "regression" in row and not at_least(chosen["ofi_nccl"], row["minimum_ofi_nccl"]):
        text = f"EFA {chosen['efa']} with aws-ofi-nccl {chosen['ofi_nccl']}: {row['regression']}"
        yield Conflict("ofi_nccl.version", text, row["source"], ("ofi_nccl", "efa"))


def efa_regression_without_plugin(world: World, chosen: Assignment) -> Iterator[Conflict]:
    row = world.facts.efa["releases"][chosen["efa"]]
    if "regression" in row and "ofi_nccl" not in world.values:
        text = f"EFA {chosen['efa']} without ofi_nccl.version: {row['regression']}"
        nearest = f"ofi_nccl.version {row['minimum_ofi_nccl']}"
        yield Conflict("efa.version", text, row["source"], ("efa",), nearest)


def one_plugin(world: World, chosen: Assignment) -> Iterator[Conflict]:
    """With two aws-ofi-nccl in the library path, it is undefined which one NCCL loads."""
    row = world.facts.efa["releases"][chosen["efa"]]
    plugin = bundled_plugin(world, chosen["efa"])
    if "efa" in world.provided or plugin in (None, chosen["ofi_nccl"]):
        return
    bundled, added = f"EFA {chosen['efa']} contains aws-ofi-nccl {row['ofi_nccl']}", chosen["ofi_nccl"]
    text = f"{bundled}; a second one, {added}, would shadow it"
    nearest = f"leave out ofi_nccl, or aws-ofi-nccl {row['ofi_nccl']}, or efa.mode minimal"
    yield Conflict("ofi_nccl.version", text, row["source"], nearest=nearest)


def plugin_finds_libfabric(world: World, chosen: Assignment) -> Iterator[Conflict]:
    plugin = world.facts.ofi_nccl["releases"][chosen["ofi_nccl"]]
    efa = world.facts.efa["releases"][chosen["efa"]]
    libfabric = efa.get("libfabric")
    if world.section("efa").get("mode", "full") == "minimal":
        text = f"aws-ofi-nccl {chosen['ofi_nccl']} needs libfabric, which efa.mode minimal leaves out"
        yield Conflict("efa.mode", text, plugin["source"], nearest="efa.mode full, or leave out ofi_nccl")
    elif libfabric and not at_least(libfabric, plugin["minimum_libfabric"]):
        text = (
            f"aws-ofi-nccl {chosen['ofi_nccl']} needs libfabric ≥ {plugin['minimum_libfabric']}; "
            f"EFA {chosen['efa']} has {libfabric}"
        )
        yield Conflict("ofi_nccl.version", text, plugin["source"], ("ofi_nccl", "efa"))


def plugin_serves_nccl(world: World, chosen: Assignment) -> Iterator[Conflict]:
    plugin = world.facts.ofi_nccl["releases"][chosen["ofi_nccl"]]
    if not at_least(chosen["nccl"], plugin["minimum_nccl"]):
        text = f"aws-ofi-nccl {chosen['ofi_nccl']} needs NCCL ≥ {plugin['minimum_nccl']}, not {chosen['nccl']}"
        yield Conflict("nccl.version", text, plugin["source"], ("nccl", "ofi_nccl"))


def bundled_plugin_serves_nccl(world: World, chosen: Assignment) -> Iterator[Conflict]:
    efa = world.facts.efa["releases"][chosen["efa"]]
    if "ofi_nccl" in world.values or bundled_plugin(world, chosen["efa"]) is None:
        return
    plugin = world.facts.ofi_nccl["releases"][efa["ofi_nccl"]]
    if not at_least(chosen["nccl"], plugin["minimum_nccl"]):
        text = (
            f"EFA {chosen['efa']} contains aws-ofi-nccl {efa['ofi_nccl']}, "
            f"which needs NCCL ≥ {plugin['minimum_nccl']}, not {chosen['nccl']}"
        )
        yield Conflict("nccl.version", text, plugin["source"], ("nccl", "efa"))


def plugin_needs_efa(world: World, chosen: Assignment) -> Iterator[Conflict]:
    if "efa" not in world.values and "efa" not in world.provided:
        row = world.facts.ofi_nccl["releases"][chosen["ofi_nccl"]]
        text = f"aws-ofi-nccl {chosen['ofi_nccl']} needs EFA, which provides libfabric"
        yield Conflict("ofi_nccl", text, row["source"], nearest="add efa.version, or leave out ofi_nccl")


def driver_fits_efa(world: World, chosen: Assignment) -> Iterator[Conflict]:
    """The EFA driver reaches GPU memory through the NVIDIA driver, so it must support that driver's branch."""
    if "efa" in world.provided or not any(row["efa_interfaces"] for row in world.instance_types.values()):
        return
    for pair in world.facts.efa["known_bad"]:
        if at_least(chosen["nvidia_driver"], pair["driver_from"]) and not at_least(chosen["efa"], pair["efa_below"]):
            text = f"driver {chosen['nvidia_driver']} with EFA {chosen['efa']}: {pair['why']}"
            yield Conflict("efa.version", text, pair["source"], ("efa",))


def installer_supports_system(world: World, chosen: Assignment) -> Iterator[Conflict]:
    """The EFA installer refuses systems that it does not support."""
    systems = world.facts.efa["systems"]
    limits = systems.get(world.os_name, {})
    first, last = limits.get("first", "0"), limits.get("last", "9999")
    if "efa" in world.provided or (at_least(chosen["efa"], first) and at_most(chosen["efa"], last)):
        return
    bound = f"{last} is the last installer" if "last" in limits else f"{first} is the first installer"
    text = f"EFA {chosen['efa']} does not support {world.os_name}: {bound} that does"
    yield Conflict("efa.version", text, systems["source"], ("efa",))


NETWORK_RULES = (
    (("nccl", "efa"), nccl_fits_efa),
    (("efa", "ofi_nccl"), efa_regression),
    (("efa",), efa_regression_without_plugin),
    (("efa", "ofi_nccl"), one_plugin),
    (("efa", "ofi_nccl"), plugin_finds_libfabric),
    (("ofi_nccl", "nccl"), plugin_serves_nccl),
    (("efa", "nccl"), bundled_plugin_serves_nccl),
    (("ofi_nccl",), plugin_needs_efa),
    (("efa", "nvidia_driver"), driver_fits_efa),
    (("efa",), installer_supports_system),
)
