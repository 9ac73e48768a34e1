"""The plan's section of each component: package names and versions, where they come from, what they are signed with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_ami.recipes.facts import Row
from gpu_ami.recipes.rules_driver import runs_natively
from gpu_ami.recipes.sources import Sources
from gpu_ami.recipes.versions import at_least, branch
from gpu_ami.recipes.world import LABELS, World

# From this generation on, NVSwitch needs NVIDIA's subnet manager beside the fabric manager: amazon-eks-ami 81fec2e8.
_NVLSM_FROM = 4
_AWS_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}

Section = dict[str, Any]
Writer = Callable[[World, Mapping[str, str], Sources], Section]


def sections(world: World, versions: Mapping[str, str], sources: Sources) -> dict[str, Section]:
    """Component → what the plan says about it, in the order of installation."""
    found = {}
    for name, write in _WRITERS.items():
        if name in versions:
            sources.add(f"{LABELS[name]} {versions[name]}", world.facts.releases(name)[versions[name]])
            found[name] = _provided(world, name) or write(world, versions, sources)
            if name == "nvidia_driver":
                beside = _beside_a_provided_driver if name in world.provided else _beside_the_driver
                found |= beside(world, versions[name], sources)
    return found


def _provided(world: World, name: str) -> Section | None:
    return _of_the_base(world, name) if name in world.provided else None


def _of_the_base(world: World, name: str) -> Section:
    return {"version": world.provided[name], "provided_by": f"{world.node_name} {world.node_version}"}


def _style(world: World) -> str:
    return str(world.os["packages"])


def _last_from(rows: Sequence[Row], driver: str) -> Row:
    return [row for row in rows if at_least(driver, row["from"])][-1]


def _revision(world: World, names: Row) -> str:
    """What follows the version in the package's: `-1`, `-1ubuntu1`, `-1.amzn2023`."""
    return str(names["revision"]).format(dist=world.os["nvidia_repository"].get("dist", ""))


def nvidia_repository(world: World, sources: Sources) -> Section:
    """NVIDIA's package repository for the image's system, and the key that signs it."""
    facts = world.facts.driver_packages
    key = facts["keys"]["redhat" if world.os["family"] == "redhat" else "debian"]
    repository = facts["repository"]
    architecture = repository["architectures"][world.values["architecture"]]
    folder = f"{repository['base_url']}/{world.os['nvidia_repository']['name']}/{architecture}"
    sources.add("NVIDIA's package repository", repository)
    sources.add("the key of NVIDIA's package repository", key)
    return {
        "url": f"{folder}/",
        "suite": repository["suite"],
        "components": [],
        "key_url": f"{folder}/{key['file']}",
        "key_fingerprint": key["fingerprint"],
    }


def _driver(world: World, versions: Mapping[str, str], sources: Sources) -> Section:
    version = versions["nvidia_driver"]
    names = _last_from(world.facts.driver_packages["drivers"][_style(world)], version)
    sources.add(f"driver package names of {_style(world)}", names)
    package_version = f"{version}{_revision(world, names)}"
    modules = {flavour: name.format(branch=branch(version)) for flavour, name in names["module"].items()}
    section: Section = {
        "version": version,
        "flavour": world.flavour,
        "package": modules["open" if world.flavour == "boot" else world.flavour],
        "package_version": package_version,
        "packages": {name.format(branch=branch(version)): package_version for name in names["with"]},
        "repository": nvidia_repository(world, sources),
    }
    if world.flavour == "boot":
        section["modules"] = modules
        section["flavour_by_instance_type"] = {
            name: "open" if "open" in gpu.architecture["flavours"] else "proprietary"
            for gpu in world.gpus
            for name in gpu.instance_types
        }
        facts = world.facts.nvidia_drivers["pci_ids"]
        sources.add("PCI ids of GPUs", facts)
        section["flavour_by_pci_id"] = {
            facts["ids"][gpu.row["name"]]: section["flavour_by_instance_type"][gpu.instance_types[0]]
            for gpu in world.gpus
            if gpu.row["name"] in facts["ids"]
        }
    if "gsp" in world.section("nvidia_driver"):
        section["gsp"] = world.section("nvidia_driver")["gsp"]
    return section


