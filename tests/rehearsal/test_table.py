"""The table: a line for each recipe, and the reason of each that is no PASS."""

from __future__ import annotations

from gpu_ami.rehearsal import table
from gpu_ami.rehearsal.results import NO_BASE_IMAGE, Rehearsal

ROWS = [
    Rehearsal(
        "eks", "recipes/eks.yml", "x86_64", "PASS", 0, "al2023+eks-1.35", "ami-1", 61.26, "80 PASS",
        ("system (al2023+eks-1.35 on Debian 12)", "nvidia_driver"), unchanged=True,
    ),
    Rehearsal("gpu", "gpu.yml", "x86_64", "FAIL", 1, "debian12", "ami-2", 70.0, "1 FAIL", (), reason="efa: a|b\nc"),
    Rehearsal("arm", "recipes/arm.yml", "arm64", NO_BASE_IMAGE, 0, reason="no base image for amzn 2023 on arm64"),
]  # fmt: skip


def test_text_has_a_line_for_each_recipe_then_reasons_and_counts() -> None:
    lines = table.text(ROWS).splitlines()
    assert [line.split("  ")[0] for line in lines[:4]] == ["recipe", "eks", "gpu", "arm"]
    assert lines[1].split() == [
        "eks", "al2023+eks-1.35", "ami-1", "61", "PASS", "80", "PASS", "system", "(al2023+eks-1.35", "on", "Debian",
        "12),", "nvidia_driver",
    ]  # fmt: skip
    assert lines[3].split() == ["arm", "-", "-", "-", "NO", "BASE", "IMAGE", "-", "-"]
    assert lines[5:] == [
        "gpu: FAIL: efa: a|b c",
        "arm: NO BASE IMAGE: no base image for amzn 2023 on arm64",
        "",
        "3 recipes: 1 PASS, 1 FAIL, 1 NO BASE IMAGE; 1 judged by an earlier run, unchanged since"
        " (--fresh judges them again)",
    ]


def test_a_booted_machine_is_named() -> None:
    row = Rehearsal("gpu", "gpu.yml", "x86_64", "PASS", 0, checks="90 PASS", instance_type="g6.xlarge")
    assert "PASS on g6.xlarge" in table.text([row])


def test_a_long_reason_is_cut_in_text_alone() -> None:
    row = Rehearsal("gpu", "gpu.yml", "x86_64", "FAIL", 1, reason="x" * 300)
    assert "x" * 200 not in table.text([row]) and "…" in table.text([row])
    assert "x" * 300 in table.markdown([row])


def test_markdown_is_one_table() -> None:
    lines = table.markdown(ROWS).splitlines()
    assert lines[0] == "| recipe | base image | source AMI | seconds | verdict | checks | simulated | reason |"
    assert lines[3] == "| gpu | debian12 | ami-2 | 70 | FAIL | 1 FAIL | - | efa: a\\|b c |"
    assert len({line.replace("\\|", "").count("|") for line in lines[:5]}) == 1


def test_recipes_with_the_same_reason_share_a_line() -> None:
    rows = [Rehearsal(name, f"{name}.yml", "x86_64", "LEFT OUT", 0, reason="not in the sample") for name in ("a", "b")]
    assert table.text(rows).splitlines()[4:5] == ["a, b: LEFT OUT: not in the sample"]
