"""`gpu-ami telemetry`: writes the templates of a plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_ami import cli
from tests.test_json import valid


def test_files_are_written_from_the_folder_of_a_plan(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", "debian12-gpu", "-o", str(tmp_path / "out"), "-q"]) == 0
    capsys.readouterr()
    assert cli.main(["telemetry", str(tmp_path / "out"), "-o", str(tmp_path / "t"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    valid(data, "telemetry")
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == sorted(Path(one).name for one in data["files"])
    assert "169.254" not in (tmp_path / "t" / "telemetry.yml").read_text()  # an address of the rehearsal


def test_plan_without_gpus_is_refused(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "al2023-neuron", "-o", str(tmp_path / "out"), "-q"]) == 0
    assert cli.main(["telemetry", str(tmp_path / "out"), "-o", str(tmp_path / "t")]) == 2
    assert "it measures no GPU" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()
