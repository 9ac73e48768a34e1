"""The stages from file to file: what is used again, what is said first, and what a session offers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami import pipeline
from gpu_ami.build import image
from gpu_ami.cloud import Place, preflight
from gpu_ami.cloud.findings import Finding, Level
from gpu_ami.errors import UsageError
from gpu_ami.plan import PLAN_FILE, Plan
from gpu_ami.progress import Progress

RECIPE = Path(__file__).parents[1] / "variables" / "recipes" / "debian12-gpu.yml"
AWS = Place(name="aws", region="eu-central-1")


def session(**changes: Any) -> pipeline.Session:
    return pipeline.Session(AWS, SimpleNamespace(place=AWS), SimpleNamespace(id="r-1"), Progress("quiet"), **changes)  # type: ignore[arg-type]


def test_plan_stage_writes_what_packer_and_ansible_read(tmp_path: Path) -> None:
    plan = pipeline.plan_stage(RECIPE, ["build.root_volume_gib=64"], tmp_path, session())
    assert plan["build"]["root_volume_gib"] == 64
    assert Plan.load(tmp_path / PLAN_FILE).digest == plan.digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ansible.json", "packer.pkrvars.json", "plan.json"]


def test_a_wrong_recipe_is_refused_before_anything_starts(tmp_path: Path) -> None:
    recipe = tmp_path / "x.yml"
    recipe.write_text("os: debian12\nnonsense: 1\n")
    with pytest.raises(UsageError, match="nonsense"):
        pipeline.check_recipe(recipe, [])


def test_build_stage_uses_an_ami_of_the_same_plan_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = pipeline.plan_stage(RECIPE, [], tmp_path, session())
    kept = image.Build("ami-1", (), plan.digest, "sha256:0", "aws", "eu-central-1", "r-0", "2026-01-01T00:00:00Z")
    monkeypatch.setattr(image, "reusable", lambda *_: kept)
    monkeypatch.setattr(image, "build_image", lambda *_: pytest.fail("built anew"))
    assert pipeline.build_stage(plan, tmp_path, session(), fresh=False) == kept


def test_fresh_builds_anew_after_mirror_and_source_ami_are_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = pipeline.plan_stage(RECIPE, [], tmp_path, session())
    made = image.Build("ami-2", (), plan.digest, "sha256:0", "aws", "eu-central-1", "r-1", "2026-01-01T00:00:00Z")
    order: list[str] = []
    monkeypatch.setattr(image, "reusable", lambda *_: pytest.fail("looked for one"))
    monkeypatch.setattr(image, "build_image", lambda *_: order.append("build") or made)
    prepared = session(
        prepare_mirror=lambda document: order.append("mirror"),
        publish_source_ami=lambda document: order.append("source AMI"),
    )
    assert pipeline.build_stage(plan, tmp_path, prepared, fresh=True) == made
    assert order == ["mirror", "source AMI", "build"]


def test_agent_package_is_for_the_local_region(tmp_path: Path) -> None:
    where = tmp_path / "aws.yml"
    where.write_text("region: eu-central-1\n")
    with (
        pytest.raises(UsageError, match="--agent-package"),
        pipeline.open_session(where, Progress("quiet"), tmp_path / "agent.deb"),
    ):
        pytest.fail("a session was opened")


def _findings(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    monkeypatch.setattr(preflight, "examine", lambda _cloud: list(findings))


def test_a_wrong_place_is_refused_before_a_run_begins(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "aws.yml"
    where.write_text("region: eu-central-1\n")
    _findings(monkeypatch, Finding(Level.ERROR, "subnet_id", "subnet-1 is not there", "a subnet", "correct subnet_id"))
    with (
        pytest.raises(UsageError, match="subnet-1 is not there; expected a subnet"),
        pipeline.open_session(where, Progress("quiet")),
    ):
        pytest.fail("a session was opened")
    assert not list(home.glob("runs/*"))


def test_a_place_with_an_endpoint_of_its_own_is_not_examined(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "own.yml"
    where.write_text("region: eu-central-1\nendpoint: http://127.0.0.1:9\n")
    _findings(monkeypatch, Finding(Level.ERROR, "subnet_id", "examined"))
    with pipeline.open_session(where, Progress("quiet")) as opened:
        assert opened.place.endpoint == "http://127.0.0.1:9"
