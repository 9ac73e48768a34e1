"""Committed locks: current, golden, explained when they are not; source AMIs recorded, never guessed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gpu_ami.aws import Cloud
from gpu_ami.cli import main
from gpu_ami.errors import UsageError
from gpu_ami.lock import (
    LOCKS,
    changes,
    load_lock,
    lock_file,
    locked_plan,
    recorded_ami,
    render_lock,
    resolve_source_ami,
    write_lock,
)  # fmt: skip
from gpu_ami.place import Place
from gpu_ami.plan import canonical_json, make_plan

AWS = Place(name="moto", region="eu-central-1")
ROOT = Path(__file__).resolve().parents[1]
RECIPES = sorted((ROOT / "variables" / "recipes").glob("*.yml"))
RECIPE = ROOT / "variables" / "recipes" / "al2023-compute.yml"


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
    """Exact versions; every address with a key or a commit to verify it by; no 'newest' left."""
    plan = locked_plan(recipe.stem).document
    wishes = [value for path, value in leaves(plan) if path.endswith("version") and value in ("newest", "latest")]
    assert not wishes
    for path, section in mappings(plan):
        if any(key == "url" or key.endswith("_url") for key in section) and not path.startswith("sources"):
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


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    """A copy of one lock, to change."""
    folder = tmp_path / "locks"
    folder.mkdir()
    shutil.copy(lock_file(RECIPE.stem), folder)
    return folder


def relock(locks: Path, **plan: Any) -> None:
    """Writes the lock with another plan in it, sealed as if a plan had said so."""
    from gpu_ami.plan import sealed

    lock = load_lock(lock_file(RECIPE.stem, locks))
    document = sealed({**lock["plan"], **plan})
    write_lock(lock | {"plan": document, "plan_digest": document["digest"]}, locks)


def test_newer_release_makes_a_lock_stale_and_says_why(locks: Path) -> None:
    old = load_lock(lock_file(RECIPE.stem, locks))["plan"]["nvidia_driver"] | {"version": "580.159.03"}
    relock(locks, nvidia_driver=old)
    (change,) = changes(RECIPE, locks)
    assert str(change) == (
        "nvidia_driver.version: 580.159.03 → 580.178.04  "
        "(al2023-compute.yml asks for 580, and the facts have another answer now)"
    )


def test_change_of_the_recipe_is_named_as_the_reason(locks: Path) -> None:
    relock(locks, recipe={"file": "al2023-compute.yml", "sha256": "0" * 64}, flag="other")
    (change,) = changes(RECIPE, locks)
    assert str(change) == "flag: other → al2023-compute  (al2023-compute.yml changed)"


def test_change_of_a_layer_is_named_as_the_reason(locks: Path) -> None:
    relock(locks, build={"instance_type": "g5.12xlarge", "root_volume_gib": 61})
    (change,) = changes(RECIPE, locks)
    assert str(change) == "build.root_volume_gib: 61 → 60  (facts or os/al2023.yml changed)"


def test_change_inside_a_list_is_named_by_its_place(locks: Path) -> None:
    types = load_lock(lock_file(RECIPE.stem, locks))["plan"]["instance_types"]
    relock(locks, instance_types=[types[0] | {"vcpus": 95}, *types[1:]])
    (change,) = changes(RECIPE, locks)
    assert str(change).startswith("instance_types[0].vcpus: 95 → 96")
    relock(locks, instance_types=types[:1])
    (change,) = changes(RECIPE, locks)
    assert change.path == "instance_types"


def test_change_of_citations_alone_is_a_change_too(locks: Path) -> None:
    relock(locks, sources=[])
    (change,) = changes(RECIPE, locks)
    assert change.path == "sources"


def test_lock_changed_by_hand_is_refused(locks: Path) -> None:
    path = lock_file(RECIPE.stem, locks)
    path.write_text(path.read_text().replace("580.178.04", "580.178.05"))
    with pytest.raises(UsageError, match="changed by hand"):
        load_lock(path)


@pytest.mark.parametrize("text, message", [("{", "not a lock"), ("{}", "expected schema gpu-ami/lock/1")])
def test_what_is_no_lock_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        load_lock(tmp_path / "x.json")
    with pytest.raises(UsageError, match="no such lock"):
        load_lock(tmp_path / "y.json")


def test_command_checks_all_locks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--check"]) == 0
    assert f"{len(RECIPES)} of {len(RECIPES)} locks are current" in capsys.readouterr().out


def test_command_fails_on_a_stale_lock(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, locks: Path
) -> None:
    relock(locks, flag="other")
    monkeypatch.setattr("gpu_ami.lock.changes", lambda recipe: changes(recipe, locks))
    assert main(["plan", "--check", str(RECIPE)]) == 2
    said = capsys.readouterr().err
    assert "1 of 1 locks are stale: al2023-compute" in said
    assert "flag: other → al2023-compute" in said
    assert main(["plan", "--diff", str(RECIPE)]) == 0
    assert "flag: other → al2023-compute" in capsys.readouterr().out


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    from moto import mock_aws

    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # seconds for each fresh moto
    with mock_aws():
        yield Cloud(AWS)


def an_image(cloud: Cloud) -> str:
    """An AMI of our own."""
    return str(cloud.ec2.register_image(Name="al2023")["ImageId"])


def test_source_ami_is_the_newest_of_owner_and_name() -> None:
    dated = {"ami-1": "2025-01-01", "ami-2": "2026-01-01", "ami-3": "2025-06-01"}
    images = [{"ImageId": ami, "Name": f"debian-{ami}", "CreationDate": date} for ami, date in dated.items()]
    ec2 = Mock(describe_images=Mock(return_value={"Images": images}))
    cloud = Mock(ec2=ec2, place=AWS, image=lambda ami: next(one for one in images if one["ImageId"] == ami))
    plan = {"architecture": "x86_64", "source_ami": {"owner": "136693071363", "name": "debian-12-amd64-*"}}
    assert resolve_source_ami(cloud, plan) == {
        "id": "ami-2", "name": "debian-ami-2", "created": "2026-01-01", "through": "136693071363:debian-12-amd64-*",
    }  # fmt: skip
    asked = ec2.describe_images.call_args.kwargs
    assert asked["Owners"] == ["136693071363"]
    assert {one["Name"]: one["Values"] for one in asked["Filters"]} == {
        "name": ["debian-12-amd64-*"], "architecture": ["x86_64"], "state": ["available"],
    }  # fmt: skip


def test_source_ami_comes_from_the_public_parameter(cloud: Cloud) -> None:
    wanted = an_image(cloud)
    cloud.client("ssm").put_parameter(Name="/gpu-ami/test", Value=wanted, Type="String")
    found = resolve_source_ami(cloud, {"architecture": "x86_64", "source_ami": {"ssm": "/gpu-ami/test"}})
    assert (found["id"], found["through"]) == (wanted, "ssm:/gpu-ami/test")


@pytest.mark.parametrize(
    "source, message",
    [
        ({"owner": "self", "name": "nothing-*"}, "no AMI of self named nothing"),
        ({"id": "ami-0123456789abcdef0"}, "is not in eu-central-1"),
        ({"ssm": "/gpu-ami/none"}, "no SSM parameter /gpu-ami/none"),
    ],
)
def test_source_ami_that_is_not_there_is_an_error(source: dict[str, str], message: str, cloud: Cloud) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_source_ami(cloud, {"architecture": "x86_64", "source_ami": source})


def test_recorded_ami_is_used_in_its_region_alone(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = load_lock(lock_file(RECIPE.stem, locks))
    write_lock(lock | {"source_amis": {"eu-central-1": {"id": "ami-0123456789abcdef0"}}}, locks)
    assert recorded_ami(lock["plan"], "eu-central-1", locks) == "ami-0123456789abcdef0"
    assert recorded_ami(lock["plan"], "us-east-1", locks) is None
    moved = lock["plan"] | {"source_ami": {"owner": "self", "name": "mine"}}
    assert recorded_ami(moved, "eu-central-1", locks) is None
    monkeypatch.setattr("gpu_ami.lock.recorded_ami", lambda plan, region: recorded_ami(plan, region, locks))
    assert make_plan(RECIPE, Place("aws", "eu-central-1"))["source_ami"] == {"id": "ami-0123456789abcdef0"}
    assert "id" not in make_plan(RECIPE, Place("aws", "us-east-1"))["source_ami"]
    # An endpoint of one's own has AMIs of its own.
    elsewhere = Place("local", "eu-central-1", endpoint="http://127.0.0.1:1")
    assert "id" not in make_plan(RECIPE, elsewhere)["source_ami"]


def test_relocking_keeps_recorded_amis(locks: Path) -> None:
    lock = load_lock(lock_file(RECIPE.stem, locks))
    write_lock(lock | {"source_amis": {"eu-central-1": {"id": "ami-0123456789abcdef0"}}}, locks)
    assert render_lock(RECIPE, locks)["source_amis"] == {"eu-central-1": {"id": "ami-0123456789abcdef0"}}


def test_locks_hold_no_account_of_ours() -> None:
    """Owners are vendors: aliases, or the published accounts of Debian and Canonical."""
    vendors = {"amazon", "136693071363", "099720109477"}
    for path in LOCKS.glob("*.json"):
        assert load_lock(path)["plan"]["source_ami"]["owner"] in vendors, path.name
        assert "arn:aws" not in canonical_json(load_lock(path))
