"""Recipes move to versions that go together; none becomes older; the text keeps its form."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.plan import bump
from gpu_ami.recipes import facts_of, load_facts, read_recipe, resolve
from gpu_ami.recipes.facts.tables import branch, parts

RECIPE = """\
# A comment that stays.
flag: test
os: ubuntu2204
instance_types: [p4d.24xlarge]
nvidia_driver: {version: 580.95.05}    # the driver
cuda:
  version: "12.9"
cudnn: {version: 9.20.0}
nccl: {version: "2.28"}
efa: {version: 1.47.0}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "test.yml"
    file.write_text(RECIPE)
    return file


@pytest.mark.parametrize("policy", bump.POLICIES)
def test_result_resolves_and_nothing_becomes_older(recipe: Path, policy: str) -> None:
    proposed = bump.propose(recipe, policy)
    assert [move.component for move in proposed.moves] == ["nvidia_driver", "cuda", "efa", "nccl", "cudnn"]
    assert all(parts(move.after) >= parts(move.before) for move in proposed.moves)
    recipe.write_text(proposed.text)
    facts = facts_of(recipe)
    document = resolve(read_recipe(recipe, facts), facts)
    chosen = {move.component: move.after for move in proposed.moves}
    assert {name: document[name]["version"] for name in chosen} == chosen  # type: ignore[literal-required]


@pytest.mark.parametrize(("policy", "kind"), [("production", "PB"), ("lts", "LTSB")])
def test_driver_is_of_the_policys_branches(recipe: Path, policy: str, kind: str) -> None:
    driver = bump.propose(recipe, policy).moves[0]
    assert load_facts().driver_releases[driver.after]["kind"] == kind
    assert f"({kind}), supported until" in driver.why


def test_patch_stays_in_each_branch(recipe: Path) -> None:
    proposed = bump.propose(recipe, "patch")
    moves = {move.component: move for move in proposed.moves}
    assert moves["nvidia_driver"].after == load_facts().nvidia_drivers["branches"]["580"]["releases"][-1]
    assert moves["cuda"].after == "12.9" and moves["cuda"].why == "the newest that the policy allows"
    assert all(branch(move.after) == branch(move.before) for move in proposed.moves)


def test_text_keeps_comments_quotes_and_branches(recipe: Path) -> None:
    proposed = bump.propose(recipe, "lts")
    driver = proposed.moves[0].after
    assert f"nvidia_driver: {{version: {driver}}}    # the driver\n" in proposed.text
    assert proposed.text.startswith("# A comment that stays.\n")
    nccl = next(move for move in proposed.moves if move.component == "nccl").after
    assert f'nccl: {{version: "{".".join(nccl.split(".")[:2])}"}}\n' in proposed.text


def test_component_that_stays_says_what_it_conflicts_with(tmp_path: Path) -> None:
    file = tmp_path / "volta.yml"
    text = RECIPE.replace("p4d.24xlarge", "p3.2xlarge").replace(
        "version: 580.95.05", "version: 570.148.08, flavour: proprietary"
    )
    text = text.replace("cudnn: {version: 9.20.0}", "cudnn: {version: 9.10.2}")
    file.write_text(text.replace('"12.9"', '"12.8"').replace("efa: {version: 1.47.0}\n", ""))
    proposed = bump.propose(file, "newest")
    driver = proposed.moves[0]
    assert branch(driver.after) == "580"  # the last branch with V100
    cudnn = next(move for move in proposed.moves if move.component == "cudnn")
    assert cudnn.after == "9.10.2" and "9.10 is the last for Volta" in cudnn.why
    assert all(parts(move.after) >= parts(move.before) for move in proposed.moves)


def test_recipe_that_does_not_resolve_is_refused(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("580.95.05", "580.1.1"))
    with pytest.raises(UsageError, match=r"test.yml"):
        bump.propose(recipe)


def test_version_at_two_places_is_refused(recipe: Path) -> None:
    move = bump.Move("efa", "1.47.0", "1.50.0", "")
    with pytest.raises(UsageError, match=r"efa.version: expected one place in the recipe's text, got 0"):
        bump.with_version("efa: &x {mode: full}\n", move, "1.47.0")


def test_summary_is_markdown(recipe: Path) -> None:
    text = bump.markdown([bump.propose(recipe, "lts")])
    assert text.startswith("## test\nPolicy `lts`.\n\n| component | now | proposed | source |\n|---|---|---|---|\n")
    assert "| nvidia_driver | 580.95.05 | " in text
    recipe.write_text(bump.propose(recipe, "lts").text)
    assert "Nothing to change by policy `lts`." in bump.markdown([bump.propose(recipe, "lts")])
