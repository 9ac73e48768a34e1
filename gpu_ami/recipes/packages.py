"""The plan's section of each component: package names and versions, repositories, signing keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from gpu_ami.recipes.architectures import ARCHITECTURES
from gpu_ami.recipes.citations import Sources
from gpu_ami.recipes.driver_packages import (
    base_ami,
    companions,
    driver_section,
    nvidia_repository,
    package_style,
    provided_companions,
    with_dist,
)
from gpu_ami.recipes.facts import Row
from gpu_ami.recipes.resolve_context import LABELS, World
from gpu_ami.recipes.rules_driver import runs_natively
from gpu_ami.recipes.rules_network import bundled_plugin
from gpu_ami.recipes.versions import NEWEST, at_least, branch, parts
from validator.plan_document import (
    AgentPackage,
    Component,
    Components,
    ContainerToolkit,
    Cuda,
    Cudnn,
    Efa,
    EfaContents,
    Mkl,
    PackagedComponent,
    SourceBuild,
)

Writer = Callable[[World, Mapping[str, str], Sources], Component]


def sections(world: World, versions: Mapping[str, str], sources: Sources) -> Components:
    """Component → its section, in the order of installation."""
    components: dict[str, Component] = {}
    for name, write in _WRITERS.items():
        if name in versions:
            sources.add(f"{LABELS[name]} {versions[name]}", world.facts.releases(name)[versions[name]])
            components[name] = _provided(world, name) or write(world, versions, sources)
            if name == "nvidia_driver":
                write_companions = provided_companions if name in world.provided else companions
                components |= write_companions(world, versions[name], sources)
    return cast(Components, components)  # each from its own writer


def _provided(world: World, name: str) -> Component | None:
    return _of_the_base(world, name) if name in world.provided else None


def _of_the_base(world: World, name: str) -> Component:
    return {"version": world.provided[name], "provided_by": base_ami(world)}


def _library(world: World, key: str, cuda: str) -> str:
    names = world.facts.driver_packages["libraries"][package_style(world)]
    return str(names[key].format(cuda=branch(cuda), cuda_dashed=cuda.replace(".", "-")))


def _cuda(world: World, versions: Mapping[str, str], sources: Sources) -> Cuda:
    version, row = versions["cuda"], world.facts.cuda["releases"][versions["cuda"]]
    packages = {_library(world, "cuda", version): row["package"]}
    mode = "native"
    driver = versions.get("nvidia_driver")
    if driver and not runs_natively(world, driver, version):
        mode = "minor"
        if not at_least(driver, world.facts.cuda["majors"][branch(version)]["floor"]):
            mode = "forward"
            compat = _library(world, "cuda_compat", version)
            known = row.get("compat", {}).get(package_style(world))
            packages[compat] = with_dist(world, known or f"{row['minimum_driver']}-1{{dist}}")
            if not known:
                sources.note(f"not established: that {compat} is packaged as {packages[compat]}")
        sources.note(_compatibility(mode, driver, version, row["minimum_driver"]))
    return {
        "version": version,
        "compatibility": mode,
        "packages": packages,
        "repository": nvidia_repository(world, sources),
    }


def _compatibility(mode: str, driver: str, cuda: str, minimum: str) -> str:
    if mode == "forward":
        return f"CUDA {cuda} on driver {driver} runs by forward compatibility (cuda-compat), on data centre GPUs only"
    return (
        f"CUDA {cuda} on driver {driver} runs by minor-version compatibility (made for ≥ {minimum}): "
        "what needs the newer driver, PTX compiled at run time above all, does not work"
    )


def _cudnn(world: World, versions: Mapping[str, str], sources: Sources) -> Cudnn:
    row = world.facts.cudnn["releases"][versions["cudnn"]]
    cuda = versions.get("cuda", row["cuda"][-1])
    full = row.get("package", row["full"])
    if branch(versions["cudnn"]) == "8":
        joint = "." if world.os["family"] == "redhat" else "+"
        packages = {_library(world, "cudnn8", cuda): f"{full}-1{joint}cuda{_packaged_cuda(row, cuda)}"}
    else:
        packages = {_library(world, "cudnn9", cuda): f"{full}-1"}
    return {
        "version": versions["cudnn"],
        "full": row["full"],
        "packages": packages,
        "repository": nvidia_repository(world, sources),
    }


def _packaged_cuda(row: Row, cuda: str) -> str:
    """The CUDA version for which a library is packaged: the toolkit's, else the newest one of its major version."""
    packaged = [version for version in row.get("packaged", []) if branch(version) == branch(cuda)]
    if not packaged or cuda in packaged:
        return cuda if "." in cuda else f"{cuda}.0"
    return str(max(packaged, key=parts))


