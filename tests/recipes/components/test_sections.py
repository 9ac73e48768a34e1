"""The plan's section of each component: package names, versions and repositories."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.recipes.components import components, kernel
from gpu_ami.recipes.facts.tables import Sources
from gpu_ami.recipes.resolver import sections
from tests.recipes.conftest import FACTS, context

A100 = "p4d.24xlarge"
FINGERPRINT = "0123456789abcdef0123456789abcdef01234567"


def written(
    recipe: str = "", *, os: str = "al2023", types: str = "g5.xlarge", node: str = "ec2", **versions: str
) -> Any:
    """The sections of the versions, and the notes."""
    sources = Sources()
    return sections(context(recipe, os=os, types=types, node=node), versions, sources), sources.notes


@pytest.mark.parametrize(
    ("version", "directory", "pinned"),
    [
        ("1.300071.0", "1.300071.0b1720", True),
        ("1.300057.0b252", "1.300057.0b252", True),
        ("1.300057.0", "latest", False),
    ],
)
def test_agent_is_pinned_by_its_release(version: str, directory: str, pinned: bool) -> None:
    sources = Sources()
    asked = context(f"cloudwatch_agent: {{version: {version}}}", os="debian12")
    agent: Any = components()["cloudwatch_agent"].written(asked, {}, sources)
    assert agent["version"] == version.partition("b")[0]
    assert agent["url"].endswith(f"/debian/amd64/{directory}/amazon-cloudwatch-agent.deb")
    assert agent["signature_url"] == f"{agent['url']}.sig"
    assert pinned != any(note.startswith("the CloudWatch agent is not pinned") for note in sources.notes)


@pytest.mark.parametrize(
    ("system", "cuda", "nccl", "version"),
    [
        ("ubuntu2204", "13.0", "2.28.9", "2.28.9-1+cuda13.0"),
        ("ubuntu2204", "12.8", "2.28.9", "2.28.9-1+cuda12.9"),
        ("al2023", "13.0", "2.32.3", "2.32.3-1+cuda13.4"),
    ],
)
def test_nccl_is_the_build_that_was_packaged(system: str, cuda: str, nccl: str, version: str) -> None:
    found, notes = written(os=system, nvidia_driver="580.178.04", cuda=cuda, nccl=nccl)
    assert list(found["nccl"]["packages"].values()) == [version]
    assert not any(f"NCCL {nccl} is packaged" in note for note in notes)


@pytest.mark.parametrize(
    ("release", "noted"),
    [("13.0", "CUDA 13.0.2: compiler and libraries may be those of 13.0.3"), ("13.3", ""), ("13.4", ""), ("13.5", "")],
)
def test_parts_of_a_toolkit_may_be_of_a_later_update(release: str, noted: str) -> None:
    """Its meta-package asks for its parts' versions or later ones."""
    _, notes = written(nvidia_driver="620.70.06", cuda=release)
    assert [note.partition(", as NVIDIA's")[0] for note in notes if "may be those of" in note] == [noted][: bool(noted)]


@pytest.mark.parametrize(
    ("driver", "cuda", "mode"),
    [("580.95.05", "13.0", "native"), ("580.65.06", "13.0", "minor"), ("570.211.01", "13.0", "forward")],
)
def test_cuda_compatibility_follows_the_driver(driver: str, cuda: str, mode: str) -> None:
    found, notes = written(nvidia_driver=driver, cuda=cuda)
    assert found["cuda"]["compatibility"] == mode
    assert ("cuda-compat-13-0" in found["cuda"]["packages"]) is (mode == "forward")
    assert sum(note.startswith(f"CUDA {cuda} on driver {driver} runs by {mode}") for note in notes) == (
        mode != "native"
    )


@pytest.mark.parametrize(("types", "unwanted"), [("p5.48xlarge", False), ("trn1.2xlarge", True)])
def test_efa_leaves_out_its_nvidia_package_without_nvidia_gpus(types: str, unwanted: bool) -> None:
    efa = written("telemetry: {profile: neuron}", types=types, efa="1.47.0")[0]["efa"]
    assert ("unwanted" in efa) is unwanted
    assert efa["url"].endswith("/aws-efa-installer-1.47.0.tar.gz")
    assert efa["contents"]["ofi_nccl"] == "1.18.0"


def test_source_build_is_verified_by_its_commit() -> None:
    facts = context().facts.gdrcopy
    release, row = list(facts["releases"].items())[-1]
    section = written(gdrcopy=release)[0]["gdrcopy"]
    assert section == {
        "version": release, "url": f"{facts['repository']}.git", "tag": row["tag"], "commit": row["commit"]
    }  # fmt: skip


@pytest.mark.parametrize(("node", "runtime", "installed"), [("ec2", "docker", True), ("ecs", "docker", False)])
def test_container_runtime_of_the_base_ami_is_not_installed_again(node: str, runtime: str, installed: bool) -> None:
    release = list(context().facts.container_toolkit["releases"])[-1]
    section = written(node=node, container_toolkit=release)[0]["container_toolkit"]
    assert (section["runtime"], bool(section["runtime_package"])) == (runtime, installed)
    assert set(section["packages"].values()) == {f"{release}-1"}


def test_packages_of_an_inf1_image_are_those_that_run_there() -> None:
    profile = "telemetry: {profile: neuron}"
    inf1 = written(profile, types="inf1.xlarge", neuron="2.26.1")[0]["neuron"]
    assert set(inf1["packages"]) == {"aws-neuronx-dkms", "aws-neuronx-tools"}
    assert inf1["repository"]["signed_index"] is False
    inf2 = written(profile, types="inf2.xlarge", neuron="2.26.1")[0]["neuron"]
    assert "aws-neuronx-runtime-lib" in inf2["packages"]