def _beside_the_driver(world: World, driver: str, sources: Sources) -> dict[str, Section]:
    """Fabric manager where there is an NVSwitch, IMEX where memory spans machines; both of the driver's version."""
    names = _last_from(world.facts.driver_packages["fabric_manager"][_style(world)], driver)
    imex = [name for name in world.instance_types if world.family(name).get("imex")]
    found: dict[str, Section] = {}
    for component, needed_on, key in (("fabric_manager", world.nvswitch, "package"), ("imex", imex, "imex")):
        if needed_on or component in world.values:
            sources.add(f"package names of {component.replace('_', ' ')}", names)
            found[component] = {
                "version": driver,
                "package": names[key].format(branch=branch(driver)),
                "package_version": f"{driver}{_revision(world, names)}",
                "instance_types": list(needed_on),
                "repository": nvidia_repository(world, sources),
            }
    nvlsm = [name for name in world.nvswitch if world.family(name)["nvswitch_generation"] >= _NVLSM_FROM]
    if nvlsm:
        found["fabric_manager"]["nvlsm_instance_types"] = nvlsm
    return found


def _beside_a_provided_driver(world: World, _driver: str, _sources: Sources) -> dict[str, Section]:
    """The base AMI's own, where its release notes name them: what was promised is checked, not installed."""
    imex = [name for name in world.instance_types if world.family(name).get("imex")]
    needed = {"fabric_manager": list(world.nvswitch), "imex": imex}
    return {
        name: _of_the_base(world, name) | {"instance_types": types}
        for name, types in needed.items()
        if types and name in world.provided
    }


def _from_nvidia(world: World, sources: Sources, packages: Mapping[str, str], **more: Any) -> Section:
    return {**more, "packages": dict(packages), "repository": nvidia_repository(world, sources)}


def _library(world: World, key: str, cuda: str) -> str:
    names = world.facts.driver_packages["libraries"][_style(world)]
    return str(names[key].format(cuda=branch(cuda), cuda_dashed=cuda.replace(".", "-")))


def _cuda(world: World, versions: Mapping[str, str], sources: Sources) -> Section:
    version, row = versions["cuda"], world.facts.cuda["releases"][versions["cuda"]]
    packages = {_library(world, "cuda", version): row["package"]}
    mode = "native"
    driver = versions.get("nvidia_driver")
    if driver and not runs_natively(world, driver, version):
        mode = "minor"
        if not at_least(driver, world.facts.cuda["majors"][branch(version)]["floor"]):
            mode = "forward"
            compat = _library(world, "cuda_compat", version)
            packages[compat] = f"{row['minimum_driver']}-1"
            sources.note(f"not established: that {compat} is packaged as {packages[compat]}")
        sources.note(_compatibility(mode, driver, version, row["minimum_driver"]))
    return _from_nvidia(world, sources, packages, version=version, compatibility=mode)


def _compatibility(mode: str, driver: str, cuda: str, minimum: str) -> str:
    if mode == "forward":
        return f"CUDA {cuda} on driver {driver} runs by forward compatibility (cuda-compat), on data centre GPUs only"
    return (
        f"CUDA {cuda} on driver {driver} runs by minor-version compatibility (made for ≥ {minimum}): "
        "what needs the newer driver, PTX compiled at run time above all, does not work"
    )


def _cudnn(world: World, versions: Mapping[str, str], sources: Sources) -> Section:
    row = world.facts.cudnn["releases"][versions["cudnn"]]
    cuda = versions.get("cuda", row["cuda"][-1])
    if branch(versions["cudnn"]) == "8":
        packages = {_library(world, "cudnn8", cuda): f"{row['full']}-1+cuda{_suffix(cuda)}"}
    else:
        packages = {_library(world, "cudnn9", cuda): f"{row['full']}-1"}
    return _from_nvidia(world, sources, packages, version=versions["cudnn"], full=row["full"])


def _suffix(cuda: str) -> str:
    return cuda if "." in cuda else f"{cuda}.0"


def _nccl(world: World, versions: Mapping[str, str], sources: Sources) -> Section:
    row = world.facts.nccl["releases"][versions["nccl"]]
    cuda = versions.get("cuda", row["cuda"][-1])
    package_version = f"{versions['nccl']}-1+cuda{_suffix(cuda)}"
    if cuda not in row.get("packaged", []):
        sources.note(f"not established: that NCCL {versions['nccl']} is packaged as {package_version}")
    return _from_nvidia(world, sources, {_library(world, "nccl", cuda): package_version}, version=versions["nccl"])


