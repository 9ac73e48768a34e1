"""The plan's sections of driver, fabric manager and IMEX, and NVIDIA's package repository."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.recipes.components.nvidia_driver.driver_packages import nvidia_repository
from gpu_ami.recipes.facts.tables import Sources
from gpu_ami.recipes.resolver import sections
from tests.recipes.conftest import context


def written(
    recipe: str = "", *, os: str = "al2023", types: str = "g5.xlarge", node: str = "ec2", **versions: str
) -> Any:
    """The sections of the versions, and the notes."""
    sources = Sources()
    return sections(context(recipe, os=os, types=types, node=node), versions, sources), sources.notes


@pytest.mark.parametrize(
    ("system", "driver", "packages"),
    [
        ("al2023", "570.211.01", {"nvidia-fabric-manager": "570.211.01-1"}),
        ("al2023", "580.126.20", {"nvidia-fabricmanager": "580.126.20-1"}),
        ("al2023", "595.58.03", {"nvidia-fabricmanager": "595.58.03-1.amzn2023"}),
        ("ubuntu2404", "580.178.04", {"nvidia-fabricmanager": "580.178.04-1ubuntu1"}),
    ],
)
def test_fabric_manager_is_named_as_the_repository_names_it(system: str, driver: str, packages: dict[str, str]) -> None:
    found, _ = written(os=system, types="p5.48xlarge", nvidia_driver=driver)
    section = found["fabric_manager"]
    assert {section["package"]: section["package_version"]} == packages
    assert section["instance_types"] == ["p5.48xlarge"]


def test_fabric_manager_is_for_machines_with_nvswitch() -> None:
    assert set(written(types="g5.xlarge", nvidia_driver="580.178.04")[0]) == {"nvidia_driver"}


def test_subnet_manager_is_beside_the_fabric_manager_of_blackwell() -> None:
    found, _ = written(types="p5.48xlarge p6-b200.48xlarge", nvidia_driver="580.178.04")
    section = found["fabric_manager"]
    assert section["nvlsm_instance_types"] == ["p6-b200.48xlarge"]
    assert set(section["packages"]) == {"nvlsm"}
    assert section["system_packages"] == ["kernel-modules-extra-{release}", "libibumad", "infiniband-diags"]


def test_flavour_boot_carries_both_modules_and_says_which_is_for_whom() -> None:
    recipe = "nvidia_driver: {flavour: boot}"
    driver = written(recipe, types="p3.2xlarge p5.48xlarge", nvidia_driver="570.211.01")[0]["nvidia_driver"]
    assert set(driver["modules"]) == {"open", "proprietary"}
    assert driver["package"] == driver["modules"]["open"]
    assert driver["flavour_by_instance_type"] == {"p3.2xlarge": "proprietary", "p5.48xlarge": "open"}
    assert set(driver["flavour_by_pci_id"].values()) == {"proprietary", "open"}
    assert "modules" not in written(nvidia_driver="570.211.01")[0]["nvidia_driver"]


def test_driver_of_the_base_ami_is_named_with_it_and_not_installed() -> None:
    found, _ = written("node_version: 3.16.3", node="parallelcluster", types="p5.48xlarge", nvidia_driver="595.112.07")
    base = {"version": "595.112.07", "provided_by": "parallelcluster 3.16.3"}
    del found["node_parallelcluster"]
    assert found == {"nvidia_driver": base, "fabric_manager": {**base, "instance_types": ["p5.48xlarge"]}}


@pytest.mark.parametrize(
    ("system", "folder", "key"),
    [
        ("al2023", "amzn2023/x86_64", "D42D0685.pub"),
        ("ubuntu2404", "ubuntu2404/x86_64", "3bf863cc.pub"),
        ("debian12", "debian12/x86_64", "3bf863cc.pub"),
        # Debian 13's apt refuses the other: its key is bound by a SHA-1 signature.
        ("debian13", "debian13/x86_64", "8793F200.pub"),
    ],
)
def test_nvidia_repository_is_that_of_the_system(system: str, folder: str, key: str) -> None:
    repository = nvidia_repository(context(os=system), Sources())
    assert repository["url"].endswith(f"/{folder}/")
    assert repository["key_url"] == f"{repository['url']}{key}"
    assert repository["key_fingerprint"].endswith(key.partition(".")[0].upper())


def test_driver_of_the_distribution_is_pinned_in_every_package() -> None:
    recipe = "nvidia_driver: {source: distribution, version: newest, flavour: proprietary}"
    found, notes = written(recipe, os="debian12", nvidia_driver="535.309.01")
    section = found["nvidia_driver"]
    assert (section["source"], section["package"], section["package_version"]) == (
        "distribution", "nvidia-kernel-dkms", "535.309.01-0+deb12u1"
    )  # fmt: skip
    assert section["packages"]["nvidia-smi"] == "535.309.01-0+deb12u1"
    assert section["packages"]["nvidia-persistenced"] == "535.171.04-1~deb12u1"
    assert (section["persistence_daemon"], section["module"]) == ("535.171.04", "nvidia-current")
    repository = section["repository"]
    assert repository["keyring"] == "/usr/share/keyrings/debian-archive-keyring.gpg"
    assert repository["suite"] == "bookworm-security" and "packages" not in repository
    assert [(row["suite"], row["packages"]) for row in repository["further"]] == [("bookworm", ["nvidia-persistenced"])]
    assert "nvidia-persistenced of debian12's archive is 535.171.04, the driver 535.309.01" in notes


@pytest.mark.parametrize(
    ("node", "versions", "options"),
    [
        # NVIDIA's IMEX guide; NVIDIA/aicr's preflight of GB200 with EFA; amazon-eks-ami, nvidia-kmod-load.sh.
        (
            "ec2", {"nvidia_driver": "580.178.04", "efa": "1.47.0"},
            {"NVreg_GrdmaPciTopoCheckOverride": "1", "NVreg_CreateImexChannel0": "1"},
        ),
        ("ec2", {"nvidia_driver": "580.178.04"}, {"NVreg_CreateImexChannel0": "1"}),
        ("ec2", {"nvidia_driver": "595.112.07", "efa": "1.47.0"}, {"NVreg_CreateImexChannel0": "1"}),
        (
            "eks", {"nvidia_driver": "580.178.04", "efa": "1.47.0"},
            {"NVreg_CoherentGPUMemoryMode": "driver", "NVreg_GrdmaPciTopoCheckOverride": "1"},
        ),
        ("eks", {"nvidia_driver": "570.211.01"}, {}),
    ],
)  # fmt: skip
def test_options_of_gb200(node: str, versions: dict[str, str], options: dict[str, str]) -> None:
    recipe = "node_version: '1.35'\n" if node == "eks" else ""
    found, _ = written(f"{recipe}architecture: arm64", types="p6e-gb200.36xlarge", node=node, **versions)
    assert found["nvidia_driver"].get("options", {}) == options


def test_options_of_the_recipe_are_above_those_of_the_facts() -> None:
    options = "{NVreg_CreateImexChannel0: '0', NVreg_EnableStreamMemOPs: '1'}"
    recipe = f"architecture: arm64\nnvidia_driver: {{options: {options}}}"
    found, _ = written(recipe, types="p6e-gb200.36xlarge", nvidia_driver="595.112.07")
    assert found["nvidia_driver"]["options"] == {"NVreg_CreateImexChannel0": "0", "NVreg_EnableStreamMemOPs": "1"}
    assert "options" not in written(types="g5.xlarge", nvidia_driver="580.178.04")[0]["nvidia_driver"]
