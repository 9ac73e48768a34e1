"""The recipes of a run: what is to be rehearsed, what is known already, and why; the digest of a rehearsal's inputs."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.build import layering
from gpu_ami.cloud import MachineTraits, Place
from gpu_ami.plan import Plan, make_plan
from localregion.images import Base, rootfs_layers, source_ami
from localregion.rehearsal import candidates
from localregion.rehearsal.candidates import Candidate

PLACE = Place(name="local", region="us-east-1", machines=MachineTraits(simulated=True, sandbox_builder=True))
RECIPES = Path(__file__).parents[3] / "variables" / "recipes"


def find(out: Path, *recipes: Path, boot: bool = False, fresh: bool = False) -> list[Candidate]:
    found = candidates.find(recipes, out, PLACE)
    return [candidates.prepare(candidate, PLACE, boot=boot, fresh=fresh) for candidate in found]


def test_a_recipe_with_a_base_image_is_to_be_rehearsed(tmp_path: Path) -> None:
    (found,) = find(tmp_path, RECIPES / "debian12-gpu.yml")
    assert not found.is_settled and found.plan and found.out == tmp_path / "debian12-gpu"
    assert (found.row.base_image, found.row.architecture, found.row.instance_type) == ("debian12", "x86_64", "")


def test_a_recipe_without_a_base_image_is_a_row_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never missing: whoever reads the table sees that nobody tried it."""
    monkeypatch.setattr(source_ami, "BASE_SYSTEMS", {})
    (found,) = find(tmp_path, RECIPES / "debian12-gpu.yml")
    assert (found.row.result, found.row.exit_code, found.is_settled) == ("NO BASE IMAGE", 0, True)
    assert "no base image for debian 12 on x86_64" in found.row.reason


