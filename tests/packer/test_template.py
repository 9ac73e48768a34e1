"""Packer's template by itself: its variables, its form, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.build import packer
from gpu_ami.errors import BuildError
from gpu_ami.plan import PACKER_FILE, Plan, make_plan
from gpu_ami.plan.document import NO_ENDPOINT, packer_variables
from tests.packer.conftest import PLACE, RECIPE, TEMPLATE

pytestmark = pytest.mark.slow


def variables() -> dict[str, str]:
    """Name → block of every variable that the template declares."""
    text = (TEMPLATE / "variables.pkr.hcl").read_text()
    return dict(re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', text, re.MULTILINE | re.DOTALL))


def test_every_variable_is_typed_and_described() -> None:
    assert len(variables()) > 30
    assert [
        name for name, block in variables().items() if "  type " not in block or '  description = "' not in block
    ] == []


def test_the_plan_gives_variables_that_exist_and_all_that_are_required(plan: Plan, tmp_path: Path) -> None:
    given = packer_variables(plan.document, PLACE, tmp_path / "ansible.json")
    required = {name for name, block in variables().items() if "  default " not in block}
    assert set(given) <= set(variables())
    assert required <= set(given)


def test_both_builds_differ_in_their_head_alone(update_golden: bool) -> None:
    """packer/current is the same build with what Packer 1.6 does not know; --update-golden derives its provisioner."""
    plain = (TEMPLATE / "build.pkr.hcl").read_text().partition("  provisioner ")[2]
    current = TEMPLATE / "current" / "build.pkr.hcl"
    head, start, derived = current.read_text().partition("  provisioner ")
    if update_golden:
        derived = plain.replace("${path.root}/..", "${path.root}/../..")
        current.write_text(head + start + derived)
    assert plain and derived.replace("${path.root}/../..", "${path.root}/..") == plain
    for name in ("variables.pkr.hcl", "source.pkr.hcl"):
        assert (TEMPLATE / "current" / name).resolve() == TEMPLATE / name


def test_the_build_of_a_launched_builder_differs_in_its_source_and_what_it_hands_over(update_golden: bool) -> None:
    plain = (TEMPLATE / "build.pkr.hcl").read_text().partition("  provisioner ")[2]
    run_id = "      run_id      = local.run_id\n"
    image = "      image_name  = local.image_name\n      image_tags  = jsonencode(local.image_tags)\n"
    expected = plain.replace("${path.root}/..", "${path.root}/../..").replace(run_id, run_id + image)
    launched = TEMPLATE / packer.LAUNCHED / "build.pkr.hcl"
    head, start, derived = launched.read_text().partition("  provisioner ")
    if update_golden:
        derived = expected
        launched.write_text(head + start + derived)
    assert run_id in plain and derived == expected
    for name in ("variables.pkr.hcl", "source.pkr.hcl"):
        assert (TEMPLATE / packer.LAUNCHED / name).resolve() == TEMPLATE / name


@pytest.mark.parametrize("folder", [".", "current", packer.LAUNCHED])
def test_manifest_is_last(folder: str) -> None:
    for path in (TEMPLATE / folder / "build.pkr.hcl",):
        assert re.findall(r"^  (provisioner|post-processor) \"(\w+)\"", path.read_text(), re.MULTILINE) == [
            ("provisioner", "ansible"),
            ("post-processor", "manifest"),
        ]


def test_template_is_formatted() -> None:
    packer.format_check(TEMPLATE)


def test_template_is_valid(plan: Plan, tmp_path: Path) -> None:
    plan.write(tmp_path, PLACE)
    packer.validate(TEMPLATE, tmp_path, PLACE)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("flag", "Debian 12", "The flag must be"),
        ("plan_digest", "sha256:12", "The plan's digest must"),
        ("architecture", "i386", "must be x86_64 or arm64"),
        ("source_ami", "debian-12", "The source AMI must be"),
        ("custom_endpoint", NO_ENDPOINT, "The plan is for the local region"),
        ("region", "Frankfurt", "must be an AWS region's name"),
        ("root_volume_gib", 0, "The root volume must have"),
        ("secret_key", "x" * 40, "must not be in a var-file"),
        ("ssh_interface", "carrier_pigeon", "The ssh_interface must be"),
        ("run_id", "a b", "The run id must be"),
        ("expires", "tomorrow", "The expiry must be"),
        ("image_expires", "tomorrow", "The image's expiry must"),
        ("roles", ["kernel"], "The roles must end with hygiene"),
        ("layer", "Driver!", "The layer must be a name"),
        ("layer_digest", "sha256:12", "The layer's digest must"),
        ("spot_price", "cheap", "The Spot price must be"),
    ],
)
def test_wrong_values_are_refused(plan: Plan, tmp_path: Path, name: str, value: Any, said: str) -> None:
    plan.write(tmp_path, PLACE)
    path = tmp_path / PACKER_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(BuildError) as caught:
        packer.validate(TEMPLATE, tmp_path, PLACE)
    assert said in re.sub(r"\s+", " ", str(caught.value))


def test_spot_needs_a_current_packer(plan: Plan, tmp_path: Path) -> None:
    plan.write(tmp_path, PLACE)
    path = tmp_path / PACKER_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"spot_price": "auto"}))
    if packer.Packer.find().has_plugins:
        packer.validate(TEMPLATE, tmp_path, PLACE)
        return
    with pytest.raises(BuildError) as caught:
        packer.validate(TEMPLATE, tmp_path, PLACE)
    assert "spot_price needs Packer 1.7 or later" in re.sub(r"\s+", " ", str(caught.value))


def test_local_plan_without_a_region_never_reaches_aws(tmp_path: Path) -> None:
    """An empty endpoint would mean AWS: the var-file of a region that is down names one that the template refuses."""
    place = replace(PLACE, api=replace(PLACE.api, endpoint=None, guest_endpoint="http://169.254.169.251"))
    make_plan(RECIPE, place).write(tmp_path, place)
    assert json.loads((tmp_path / PACKER_FILE).read_text())["custom_endpoint"] == NO_ENDPOINT
    with pytest.raises(BuildError, match="gpu-ami region up"):
        packer.validate(TEMPLATE, tmp_path, place)
