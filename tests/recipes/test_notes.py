"""What a plan says though it can be built; support of the operating systems, here and in docs/recipes.md."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gpu_ami.recipes.facts.tables import Sources, load_facts
from gpu_ami.recipes.notes import BEGIN, END, remark, support_of, table
from gpu_ami.recipes.rules.resolve_context import ResolveContext
from localregion.architectures import ARCHITECTURES
from localregion.images import rootfs_layers
from tests.recipes.conftest import context


def notes(of: ResolveContext, **versions: str) -> list[str]:
    sources = Sources()
    remark(of, versions, sources)
    return [note for note in sources.notes if not note.startswith("Secure Boot: ")]


def test_a_plan_says_what_signs_the_module() -> None:
    sources = Sources()
    remark(context(types="g6.xlarge"), {"nvidia_driver": "580.178.04"}, sources)
    (note,) = [note for note in sources.notes if note.startswith("Secure Boot: ")]
    assert "DKMS builds the driver's module on the builder and signs it" in note


def test_nothing_is_noted_of_supported_and_tested_versions() -> None:
    noted = notes(context(types="g6.xlarge"), nvidia_driver="580.178.04", cuda="13.0")
    assert [note for note in noted if not note.startswith("CloudWatch agent ")] == []


@pytest.mark.parametrize("driver", ["580.65.06", "580.105.08", "595.91.07"])
def test_layout_that_the_agent_does_not_know_is_noted(driver: str) -> None:
    *_, note = notes(context("cloudwatch_agent: {version: 1.300071.0b1720}", types="g6.xlarge"), nvidia_driver=driver)
    assert note.startswith(f"CloudWatch agent 1.300071.0 does not know the layout v13 of nvidia-smi {driver}: ")
    assert "amazon-cloudwatch-agent/issues/2146" in note


def test_end_of_support_is_noted_of_system_and_driver() -> None:
    system, driver, bulletins = notes(context(os="ubuntu2004", types="g6.xlarge"), nvidia_driver="550.163.01")
    assert system.startswith("ubuntu2004 reached its end of life on ")
    assert driver.startswith("driver 550.163.01: support of R550 ended in 2025-06 (")
    assert bulletins.startswith("driver 550.163.01 lacks fixes of 4 security bulletins: ")


@pytest.mark.parametrize(("flavour", "noted"), [("open", True), ("proprietary", False)])
def test_gsp_faults_are_noted_with_the_open_module(flavour: str, noted: bool) -> None:
    of = context(f"nvidia_driver: {{flavour: {flavour}}}", types="g5.xlarge")
    found = [note for note in notes(of, nvidia_driver="580.178.04") if note.startswith("GSP stays on")]
    assert [("faults were reported on g5.xlarge" in note) for note in found] == [True] * noted


@pytest.mark.parametrize(
    ("node", "driver", "noted"), [("ecs", "580.178.04", 1), ("ecs", "", 0), ("eks", "580.178.04", 0)]
)
def test_services_of_ecs_s_own_gpu_ami_are_noted(node: str, driver: str, noted: int) -> None:
    of = context("node_version: '1.35'" if node == "eks" else "", types="g6.xlarge", node=node)
    found = notes(of, **({"nvidia_driver": driver} if driver else {}))
    assert sum("nvidia-mps" in note and "amazon-ecs-ami" in note for note in found) == noted


@pytest.mark.parametrize(
    ("flavour", "gdrcopy", "noted"), [("proprietary", "2.6", 1), ("open", "2.6", 0), ("proprietary", "2.5.2", 0)]
)
def test_a_module_that_is_not_known_to_work_is_noted(flavour: str, gdrcopy: str, noted: int) -> None:
    """2.5.2 does not load there, which is refused; no report of 2.6 was found."""
    of = context(f"{{kernel: {{version: '6.18'}}, nvidia_driver: {{flavour: {flavour}}}}}", types="p5.48xlarge")
    found = [note for note in notes(of, nvidia_driver="580.178.04", gdrcopy=gdrcopy) if "NVIDIA/gdrcopy#335" in note]
    assert [note.startswith("GDRCopy 2.6 on kernel 6.18: ") for note in found] == [True] * noted


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


# Systems and architectures of which images were booted, and built and judged, in the local region (docs/recipes.md).
BOOTED = {*itertools.product(rootfs_layers.SYSTEMS, ["x86_64"]), ("al2023", "arm64")}
REHEARSED = {*BOOTED, ("ubuntu2204", "arm64"), ("ubuntu2404", "arm64")}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"


@pytest.mark.parametrize(
    ("identity", "version", "said"),
    [
        ("amzn", "2023", "al2023 gets free updates until 2029-06-30 (https://docs.aws.amazon.com/"),
        ("amzn", "2", "al2 has had no free updates since 2026-06-30 (https://aws.amazon.com/amazon-linux-2/faqs/;"),
        ("amzn", "2", "may still be built: up to driver R550 and CUDA 12.4 of NVIDIA's rhel7 repository (x86_64)"),
        ("ubuntu", "20.04", "up to driver R575 and CUDA 12.9 of NVIDIA's ubuntu2004 repository (x86_64 and arm64)"),
        (
            "ubuntu",
            "18.04",
            "since 2023-05-31 (distro-info-data, ubuntu.csv (18.04: 2023-05-31); https://ubuntu.com/about/release-cycle;",
        ),
        ("ubuntu", "18.04", "(dropped after 12.1)); may still be built: up to driver R535 and CUDA 12.1 of NVIDIA's"),
    ],
)
def test_plan_says_until_when_a_system_is_supported(identity: str, version: str, said: str) -> None:
    assert said in support_of(load_facts(), identity, version)


def test_every_system_has_a_date_and_a_source() -> None:
    facts = load_facts()
    for row in facts.operating_systems.values():
        text = support_of(facts, row["id"], row["version"])
        assert str(row["end_of_life"]) in text and "http" in text


def test_page_has_the_support_of_each_system(update_golden: bool) -> None:
    """From facts and base images, so that neither a system nor an architecture is left out."""
    base_images = set(itertools.product(rootfs_layers.SYSTEMS, ARCHITECTURES))
    expected = f"{BEGIN}\n\n{table(load_facts(), base_images, REHEARSED, BOOTED)}\n\n{END}"
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    assert rest, f"{PAGE} lacks the marker {BEGIN}"
    if update_golden:
        PAGE.write_text(f"{before}{expected}{rest.partition(END)[2]}", encoding="utf-8")
    assert expected in PAGE.read_text(encoding="utf-8")


def test_system_without_a_base_image_says_so() -> None:
    bases = {("debian12", "x86_64"), ("debian12", "arm64"), ("ubuntu2404", "arm64")}
    files = {("debian12", "x86_64"), ("ubuntu2404", "arm64")}
    rows = table(load_facts(), bases, files, {("debian12", "x86_64")}).splitlines()
    debian = next(row for row in rows if row.startswith("| `debian12`"))
    assert (debian.count("x86_64"), "arm64: a base image, not rehearsed" in debian, "AWS" in debian) == (3, True, False)
    assert "| no | no |" in next(row for row in rows if row.startswith("| `al2023`"))
    assert "| arm64 | no |" in next(row for row in rows if row.startswith("| `ubuntu2404`"))
