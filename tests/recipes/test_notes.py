"""What a plan says though it can be built."""

from __future__ import annotations

import pytest

from gpu_ami.recipes.facts.citations import Sources
from gpu_ami.recipes.notes import remark
from gpu_ami.recipes.rules.resolve_context import ResolveContext
from tests.recipes.conftest import context


def notes(of: ResolveContext, **versions: str) -> list[str]:
    sources = Sources()
    remark(of, versions, sources)
    return sources.notes


def test_nothing_is_noted_of_supported_and_tested_versions() -> None:
    noted = notes(context(types="g6.xlarge"), nvidia_driver="580.178.04", cuda="13.0")
    assert [note for note in noted if not note.startswith("CloudWatch agent ")] == []


@pytest.mark.parametrize("driver", ["580.65.06", "580.105.08", "595.91.07"])
def test_layout_that_the_agent_does_not_know_is_noted(driver: str) -> None:
    *_, note = notes(context("cloudwatch_agent: {version: 1.300071.0b1720}", types="g6.xlarge"), nvidia_driver=driver)
    assert note.startswith(f"CloudWatch agent 1.300071.0 does not know the layout v13 of nvidia-smi {driver}: ")
    assert "amazon-cloudwatch-agent/issues/2146" in note


def test_end_of_support_is_noted_of_system_and_driver() -> None:
    system, driver = notes(context(os="ubuntu2004", types="g6.xlarge"), nvidia_driver="550.163.01")
    assert system.startswith("ubuntu2004 reached its end of life on ")
    assert driver.startswith("driver 550.163.01: support of R550 ended in 2025-06 (")


@pytest.mark.parametrize(("flavour", "noted"), [("open", True), ("proprietary", False)])
def test_gsp_faults_are_noted_with_the_open_module(flavour: str, noted: bool) -> None:
    of = context(f"nvidia_driver: {{flavour: {flavour}}}", types="g5.xlarge")
    found = [note for note in notes(of, nvidia_driver="580.178.04") if note.startswith("GSP stays on")]
    assert [("faults were reported on g5.xlarge" in note) for note in found] == [True] * noted


def test_flavour_boot_says_when_the_module_is_chosen() -> None:
    of = context("nvidia_driver: {flavour: boot}", types="p3.2xlarge p5.48xlarge")
    assert any(
        note.startswith("both kernel modules are in the image") for note in notes(of, nvidia_driver="570.211.01")
    )


def test_unused_efa_interfaces_are_noted() -> None:
    of = context(types="p5.48xlarge")
    unused, layout = notes(of, nvidia_driver="580.178.04")
    assert unused == "p5.48xlarge have EFA interfaces; the plan installs no EFA"
    assert notes(of, nvidia_driver="580.178.04", efa="1.47.0") == [layout]


def test_plugin_that_was_not_tested_with_nccl_is_noted() -> None:
    of = context("efa: {version: 1.47.0}", types="p5.48xlarge")
    assert notes(of, efa="1.47.0", nccl="2.29.2") == []  # 1.47.0 brings 1.18.0, tested with NCCL 2.29.2
    (note,) = notes(of, efa="1.47.0", nccl="2.28.9")
    assert note.startswith("aws-ofi-nccl 1.18.0 was tested with 2.29.2, not with NCCL 2.28.9 (")
    (note,) = notes(of, efa="1.47.0", ofi_nccl="1.17.2", nccl="2.29.2")
    assert note.startswith("aws-ofi-nccl 1.17.2 was tested with 2.28.7, ")


def test_kernel_that_neuron_was_not_tested_with_is_noted() -> None:
    recipe = "telemetry: {profile: neuron}\nkernel: {version: '%s'}"
    untested = notes(context(recipe % "6.12", types="trn1.2xlarge"), neuron="2.26.1")
    tested = notes(context(recipe % "6.1", types="trn1.2xlarge"), neuron="2.26.1")
    assert untested[0] == "Neuron is tested with kernel 6.1 and 6.18 of al2023, not with 6.12"
    assert untested[1:] == tested == []
