"""Rules of the image as a whole and of its root volume, each with a recipe that it refuses and one that it accepts."""

from __future__ import annotations

import pytest

from gpu_ami.recipes.components import components
from gpu_ami.recipes.facts.tables import Facts, parts
from gpu_ami.recipes.rules import system as rules
from gpu_ami.recipes.rules.resolve_context import ResolveContext, Rule
from gpu_ami.recipes.rules.system import installed_gib, least_gib, volume_has_room
from tests.recipes.conftest import FACTS, context

DRIVER = "nvidia_driver: {version: '580'}"
LAST_R580 = max(FACTS.nvidia_drivers["branches"]["580"]["releases"], key=parts)
NEWEST = list(FACTS.driver_releases)[-1]
NEURON = "neuron: {version: 2.26.1}\ntelemetry: {profile: neuron}"


@pytest.mark.parametrize(
    ("rule", "refused", "accepted", "path", "says"),
    [
        (rules.types_are_built_for, context(types="g4ad.xlarge"), context(), "instance_types",
         "no image is built for g4ad.xlarge: AMD"),
        (rules.types_have_architecture, context("build: {instance_type: g5g.xlarge}"), context(), "build.instance_type",
         "g5g.xlarge is arm64, the image is x86_64"),
        (rules.node_has_os, context(os="debian12", node="eks"), context(node="eks"), "os",
         "eks has no base AMI with debian12"),
        (rules.node_has_version, context("node_version: '1.33'"), context(), "node_version",
         "node ec2 takes no node_version, got 1.33"),
        (rules.node_has_version, context("node_version: '1.20'", node="eks"),
         context("node_version: '1.33'", node="eks"), "node_version", "1.20 is unknown; node eks supports 1.31, "),
        (rules.kernel_is_there, context("kernel: {version: '5.10'}"), context("kernel: {version: '6.12'}"),
         "kernel.version", "al2023 has no kernel 5.10: it has 6.1, 6.12, 6.18"),
        (rules.kernel_is_there, context("kernel: {version: '6.12'}", node="ecs"),
         context("kernel: {version: '6.1'}", node="ecs"), "kernel.version", "its base AMI boots 6.1"),
        (rules.accelerators_have_drivers, context(), context(DRIVER), "nvidia_driver.version",
         "g5.xlarge: nvidia accelerators, and no driver version is given"),
        (rules.accelerators_have_drivers, context(DRIVER, types="trn1.2xlarge g5.xlarge"),
         context(NEURON, types="trn1.2xlarge"), "instance_types", "neuron and nvidia accelerators in one image"),
        (rules.telemetry_is_of_the_accelerator, context(types="trn1.2xlarge"), context(NEURON, types="trn1.2xlarge"),
         "telemetry.profile", "telemetry profile compute measures nvidia, the image is for neuron"),
        (rules.logs_are_apart, context("event_parser: {json_log: /var/log/gpuevent.log}"), context(),
         "event_parser.json_log", "raw_log and json_log are both /var/log/gpuevent.log"),
        (rules.logs_are_apart, context("telemetry: {raw_log_group: g, json_log_group: g}"), context(),
         "telemetry.json_log_group", "raw_log_group and json_log_group are both g"),
        (rules.event_parser_is_there, context("drain_hook: {enabled: true}\nroles: [drain_hook, event_parser]"),
         context("drain_hook: {enabled: true}\nroles: [event_parser, drain_hook]"), "roles",
         "drain_hook uses modules of event_parser, which is not before it"),
        (rules.event_parser_is_there, context(NEURON + "\nroles: [neuron_monitor]", types="trn1.2xlarge"),
         context("roles: [neuron_monitor, drain_hook]"), "roles", "neuron_monitor uses modules of event_parser"),
        (rules.namespace_is_not_reserved, context("telemetry: {namespace: AWS/EC2}"),
         context("telemetry: {namespace: AWSome}"), "telemetry.namespace", "namespace AWS/EC2: CloudWatch reserves"),
        (rules.log_groups_are_not_reserved, context("telemetry: {raw_log_group: aws/x}"),
         context("telemetry: {raw_log_group: /aws/x}"), "telemetry.raw_log_group", "raw_log_group is aws/x"),
    ],
)  # fmt: skip
def test_rule_refuses_one_recipe_and_accepts_the_other(
    rule: Rule, refused: ResolveContext, accepted: ResolveContext, path: str, says: str
) -> None:
    (conflict,) = rule(refused, {})
    assert conflict.path == path
    assert says in conflict.text
    assert list(rule(accepted, {})) == []


