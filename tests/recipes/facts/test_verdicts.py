"""Recipes with versions that no table has, or in wrong combinations, on each kind of system and node: the verdict.

What is refused is refused by a document of the vendor (the rule's source); what no document speaks against is planned,
and its versions are unverified.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami.errors import UsageError
from gpu_ami.recipes.facts.tables import load_facts
from gpu_ami.recipes.layers import layered
from gpu_ami.recipes.resolver import resolve

FACTS = load_facts()
DRIVER = "nvidia_driver: {version: 630.11.02}"


def resolved(text: str) -> dict[str, Any]:
    document = {"flag": "x", **yaml.safe_load("{" + text + "}")}
    return dict(resolve(layered(Path("image.yml"), document, "0" * 64, FACTS), FACTS))


@pytest.mark.parametrize(
    ("recipe", "unverified"),
    [
        (f"os: debian12, instance_types: [g6.xlarge], {DRIVER}", ["nvidia_driver"]),
        (f"os: ubuntu2204, instance_types: [p4d.24xlarge], {DRIVER}, cuda: {{version: '13.9'}}",
         ["cuda", "nvidia_driver"]),
        (f"os: al2023, instance_types: [p5.48xlarge], {DRIVER}, efa: {{version: 1.55.0}}", ["efa", "nvidia_driver"]),
        (f"os: ubuntu2404, architecture: arm64, instance_types: [p6e-gb200.36xlarge], {DRIVER}", ["nvidia_driver"]),
        ("os: ubuntu2404, instance_types: [p6-b200.48xlarge], nvidia_driver: {version: 580.190.02}", ["nvidia_driver"]),
        (f"os: al2023, node: ecs, instance_types: [g6.xlarge], {DRIVER}", ["nvidia_driver"]),
        (f"os: al2023, node: eks, node_version: '1.38', instance_types: [p5.48xlarge], {DRIVER}",
         ["node_version", "nvidia_driver"]),
        ("os: ubuntu2404, node: parallelcluster, node_version: 3.17.0, instance_types: [p5.48xlarge]",
         ["node_version"]),
        ("os: al2023, node: dlami, node_version: '20270110', instance_types: [p5.48xlarge]", ["node_version"]),
        ("os: ubuntu2404, instance_types: [trn2.48xlarge], neuron: {version: 2.36.0}, telemetry: {profile: neuron}",
         ["neuron"]),
        ("os: ubuntu2404, kernel: {version: '7.2'}, instance_types: [g6.xlarge], nvidia_driver: {version: '595'}",
         ["kernel"]),
        ("os: ubuntu2404, instance_types: [g6.xlarge], nvidia_driver: {version: '595'}, dcgm: {version: 5.0.0}",
         ["dcgm"]),
        ("os: al2023, instance_types: [g6.xlarge], nvidia_driver: {version: '595.64'}", ["nvidia_driver"]),
        # On the kernel of Ubuntu's newest AMIs these do not build: an older series is planned.
        ("os: ubuntu2404, instance_types: [g6.xlarge], nvidia_driver: {version: 570.211.01}", []),
        ("os: ubuntu2204, instance_types: [p3.2xlarge], nvidia_driver: {version: '580', flavour: proprietary}", []),
    ],
)  # fmt: skip
def test_what_nothing_speaks_against_is_planned(recipe: str, unverified: list[str]) -> None:
    assert sorted(resolved(recipe).get("unverified", {})) == unverified


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        (f"os: ubuntu2404, instance_types: [p3.2xlarge], {DRIVER}", "no longer supports Tesla V100"),
        ("os: ubuntu2204, instance_types: [p3.2xlarge], nvidia_driver: {version: '580', flavour: open}",
         "Volta is proprietary only"),
        (f"os: ubuntu2204, instance_types: [g3.4xlarge], {DRIVER}", "no longer supports Tesla M60"),
        ("os: ubuntu2404, instance_types: [p6-b200.48xlarge], "
         "nvidia_driver: {version: 630.11.02, flavour: proprietary}",
         "Blackwell is open only"),
        ("os: ubuntu2404, instance_types: [g7.2xlarge], nvidia_driver: {version: 580.190.02}", "needs ≥ 595"),
        ("os: ubuntu2404, instance_types: [p6-b300.48xlarge], nvidia_driver: {version: 575.64.05}", "needs ≥ 580"),
        (f"os: al2, instance_types: [g5.xlarge], {DRIVER}", "it holds from 470 to 550"),
        (f"os: ubuntu2004, instance_types: [g5.xlarge], {DRIVER}", "it holds from 470 to 575"),
        ("os: al2023, instance_types: [g5.xlarge], nvidia_driver: {version: 550.163.01}", "it holds from 560 on"),
        ("os: ubuntu2204, instance_types: [g5.xlarge], nvidia_driver: {version: '535'}, cuda: {version: '14.0'}",
         "cannot run CUDA 14.0"),
        ("os: ubuntu2404, instance_types: [g6.xlarge], nvidia_driver: {version: '570'}, cuda: {version: '13.6'}",
         "cannot run CUDA 13.6: needs ≥ 580.65.06"),
        ("os: ubuntu2204, instance_types: [p3.2xlarge], nvidia_driver: {version: '580', flavour: proprietary}, "
         "cuda: {version: '13.9'}", "CUDA 12 is the last for Volta"),
        ("os: ubuntu2404, instance_types: [p5.48xlarge], nvidia_driver: {version: 580.190.02}, efa: {version: 1.41.0}",
         "from EFA 1.43.3"),
        ("os: ubuntu2404, architecture: arm64, instance_types: [p6e-gb200.36xlarge], "
         "nvidia_driver: {version: 595.140.01}, efa: {version: 1.51.0}", "topology not supported"),
        ("os: ubuntu2404, architecture: arm64, instance_types: [p5.48xlarge], nvidia_driver: {version: '595'}",
         "p5.48xlarge is x86_64"),
        ("os: debian12, architecture: arm64, instance_types: [g5g.xlarge], nvidia_driver: {version: '580'}",
         "debian12"),
        ("os: ubuntu2204, node: eks, node_version: '1.35', instance_types: [g6.xlarge], "
         "nvidia_driver: {version: '580'}",
         "no base AMI with ubuntu2204"),
        ("os: al2023, node: eks, node_version: '1.30', instance_types: [g6.xlarge], nvidia_driver: {version: '580'}",
         "extended support ended"),
        ("os: al2023, instance_types: [inf1.2xlarge], neuron: {version: 2.36.0}, telemetry: {profile: neuron}",
         "does not support Inferentia"),
        ("os: ubuntu2204, instance_types: [g5.xlarge], nvidia_driver: {version: '535'}, cuda: {version: '11.8'}, "
         "nccl: {version: 2.35.1}", "NCCL 2.35.1 is not built for CUDA 11.8"),
        ("os: ubuntu2404, instance_types: [g4ad.xlarge], nvidia_driver: {version: '580'}", "g4ad"),
        ("os: ubuntu2404, instance_types: [p5.48xlarge], nvidia_driver: {version: 6300.11.02}", "no driver 6300.11.02"),
    ],
)  # fmt: skip
def test_what_a_vendor_excludes_is_refused(recipe: str, text: str) -> None:
    with pytest.raises(UsageError) as refused:
        resolved(recipe)
    assert text in "\n".join([refused.value.message, *refused.value.details])
