"""Rules of the network: EFA installer, libfabric, aws-ofi-nccl, NCCL, and how EFA reaches GPU memory."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_ami.recipes.versions import at_least
from gpu_ami.recipes.world import Assignment, Conflict, World


def nccl_fits_efa(world: World, chosen: Assignment) -> Iterator[Conflict]:
    """Pairs that are known to fail together."""
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
        text = f"EFA {chosen['efa']} and no plugin of its own: {row['regression']}"
        nearest = f"ofi_nccl.version {row['minimum_ofi_nccl']}"
        yield Conflict("efa.version", text, row["source"], ("efa",), nearest)


def one_plugin(world: World, chosen: Assignment) -> Iterator[Conflict]:
    """Two aws-ofi-nccl on one loader path: which one NCCL takes is chance."""
    row = world.facts.efa["releases"][chosen["efa"]]
    if not row["bundled"] or world.section("efa").get("mode", "full") == "minimal":
        return
    if "efa" in world.provided or row["ofi_nccl"] == chosen["ofi_nccl"]:
        return
    text = (
        f"EFA {chosen['efa']} brings aws-ofi-nccl {row['ofi_nccl']} along; a second one, {chosen['ofi_nccl']}, hides it"
    )
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
    if "ofi_nccl" in world.values or not efa["bundled"] or world.section("efa").get("mode") == "minimal":
        return
    plugin = world.facts.ofi_nccl["releases"][efa["ofi_nccl"]]
    if not at_least(chosen["nccl"], plugin["minimum_nccl"]):
        text = (
            f"EFA {chosen['efa']} brings aws-ofi-nccl {efa['ofi_nccl']}, which needs NCCL ≥ {plugin['minimum_nccl']}, "
            f"not {chosen['nccl']}"
        )
        yield Conflict("nccl.version", text, plugin["source"], ("nccl", "efa"))


def plugin_needs_efa(world: World, chosen: Assignment) -> Iterator[Conflict]:
    if "efa" not in world.values and "efa" not in world.provided:
        row = world.facts.ofi_nccl["releases"][chosen["ofi_nccl"]]
        text = f"aws-ofi-nccl {chosen['ofi_nccl']} without EFA: there is no libfabric for it to speak to"
        yield Conflict("ofi_nccl", text, row["source"], nearest="add efa.version, or leave out ofi_nccl")


def efa_reaches_gpu_memory(world: World, chosen: Assignment) -> Iterator[Conflict]:
    """By DMA-BUF (kernel and open module), or by efa_nv_peermem, which does not load on 6.x kernels."""
    facts, kernel = world.facts.gpudirect, world.kernel
    dma_buf = at_least(kernel, facts["dma_buf"]["minimum_kernel"]) and world.flavour in ("open", "boot")
    peermem = not at_least(kernel, facts["peermem"]["below_kernel"])
    fast = [name for name in world.nvswitch if world.instance_types[name]["efa_interfaces"]]
    if fast and not dma_buf and not peermem:
        text = (
            f"EFA of {', '.join(fast)} cannot reach GPU memory: kernel {kernel} has no efa_nv_peermem, "
            f"and DMA-BUF needs the open kernel module, not {world.flavour}"
        )
        yield Conflict("nvidia_driver.flavour", text, facts["peermem"]["source"], nearest="flavour open, or kernel 5.x")


NETWORK_RULES = (
    (("nccl", "efa"), nccl_fits_efa),
    (("efa", "ofi_nccl"), efa_regression),
    (("efa",), efa_regression_without_plugin),
    (("efa", "ofi_nccl"), one_plugin),
    (("efa", "ofi_nccl"), plugin_finds_libfabric),
    (("ofi_nccl", "nccl"), plugin_serves_nccl),
    (("efa", "nccl"), bundled_plugin_serves_nccl),
    (("ofi_nccl",), plugin_needs_efa),
    (("efa", "nvidia_driver"), efa_reaches_gpu_memory),
)
