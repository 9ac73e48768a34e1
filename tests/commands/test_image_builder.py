"""`gpu-ami image-builder`: the component's document, and its bash on this machine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from gpu_ami import cli
from gpu_ami.commands import image_builder
from onhost.observation import SCHEMA


def test_component_collects_uploads_and_removes(tmp_path: Path) -> None:
    out = tmp_path / "component.yml"
    assert cli.main(["image-builder", "-o", str(out), "--s3", "s3://bucket/observations/"]) == 0
    document = yaml.safe_load(out.read_text())
    assert document["schemaVersion"] == 1.0
    (phase,) = document["phases"]
    assert phase["name"] == "test"
    assert [(step["name"], step["action"]) for step in phase["steps"]] == [
        ("Observe", "ExecuteBash"), ("Upload", "S3Upload"), ("Remove", "ExecuteBash"),
    ]  # fmt: skip
    assert phase["steps"][1]["inputs"][0]["destination"] == "s3://bucket/observations/observation.json"


def test_another_address_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["image-builder", "--s3", "https://bucket"]) == 2
    assert "expected s3://BUCKET/PREFIX" in capsys.readouterr().err


@pytest.mark.slow
def test_bash_leaves_an_observation_that_observe_reads(tmp_path: Path) -> None:
    script = image_builder.script().replace("/tmp/gpu-ami-observation", str(tmp_path / "folder"))
    script = script.replace("cloud-init status --wait", "true")
    subprocess.run(["bash", "-c", script], check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    (kept,) = (tmp_path / "folder").iterdir()
    assert json.loads(kept.read_text())["schema"] == SCHEMA
    assert cli.main(["observe", "--read", str(kept), "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "plan.json").is_file()
