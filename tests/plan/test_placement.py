"""A plan at a place: mirror, endpoint, source AMI, kernel."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gpu_ami.cloud.place import Place
from gpu_ami.plan.outputs import packer_variables
from gpu_ami.plan.resolution import make_plan
from tests.plan.conftest import AWS, DEBIAN, LOCAL, RECIPES, ROOT, urls


def test_plan_at_a_mirror_fetches_from_nowhere_else() -> None:
    plan = make_plan(DEBIAN, LOCAL)
    for url in urls(plan.document):
        assert url.startswith(("http://169.254.169.252/", "http://169.254.169.251")), url
    assert plan["nvidia_driver"]["repository"]["url"] == (
        "http://169.254.169.252/developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
    )
    assert plan["nvidia_driver"]["repository"]["key_fingerprint"] == "A" * 40
    assert plan["cloudwatch_agent"]["key_fingerprint"] == "A" * 40
    assert plan["cloudwatch_agent"]["config"]["logs"]["endpoint_override"] == "http://169.254.169.251"
    assert plan["cloudwatch_agent"]["gpu_config"]["metrics"]["endpoint_override"] == "http://169.254.169.251"


def test_citations_stay_what_they_are_at_a_mirror() -> None:
    assert make_plan(DEBIAN, LOCAL)["sources"] == make_plan(DEBIAN, AWS)["sources"]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_can_be_planned_at_a_mirror(recipe: Path) -> None:
    plan = make_plan(recipe, LOCAL)
    assert plan["cloudwatch_agent"]["config"]["logs"]["endpoint_override"] == LOCAL.guest_endpoint


def test_own_endpoint_has_no_auto_scaling_groups() -> None:
    """The agent asks AWS itself for that name, and publishes nothing until it is told."""
    placed = make_plan(DEBIAN, LOCAL)["cloudwatch_agent"]["gpu_config"]["metrics"]["append_dimensions"]
    assert set(placed) == {"ImageId", "InstanceId", "InstanceType"}


def test_place_may_name_the_source_ami() -> None:
    plan = make_plan(DEBIAN, Place(name="x", region="us-east-1", source_ami="ami-0123456789abcdef0"))
    assert plan["source_ami"] == {"id": "ami-0123456789abcdef0"}
    assert packer_variables(plan.document, AWS, Path("/x"))["source_ami"] == "ami-0123456789abcdef0"


def test_a_place_with_a_kernel_of_its_own_says_so() -> None:
    """The version is of the series that really boots, the packages are the planned ones, and the plan says so."""
    recipe = ROOT / "variables" / "recipes" / "eks-1.33-al2023-gpu.yml"
    assumed = make_plan(recipe, AWS)
    booted = make_plan(recipe, dataclasses.replace(LOCAL, kernel="6.1"))
    assert assumed["kernel"] == {
        "version": "6.12",
        "package": "kernel6.12",
        "headers": "kernel6.12-devel-{release}",
        "hold": ["kernel6.12", "kernel6.12-devel", "kernel6.12-headers"],
    }
    assert booted["kernel"] == assumed["kernel"] | {"version": "6.1"}
    note = "not proven here: kernel 6.12; machines of local boot 6.1"
    assert note in booted["notes"] and note not in assumed["notes"]
    assert make_plan(DEBIAN, dataclasses.replace(LOCAL, kernel="6.1"))["notes"] == make_plan(DEBIAN, LOCAL)["notes"]


def test_archive_of_the_system_keeps_its_signatures() -> None:
    """Only the address changes: a guest verifies it with the keys that its own system brings."""
    recipe = ROOT / "variables/recipes/debian12-distribution.yml"
    there = make_plan(recipe, AWS)["nvidia_driver"]["repository"]
    for archives, url in (
        ("", "http://169.254.169.252"),
        ("http://169.254.169.252/archive", "http://169.254.169.252/archive"),
    ):
        assert LOCAL.mirror
        place = dataclasses.replace(LOCAL, mirror=dataclasses.replace(LOCAL.mirror, archives=archives))
        placed = make_plan(recipe, place)["nvidia_driver"]["repository"]
        further = [{**row, "url": row["url"].replace("https:/", url)} for row in there["further"]]
        assert placed == {**there, "url": there["url"].replace("https:/", url), "further": further}