def _nccl(world: World, versions: Mapping[str, str], sources: Sources) -> PackagedComponent:
    row = world.facts.nccl["releases"][versions["nccl"]]
    cuda = versions.get("cuda", row["cuda"][-1])
    suffix = _packaged_cuda(row, cuda)
    package_version = f"{versions['nccl']}-1+cuda{suffix}"
    if suffix not in row.get("packaged", []):
        sources.note(f"not established: that NCCL {versions['nccl']} is packaged as {package_version}")
    packages = {_library(world, "nccl", cuda): package_version}
    return {
        "version": versions["nccl"],
        "packages": packages,
        "repository": nvidia_repository(world, sources),
    }


def _dcgm(world: World, versions: Mapping[str, str], sources: Sources) -> PackagedComponent:
    row = world.facts.dcgm["releases"][versions["dcgm"]]
    cuda = branch(versions.get("cuda", row["cuda"][-1]))
    package_version = f"{row['epoch']}{versions['dcgm']}{row.get('revision', '')}"
    packages = {name.format(cuda=cuda): package_version for name in row["packages"]}
    if "reported" in row:
        sources.note(row["reported"])
    return {
        "version": versions["dcgm"],
        "packages": packages,
        "repository": nvidia_repository(world, sources),
    }


def _efa(world: World, versions: Mapping[str, str], sources: Sources) -> Efa:
    facts = world.facts.efa
    row = facts["releases"][versions["efa"]]
    url = f"{facts['base_url']}/aws-efa-installer-{versions['efa']}.tar.gz"
    sources.add("the EFA installer's key", facts)
    section: Efa = {
        "version": versions["efa"],
        "mode": world.section("efa").get("mode", "full"),
        "url": url,
        "signature_url": f"{url}.sig",
        "key_url": facts["key_url"],
        "key_fingerprint": facts["key_fingerprint"],
        "contents": _efa_contents(row, bundled_plugin(world, versions["efa"])),
    }
    if "nvidia" not in world.accelerators:
        section["unwanted"] = [facts["nvidia_package"]["name"]]
        sources.add("the EFA installer's package for NVIDIA drivers", facts["nvidia_package"])
    return section


def _efa_contents(row: Row, plugin: str | None) -> EfaContents:
    contents = {key: row[key] for key in ("kernel_module", "libfabric", "rdma_core") if key in row}
    return cast(EfaContents, contents | ({"ofi_nccl": plugin} if plugin else {}))


def _from_tag(component: str) -> Writer:
    """Built from source, verified by the commit's hash."""

    def write(world: World, versions: Mapping[str, str], _sources: Sources) -> SourceBuild:
        facts = getattr(world.facts, component)
        row = facts["releases"][versions[component]]
        return {
            "version": versions[component],
            "url": f"{facts['repository']}.git",
            "tag": row["tag"],
            "commit": row["commit"],
        }

    return write


def _container_toolkit(world: World, versions: Mapping[str, str], sources: Sources) -> ContainerToolkit:
    facts, version = world.facts.container_toolkit, versions["container_toolkit"]
    kind = "rpm" if world.os["family"] == "redhat" else "deb"
    names = ARCHITECTURES[world.values["architecture"]]
    architecture = names.rpm if kind == "rpm" else names.deb
    sources.add("the container toolkit's key", facts)
    of_the_base = world.node.get("container_runtime")
    runtime = world.section("container_toolkit").get("runtime") or of_the_base or "docker"
    package = "" if runtime == of_the_base else facts["runtimes"][runtime][world.os["family"]]
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


