"""Notes of a plan that can be built: support that has ended, reported problems, combinations that were not tested.

Until when the operating systems get free updates, and what may still be built on them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gpu_ami.recipes import solver
from gpu_ami.recipes.facts import Facts, Sources, branch
from gpu_ami.recipes.rules import (
    ResolveContext,
    accepted_notes,
    advisory_notes,
    bundled_plugin,
    unestablished_modules,
    unknown_layout,
)

_SECURE_BOOT = (
    "Secure Boot: DKMS builds the driver's module on the builder and signs it, if at all, with a key that it makes "
    "there. It does not load where Secure Boot is on; an AMI has it off unless it was registered with UEFI data "
    "(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/uefi-secure-boot.html)"
)


def remark(context: ResolveContext, versions: Mapping[str, str], sources: Sources) -> None:
    """Adds the notes to the plan."""
    solver.remark(context, versions, sources)
    _ended(context, versions, sources)
    _kernel_modules(context, versions, sources)
    _network(context, versions, sources)
    _node(context, versions, sources)
    for note in (*accepted_notes(context, versions), *unestablished_modules(context, versions)):
        sources.note(note)
    for note in advisory_notes(context, versions):
        sources.note(note)
    if "nvidia_driver" in versions and (note := unknown_layout(context, versions["nvidia_driver"])):
        sources.note(note)
    _neuron_kernel(context, versions, sources)
    if "neuron" in context.provided or ("neuron" in context.accelerators and "neuron" not in versions):
        sources.note("Neuron metrics are not published: the plan installs no neuron-monitor")


def _ended(context: ResolveContext, versions: Mapping[str, str], sources: Sources) -> None:
    system = context.os
    if system["end_of_life"] < context.facts.read_on:
        sources.note(
            f"{context.os_name} reached its end of life on {system['end_of_life']}: {system.get('cost', 'no updates')}"
        )
    ended = context.node_release.get("ended")
    if ended and str(ended) <= context.facts.read_on:
        release = f"{context.node_name} {context.node_version}"
        sources.note(f"{release}: extended support ended on {ended} ({context.node_release['source']})")
    driver = versions.get("nvidia_driver")
    if driver:
        row = context.facts.driver_releases[driver]
        if row["end_of_support"] < context.facts.read_on[:7]:
            sources.note(
                f"driver {driver}: support of R{branch(driver)} ended in {row['end_of_support']} ({row['source']})"
            )


def _kernel_modules(context: ResolveContext, versions: Mapping[str, str], sources: Sources) -> None:
    if "nvidia_driver" not in versions or "nvidia_driver" in context.provided:
        return
    faulty = [name for name in context.instance_types if context.family(name).get("gsp") is False]
    if faulty and context.flavour == "open":
        source = context.facts.gpudirect["gsp"]["source"]
        sources.note(f"GSP stays on with the open kernel module; faults were reported on {', '.join(faulty)}: {source}")
    if faulty and context.flavour == "proprietary" and "gsp" not in context.section("nvidia_driver"):
        sources.note(
            f"faults of GSP firmware were reported on {', '.join(faulty)}, and the driver decides whether to use it:"
            f" nvidia_driver.gsp: false turns it off for all instance types of the image."
            f" {context.facts.gpudirect['gsp']['shipped']}"
        )
    if context.flavour == "boot":
        sources.note("both kernel modules are in the image; which one is loaded is decided by the PCI id at boot")
    sources.note(_SECURE_BOOT)


def _node(context: ResolveContext, versions: Mapping[str, str], sources: Sources) -> None:
    """What the node family's own GPU AMI has, and an image on its AMI without a driver does not get."""
    row = context.node.get("gpu_ami")
    if row and "nvidia_driver" in versions and "nvidia_driver" not in context.provided:
        sources.note(f"the image lacks {row['lacks']} ({row['source']})")