def test_a_recipe_with_a_mistake_is_a_row(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text("os: debian12\ninstance_types: [no.such]\n")
    first, second = find(tmp_path / "out", broken, RECIPES / "debian12-gpu.yml")
    assert (first.row.result, first.row.exit_code, first.is_settled) == ("ERROR", 2, True)
    assert "broken.yml" in first.row.reason
    assert not second.is_settled


def test_the_smallest_machine_is_booted(tmp_path: Path) -> None:
    found = find(tmp_path, RECIPES / "debian12-gpu.yml", RECIPES / "ubuntu2404-graphics.yml", boot=True)
    assert [one.row.instance_type for one in found] == ["g5.12xlarge", "gr6.4xlarge"]


def judged(tmp_path: Path, **changes: Any) -> Candidate:
    (first,) = find(tmp_path, RECIPES / "debian12-gpu.yml")
    first.out.mkdir()
    row = replace(first.row, **{"result": "PASS", "checks": "3 PASS", "seconds": 60.0, **changes})
    row.write(first.out)
    (second,) = find(tmp_path, RECIPES / "debian12-gpu.yml")
    return second


def test_what_was_judged_of_the_same_inputs_is_not_rehearsed_again(tmp_path: Path) -> None:
    found = judged(tmp_path)
    assert found.is_settled and found.row.unchanged
    assert (found.row.result, found.row.seconds) == ("PASS", 60.0)
    assert not find(tmp_path, RECIPES / "debian12-gpu.yml", fresh=True)[0].is_settled
    assert not find(tmp_path, RECIPES / "debian12-gpu.yml", boot=True)[0].is_settled


def test_a_red_result_counts_until_its_inputs_change(tmp_path: Path) -> None:
    found = judged(tmp_path, result="FAIL", exit_code=1)
    assert found.is_settled and (found.row.result, found.row.exit_code) == ("FAIL", 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"result": "NOT BUILT", "exit_code": 3, "checks": ""},
        {"result": "ERROR", "exit_code": 4, "checks": ""},
        {"result": "UNPROVEN", "exit_code": 4},
        {"inputs": "sha256:another"},
    ],
)
def test_what_was_not_judged_is_rehearsed_again(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert not judged(tmp_path, **changes).is_settled


def test_what_is_left_out_says_why(tmp_path: Path) -> None:
    (found,) = find(tmp_path, RECIPES / "debian12-gpu.yml")
    left = found.left_out("not in the sample")
    assert (left.row.result, left.row.exit_code, left.row.reason) == ("LEFT OUT", 0, "not in the sample")
    assert left.is_settled


@pytest.fixture(autouse=True)
def _no_cache() -> Iterator[None]:
    yield
    candidates.local_region.cache_clear()
    candidates.suite.cache_clear()


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(RECIPES / "debian12-gpu.yml", PLACE)


def digest(plan: Plan, instance_type: str = "") -> str:
    candidates.local_region.cache_clear()
    candidates.suite.cache_clear()
    return candidates.inputs_digest(plan, Base("debian12"), PLACE, instance_type)


def test_same_inputs_have_the_same_digest(plan: Plan) -> None:
    assert digest(plan) == digest(make_plan(RECIPES / "debian12-gpu.yml", PLACE))
    assert digest(plan).startswith("sha256:")


def test_plan_and_booted_machine_count(plan: Plan) -> None:
    other = replace(plan, document={**plan.document, "digest": "sha256:2"})
    assert len({digest(plan), digest(other), digest(plan, "g5.12xlarge"), digest(plan, "p4d.24xlarge")}) == 4


@pytest.mark.parametrize(
    "changed",
    [
        "roles/nvidia_driver/tasks/main.yml",
        "roles/hygiene/tasks/main.yml",
        "packer/build.pkr.hcl",
        "playbooks/image.yml",
        "localregion/replicas/nvidia_driver/packages.yml",
        "localregion/sandbox/sandbox.py",
        "gpu_ami/build/packer.py",
        "gpu_ami/validate/proof.py",
        "validator/checks/inventory.py",
    ],
)
def test_a_changed_file_counts(plan: Plan, changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file, before = RECIPES.parents[1] / changed, digest(plan)
    assert file.is_file()
    monkeypatch.setattr(Path, "read_bytes", _changing(file, Path.read_bytes))
    assert digest(plan) != before


@pytest.mark.parametrize("changed", ["roles/neuron/tasks/main.yml", "gpu_ami/cli.py", "docs/recipes.md"])
def test_a_file_that_the_recipe_does_not_use_does_not_count(
    plan: Plan, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, before = RECIPES.parents[1] / changed, digest(plan)
    assert file.is_file()
    monkeypatch.setattr(Path, "read_bytes", _changing(file, Path.read_bytes))
    assert digest(plan) == before


def test_the_base_image_counts(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(plan)
    monkeypatch.setattr(rootfs_layers, "digest", lambda _base: "another")
    assert digest(plan) != before


def test_checks_of_the_site_count(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "checks").mkdir()
    with_site = replace(plan, site=tmp_path)
    before = digest(with_site)
    (tmp_path / "checks" / "test_ours.py").write_text("def test_it(): ...\n")
    assert digest(with_site) != before
    assert layering.files_digest([tmp_path / "checks"])


def _changing(file: Path, read: object) -> object:
    def changed(self: Path) -> bytes:
        content: bytes = read(self)  # type: ignore[operator]
        return content + b"\n# changed" if self.resolve() == file.resolve() else content

    return changed


SEEDS = [f"commit {number}" for number in range(200)]


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> list[Candidate]:
    return candidates.find(sorted(RECIPES.glob("*.yml")), tmp_path_factory.mktemp("out"), PLACE)


def families(found: list[Candidate]) -> Mapping[str, tuple[str, str]]:
    """Image → system and node family of those that may be drawn: no compiled driver, no emulated architecture."""
    return {
        one.image: (one.base.system, one.base.family)
        for one in found
        if one.base and one.row.architecture == "x86_64" and not one.image.endswith("-distribution")
    }


@pytest.fixture
def on_x86_64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def test_each_system_and_node_family_is_in_every_sample_once(every: list[Candidate], on_x86_64: None) -> None:
    of = families(every)
    for seed in SEEDS[:20]:
        assert sorted(of[image] for image in candidates.draw(every, seed)) == sorted(set(of.values()))


def test_a_commit_always_draws_the_same(every: list[Candidate]) -> None:
    assert candidates.draw(every, "abc") == candidates.draw(every[::-1], "abc")
    assert candidates.draw([], "abc") == []


def test_commits_draw_every_quick_recipe_in_turn(every: list[Candidate], on_x86_64: None) -> None:
    samples = [candidates.draw(every, seed) for seed in SEEDS]
    assert {image for sample in samples for image in sample} == set(families(every))
    assert {families(every)[sample[0]] for sample in samples} == set(families(every).values())


@pytest.mark.parametrize(("machine", "emulated"), [("x86_64", "arm64"), ("aarch64", "x86_64")])
def test_no_sample_has_an_emulated_architecture(
    every: list[Candidate], monkeypatch: pytest.MonkeyPatch, machine: str, emulated: str
) -> None:
    """Also where its family has no other recipe."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    of = {one.image: one.row.architecture for one in every}
    for seed in SEEDS[:20]:
        assert emulated not in {of[image] for image in candidates.draw(every, seed)}