def _neuron(world: World, versions: Mapping[str, str], sources: Sources) -> PackagedComponent:
    facts = world.facts.neuron
    row = facts["releases"][versions["neuron"]]
    packages = {
        "aws-neuronx-dkms": row["driver"],
        "aws-neuronx-runtime-lib": row.get("runtime"),
        "aws-neuronx-collectives": row.get("collectives"),
        "aws-neuronx-tools": row.get("tools"),
    }
    devices = {row["neuron"]["name"] for row in world.instance_types.values() if "neuron" in row}
    if devices <= set(facts["driver_only"]["devices"]):
        del packages["aws-neuronx-runtime-lib"], packages["aws-neuronx-collectives"]
    family = world.os["family"]
    repository = facts["repositories"][family]
    sources.add("the Neuron repository's key", facts)
    section: PackagedComponent = {
        "version": versions["neuron"],
        # The release is followed by a build number that no release note names.
        "packages": {name: f"{version}*" for name, version in packages.items() if version},
        "repository": {
            "url": f"{repository['url']}/",
            "suite": world.os["codename"] if family == "debian" else "./",
            "components": ["main"] if family == "debian" else [],
            "key_url": f"{repository['url']}/{repository['key']}",
            "key_fingerprint": facts["key_fingerprint"],
        },
    }
    if not repository.get("signed_index", True):
        section["repository"]["signed_index"] = False
    return section


def _mkl(world: World, versions: Mapping[str, str], sources: Sources) -> Mkl:
    facts = world.facts.mkl
    family = world.os["family"]
    repository = facts["repositories"][family]
    sources.add("the MKL repository's key", facts)
    return {
        "version": versions["mkl"],
        "package": facts["releases"][versions["mkl"]]["package"],
        "repository": {
            "url": f"{repository['url']}/mkl/",
            "suite": "all" if family == "debian" else "./",
            "components": ["main"] if family == "debian" else [],
            "key_url": f"{repository['url']}/intel-gpg-keys/{repository['key']}",
            "key_fingerprint": facts["key_fingerprint"],
        },
    }


def agent_section(world: World, sources: Sources) -> AgentPackage:
    """The CloudWatch agent's package."""
    facts, asked = world.facts.cloudwatch_agent, str(world.section("cloudwatch_agent")["version"])
    if asked == NEWEST:  # of the releases whose build number is known, so that the plan stays pinned
        asked = max(facts["versions"], key=parts)
    version, build, _ = asked.partition("b")
    # A release that the facts do not know is planned all the same: its version is compared when it is installed.
    release = facts["versions"].get(version, facts["other_versions"])
    if build:
        release = {"directory": asked, "source": "build number in the recipe", "date": facts["date"]}
    kind = "rpm" if world.os["family"] == "redhat" else "deb"
    folder = f"{world.os['cloudwatch_agent']}/{ARCHITECTURES[world.values['architecture']].deb}/{release['directory']}"
    url = f"{facts['base_url']}/{folder}/amazon-cloudwatch-agent.{kind}"
    sources.add(f"CloudWatch agent {version}", release)
    sources.add("the CloudWatch agent's signing key", facts)
    return {
        "version": version,
        "url": url,
        "signature_url": f"{url}.sig",
        "key_url": facts["key_url"],
        "key_fingerprint": facts["key_fingerprint"],
    }


_WRITERS: dict[str, Writer] = {
    "nvidia_driver": driver_section,
    "cuda": _cuda,
    "cudnn": _cudnn,
    "nccl": _nccl,
    "efa": _efa,
    "ofi_nccl": _from_tag("ofi_nccl"),
    "gdrcopy": _from_tag("gdrcopy"),
    "dcgm": _dcgm,
    "container_toolkit": _container_toolkit,
    "neuron": _neuron,
    "mkl": _mkl,
}
