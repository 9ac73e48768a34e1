"""The plan's section of each component: package names and versions, repositories, signing keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from gpu_ami.recipes.driver_packages import (
    base_ami,
    companions,
    driver_section,
    nvidia_repository,
    package_style,
    provided_companions,
    with_dist,
)
from gpu_ami.recipes.facts import ARCHITECTURES, NEWEST, Row, Sources, at_least, branch, parts
from gpu_ami.recipes.rules import LABELS, ResolveContext, bundled_plugin, runs_natively
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

Writer = Callable[[ResolveContext, Mapping[str, str], Sources], Component]


def sections(context: ResolveContext, versions: Mapping[str, str], sources: Sources) -> Components:
    """Component → its section, in the order of installation."""
    components: dict[str, Component] = {}
    for name, write in _WRITERS.items():
        if name in versions:
            sources.add(f"{LABELS[name]} {versions[name]}", context.facts.releases(name)[versions[name]])
            components[name] = _provided(context, name) or write(context, versions, sources)
            if name == "nvidia_driver":
                write_companions = provided_companions if name in context.provided else companions
                components |= write_companions(context, versions[name], sources)
    return cast(Components, components)  # each from its own writer


def _provided(context: ResolveContext, name: str) -> Component | None:
    return _of_the_base(context, name) if name in context.provided else None


def _of_the_base(context: ResolveContext, name: str) -> Component:
    return {"version": context.provided[name], "provided_by": base_ami(context)}


def _library(context: ResolveContext, key: str, cuda: str) -> str:
    names = context.facts.driver_packages["libraries"][package_style(context)]
    return str(names[key].format(cuda=branch(cuda), cuda_dashed=cuda.replace(".", "-")))


def _cuda(context: ResolveContext, versions: Mapping[str, str], sources: Sources) -> Cuda:
    version, row = versions["cuda"], context.facts.cuda["releases"][versions["cuda"]]
    packages = {_library(context, "cuda", version): row["package"]}
    mode = "native"
    driver = versions.get("nvidia_driver")
    if driver and not runs_natively(context, driver, version):
        mode = "minor"
        if not at_least(driver, context.facts.cuda["majors"][branch(version)]["floor"]):
            mode = "forward"
            compat = _library(context, "cuda_compat", version)
            known = row.get("compat", {}).get(package_style(context))
            packages[compat] = with_dist(context, known or f"{row['minimum_driver']}-1{{dist}}")
            if not known:
                sources.note(f"not established: that {compat} is packaged as {packages[compat]}")
        sources.note(_compatibility(mode, driver, version, row["minimum_driver"]))
    return {
        "version": version,
        "compatibility": mode,
        "packages": packages,
        "repository": nvidia_repository(context, sources),
    }


def _compatibility(mode: str, driver: str, cuda: str, minimum: str) -> str:
    if mode == "forward":
        return f"CUDA {cuda} on driver {driver} runs by forward compatibility (cuda-compat), on data centre GPUs only"
    return (
        f"CUDA {cuda} on driver {driver} runs by minor-version compatibility (made for ≥ {minimum}): "
        "what needs the newer driver, PTX compiled at run time above all, does not work"
    )


def _cudnn(context: ResolveContext, versions: Mapping[str, str], sources: Sources) -> Cudnn:
    row = context.facts.cudnn["releases"][versions["cudnn"]]
    cuda = versions.get("cuda", row["cuda"][-1])
    full = row.get("package", row["full"])
    if branch(versions["cudnn"]) == "8":
        joint = "." if context.os["family"] == "redhat" else "+"
        packages = {_library(context, "cudnn8", cuda): f"{full}-1{joint}cuda{_packaged_cuda(row, cuda)}"}
    else:
        packages = {_library(context, "cudnn9", cuda): f"{full}-1"}
    return {
        "version": versions["cudnn"],
        "full": row["full"],
        "packages": packages,
        "repository": nvidia_repository(context, sources),
    }


def _packaged_cuda(row: Row, cuda: str) -> str:
    """The CUDA version for which a library is packaged: the toolkit's, else the newest one of its major version."""
    packaged = [version for version in row.get("packaged", []) if branch(version) == branch(cuda)]
    if not packaged or cuda in packaged:
        return cuda if "." in cuda else f"{cuda}.0"
    return str(max(packaged, key=parts))


def _nccl(context: ResolveContext, versions: Mapping[str, str], sources: Sources) -> PackagedComponent:
    row = context.facts.nccl["releases"][versions["nccl"]]
    cuda = versions.get("cuda", row["cuda"][-1])
    suffix = _packaged_cuda(row, cuda)
    package_version = f"{versions['nccl']}-1+cuda{suffix}"
    if suffix not in row.get("packaged", []):
        sources.note(f"not established: that NCCL {versions['nccl']} is packaged as {package_version}")
    packages = {_library(context, "nccl", cuda): package_version}
    return {
        "version": versions["nccl"],
        "packages": packages,
        "repository": nvidia_repository(context, sources),
    }


