"""What Packer and Ansible read of a plan."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_ami.cloud.place import Place
from gpu_ami.plan.document import Plan, ansible_variables, packer_variables, with_digest
from gpu_ami.plan.resolution import make_plan
from gpu_ami.process import find_tool, run
from gpu_ami.recipes import load_facts
from gpu_ami.recipes.facts import read_yaml
from tests.plan.conftest import AWS, DEBIAN, LOCAL, RECIPES, ROOT


def test_ansible_variables_are_the_roles_keys_and_nothing_else() -> None:
    plan = make_plan(DEBIAN, LOCAL)
    variables = ansible_variables(plan.document)
    assert variables.pop("gpu_ami_roles") == plan["roles"]
    expected = {f"{role}_{key}": value for role in plan["roles"] for key, value in plan[role].items()}
    assert variables == expected
    assert variables["cuda_version"] == "13.0"
    kept = make_plan(ROOT / "variables" / "recipes" / "pcluster-3.16-ubuntu2404.yml", LOCAL)
    assert "efa_version" not in ansible_variables(kept.document)  # the base AMI's: recorded, not installed


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_builder_has_no_gpu_and_the_image_s_architecture(recipe: Path) -> None:
    """A build needs none: such a builder has a quota, scarce capacity and a price for nothing.

    A recipe may name one itself, as those for Neuron do: its drivers are installed where they can be loaded.
    """
    document = make_plan(recipe, AWS).document
    name = packer_variables(document, AWS, Path("/x"))["instance_type"]
    family, _, size = str(name).partition(".")
    accelerated = load_facts().instance_types
    own = read_yaml(recipe).get("build", {}).get("instance_type")
    assert name == own or (name not in accelerated["instance_types"] and family not in accelerated["families"])
    graviton = re.fullmatch(r"[a-z]+\d+g[a-z]*", family) is not None
    assert graviton == (document["architecture"] == "arm64") and size


def declared_variables() -> set[str]:
    text = (ROOT / "packer" / "variables.pkr.hcl").read_text(encoding="utf-8")
    return set(re.findall(r'^variable "(\w+)"', text, flags=re.MULTILINE))


def required_variables() -> set[str]:
    text = (ROOT / "packer" / "variables.pkr.hcl").read_text(encoding="utf-8")
    blocks = re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', text, flags=re.MULTILINE | re.DOTALL)
    return {name for name, body in blocks if not re.search(r"^  default\s+=", body, flags=re.MULTILINE)}


@pytest.mark.parametrize("place", [AWS, LOCAL], ids=["aws", "local"])
def test_packer_variables_are_those_that_the_template_declares(place: Place) -> None:
    given = packer_variables(make_plan(DEBIAN, place).document, place, Path("/out/ansible.json"))
    assert set(given) <= declared_variables()
    assert required_variables() <= set(given), "packer build by hand would ask for more"
    assert len(required_variables()) >= 5


def test_packer_variables_carry_the_former_pipelines_versions() -> None:
    given = packer_variables(make_plan(DEBIAN, AWS).document, AWS, Path("/x"))
    assert {name: given[name] for name in given if name.endswith("_version")} == {
        "nvidia_version": "580.178.04", "cuda_version": "13.0", "cudnn_version": "9.20.0", "nccl_version": "2.28.9",
        "efa_version": "1.50.0", "intel_mkl_version": "2020.4-912",
    }  # fmt: skip
    assert given["subnet_id"] == "subnet-0123456789abcdef0"
    assert given["tags"] == {"team": "gpu"}


@pytest.mark.parametrize(
    ("recipe", "tags"),
    [
        ("pcluster-3.16-ubuntu2404", {"version": "3.16.3", "os": "ubuntu2404", "build_status": "available"}),
        ("pcluster-3.16-al2023", {"version": "3.16.3", "os": "alinux2023", "build_status": "available"}),
        ("debian12-gpu", {}),
    ],
)
def test_images_of_parallelcluster_carry_what_its_validators_read(recipe: str, tags: dict[str, str]) -> None:
    """And never the tag by which `pcluster list-images` and `delete-image` know the images that they made."""
    plan = make_plan(ROOT / "variables" / "recipes" / f"{recipe}.yml", AWS)
    given = packer_variables(plan.document, AWS, Path("/x"))["image_tags"]
    assert given == {f"parallelcluster:{name}": value for name, value in tags.items()}


def packer_refuses(folder: Path) -> str:
    """What packer validate has against a var-file; empty: nothing. It asks for Ansible's version, so a word answers."""
    ansible = folder / "ansible-playbook"
    ansible.write_text("#!/bin/sh\necho 'ansible-playbook [core 2.19.0]'\n")
    ansible.chmod(0o755)
    variables = [f"-var-file={folder / 'packer.pkrvars.json'}", f"-var=ansible_command={ansible}"]
    found = run(
        [find_tool("packer", package="packer"), "validate", *variables, ROOT / "packer"],
        timeout=120,
        env={"CHECKPOINT_DISABLE": "1", "PACKER_CONFIG_DIR": str(folder), "PACKER_CACHE_DIR": str(folder)},
        check=False,
    )
    return "" if found.returncode == 0 else found.stdout + found.stderr


@pytest.mark.slow
def test_packer_accepts_the_variables_of_every_lock(tmp_path: Path) -> None:
    folders = []
    for recipe in RECIPES:
        folder = tmp_path / recipe.stem
        plan = make_plan(recipe, AWS)
        plan.write(folder, AWS)
        folders.append(folder)
        for role in plan["roles"]:
            assert all(f"{role}_{key}" in ansible_variables(plan.document) for key in plan[role])
    with ThreadPoolExecutor(max_workers=2) as pool:
        refused = {folder.name: text for folder, text in zip(folders, pool.map(packer_refuses, folders), strict=True)}
    assert {name: text for name, text in refused.items() if text} == {}


@pytest.mark.slow
def test_packer_refuses_a_wrong_flag(tmp_path: Path) -> None:
    """The check above can fail."""
    document = dict(make_plan(DEBIAN, AWS).document) | {"flag": "NOT A FLAG"}
    Plan(with_digest(document)).write(tmp_path, AWS)
    assert "The flag must be" in packer_refuses(tmp_path)
