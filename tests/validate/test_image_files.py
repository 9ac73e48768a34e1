"""Where an image's files are looked for, how the validator is sent there, and what comes of it when it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_ami import process
from gpu_ami.errors import MachineError
from gpu_ami.process import Completed
from gpu_ami.progress import Progress
from gpu_ami.validate import Proof, Target, host_proof
from validator.results import PASS, CheckRecord, HostResults
from validator.transport import image_files as offline


def test_place_without_images_has_none_at_hand() -> None:
    assert host_proof.find(None, "ami-1") == host_proof.Files(None, host_proof.NOT_AVAILABLE)


def test_image_that_is_not_there(tmp_path: Path) -> None:
    assert host_proof.find(tmp_path, "ami-1") == host_proof.Files(None, host_proof.NOT_AVAILABLE)


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
    found = host_proof.find(tmp_path, "ami-1")
    assert found == (host_proof.Files(None, "only root may; run it with sudo") if fault else host_proof.Files(disk))
    assert closed == ([] if fault else [True])


def test_validator_is_sent_into_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[Any]] = []

    def run(command: list[Any], **_: Any) -> Completed:
        commands.append(command)
        results = next(str(word) for word in command if str(word).startswith("--results=")).partition("=")[2]
        HostResults("image", (CheckRecord("image::test_a", "image", "T0", "", PASS),)).write(Path(results))
        return Completed(tuple(map(str, command)), 0, "", "", 0.1)

    monkeypatch.setattr(process, "run", run)
    wanted = Proof({}, None, None, tmp_path, Progress("quiet"))
    host = host_proof.check(wanted, tmp_path / "a disk.raw")
    assert host.offline and host.name == "image-files" and host.verdict([]) == "PASS"
    words = [str(word) for word in commands[0]]
    assert "--tier=T0" in words and any(word.startswith("--hosts=image://%2F") and "%20disk" in word for word in words)
    assert f"--evidence={tmp_path}/evidence/image-files" in words


def test_validator_without_results_costs_no_other_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = Completed(("pytest",), 3, "INTERNALERROR", "", 0.1)
    monkeypatch.setattr(process, "run", lambda *_, **__: done)
    host = host_proof.check(Proof({}, None, None, tmp_path, Progress("quiet")), tmp_path)
    assert (host.name, host.verdict([])) == ("image-files", "UNPROVEN") and "INTERNALERROR" in host.error


def test_target_names_its_own_evidence(tmp_path: Path) -> None:
    wanted = Proof({}, None, None, tmp_path, Progress("quiet"))
    assert wanted.evidence(Target("image://x", name="image-files")) == tmp_path / "evidence" / "image-files"
    assert wanted.evidence(Target("ssh://a@b:22"), "reboot") == tmp_path / "evidence" / "b_22" / "after-reboot"


@pytest.mark.parametrize("link", ["evidence", "evidence/b_22", "evidence/b_22/after-reboot"])
def test_evidence_is_not_written_where_a_link_leads(link: str, tmp_path: Path) -> None:
    (tmp_path / "out" / link).parent.mkdir(parents=True)
    (tmp_path / "victim").mkdir()
    (tmp_path / "out" / link).symlink_to(tmp_path / "victim")
    wanted = Proof({}, None, None, tmp_path / "out", Progress("quiet"))
    with pytest.raises(MachineError, match="a symbolic link, expected a file or folder of its own"):
        wanted.evidence(Target("ssh://a@b:22"), "reboot")
    assert not list((tmp_path / "victim").iterdir())
