"""Where an image's files are looked for, how the validator is sent there, and what comes of it when it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_ami import cli, image_files, proof
from gpu_ami.log import Progress
from gpu_ami.proof import Proof, Target
from gpu_ami.run import Completed
from validator import offline


def test_place_without_images_has_none_at_hand() -> None:
    assert image_files.find(None, "ami-1") == image_files.Files(None, image_files.NOT_AT_HAND)


def test_image_that_is_not_there(tmp_path: Path) -> None:
    assert image_files.find(tmp_path, "ami-1") == image_files.Files(None, image_files.NOT_AT_HAND)


@pytest.mark.parametrize("fault", [None, offline.ImageUnusable("only root may", "run it with sudo")])
def test_image_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception | None) -> None:
    disk = tmp_path / "ami-1" / "disk.raw"
    disk.parent.mkdir()
    disk.touch()
    closed = []

    class Entered:
        def close(self) -> None:
            closed.append(True)

    def enter(image: offline.Image) -> Entered:
        assert image.path == disk
        if fault:
            raise fault
        return Entered()

    monkeypatch.setattr(offline, "enter", enter)
    found = image_files.find(tmp_path, "ami-1")
    assert found == (image_files.Files(None, "only root may; run it with sudo") if fault else image_files.Files(disk))
    assert closed == ([] if fault else [True])


def test_validator_is_sent_into_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[Any]] = []

    def run(command: list[Any], **_: Any) -> Completed:
        commands.append(command)
        results = next(str(word) for word in command if str(word).startswith("--results=")).partition("=")[2]
        Path(results).write_text('{"checks": [{"id": "image::test_a", "role": "image", "verdict": "PASS"}]}')
        return Completed(tuple(command), 0, "", "", 0.1)

    monkeypatch.setattr(proof.process, "run", run)
    wanted = Proof({}, None, None, tmp_path, Progress("quiet"))
    host = image_files.check(wanted, tmp_path / "a disk.raw")
    assert host.offline and host.name == "image-files" and host.verdict([]) == "PASS"
    words = [str(word) for word in commands[0]]
    assert "--tier=T0" in words and any(word.startswith("--hosts=image://%2F") and "%20disk" in word for word in words)
    assert f"--evidence={tmp_path}/evidence/image-files" in words


def test_validator_without_results_costs_no_other_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = Completed(("pytest",), 3, "INTERNALERROR", "", 0.1)
    monkeypatch.setattr(proof.process, "run", lambda *_, **__: done)
    host = image_files.check(Proof({}, None, None, tmp_path, Progress("quiet")), tmp_path)
    assert (host.name, host.verdict([])) == ("image-files", "ERROR") and "INTERNALERROR" in host.error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--root", "/none/such"], "--root /none/such: /none/such: no such file or directory"),
        (["--root", "/", "--ami", "ami-1"], "--ami, --host and --root exclude each other"),
        (["--root", "/", "--restarts", "none"], "--root has nothing to restart"),
        (["--host", "ssh://a@b", "--restarts", "none"], "--restarts is for machines that we boot"),
        (["--reboot"], "--reboot is for --host"),
        (["--restarts", "sometimes"], "expected reboot,stop-start, one of them, or none"),
    ],
)
def test_what_validate_refuses(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["validate", *words]) == 2
    assert said in capsys.readouterr().err


def test_target_names_its_own_evidence(tmp_path: Path) -> None:
    wanted = Proof({}, None, None, tmp_path, Progress("quiet"))
    assert wanted.evidence(Target("image://x", name="image-files")) == tmp_path / "evidence" / "image-files"
    assert wanted.evidence(Target("ssh://a@b:22"), "reboot") == tmp_path / "evidence" / "b_22" / "after-reboot"
