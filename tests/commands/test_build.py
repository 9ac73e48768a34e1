"""`gpu-ami build`: which plan it takes, and what it says of the AMI."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami import cli, pipeline
from gpu_ami.build import image, layering
from gpu_ami.plan import PLAN_FILE, Plan
from gpu_ami.region import SessionRequest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def where(tmp_path: Path) -> Path:
    path = tmp_path / "aws.yml"
    path.write_text("region: eu-central-1\n")
    return path


def test_without_a_plan_it_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["build", "-q"]) == 2
    assert "gpu-ami plan RECIPE" in capsys.readouterr().err


def test_result_names_ami_region_and_file(
    tmp_path: Path, where: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = ROOT / "variables" / "recipes" / "debian12-gpu.yml"
    assert cli.main(["plan", str(recipe), "-o", str(tmp_path / "o"), "-q"]) == 0
    capsys.readouterr()
    made = image.Build("ami-1", ("snap-1",), "sha256:0", "sha256:1", "aws", "eu-central-1", "r", "2026-01-01T00:00:00Z")
    monkeypatch.setattr(pipeline.preflight, "examine", lambda cloud: [])  # no account to look at
    monkeypatch.setattr(
        pipeline, "build_stage", lambda *_, fresh, source_check, layered: made if fresh else pytest.fail("not --fresh")
    )
    command = ["build", str(tmp_path / "o"), "--where", str(where), "--fresh", "-q"]
    assert cli.main(command) == 0
    assert capsys.readouterr().out == f"ami-1 in eu-central-1 (aws) → {tmp_path}/o/build.json\n"
    assert cli.main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ami"] == "ami-1"


@pytest.mark.parametrize(
    ("built", "options", "copies"),
    [
        ("", [], True),
        ("other plan", [], True),
        ("other roles", [], True),
        ("other place", [], True),
        ("same", [], False),
        ("same", ["--fresh"], True),
        ("", ["--explain"], False),
    ],
)
def test_the_region_copies_the_last_source_only_for_a_build(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    built: str,
    options: list[str],
    copies: bool,
) -> None:
    out = tmp_path / "o"
    recipe = ROOT / "variables" / "recipes" / "debian12-gpu.yml"
    assert cli.main(["plan", str(recipe), "-o", str(out), "-q"]) == 0
    digest, roles = Plan.load(out / PLAN_FILE).digest, image.sources_digest(ROOT)
    made = image.Build("ami-1", (), digest, roles, "local", "us-east-1", "r", "2026-01-01T00:00:00Z")
    others = {"other plan": "plan_digest", "other roles": "sources", "other place": "place"}
    if built:
        (replace(made, **{others[built]: "other"}) if built in others else made).write(out)
    asked: list[object] = []

    @contextlib.contextmanager
    def open_session(request: SessionRequest, _progress: object) -> Iterator[None]:
        asked.append(request.layering)
        yield

    monkeypatch.setattr(pipeline, "open_session", open_session)
    monkeypatch.setattr(pipeline, "build_stage", lambda *_, **__: made)
    monkeypatch.setattr(pipeline, "explain_layers", lambda *_: [])
    assert cli.main(["build", str(out), "-q", *options]) == 0
    assert asked == [layering.FROM_NOTHING if copies else None]
