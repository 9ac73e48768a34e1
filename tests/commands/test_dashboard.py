"""`gpu-ami dashboard`: CloudWatch's JSON, and the page of what CloudWatch has."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import cli
from tests.json_documents import valid
from tests.telemetry import fleet, neuron_fleet
from tests.telemetry.test_stack import aws

__all__ = ["aws"]


@pytest.fixture
def plan(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aws.yml").write_text("region: us-east-1\n")
    assert cli.main(["plan", "al2023-any-gpu", "--where", "aws.yml", "-o", "out", "-q"]) == 0
    capsys.readouterr()
    return "out"


def test_json_is_written(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dashboard", plan, "--region", "eu-west-1", "--json"]) == 0
    valid(json.loads(capsys.readouterr().out), "dashboard")
    assert '"region": "eu-west-1"' in Path("dashboard.json").read_text()


def test_page_of_cloudwatch_is_written(aws: Any, plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.fill(aws, time.time())
    assert cli.main(["dashboard", plan, "--where", "aws.yml", "--page", "gpu.html", "--hours", "1", "--json"]) == 0
    valid(json.loads(capsys.readouterr().out), "dashboard")
    html = Path("gpu.html").read_text()
    assert fleet.BUSY in html and "Xid 48" in html and "3.36 USD" in html


def test_json_and_page_of_neuron_devices_are_written(
    aws: Any, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aws.yml").write_text("region: us-east-1\n")
    assert cli.main(["plan", "al2023-neuron", "--where", "aws.yml", "-o", "out", "-q"]) == 0
    assert cli.main(["dashboard", "out"]) == 0
    assert "neuroncore_utilization" in Path("dashboard.json").read_text()
    neuron_fleet.fill(aws, time.time())
    assert cli.main(["dashboard", "out", "--where", "aws.yml", "--page", "neuron.html", "--hours", "1"]) == 0
    html = Path("neuron.html").read_text()
    assert neuron_fleet.WORKS in html and "Neuron HBM_UNCORRECTABLE_ERROR" in html


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--page", "x.html"], "the local region is not up"),
        (["--page", "x.html", "-o", "y"], "not with --page"),
        (["--hours", "0"], "expected more than 0"),
    ],
)
def test_mistakes_are_named(plan: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dashboard", plan, *words]) == 2
    assert message in capsys.readouterr().err
