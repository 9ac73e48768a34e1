"""Committed locks: current, golden, pinned; source AMIs recorded; what a plan made now would change, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.files import write_json
from gpu_ami.plan.document import canonical_json, digest_of
from gpu_ami.plan.lock import (
    LOCKS,
    changes,
    compare,
    load_lock,
    lock_file,
    locks_folder,
    render_lock,
    resolved_recipe,
    write_lock,
)
from gpu_ami.recipes.facts.tables import Facts, load_facts
from tests.plan.conftest import AL2023, DEBIAN, RECIPES


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_committed_lock_is_what_a_plan_says_now(recipe: Path) -> None:
    """Golden: rendered anew, byte for byte. Where this fails on purpose: gpu-ami plan --lock, review, commit."""
    assert changes(recipe) == []
    rendered = json.dumps(render_lock(recipe), indent=2, ensure_ascii=False) + "\n"
    assert rendered == lock_file(recipe.stem).read_text(encoding="utf-8")


def test_every_lock_has_its_recipe() -> None:
    assert {path.stem for path in LOCKS.glob("*.json")} == {path.stem for path in RECIPES}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_lock_pins_everything(recipe: Path) -> None:
    """Exact versions; every address with a key or a commit to verify it by; no 'newest' left.

    AWS publishes neither for the GRID driver: the plan says so, and a recipe can have a digest of its own.
    """
    plan = load_lock(lock_file(recipe.stem))["plan"]
    wishes = [value for path, value in leaves(plan) if path.endswith("version") and value in ("newest", "latest")]
    assert not wishes
    for path, section in mappings(plan):
        if section.get("source") != "grid" and any(key == "url" or key.endswith("_url") for key in section):
            assert section.get("key_fingerprint") or section.get("commit"), f"{path} cannot be verified"
    assert {"owner", "name"} <= set(plan["source_ami"]) or "id" in plan["source_ami"]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from leaves(below, f"{path}.{key}".lstrip("."))
    elif not isinstance(value, list):
        yield path, value


def mappings(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        yield path, value
        for key, below in value.items():
            yield from mappings(below, f"{path}.{key}".lstrip("."))


def test_lock_holds_what_is_resolved_alone() -> None:
    """No citations, no remarks, no facts of instance types; plan.json has them."""
    lock = load_lock(lock_file(AL2023.stem))["plan"]
    document = resolved_recipe(AL2023)[1]
    assert set(document) - set(lock) == {"schema", "image", "sources", "notes"}
    assert lock["instance_types"] == [row["name"] for row in document["instance_types"]]
    assert "compute_capability" not in canonical_json(lock)


def dated(value: Any, date: str) -> Any:
    """Facts with every source read on another date."""
    if isinstance(value, list):
        return [dated(item, date) for item in value]
    if not isinstance(value, dict):
        return value
    there = {"date": date} if "source" in value and "date" in value else {}
    return {key: dated(item, date) for key, item in value.items()} | there


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_source_that_was_read_again_changes_no_lock(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = load_facts()
    reread = Facts({name: dated(table, "2099-01-01") for name, table in facts.tables.items()})
    assert reread.read_on == "2099-01-01"
    monkeypatch.setattr("gpu_ami.plan.lock.facts_of", lambda _recipe: reread)
    assert resolved_recipe(recipe)[1]["sources"][0]["date"] == "2099-01-01"
    assert render_lock(recipe) == load_lock(lock_file(recipe.stem))


def test_lock_changed_by_hand_is_refused(locks: Path) -> None:
    path = lock_file(AL2023.stem, locks)
    path.write_text(path.read_text().replace("580.178.04", "580.178.05"))
    with pytest.raises(UsageError, match="changed after it was written"):
        load_lock(path)


@pytest.mark.parametrize("text, message", [("{", "not JSON"), ("{}", "expected schema 'gpu-ami/lock/2', got None")])
def test_what_is_no_lock_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        load_lock(tmp_path / "x.json")
    with pytest.raises(UsageError, match="no such file"):
        load_lock(tmp_path / "y.json")


def test_relocking_keeps_recorded_amis(locks: Path) -> None:
    lock = load_lock(lock_file(AL2023.stem, locks))
    write_lock(lock | {"source_amis": {"eu-central-1": {"id": "ami-0123456789abcdef0"}}}, locks)
    assert render_lock(AL2023, locks)["source_amis"] == {"eu-central-1": {"id": "ami-0123456789abcdef0"}}


def test_locks_hold_no_account_of_ours() -> None:
    """Owners are vendors: aliases, or the published accounts of Debian and Canonical."""
    vendors = {"amazon", "136693071363", "099720109477"}
    for path in LOCKS.glob("*.json"):
        assert load_lock(path)["plan"]["source_ami"]["owner"] in vendors, path.name
        assert "arn:aws" not in canonical_json(load_lock(path))


def test_lock_of_the_former_schema_is_refused_and_its_amis_are_kept(locks: Path) -> None:
    path = lock_file(AL2023.stem, locks)
    recorded = {"eu-central-1": {"id": "ami-0123456789abcdef0"}}
    write_json(path, {"schema": "gpu-ami/lock/1", "image": AL2023.stem, "source_amis": recorded, "plan": {}})
    with pytest.raises(UsageError, match="expected schema 'gpu-ami/lock/2', got 'gpu-ami/lock/1'") as caught:
        load_lock(path)
    assert "gpu-ami plan --lock al2023-compute" in caught.value.hint
    assert render_lock(AL2023, locks)["source_amis"] == recorded


@pytest.mark.parametrize(
    ("recipe", "folder"),
    [
        ("recipes/mine.yml", "locks"),
        ("site/recipes/mine.yml", "site/locks"),
        ("images/mine.yml", "images/locks"),
        ("mine.yml", "locks"),
    ],
)
def test_locks_lie_beside_the_recipes(
    recipe: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a folder named recipes would be one of recipes
    assert locks_folder(Path(recipe)) == Path(folder)
    assert locks_folder(RECIPES[0]) == LOCKS


def relock(locks: Path, **plan: Any) -> None:
    """Writes the lock with another plan in it, sealed as if a plan had said so."""
    lock = load_lock(lock_file(AL2023.stem, locks))
    values = {**lock["plan"], **plan}
    write_lock(lock | {"plan": values, "digest": digest_of(values)}, locks)


def test_newer_release_makes_a_lock_stale_and_says_why(locks: Path) -> None:
    old = load_lock(lock_file(AL2023.stem, locks))["plan"]["nvidia_driver"] | {"version": "580.159.03"}
    relock(locks, nvidia_driver=old)
    (change,) = changes(AL2023, locks)
    assert str(change) == (
        "nvidia_driver.version: 580.159.03 → 580.178.04  "
        "(al2023-compute.yml asks for 580, which the facts now resolve differently)"
    )


def test_change_of_the_recipe_is_named_as_the_reason(locks: Path) -> None:
    relock(locks, recipe={"file": "al2023-compute.yml", "sha256": "0" * 64}, flag="other")
    (change,) = changes(AL2023, locks)
    assert str(change) == "flag: other → al2023-compute  (al2023-compute.yml changed)"


def test_change_of_a_layer_is_named_as_the_reason(locks: Path) -> None:
    relock(locks, build={"instance_type": "m6i.2xlarge", "root_volume_gib": 61})
    (change,) = changes(AL2023, locks)
    assert str(change) == "build.root_volume_gib: 61 → 60  (facts or os/al2023.yml changed)"


def test_instance_type_that_was_added_is_named(locks: Path) -> None:
    types = load_lock(lock_file(AL2023.stem, locks))["plan"]["instance_types"]
    relock(locks, instance_types=types[:1])
    assert [(change.path, change.locked, change.planned) for change in changes(AL2023, locks)] == [
        ("instance_types", None, name) for name in types[1:]
    ]


def test_change_inside_a_list_is_named_by_its_index(locks: Path) -> None:
    config = load_lock(lock_file(AL2023.stem, locks))["plan"]["cloudwatch_agent"]
    older = json.loads(json.dumps(config).replace("accel-event-json", "accel-json"))
    relock(locks, cloudwatch_agent=older)
    (change,) = changes(AL2023, locks)
    assert change.path == "cloudwatch_agent.config.logs.logs_collected.files.collect_list[1].log_group_name"


def test_change_of_the_recipes_text_alone_is_named(locks: Path) -> None:
    relock(locks, recipe={"file": "al2023-compute.yml", "sha256": "0" * 64})
    (change,) = changes(AL2023, locks)
    assert (change.path, change.why) == ("recipe", "the recipe's text changed; it resolves to the same values")


def test_set_is_part_of_the_plan_that_is_compared(locks: Path) -> None:
    (change,) = changes(AL2023, locks, ("build.root_volume_gib=77",))
    assert str(change) == "build.root_volume_gib: 60 → 77  (--set)"


def test_two_recipes_are_compared_with_each_other() -> None:
    assert compare(AL2023, AL2023) == []
    differing = {change.path: change for change in compare(AL2023, DEBIAN)}
    assert (differing["os.id"].locked, differing["os.id"].planned) == ("amzn", "debian")
    assert str(differing["flag"]) == "flag: al2023-compute → debian12-gpu  (debian12-gpu.yml)"