def _dcgm(world: World, versions: Mapping[str, str], sources: Sources) -> Section:
    row = world.facts.dcgm["releases"][versions["dcgm"]]
    cuda = branch(versions.get("cuda", row["cuda"][-1]))
    package_version = f"{row['epoch']}{versions['dcgm']}{row.get('revision', '')}"
    packages = {name.format(cuda=cuda): package_version for name in row["packages"]}
    return _from_nvidia(world, sources, packages, version=versions["dcgm"])


def _efa(world: World, versions: Mapping[str, str], sources: Sources) -> Section:
    facts = world.facts.efa
    row = facts["releases"][versions["efa"]]
    url = f"{facts['base_url']}/aws-efa-installer-{versions['efa']}.tar.gz"
    sources.add("the EFA installer's key", facts)
    return {
        "version": versions["efa"],
        "mode": world.section("efa").get("mode", "full"),
        "url": url,
        "signature_url": f"{url}.sig",
        "key_url": facts["key_url"],
        "key_fingerprint": facts["key_fingerprint"],
        "contents": {key: row[key] for key in ("kernel_module", "libfabric", "rdma_core", "ofi_nccl") if key in row},
    }


def _from_tag(component: str) -> Writer:
    """Built from source: the commit's hash is what is verified."""

    def write(world: World, versions: Mapping[str, str], _sources: Sources) -> Section:
        facts = getattr(world.facts, component)
        row = facts["releases"][versions[component]]
        return {
            "version": versions[component],
            "url": f"{facts['repository']}.git",
            "tag": row["tag"],
            "commit": row["commit"],
        }

    return write


def _container_toolkit(world: World, versions: Mapping[str, str], sources: Sources) -> Section:
    facts, version = world.facts.container_toolkit, versions["container_toolkit"]
    kind = "rpm" if world.os["family"] == "redhat" else "deb"
    architecture = {"rpm": {"x86_64": "x86_64", "arm64": "aarch64"}, "deb": _AWS_ARCHITECTURES}[kind]
    sources.add("the container toolkit's key", facts)
    of_the_base = world.node.get("container_runtime")
    runtime = world.section("container_toolkit").get("runtime") or of_the_base or "docker"
    package = "" if runtime == of_the_base else facts["runtimes"][runtime][world.os["family"]]
    return {
        "version": version,
        "runtime": runtime,
        "runtime_package": package,
        "packages": {"nvidia-container-toolkit": f"{version}-1", "nvidia-container-toolkit-base": f"{version}-1"},
        "cdi": facts["releases"][version]["cdi"],
        "repository": {
            "url": f"{facts['base_url']}/{kind}/{architecture[world.values['architecture']]}/",
            "suite": "./",
            "components": [],
            "key_url": facts["key_url"],
            "key_fingerprint": facts["key_fingerprint"],
        },
    }


def _neuron(world: World, versions: Mapping[str, str], sources: Sources) -> Section:
    facts = world.facts.neuron
    row = facts["releases"][versions["neuron"]]
    packages = {
        "aws-neuronx-dkms": row["driver"],
        "aws-neuronx-runtime-lib": row.get("runtime"),
        "aws-neuronx-collectives": row.get("collectives"),
        "aws-neuronx-tools": row.get("tools"),
    }
    family = world.os["family"]
    repository = facts["repositories"][family]
    sources.add("the Neuron repository's key", facts)
    return {
        "version": versions["neuron"],
        # Behind the release stands a build number that no release note names.
        "packages": {name: f"{version}*" for name, version in packages.items() if version},
        "repository": {
            "url": f"{repository['url']}/",
            "suite": world.os["codename"] if family == "debian" else "./",
            "components": ["main"] if family == "debian" else [],
            "key_url": f"{repository['url']}/{repository['key']}",
            "key_fingerprint": facts["key_fingerprint"],
        },
    }


def _mkl(world: World, versions: Mapping[str, str], sources: Sources) -> Section:
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


def agent_section(world: World, sources: Sources) -> Section:
    """The CloudWatch agent's package."""
    facts, version = world.facts.cloudwatch_agent, str(world.section("cloudwatch_agent")["version"])
    # A release that the facts do not know is planned all the same: what is there is checked when it is installed.
    release = facts["versions"].get(version, facts["other_versions"])
    kind = "rpm" if world.os["family"] == "redhat" else "deb"
    folder = f"{world.os['cloudwatch_agent']}/{_AWS_ARCHITECTURES[world.values['architecture']]}/{release['directory']}"
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
    "nvidia_driver": _driver,
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
