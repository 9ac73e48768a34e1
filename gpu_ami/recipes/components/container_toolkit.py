"""NVIDIA's container toolkit, and the container runtime that it configures."""

from __future__ import annotations

from gpu_ami.recipes.facts import ARCHITECTURES, Facts, Sources
from gpu_ami.recipes.rules import (
    PRESENCE,
    Assignment,
    Component,
    Observed,
    ResolveContext,
    TemplateVariable,
    advisory_rule,
    file,
    package,
    program,
    versioned,
)
from validator.plan_document import ContainerToolkit, package_system
from validator.schema import Choice, Keys


def _keys(facts: Facts) -> Keys:
    return versioned("1.18.1", runtime=Choice(tuple(facts.container_toolkit["runtimes"])))


def _section(context: ResolveContext, versions: Assignment, sources: Sources) -> ContainerToolkit:
    facts, version = context.facts.container_toolkit, versions["container_toolkit"]
    kind = package_system(context.os)
    names = ARCHITECTURES[context.values["architecture"]]
    architecture = names.rpm if kind == "rpm" else names.deb
    sources.add("the container toolkit's key", facts)
    of_the_base = context.node.get("container_runtime")
    runtime = context.section("container_toolkit").get("runtime") or of_the_base or "docker"
    package = "" if runtime == of_the_base else facts["runtimes"][runtime][context.os["family"]]
    return {
        "version": version,
        "runtime": runtime,
        "runtime_package": package,
        "packages": dict.fromkeys(facts["packages"], f"{version}-1"),
        "cdi": facts["releases"][version]["cdi"],
        "repository": {
            "url": f"{facts['base_url']}/{kind}/{architecture}/",
            "suite": "./",
            "components": [],
            "key_url": facts["key_url"],
            "key_fingerprint": facts["key_fingerprint"],
        },
    }


COMPONENT = Component(
    "container_toolkit",
    "container toolkit",
    layer="node",
    after=("dcgm",),
    is_chosen=True,
    keys=_keys,
    meanings={"runtime": "container runtime that is configured; default: the base AMI's, else docker"},
    rules=(advisory_rule("container_toolkit"),),
    section=ContainerToolkit,
    write=_section,
    observed=Observed(
        (
            package(r"nvidia-container-toolkit(-base)?|libnvidia-container(1|-tools)", r"^(\d+\.\d+\.\d+)"),
            file("libnvidia-container.so.1", r"libnvidia-container\.so\.(\d+\.\d+\.\d+)$", "library file"),
            file("/usr/bin/nvidia-ctk", PRESENCE),
            file("/usr/local/bin/nvidia-ctk", PRESENCE),  # of an archive of its releases
            program("nvidia-ctk --version", r"version (\d+\.\d+\.\d+)"),
        )
    ),
    size_gib=0.5,
    template=TemplateVariable(r"(nvidia_)?container_toolkit(_version)?|nvidia_container_runtime_version"),
)