@pytest.mark.parametrize(
    ("types", "nearest"),
    [
        ("g5.xlarge", "nvidia_driver.version newest"),
        ("p3.2xlarge", 'nvidia_driver.version "580" with nvidia_driver.flavour proprietary'),
        ("p3.2xlarge p6-b200.48xlarge",
         'nvidia_driver.version "580" with nvidia_driver.flavour boot (both modules, chosen by PCI id)'),
        ("g3.4xlarge g7.2xlarge",
         f"build an image for each, as no driver supports all: g3.4xlarge with {LAST_R580}, g7.2xlarge with {NEWEST}"),
    ],
)  # fmt: skip
def test_advice_without_a_driver_is_not_refused_in_turn(types: str, nearest: str) -> None:
    (conflict,) = rules.accelerators_have_drivers(context(types=types), {})
    assert conflict.nearest == nearest


def test_system_without_an_ami_of_the_architecture_is_refused() -> None:
    systems = FACTS.operating_systems
    only_x86 = {**systems, "al2023": {**systems["al2023"], "architectures": ["x86_64"]}}
    arm = ResolveContext(
        context("architecture: arm64").values, Facts({**FACTS.tables, "operating_systems": only_x86}), components()
    )
    assert [conflict.text for conflict in rules.os_has_architecture(arm, {})] == ["al2023 has no AMI for arm64"]
    assert list(rules.os_has_architecture(context("architecture: arm64"), {})) == []


def test_system_without_python_for_ansible_is_refused() -> None:
    old = {**FACTS.operating_systems, "ubuntu1804": {**FACTS.operating_systems["ubuntu1804"], "python": ["3.6"]}}
    image = ResolveContext(
        {"os": "ubuntu1804", "ansible": {"core": "2.19"}},
        Facts({**FACTS.tables, "operating_systems": old}),
        components(),
    )
    found = [conflict.text for conflict in rules.ansible_finds_python(image, {})]
    assert found == ["ansible-core 2.19 needs Python 3.8 to 3.13; ubuntu1804 has 3.6"]
    assert rules.python_for(image) is None
    assert rules.python_for(context()) == "3.9"


def test_builder_of_the_other_architecture_names_one_that_fits() -> None:
    (conflict,) = rules.types_have_architecture(context("build: {instance_type: g5g.xlarge}", types="g6.xlarge"), {})
    assert conflict.nearest == "build.instance_type g6.xlarge"


def test_component_of_the_base_ami_is_not_replaced() -> None:
    base = context("node_version: 3.16.3", node="parallelcluster")
    (conflict,) = rules.base_keeps_its_own(base, {**base.provided, "nvidia_driver": "580.178.04"})
    assert conflict.text == "driver 580.178.04 on parallelcluster 3.16.3, whose base AMI has 595.112.07"
    assert list(rules.base_keeps_its_own(base, base.provided)) == []


CUDA = f"{DRIVER}\ncuda: {{version: '13.0'}}\ncudnn: {{version: '9'}}"


def test_volume_that_is_too_small_is_refused_with_numbers() -> None:
    (conflict,) = volume_has_room(context(f"{CUDA}\nbuild: {{root_volume_gib: 16}}"), {})
    assert conflict.path == "build.root_volume_gib" and conflict.nearest == "build.root_volume_gib 40"
    assert conflict.text == (
        "a root volume of 16 GiB is too small: expected at least 40"
        " (base AMI (ec2) 3, driver 2, CUDA 8, cuDNN 2, reserve 5 GiB)"
    )


@pytest.mark.parametrize(("text", "least"), [(DRIVER, 10), (CUDA, 40)])
def test_least_size_follows_from_what_is_installed(text: str, least: int) -> None:
    assert least_gib(context(text)) == least
    assert list(volume_has_room(context(f"{text}\nbuild: {{root_volume_gib: {least}}}"), {})) == []
    assert len(list(volume_has_room(context(f"{text}\nbuild: {{root_volume_gib: {least - 1}}}"), {}))) == 1


def test_component_without_a_version_takes_no_room() -> None:
    """Layers below the recipe set the driver's flavour also where there is no driver."""
    assert "driver" not in installed_gib(context()) and "driver" in installed_gib(context(DRIVER))


def test_larger_base_ami_needs_a_larger_volume() -> None:
    assert least_gib(context(CUDA, node="dlami")) > 60
