"""Support of the operating systems: what a plan says, and the table of docs/recipes.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.local.images import rootfs_layers
from gpu_ami.recipes.facts.tables import load_facts
from gpu_ami.recipes.support import BEGIN, END, support_of, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"


@pytest.mark.parametrize(
    ("identity", "version", "said"),
    [
        ("amzn", "2023", "al2023 gets free updates until 2029-06-30 (https://docs.aws.amazon.com/"),
        ("amzn", "2", "al2 has had no free updates since 2026-06-30 (https://aws.amazon.com/amazon-linux-2/faqs/;"),
        ("amzn", "2", "may still be built: up to driver R550 and CUDA 12.4 of NVIDIA's rhel7 repository (x86_64)"),
        ("ubuntu", "20.04", "up to driver R575 and CUDA 12.9 of NVIDIA's ubuntu2004 repository (x86_64 and arm64)"),
        ("ubuntu", "18.04", "since 2023-05-31 (https://ubuntu.com/about/release-cycle;"),
        ("ubuntu", "18.04", ", not verified); may still be built: up to driver R535 and CUDA 12.1 of NVIDIA's"),
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
    base_images = {(system, "x86_64") for system in rootfs_layers.SYSTEMS}
    expected = f"{BEGIN}\n\n{table(load_facts(), base_images)}\n\n{END}"
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    assert rest, f"{PAGE} lacks the marker {BEGIN}"
    if update_golden:
        PAGE.write_text(f"{before}{expected}{rest.partition(END)[2]}", encoding="utf-8")
    assert expected in PAGE.read_text(encoding="utf-8")


def test_system_without_a_base_image_says_so() -> None:
    rows = table(load_facts(), {("debian12", "x86_64")}).splitlines()
    assert next(row for row in rows if row.startswith("| `debian12`")).count("x86_64") == 3
    assert "| no | no |" in next(row for row in rows if row.startswith("| `al2023`"))