def _network(context: ResolveContext, versions: Mapping[str, str], sources: Sources) -> None:
    efa = versions.get("efa")
    able = [name for name, row in context.instance_types.items() if row["efa_interfaces"] and context.nvswitch]
    if able and not efa and "nvidia_driver" in versions:
        sources.note(f"{', '.join(able)} have EFA interfaces; the plan installs no EFA")
    if efa and not any(row["efa_interfaces"] for row in context.instance_types.values()):
        names = ", ".join(context.instance_types)
        sources.note(f"EFA {efa} is installed, and none of {names} has an EFA interface: nothing uses it there")
    if efa and context.section("efa").get("gda"):
        row = context.facts.efa["gda"]
        sources.note(
            f"EFA-GDA: jobs set {row['environment']} for it ({row['source']}); no check proves that NCCL uses it"
        )
    plugin = versions.get("ofi_nccl") or (bundled_plugin(context, efa) if efa else None)
    nccl = versions.get("nccl")
    if plugin and nccl:
        row = context.facts.ofi_nccl["releases"][plugin]
        tested_nccl = row.get("tested_nccl", ())  # not known of a plugin that the facts do not have
        if nccl not in tested_nccl:
            tested = ", ".join(tested_nccl) or "no NCCL that is recorded"
            sources.note(f"aws-ofi-nccl {plugin} was tested with {tested}, not with NCCL {nccl} ({row['source']})")


def _neuron_kernel(context: ResolveContext, versions: Mapping[str, str], sources: Sources) -> None:
    kernels = context.facts.neuron["kernels"]
    tested = kernels.get(context.os_name)
    if "neuron" in versions and tested and context.kernel not in tested:
        shown = " and ".join(tested)
        sources.note(f"Neuron is tested with kernel {shown} of {context.os_name}, not with {context.kernel}")


def remark_found(context: ResolveContext, versions: Mapping[str, str], sources: Sources) -> None:
    """Notes on an image as it is found: support that has ended, security bulletins, networks, Neuron's kernels."""
    _ended(context, versions, sources)
    for note in advisory_notes(context, versions):
        sources.note(note)
    _network(context, versions, sources)
    _neuron_kernel(context, versions, sources)


BEGIN = "<!-- support of each system: from variables/facts/operating_systems.yml and the local region's base images -->"
END = "<!-- end of the support of each system -->"


def support_of(facts: Facts, identity: str, version: str) -> str:
    """A sentence on the system with this ID and VERSION_ID: its end of free updates, with source; then what is left."""
    name, row = next(
        (name, row)
        for name, row in facts.operating_systems.items()
        if (row["id"], row["version"]) == (identity, version)
    )
    until, unverified = row["end_of_life"], ", not verified" if row.get("unverified") else ""
    if until >= facts.read_on:
        return f"{name} gets free updates until {until} ({row['source']}{unverified})"
    return f"{name} has had no free updates since {until} ({row['source']}{unverified}); {may_still_be_built(row)}"


def may_still_be_built(row: Any) -> str:
    """Of a system: the last releases that NVIDIA's repository has for it, if it has an end."""
    repository = row["nvidia_repository"]
    last = {
        name: repository[key]["last"]
        for name, key in (("driver R", "driver"), ("CUDA ", "cuda"))
        if "last" in repository[key]
    }
    architectures = " and ".join(repository["architectures"])
    if not last:
        return f"may be built: all planned releases ({architectures})"
    ends = " and ".join(f"{name}{release}" for name, release in last.items())
    return f"may still be built: up to {ends} of NVIDIA's {repository['name']} repository ({architectures})"


def table(
    facts: Facts,
    base_images: Collection[tuple[str, str]],
    rehearsed: Collection[tuple[str, str]],
    booted: Collection[tuple[str, str]],
) -> str:
    """Markdown of each system. base_images: system and architecture of those that the local region has; rehearsed: of
    those whose images it has built and judged as files; booted: of those that it has booted.
    """
    rows = [
        "| system | free updates until | `plan`, locks | build and image files rehearsed | boot rehearsed | else |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in facts.operating_systems.items():
        tried, ran = (
            ", ".join(item for item in row["architectures"] if (name, item) in those) or "no"
            for those in (rehearsed, booted)
        )
        ended = row["end_of_life"] < facts.read_on
        rest = [item for item in row["architectures"] if (name, item) not in base_images]
        untried = [item for item in row["architectures"] if (name, item) in {*base_images} - {*rehearsed}]
        notes = [f"**ended**: {row['cost']}; {may_still_be_built(row)}"] if ended else []
        notes += [f"{', '.join(untried)}: a base image, not rehearsed"] if untried else []
        notes += [f"{', '.join(rest)}: on AWS alone (`--where`)"] if rest else []
        notes += ["end of updates not verified"] if row.get("unverified") else []
        cells = [f"`{name}`", str(row["end_of_life"]), ", ".join(row["architectures"]), tried, ran]
        rows.append(f"| {' | '.join([*cells, '; '.join(notes)])} |")
    return "\n".join(rows)