def _dcgm(context: ResolveContext, versions: Mapping[str, str], sources: Sources) -> PackagedComponent:
    row = context.facts.dcgm["releases"][versions["dcgm"]]
    cuda = branch(versions.get("cuda", row["cuda"][-1]))
    package_version = f"{row['epoch']}{versions['dcgm']}{row.get('revision', '')}"
    packages = {name.format(cuda=cuda): package_version for name in row["packages"]}
    if "reported" in row:
        sources.note(row["reported"])
    return {
        "version": versions["dcgm"],
        "packages": packages,
        "repository": nvidia_repository(context, sources),
    }


def _efa(context: ResolveContext, versions: Mapping[str, str], sources: Sources) -> Efa:
    facts = context.facts.efa
    row = facts["releases"][versions["efa"]]
    url = f"{facts['base_url']}/aws-efa-installer-{versions['efa']}.tar.gz"
    sources.add("the EFA installer's key", facts)
    section: Efa = {
        "version": versions["efa"],
        "mode": context.section("efa").get("mode", "full"),
        "url": url,
        "signature_url": f"{url}.sig",
        "key_url": facts["key_url"],
        "key_fingerprint": facts["key_fingerprint"],
        "contents": _efa_contents(row, bundled_plugin(context, versions["efa"])),
    }
    if "nvidia" not in context.accelerators:
        section["unwanted"] = [facts["nvidia_package"]["name"]]
        sources.add("the EFA installer's package for NVIDIA drivers", facts["nvidia_package"])
    return section


def _efa_contents(row: Row, plugin: str | None) -> EfaContents:
    contents = {key: row[key] for key in ("kernel_module", "libfabric", "rdma_core") if key in row}
    return cast(EfaContents, contents | ({"ofi_nccl": plugin} if plugin else {}))


def _from_tag(component: str) -> Writer:
    """Built from source, verified by the commit's hash."""

    def write(context: ResolveContext, versions: Mapping[str, str], _sources: Sources) -> SourceBuild:
        facts = getattr(context.facts, component)
        row = facts["releases"][versions[component]]
        return {
            "version": versions[component],
            "url": f"{facts['repository']}.git",
            "tag": row["tag"],
            "commit": row["commit"],
        }

    return write


def _container_toolkit(context: ResolveContext, versions: Mapping[str, str], sources: Sources) -> ContainerToolkit:
    facts, version = context.facts.container_toolkit, versions["container_toolkit"]
    kind = "rpm" if context.os["family"] == "redhat" else "deb"
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


def _neuron(context: ResolveContext, versions: Mapping[str, str], sources: Sources) -> PackagedComponent:
    facts = context.facts.neuron
    row = facts["releases"][versions["neuron"]]
    packages = {
        "aws-neuronx-dkms": row["driver"],
        "aws-neuronx-runtime-lib": row.get("runtime"),
        "aws-neuronx-collectives": row.get("collectives"),
        "aws-neuronx-tools": row.get("tools"),
    }
    devices = {row["neuron"]["name"] for row in context.instance_types.values() if "neuron" in row}
    if devices <= set(facts["driver_only"]["devices"]):
        del packages["aws-neuronx-runtime-lib"], packages["aws-neuronx-collectives"]
    family = context.os["family"]
    repository = facts["repositories"][family]
    sources.add("the Neuron repository's key", facts)
    section: PackagedComponent = {
        "version": versions["neuron"],
        # The release is followed by a build number that no release note names.
        "packages": {name: f"{version}*" for name, version in packages.items() if version},
        "repository": {
            "url": f"{repository['url']}/",
            "suite": context.os["codename"] if family == "debian" else "./",
            "components": ["main"] if family == "debian" else [],
            "key_url": f"{repository['url']}/{repository['key']}",
            "key_fingerprint": facts["key_fingerprint"],
        },
    }
    if not repository.get("signed_index", True):
        section["repository"]["signed_index"] = False
    return section


def _mkl(context: ResolveContext, versions: Mapping[str, str], sources: Sources) -> Mkl:
    facts = context.facts.mkl
    family = context.os["family"]
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


def agent_section(context: ResolveContext, sources: Sources) -> AgentPackage:
    """The CloudWatch agent's package."""
    facts, asked = context.facts.cloudwatch_agent, str(context.section("cloudwatch_agent")["version"])
    if asked == NEWEST:  # of the releases whose build number is known, so that the plan stays pinned
        asked = max(facts["versions"], key=parts)
    version, build, _ = asked.partition("b")
    # A release that the facts do not know is planned all the same: its version is compared when it is installed.
    release = facts["versions"].get(version, facts["other_versions"])
    if build:
        release = {"directory": asked, "source": "build number in the recipe", "date": facts["date"]}
    kind = "rpm" if context.os["family"] == "redhat" else "deb"
    folder = (
        f"{context.os['cloudwatch_agent']}/{ARCHITECTURES[context.values['architecture']].deb}/{release['directory']}"
    )
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
