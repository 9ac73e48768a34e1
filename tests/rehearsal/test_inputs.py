"""The digest of a rehearsal's inputs changes with what decides its result, and with nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami.build import layers
from gpu_ami.cloud import Place
from gpu_ami.local.images import Base, rootfs_layers
from gpu_ami.plan import Plan, make_plan
from gpu_ami.rehearsal import inputs

PLACE = Place(name="local", region="us-east-1", simulated=True, sandbox_builder=True)
RECIPES = Path(__file__).parents[2] / "variables" / "recipes"


@pytest.fixture(autouse=True)
def _no_cache() -> Iterator[None]:
    yield
    inputs._local_region.cache_clear()
    inputs._suite.cache_clear()


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(RECIPES / "debian12-gpu.yml", PLACE)


def digest(plan: Plan, instance_type: str = "") -> str:
    inputs._local_region.cache_clear()
    inputs._suite.cache_clear()
    return inputs.digest(plan, Base("debian12"), PLACE, instance_type)


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
        "gpu_ami/local/replicas/nvidia_driver/packages.yml",
        "gpu_ami/local/sandbox/sandbox.py",
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
    assert layers.files_digest([tmp_path / "checks"])


def _changing(file: Path, read: object) -> object:
    def changed(self: Path) -> bytes:
        content: bytes = read(self)  # type: ignore[operator]
        return content + b"\n# changed" if self.resolve() == file.resolve() else content

    return changed
