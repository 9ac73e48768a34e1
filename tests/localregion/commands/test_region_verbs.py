"""`gpu-ami region`: what it prints, and which ssh it runs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud import runs
from gpu_ami.errors import UsageError
from gpu_ami.progress import Progress
from gpu_ami.region import provider
from localregion import region
from localregion.commands import json_types
from localregion.commands import region_verbs as command

UP: dict[str, Any] = {
    "up": True,
    "persistent": True,
    "home": "/h",
    "endpoint": "http://127.0.0.1:1",
    "region": "us-east-1",
    "subnet_id": "subnet-1",
    "ssh_port": 2222,
    "acceleration": "emulation",
    "instances": [
        {"id": "i-1", "state": "running", "type": "g5.12xlarge", "image": "ami-1", "address": "127.20.0.4", "tags": {}},
        {"id": "i-2", "state": "stopped", "type": "g5.12xlarge", "image": "ami-1", "address": "127.20.0.5", "tags": {}},
    ],
    "images": [{"id": "ami-1", "name": "made", "created": "2026-11-21T12:00:00.000Z", "tags": {}}],
}


def execute(*words: str) -> Any:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    args = parser.parse_args(["region", *words])
    args.json = getattr(args, "json", False)
    return args.execute(args, Progress("quiet"))


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region, "status", lambda home=None: UP)


def test_status_says_how_to_reach_it(up: None, home: Path) -> None:
    outcome = execute("status")
    assert "export AWS_ENDPOINT_URL=http://127.0.0.1:1 AWS_DEFAULT_REGION=us-east-1" in outcome.text
    assert "instance i-2  stopped" in outcome.text
    assert "image    ami-1  2026-11-21T12:00  made" in outcome.text
    assert {key: value for key, value in outcome.data.items() if key != "space"} == UP


def test_status_of_a_region_that_is_down(home: Path) -> None:
    assert execute("status").text == f"down; home {home.resolve()}"
    assert execute("down").text == "the local region was not up"


def test_ssh_prints_the_command_for_other_programs(up: None, tmp_path: Path) -> None:
    key = tmp_path / "key"
    outcome = execute("ssh", "--identity", str(key), "i-1")
    assert outcome.text.endswith(f"-i {key} -p 2222 admin@127.20.0.4")
    assert "UserKnownHostsFile=/dev/null" in outcome.text


@pytest.mark.parametrize("words", [["dmesg", "-T"], ["--", "dmesg", "-T"]])
def test_ssh_runs_a_command(up: None, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    class Replaced(Exception):
        pass

    def execvp(program: str, words: list[str]) -> None:
        raise Replaced(program, words)

    monkeypatch.setattr(os, "execvp", execvp)
    with pytest.raises(Replaced) as caught:
        execute("ssh", "--identity", "key", "i-1", *words)
    assert caught.value.args[1][-3:] == ["admin@127.20.0.4", "dmesg", "-T"]


@pytest.mark.parametrize("instance", ["i-2", "i-9"])
def test_ssh_needs_a_running_instance(up: None, instance: str) -> None:
    with pytest.raises(UsageError, match=f"{instance} is not a running instance") as caught:
        execute("ssh", instance)
    assert caught.value.hint == "running: i-1"


def test_the_key_is_that_of_the_instance_s_run(home: Path) -> None:
    with runs.begin(home, "local") as run:
        instance = {"id": "i-1", "tags": {runs.TAG_RUN: run.id}}
        with pytest.raises(UsageError, match="no private key found for i-1"):
            command.find_key(instance, home)
        run.key_file.write_text("key")
        assert command.find_key(instance, home) == run.key_file
    with pytest.raises(UsageError, match="no private key found for i-1"):
        command.find_key(instance, home)


def test_a_key_may_be_named_by_tag(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch()
    assert command.find_key({"id": "i-1", "tags": {"gpu-ami:key-file": str(key)}}, tmp_path) == key


def test_console_of_nothing(home: Path) -> None:
    with pytest.raises(UsageError, match="has no instance i-1"):
        execute("console", "i-1")


def test_user_data_installs_the_ssm_agent() -> None:
    outcome = execute("user-data")
    assert outcome.text.startswith("#!/bin/sh") and outcome.data == {"user_data": outcome.text}


def test_status_says_what_takes_how_much_space(home: Path) -> None:
    disk = home / "images" / "ami-1" / "disk.raw"
    disk.parent.mkdir(parents=True)
    disk.write_bytes(bytes(3 * 1024**2))
    (home / "mirror").mkdir()
    (home / "mirror" / "package").write_bytes(b"x")
    outcome = execute("status")
    assert outcome.data["space"]["mirror"]["count"] == 1
    assert "GiB  mirror" in outcome.text


def test_prune_of_an_empty_home_removes_nothing(home: Path) -> None:
    outcome = execute("prune", "--keep", "0", "--older-than", "2w", "--dry-run")
    assert outcome.text.endswith("nothing to remove")
    assert outcome.data["removed"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--keep", "few"], "'few', expected a number of images like 2"),
        (["--older-than", "7"], "'7', expected a number and a unit, like 12h, 7d or 2w"),
    ],
)
def test_prune_refuses_what_is_no_number(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        execute("prune", *words)
    assert message in capsys.readouterr().err


def test_prune_refuses_a_folder_that_is_not_there(home: Path) -> None:
    with pytest.raises(UsageError, match="--refer nowhere: not a folder"):
        execute("prune", "--refer", "nowhere")


def test_each_command_of_the_region_has_the_type_of_its_json() -> None:
    assert set(json_types.RESULTS) == set(provider().commands) == {"region", "rehearse"}
