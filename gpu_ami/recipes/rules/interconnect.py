"""Rules of the network: EFA installer, libfabric, aws-ofi-nccl, NCCL, and how EFA reaches GPU memory."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_ami.recipes.facts import at_least, at_most
from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, ResolveContext, Rule


def bundled_plugin(context: ResolveContext, efa: str) -> str | None:
    """Version of aws-ofi-nccl that the EFA installer installs on the image's system; None if it installs none."""
    facts = context.facts.efa
    row = facts["releases"][efa]
    if not row["bundled"] or context.section("efa").get("mode", "full") == "minimal":
        return None
    first = facts["plugin_systems"].get(context.os_name, {}).get(context.values["architecture"])
    return str(row["ofi_nccl"]) if first and at_least(efa, first) else None


def nccl_fits_efa(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    """Pairs of versions that are known to fail together."""
    for pair in context.facts.nccl["known_bad"]:
        if at_least(chosen["nccl"], pair["nccl_from"]) and not at_least(chosen["efa"], pair["efa_below"]):
            text = f"NCCL {chosen['nccl']} with EFA {chosen['efa']}: {pair['why']}"
            yield Conflict("efa.version", text, pair["source"], ("efa", "nccl"))


def peer_memory_is_of_one_module(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    """efa_nv_peermem is built against the symbols of the build's module; with the other flavour it does not load."""
    if context.flavour == "boot" and "nvidia" in context.accelerators and "efa" not in context.provided:
        text = "flavour boot with EFA: efa_nv_peermem is built for one of the two kernel modules alone"
        source = "amzn-drivers kernel/linux/efa_nv_peermem; awslabs/amazon-eks-ami#2672"
        nearest = "flavour open or proprietary, an image for each, or leave out efa"
        yield Conflict("nvidia_driver.flavour", text, source, nearest=nearest)


def efa_regression(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    row = context.facts.efa["releases"][chosen["efa"]]
    if "regression" in row and not at_least(chosen["ofi_nccl"], row["minimum_ofi_nccl"]):
        text = f"EFA {chosen['efa']} with aws-ofi-nccl {chosen['ofi_nccl']}: {row['regression']}"
        yield Conflict("ofi_nccl.version", text, row["source"], ("ofi_nccl", "efa"))


def efa_regression_without_plugin(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    row = context.facts.efa["releases"][chosen["efa"]]
    if "regression" in row and "ofi_nccl" not in context.values:
        text = f"EFA {chosen['efa']} without ofi_nccl.version: {row['regression']}"
        nearest = f"ofi_nccl.version {row['minimum_ofi_nccl']}"
        yield Conflict("efa.version", text, row["source"], ("efa",), nearest)


def one_plugin(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    """With two aws-ofi-nccl in the library path, it is undefined which one NCCL loads."""
    row = context.facts.efa["releases"][chosen["efa"]]
    plugin = bundled_plugin(context, chosen["efa"])
    if "efa" in context.provided or plugin in (None, chosen["ofi_nccl"]):
        return
    bundled, added = f"EFA {chosen['efa']} contains aws-ofi-nccl {row['ofi_nccl']}", chosen["ofi_nccl"]
    text = f"{bundled}; a second one, {added}, would shadow it"
    nearest = f"leave out ofi_nccl, or aws-ofi-nccl {row['ofi_nccl']}, or efa.mode minimal"
    yield Conflict("ofi_nccl.version", text, row["source"], nearest=nearest)


def plugin_finds_libfabric(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    plugin = context.facts.ofi_nccl["releases"][chosen["ofi_nccl"]]
    efa = context.facts.efa["releases"][chosen["efa"]]
    libfabric = efa.get("libfabric") or efa.get("at_most", {}).get("libfabric")
    if context.section("efa").get("mode", "full") == "minimal":
        text = f"aws-ofi-nccl {chosen['ofi_nccl']} needs libfabric, which efa.mode minimal leaves out"
        yield Conflict("efa.mode", text, plugin["source"], nearest="efa.mode full, or leave out ofi_nccl")
    elif libfabric and not at_least(libfabric, plugin["minimum_libfabric"]):
        text = (
            f"aws-ofi-nccl {chosen['ofi_nccl']} needs libfabric ≥ {plugin['minimum_libfabric']}; "
            f"EFA {chosen['efa']} has {libfabric}"
        )
        yield Conflict("ofi_nccl.version", text, plugin["source"], ("ofi_nccl", "efa"))


def plugin_serves_nccl(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    plugin = context.facts.ofi_nccl["releases"][chosen["ofi_nccl"]]
    if not at_least(chosen["nccl"], plugin["minimum_nccl"]):
        text = f"aws-ofi-nccl {chosen['ofi_nccl']} needs NCCL ≥ {plugin['minimum_nccl']}, not {chosen['nccl']}"
        yield Conflict("nccl.version", text, plugin["source"], ("nccl", "ofi_nccl"))


def bundled_plugin_serves_nccl(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    efa = context.facts.efa["releases"][chosen["efa"]]
    if "ofi_nccl" in context.values or bundled_plugin(context, chosen["efa"]) is None:
        return
    plugin = context.facts.ofi_nccl["releases"][efa["ofi_nccl"]]
    if not at_least(chosen["nccl"], plugin["minimum_nccl"]):
        text = (
            f"EFA {chosen['efa']} contains aws-ofi-nccl {efa['ofi_nccl']}, "
            f"which needs NCCL ≥ {plugin['minimum_nccl']}, not {chosen['nccl']}"
        )
        yield Conflict("nccl.version", text, plugin["source"], ("nccl", "efa"))


def plugin_needs_efa(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    if "efa" not in context.values and "efa" not in context.provided:
        row = context.facts.ofi_nccl["releases"][chosen["ofi_nccl"]]
        text = f"aws-ofi-nccl {chosen['ofi_nccl']} needs EFA, which provides libfabric"
        yield Conflict("ofi_nccl", text, row["source"], nearest="add efa.version, or leave out ofi_nccl")


def driver_fits_efa(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    """The EFA driver reaches GPU memory through the NVIDIA driver, so it must support that driver's branch."""
    if "efa" in context.provided or not any(row["efa_interfaces"] for row in context.instance_types.values()):
        return
    for pair in context.facts.efa["known_bad"]:
        if at_least(chosen["nvidia_driver"], pair["driver_from"]) and not at_least(chosen["efa"], pair["efa_below"]):
            text = f"driver {chosen['nvidia_driver']} with EFA {chosen['efa']}: {pair['why']}"
            yield Conflict("efa.version", text, pair["source"], ("efa",))


def installer_supports_system(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    """The EFA installer refuses systems that it does not support."""
    systems = context.facts.efa["systems"]
    limits = systems.get(context.os_name, {})
    first, last = limits.get("first", "0"), limits.get("last", "9999")
    if "efa" in context.provided or (at_least(chosen["efa"], first) and at_most(chosen["efa"], last)):
        return
    bound = f"{last} is the last installer" if "last" in limits else f"{first} is the first installer"
    text = f"EFA {chosen['efa']} does not support {context.os_name}: {bound} that does"
    yield Conflict("efa.version", text, systems["source"], ("efa",))


def gda_is_possible(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    """EFA-GDA, if the recipe asks for it: instance types, libfabric, and that the rest of it is in the image."""
    row, efa = context.facts.efa["gda"], chosen["efa"]
    if not context.section("efa").get("gda"):
        return
    without = [name for name, one in context.instance_types.items() if one["family"] not in row["families"]]
    if without:
        families = ", ".join(row["families"])
        text = f"{', '.join(without)}: no EFA-GDA, which {families} have"
        yield Conflict("efa.gda", text, row["source"], nearest="leave out efa.gda, or an image for each")
    libfabric = context.facts.efa["releases"][efa].get("libfabric", "")
    if libfabric and not at_least(libfabric, row["libfabric"]):
        text = f"EFA-GDA needs libfabric ≥ {row['libfabric']}; EFA {efa} has {libfabric}"
        yield Conflict("efa.version", text, row["source"], ("efa",))
    plugin = bundled_plugin(context, efa)
    if "ofi_nccl" not in context.values and (plugin is None or not at_least(plugin, row["ofi_nccl"])):
        text = (
            f"EFA-GDA needs aws-ofi-nccl ≥ {row['ofi_nccl']}; EFA {efa} brings {plugin or 'none'} to {context.os_name}"
        )
        yield Conflict("efa.gda", text, row["source"], nearest=f"ofi_nccl.version {row['ofi_nccl']}")
    for name in ("nccl", "gdrcopy"):
        if name not in context.values and name not in context.provided:
            text = f"EFA-GDA needs {context.label(name)} ≥ {row[name]}, and the recipe has none"
            yield Conflict("efa.gda", text, row["source"], nearest=f"{name}.version {row[name]}")


def _gda_needs(name: str) -> Rule:
    def fits_gda(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
        row = context.facts.efa["gda"]
        if context.section("efa").get("gda") and not at_least(chosen[name], row[name]):
            text = f"EFA-GDA needs {context.label(name)} ≥ {row[name]}, not {chosen[name]}"
            yield Conflict(f"{name}.version", text, row["source"], (name,))

    return fits_gda


NETWORK_RULES = (
    (("efa",), gda_is_possible),
    *((("efa", name), _gda_needs(name)) for name in ("ofi_nccl", "nccl", "gdrcopy")),
    (("nvidia_driver", "efa"), peer_memory_is_of_one_module),
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
