"""What a run of CI builds: one recipe of each system and node family, and what a change affects."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_ami.cloud import Place
from gpu_ami.plan import render_lock, write_lock
from localregion.images import Base
from localregion.rehearsal import candidates, selection
from localregion.rehearsal.candidates import Candidate
from localregion.rehearsal.selection import Sample

PLACE = Place(name="local", region="us-east-1", simulated=True, sandbox_builder=True)
RECIPES = Path(__file__).parents[3] / "variables" / "recipes"
SEEDS = [f"commit {number}" for number in range(200)]


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> list[Candidate]:
    return candidates.find(sorted(RECIPES.glob("*.yml")), tmp_path_factory.mktemp("out"), PLACE)


def families(found: list[Candidate]) -> Mapping[str, tuple[str, str]]:
    """Image → system and node family of those that may be drawn."""
    return {one.image: (one.base.system, one.base.family) for one in found if one.base and selection.is_native(one)}


def test_each_system_and_node_family_is_in_every_sample_once(every: list[Candidate]) -> None:
    of = families(every)
    for seed in SEEDS[:20]:
        sample = selection.draw(every, seed, boot=True)
        assert sorted(of[image] for image in sample.images) == sorted(set(of.values()))
        assert sample.booted in sample.images


def test_a_commit_always_draws_the_same(every: list[Candidate]) -> None:
    assert selection.draw(every, "abc", boot=True) == selection.draw(every[::-1], "abc", boot=True)
    assert selection.draw(every, "abc", boot=False).booted == ""


def test_commits_draw_every_quick_recipe_in_turn(every: list[Candidate]) -> None:
    samples = [selection.draw(every, seed, boot=True) for seed in SEEDS]
    drawn = {image for sample in samples for image in sample.images}
    slow = {one.image for one in every if selection.expected_seconds(one) > 90}
    assert drawn == set(families(every)) - slow
    assert {families(every)[sample.booted] for sample in samples} == set(families(every).values())


def test_a_real_driver_and_another_architecture_take_long(
    every: list[Candidate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    seconds = {one.image: selection.expected_seconds(one) for one in every}
    assert (seconds["debian12-gpu"], seconds["debian12-distribution"], seconds["al2023-arm64"]) == (90, 1800, 720)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    seconds = {one.image: selection.expected_seconds(one) for one in every}
    assert (seconds["debian12-gpu"], seconds["al2023-arm64"]) == (720, 90)


@pytest.mark.parametrize(("machine", "emulated"), [("x86_64", "arm64"), ("aarch64", "x86_64")])
def test_no_slice_has_an_emulated_architecture(
    every: list[Candidate], monkeypatch: pytest.MonkeyPatch, machine: str, emulated: str
) -> None:
    """Also where it is affected, or its family has no other recipe; the row says why."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    of = {one.image: one.row.architecture for one in every}
    for seed in SEEDS[:20]:
        assert emulated not in {of[image] for image in selection.draw(every, seed, boot=True).images}
    found = selection.order(every, Sample(frozenset()), [one.image for one in every], "abc", "the sample")
    reasons = {one.row.reason for one in found if one.row.result == "LEFT OUT" and one.base}
    assert reasons == {f"{emulated} is emulated here: not in the sample"}
    assert not {one.image for one in found if not one.is_settled and of[one.image] == emulated}


def order(every: list[Candidate], seed: str, sample: Sample, *changed: str) -> list[Candidate]:
    return selection.order(every, sample, changed, seed, "the sample")


def test_the_booted_one_comes_first_then_the_sample_then_what_is_affected(every: list[Candidate]) -> None:
    sample = Sample(frozenset({"debian12-gpu", "al2023-compute", "ecs-al2023-gpu"}), "ecs-al2023-gpu")
    found = order(every, "abc", sample, "debian12-hopper", "debian12-gpu", "al2023-neuron")
    begun = [(one.image, one.is_optional) for one in found if not one.is_settled]
    assert begun[:3] == [("ecs-al2023-gpu", False), ("al2023-compute", False), ("debian12-gpu", False)]
    assert sorted(begun[3:]) == [("al2023-neuron", True), ("debian12-hopper", True)]


def test_no_recipe_is_missing(every: list[Candidate]) -> None:
    found = order(every, "abc", Sample(frozenset({"debian12-gpu"})), "al2023-neuron")
    assert sorted(one.image for one in found) == sorted(one.image for one in every)
    left = {one.image: one.row for one in found if one.row.result == "LEFT OUT"}
    assert left["debian12-hopper"].reason == "not in the sample" and "al2023-neuron" not in left


def test_the_seed_decides_which_affected_recipe_is_first(every: list[Candidate]) -> None:
    images = [one.image for one in every if one.base and selection.is_native(one)]
    firsts = {order(every, seed, Sample(frozenset()), *images)[0].image for seed in SEEDS}
    assert firsts == set(images)


def test_lines_say_what_is_built_and_why() -> None:
    sample = Sample(frozenset({"b", "a"}), "b")
    assert list(selection.described(sample, {"c": ("changed: roles/x", "plan: …")})) == [
        "sample: a, b; booted: b", "affected: c: changed: roles/x; plan: …",
    ]  # fmt: skip
    assert list(selection.described(Sample(frozenset()), {})) == []


def git(folder: Path, *words: str) -> None:
    names = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", folder, *names, *words], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two recipes, their locks, and the local region's files."""
    root = tmp_path / "project"
    (root / "recipes").mkdir(parents=True)
    for image, system in (("on-debian", "debian12"), ("on-al2023", "al2023")):
        recipe = root / "recipes" / f"{image}.yml"
        recipe.write_text(f"flag: x\nos: {system}\ninstance_types: [g5.12xlarge]\nnvidia_driver: {{version: '580'}}\n")
        write_lock(render_lock(recipe, root / "locks"), root / "locks")
    for name in (
        "localregion/server.py",
        "localregion/replicas/efa/a",
        "localregion/replicas/debian_ami/a",
        "localregion/replicas/al2023_ami/a",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("before\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    monkeypatch.setattr(candidates, "_PROGRAM", root)
    monkeypatch.setattr(candidates, "_LOCAL_REGION", root / "localregion")
    return root


@pytest.mark.parametrize(
    ("changed", "affected"),
    [
        ("localregion/replicas/al2023_ami/a", {"on-al2023"}),
        ("localregion/replicas/debian_ami/a", {"on-al2023", "on-debian"}),  # every base image is made of it
        ("localregion/replicas/efa/a", {"on-al2023", "on-debian"}),
        ("localregion/server.py", {"on-al2023", "on-debian"}),
        ("README.md", set()),
    ],
)
def test_replicas_and_base_images_count(project: Path, changed: str, affected: set[str]) -> None:
    (project / changed).write_text("after\n")
    found = candidates.find(sorted((project / "recipes").glob("*.yml")), project / "out", PLACE)
    reasons = selection.changed_since(found, "HEAD")
    assert set(reasons) == affected
    assert set(reasons.values()) <= {(f"changed: {changed}",)}


def test_files_of_a_base_image_are_those_of_its_system_and_family() -> None:
    names = {path.name for path in candidates.region_files(Base("al2023", "eks", "1.35")) if path.name.endswith("_ami")}
    assert names == {"debian_ami", "al2023_ami", "eks_ami"}
