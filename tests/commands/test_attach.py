"""Commands attach, key and telemetry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_ami import cli
from gpu_ami.errors import UsageError
from gpu_ami.telemetry import templates
from tests.json_documents import valid

# `gpu-ami attach`: which roles, and what is said where nobody answers.


@pytest.mark.slow
def test_attach_takes_roles_of_the_plan_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Path(__file__).parents[2] / "variables" / "recipes" / "debian12-gpu.yml"
    assert cli.main(["plan", str(recipe), "-o", str(tmp_path), "-q"]) == 0
    attach = ["attach", str(tmp_path), "--host", "ssh://nobody@127.0.0.1:9", "-q"]
    for stranger in ("neuron", "hygiene"):  # not of this plan; of a builder alone
        assert cli.main([*attach, "--role", "nccl", "--role", stranger]) == 2
        assert f"--role {stranger}: the plan has kernel, " in capsys.readouterr().err
    assert cli.main([*attach, "--role", "nccl"]) == 4
    assert "127.0.0.1:9 refuses connections" in capsys.readouterr().err


# `gpu-ami key`: what it writes and prints.


def test_new_writes_both_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "release.key"
    assert cli.main(["key", "new", str(path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    valid(data, "key")
    assert (data["private"], data["public"]) == (str(path), f"{path}.pub")
    assert cli.main(["key", "public", str(path)]) == 0
    assert capsys.readouterr().out == (tmp_path / "release.key.pub").read_text()
    assert cli.main(["key", "public", str(path), "--json"]) == 0
    public = json.loads(capsys.readouterr().out)
    valid(public, "key")
    assert public["key_id"] == data["key_id"]


def test_an_existing_key_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["key", "new", str(tmp_path / "k")]) == 0
    before = (tmp_path / "k").read_bytes()
    assert cli.main(["key", "new", str(tmp_path / "k")]) == 2
    assert "keys are not overwritten" in capsys.readouterr().err
    assert (tmp_path / "k").read_bytes() == before


# `gpu-ami telemetry`: writes the templates of a plan.


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