def test_every_section_cites_its_release() -> None:
    sources = Sources()
    sections(context(), {"nvidia_driver": "580.178.04", "cuda": "13.0"}, sources)
    assert {"driver 580.178.04", "CUDA 13.0"} <= {row["fact"] for row in sources.rows}


@pytest.mark.parametrize(("series", "package"), [("6.1", "kernel"), ("6.12", "kernel6.12")])
def test_kernel_packages_are_those_of_the_series(series: str, package: str) -> None:
    section = kernel.kernel_section(FACTS.operating_systems["al2023"], series, "x86_64")
    assert section == {
        "version": series,
        "package": package,
        "headers": f"{package}-devel-{{release}}",
        "hold": [package, f"{package}-devel", f"{package}-headers"],
    }


def test_kernel_packages_of_debian_carry_the_architecture() -> None:
    section = kernel.kernel_section(FACTS.operating_systems["debian12"], "6.1", "arm64")
    assert "arm64" in section["package"]
    assert "{deb}" not in str(section)


@pytest.mark.parametrize(
    ("node", "recipe", "types", "section"),
    [
        ("ec2", "", "g5.xlarge", {}),
        ("eks", "node_version: '1.33'", "g5.xlarge", {"node_eks": {"version": "1.33"}}),
        ("ecs", "", "g5.xlarge", {"node_ecs": {"version": "", "accelerator": "nvidia"}}),
        ("ecs", "", "trn1.2xlarge", {"node_ecs": {"version": "", "accelerator": "neuron"}}),
    ],
)
def test_node_family_has_its_own_role(node: str, recipe: str, types: str, section: dict[str, Any]) -> None:
    found = written(recipe, node=node, types=types)[0]
    assert {name: one for name, one in found.items() if name.startswith("node_")} == section


def test_lustre_client_is_for_recipes_that_ask_for_it() -> None:
    assert sections(context(), {}, Sources()) == {}
    assert sections(context("lustre: {}"), {}, Sources()) == {"lustre": {"package": "lustre-client"}}


def test_lustre_repository_is_trusted_by_the_recipes_fingerprint() -> None:
    asked = context(f"lustre: {{key_fingerprint: {FINGERPRINT}}}", os="ubuntu2404")
    repository = sections(asked, {}, Sources())["lustre"]["repository"]
    assert (repository["suite"], repository["key_fingerprint"]) == ("noble", FINGERPRINT.upper())


def test_lustre_key_of_the_facts_is_noted() -> None:
    sources = Sources()
    section = sections(context("lustre: {}", os="ubuntu2404"), {}, sources)["lustre"]
    assert section["package"] == "lustre-client-modules-{release}"
    assert section["repository"]["key_fingerprint"] == FACTS.lustre["key"]["fingerprint"]
    assert [note for note in sources.notes if section["repository"]["key_fingerprint"] in note]


def test_tuning_has_the_facts_values_below_the_recipes() -> None:
    recipe = "tuning: {sysctl: {net.core.rmem_max: '1', vm.swappiness: '0'}, mig: {p4d.24xlarge: '7g.40gb'}}"
    sources = Sources()
    section = sections(context(recipe, types=A100), {}, sources)["tuning"]
    assert section["sysctl"] == FACTS.tuning["sysctl"]["values"] | {"net.core.rmem_max": "1", "vm.swappiness": "0"}
    assert section["clocks"] == {"NVIDIA A100-SXM4-40GB": [1215, 1410]}
    assert (section["mig"], section["memlock"]) == ({A100: "7g.40gb"}, "unlimited")
    assert "limit of locked memory" in {row["fact"] for row in sources.rows}


def test_parts_of_the_tuning_can_be_switched_off() -> None:
    recipe = "tuning: {clocks: false, network: false, memlock: false}"
    assert sections(context(recipe), {}, Sources()) == {"tuning": {"sysctl": {}, "clocks": {}, "mig": {}}}
    assert sections(context(), {}, Sources()) == {}


def test_gpu_without_known_clocks_is_noted() -> None:
    sources = Sources()
    section = sections(context("tuning: {}", types="p6-b200.48xlarge"), {}, sources)["tuning"]
    assert section["clocks"] == {}
    assert sources.notes == ["not established: the highest application clocks of NVIDIA B200; they are not set"]


@pytest.mark.parametrize(
    ("os", "series", "named", "package"),
    [
        # Indexes of noble-updates and jammy-updates of 2026-11-26: linux-image-aws has gone on to 7.0 and 6.8.
        ("ubuntu2404", "6.17", True, "linux-image-aws-6.17"),
        ("ubuntu2404", "6.17", False, "linux-image-aws"),
        ("ubuntu2404", "6.8", True, "linux-image-aws-lts-24.04"),
        ("ubuntu2404", "7.0", True, "linux-image-aws"),
        ("ubuntu2204", "5.15", True, "linux-image-aws-lts-22.04"),
        ("ubuntu2204", "6.8", True, "linux-image-aws"),
    ],
)
def test_series_that_a_recipe_names_stays(os: str, series: str, named: bool, package: str) -> None:
    section = kernel.kernel_section(FACTS.operating_systems[os], series, "x86_64", is_fixed=named)
    assert section["package"] == package and package in section["hold"]
    assert section["headers"] == "linux-headers-{release}"
