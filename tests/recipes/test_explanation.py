"""Where each value comes from, what its constraint is pinned to, and which values conflict."""

from __future__ import annotations

from gpu_ami.recipes.facts.tables import VARIABLES, load_facts
from gpu_ami.recipes.layers import ExplainedValue, explain, read_recipe


def explained(image: str, *overrides: str) -> list[ExplainedValue]:
    facts = load_facts()
    return explain(read_recipe(VARIABLES / "recipes" / f"{image}.yml", facts, overrides), facts)


def rows(image: str, *overrides: str) -> dict[str, ExplainedValue]:
    return {value.key: value for value in explained(image, *overrides)}


def test_every_layer_is_named() -> None:
    values = rows("al2023-compute", "telemetry.interval_s=30")
    expected = {
        "telemetry.interval_s": (30, "--set"),
        "flag": ("al2023-compute", "al2023-compute.yml"),
        "build.root_volume_gib": (60, "os/al2023.yml"),
        "telemetry.namespace": ("CWAgent", "defaults.yml"),
    }
    assert {key: (values[key].value, values[key].layer) for key in expected} == expected


def test_values_are_those_of_the_files() -> None:
    """Numbers and lists, not their text: `--json` has them as they are."""
    values = rows("al2023-compute")
    roles = values["roles"]
    assert isinstance(roles.value, list) and "nvidia_driver" in roles.value
    assert roles.text.startswith("kernel, node_eks, ")


def test_constraint_is_shown_with_what_it_is_pinned_to() -> None:
    driver = rows("al2023-compute")["nvidia_driver.version"]
    assert (driver.value, driver.pinned, driver.layer) == ("580", "580.178.04", "al2023-compute.yml")
    assert driver.text == "580 (pinned: 580.178.04)"
    assert "amazon-ecs-ami 20261030 (580.178.04)" in driver.source


def test_component_of_the_base_ami_is_named_with_it() -> None:
    driver = rows("dlami-ubuntu2204")["nvidia_driver.version"]
    assert (driver.layer, driver.source) == (
        "base AMI",
        load_facts().node_families["dlami"]["versions"]["20261006"]["source"],
    )


def test_conflict_stands_where_it_is() -> None:
    conflict = rows("al2023-compute", "nvidia_driver.flavour=proprietary", "kernel.version=9.9")["kernel.version"]
    assert "9.9" in conflict.conflict and (conflict.value, conflict.layer) == (None, "--set")
    assert conflict.text == f"CONFLICT: {conflict.conflict}"


def test_every_conflict_has_a_row() -> None:
    values = explained("al2023-compute", "nvidia_driver.version=550.163.01")
    conflicts = [value for value in values if value.conflict]
    assert len(conflicts) == 3
    assert conflicts[0].conflict.startswith("driver 550.163.01 cannot run CUDA 13.0")
    assert conflicts[0].source and conflicts[0].nearest


def test_version_of_the_base_ami_is_shown() -> None:
    driver = rows("pcluster-3.16-al2023")["nvidia_driver.version"]
    assert (driver.value, driver.layer) == ("595.112.07", "base AMI")


def test_every_driver_of_the_base_ami_is_explained() -> None:
    driver = rows("eks-1.35-al2023-nvidia")["nvidia_driver.version"]
    assert driver.layer == "base AMI" and driver.source.startswith("amazon-eks-ami")
    assert driver.text.startswith("lts 580.178.04 on g5.12xlarge (proprietary), ")
    assert driver.text.endswith("; pb 595.91.07 on g7.12xlarge (open)")
