"""What a plan made now would change in its lock, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpu_ami.plan.diff import changes, compare
from gpu_ami.plan.document import digest_of
from gpu_ami.plan.lock import load_lock, lock_file, write_lock
from tests.plan.conftest import AL2023, DEBIAN


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
