"""`gpu-ami record`: a running host, a booted AMI, and what cannot be recorded."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import cli, pipeline
from gpu_ami.cloud import Place, login
from gpu_ami.commands import check_options
from gpu_ami.errors import MachineError, UsageError
from gpu_ami.validate import golden
from gpu_ami.validate.machines import launch, machine
from tests.validate.recorded import answering, write_plan
from validator.probes import hardware
from validator.probes.hardware import Board
from validator.transport import ssh


def run(*words: str) -> int:
    return cli.main(["record", "-q", *words])


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch) -> Any:
    return answering(monkeypatch)


def test_a_host_is_recorded_and_proves_nothing(
    reach: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    connection = reach()
    exit_code = run("--host", "ssh://admin@10.0.0.7", "--golden", str(tmp_path / "golden"), "--json")
    report = json.loads(capsys.readouterr().out)
    assert (exit_code, report["verdict"]) == (1, "UNPROVEN")
    assert connection.closed
    kept = hardware.find_golden("g5.12xlarge", tmp_path / "golden")
    assert kept is not None and not kept.hardware.simulated
    assert kept.hardware.gpus == (
        Board("0000:00:1b.0", "NVIDIA A10G", 23028),
        Board("0000:00:1c.0", "NVIDIA A10G", 23028),
    )
    assert kept.hardware.links == {"0-1": "PHB"}
    assert kept.recorded.keys() == {"when", "where", "by", "driver"}
    assert "10.0.0.7" not in (tmp_path / "golden/g5.12xlarge.json").read_text(), "no address belongs in the project"
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("golden", "home")] == []


def test_a_recording_goes_into_the_user_s_folder_and_is_found_there(
    reach: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went into site-packages where gpu-ami was installed from a wheel."""
    monkeypatch.chdir(tmp_path)
    reach()
    shipped = sorted(hardware.FOLDER.iterdir())
    assert run("--host", "ssh://admin@10.0.0.7") == 1
    assert [path.name for path in (tmp_path / "site/golden").iterdir()] == ["g5.12xlarge.json"]
    assert sorted(hardware.FOLDER.iterdir()) == shipped
    assert check_options.golden_folders() == ["--golden=site/golden", f"--golden={hardware.FOLDER}"]
    assert check_options.golden_folders(Path("x")) == ["--golden=x"]


def test_a_checkout_keeps_its_recordings_with_its_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert golden.new_folder(tmp_path / "variables" / "golden") == tmp_path / "variables" / "golden"
    assert golden.folders() == (hardware.FOLDER,) and check_options.golden_folders() == []


def test_an_ami_is_booted_recorded_and_ended(
    reach: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reach()
    write_plan(tmp_path)
    told: list[str] = []

    @contextlib.contextmanager
    def block(name: str, gives: Any) -> Iterator[Any]:
        told.append(name)
        yield gives
        told.append(f"{name} ended")

    class FakeRun:
        id = "r-1"

        def tags(self, **_: str) -> dict[str, str]:
            return {}

    class FakeBoot:
        def __init__(self, *_: Any) -> None:
            pass

        def follow(self, instance: str, kind: str) -> Any:
            told.append(f"boot {instance} {kind}")
            return argparse.Namespace(url="ssh://admin@10.0.0.7")

        def target(self, booted: Any) -> ssh.Target:
            return ssh.parse_url(booted.url)

    place = Place("local", "us-east-1", log_groups="production")
    cloud = argparse.Namespace(place=place, image={"ami-1": {"ImageId": "ami-1"}}.get)
    session = argparse.Namespace(cloud=cloud, run=FakeRun(), place=place)
    monkeypatch.setattr(pipeline, "open_session", lambda *_: block("place", session))
    monkeypatch.setattr(login, "temporary_key", lambda *_: block("key", "key"))
    monkeypatch.setattr(launch, "launched", lambda _cloud, one, _run: block(one.ami, "i-1"))
    monkeypatch.setattr(machine, "Boot", FakeBoot)
    assert run(str(tmp_path), "--ami", "ami-2") == 2
    assert told == ["place"] and "ami-2 is not in us-east-1" in capsys.readouterr().err
    told.clear()
    assert run(str(tmp_path), "--ami", "ami-1", "--golden", str(tmp_path / "golden")) == 1
    assert told == ["place", "key", "ami-1", "boot i-1 g5.12xlarge", "ami-1 ended", "key ended", "place ended"]
    kept = hardware.find_golden("g5.12xlarge", tmp_path / "golden")
    assert kept is not None and kept.recorded["where"] == "local, us-east-1"
    said = capsys.readouterr().out
    assert "g5.12xlarge: 2 GPUs, 0 NVSwitches, 0 EFA interfaces, real hardware → " in said
    assert "differs" not in said and "changed" not in said
    assert said.endswith("UNPROVEN: recorded, not judged; no certificate follows from a recording\n")


@pytest.mark.parametrize(
    ("answers", "words", "exit_code", "message"),
    [
        ({"nvidia-smi -q -x": ""}, [], MachineError.exit_code, "does not report its hardware: `nvidia-smi -q -x`"),
        ({"python3 -IS -c": ""}, [], 2, "the host's instance metadata does not have its instance type"),
        ({"python3 -IS -c": "{}"}, [], 2, "the host's instance metadata does not have its instance type"),
        ({}, ["--ami", "ami-1"], 2, "--host excludes --ami and --where"),
        ({}, ["--instance-type", "a", "--instance-type", "b"], 2, "--host is one machine, of one type"),
        ({}, ["-i", "/nonexistent"], 2, "/nonexistent: no such file"),
    ],
)
def test_what_cannot_be_recorded(
    reach: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    answers: dict[str, str],
    words: list[str],
    exit_code: int,
    message: str,
) -> None:
    reach(**answers)
    found = run("--host", "ssh://admin@10.0.0.7", "--golden", str(tmp_path / "golden"), *words)
    assert (found, message in capsys.readouterr().err) == (exit_code, True)
    assert not (tmp_path / "golden").exists()


def test_a_host_that_is_not_there(
    reach: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(target: ssh.Target) -> None:
        raise ssh.HostRefused("10.0.0.7:22 refused the connection")

    reach()
    monkeypatch.setattr(ssh, "connect", refuse)
    assert run("--host", "ssh://admin@10.0.0.7") == MachineError.exit_code
    assert "admin@10.0.0.7:22 cannot be reached: 10.0.0.7:22 refused the connection" in capsys.readouterr().err
    assert run("--host", "http://10.0.0.7") == UsageError.exit_code
