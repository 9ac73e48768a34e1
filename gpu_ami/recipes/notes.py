"""Notes of a plan that can be built: support that has ended, reported problems, combinations that were not tested."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_ami.recipes import known_releases
from gpu_ami.recipes.citations import Sources
from gpu_ami.recipes.resolve_context import World
from gpu_ami.recipes.rules_network import bundled_plugin
from gpu_ami.recipes.versions import branch


def remark(world: World, versions: Mapping[str, str], sources: Sources) -> None:
    """Adds the notes to the plan."""
    known_releases.remark(world, versions, sources)
    _ended(world, versions, sources)
    _kernel_modules(world, versions, sources)
    _network(world, versions, sources)
    _neuron_kernel(world, versions, sources)
    if "neuron" in world.accelerators:
        sources.note("Neuron metrics are not published: nvidia_gpu is the only accelerator input of the agent")


def _ended(world: World, versions: Mapping[str, str], sources: Sources) -> None:
    system = world.os
    if system["end_of_life"] < world.facts.read_on:
        sources.note(
            f"{world.os_name} reached its end of life on {system['end_of_life']}: {system.get('cost', 'no updates')}"
        )
    driver = versions.get("nvidia_driver")
    if driver:
        row = world.facts.driver_releases[driver]
        if row["end_of_support"] < world.facts.read_on[:7]:
            sources.note(
                f"driver {driver}: support of R{branch(driver)} ended in {row['end_of_support']} ({row['source']})"
            )


def _kernel_modules(world: World, versions: Mapping[str, str], sources: Sources) -> None:
    if "nvidia_driver" not in versions or "nvidia_driver" in world.provided:
        return
    for gpu in world.gpus:
        reported = gpu.model.get("reported")
        if reported and branch(versions["nvidia_driver"]) == reported["branch"]:
            sources.note(
                f"{reported['fault']} were reported for {gpu.named} with R{reported['branch']}: {gpu.model['source']}"
            )
    faulty = [name for name in world.instance_types if world.family(name).get("gsp") is False]
    if faulty and world.flavour == "open":
        source = world.facts.gpudirect["gsp"]["source"]
        sources.note(f"GSP stays on with the open kernel module; faults were reported on {', '.join(faulty)}: {source}")
    if world.flavour == "boot":
        sources.note("both kernel modules are in the image; which one is loaded is decided by the PCI id at boot")


def _network(world: World, versions: Mapping[str, str], sources: Sources) -> None:
    efa = versions.get("efa")
    able = [name for name, row in world.instance_types.items() if row["efa_interfaces"] and world.nvswitch]
    if able and not efa and "nvidia_driver" in versions:
        sources.note(f"{', '.join(able)} have EFA interfaces; the plan installs no EFA")
    plugin = versions.get("ofi_nccl") or (bundled_plugin(world, efa) if efa else None)
    nccl = versions.get("nccl")
    if plugin and nccl:
        row = world.facts.ofi_nccl["releases"][plugin]
        if nccl not in row["tested_nccl"]:
            tested = ", ".join(row["tested_nccl"]) or "no NCCL that is recorded"
            sources.note(f"aws-ofi-nccl {plugin} was tested with {tested}, not with NCCL {nccl} ({row['source']})")


def _neuron_kernel(world: World, versions: Mapping[str, str], sources: Sources) -> None:
    kernels = world.facts.neuron["kernels"]
    tested = kernels.get(world.os_name)
    if "neuron" in versions and tested and world.kernel not in tested:
        shown = " and ".join(tested)
        sources.note(f"Neuron is tested with kernel {shown} of {world.os_name}, not with {world.kernel}")
