"""`gpu-ami telemetry`: writes the templates of a plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_ami import cli
from gpu_ami.errors import UsageError
from gpu_ami.telemetry import templates
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


def test_plan_of_neuron_devices_has_files_of_its_own(tmp_path: Path, home: Path) -> None:
    assert cli.main(["plan", "al2023-neuron", "-o", str(tmp_path / "out"), "-q"]) == 0
    assert cli.main(["telemetry", str(tmp_path / "out"), "-o", str(tmp_path / "t")]) == 0
    names = sorted(path.name for path in (tmp_path / "t").iterdir())
    assert names == ["dashboard.json", "neuron-alarms.yml", "neuron-instance-alarm.yml", "telemetry.yml"]


def test_plan_that_measures_nothing_is_refused(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "al2023-neuron", "-o", str(tmp_path / "out"), "-q"]) == 0
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    with pytest.raises(UsageError, match="it measures no GPU"):
        templates.render({key: value for key, value in plan.items() if key != "neuron_monitor"}, "us-east-1")  # type: ignore[arg-type]
