"""`gpu-ami diff`: formats, schema, release notes and mistakes; sections are in tests/release/test_comparison.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami import cli
from gpu_ami.cloud import Cloud, Place, amis
from gpu_ami.region import provider
from tests.json_documents import valid
from tests.release import examples
from validator.file_account import merkle_root, read


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Two runs: another driver, another file, another verdict of a check."""
    monkeypatch.chdir(tmp_path)
    for name, version, digest in (("old", "580.1", "ab"), ("new", "580.2", "cd")):
        data = examples.inventory(examples.SMI | {"h": digest * 32}, packages=(("nvidia-utils", version),))
        report = examples.certified_report(inventory_root=merkle_root(read(data)), nvidia_driver={"version": version})
        examples.write_folder(Path("out") / name, replace(report, image=f"ami-0{digest}"), data)


def test_text_names_what_differs(images: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", "out/old", "out/new"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "demo (out/old) → demo (out/new)"
    assert "  nvidia_driver.version: 580.1 → 580.2" in lines
    assert "  nvidia-utils: 580.1 → 580.2" in lines
    assert any(line.startswith("  package nvidia-utils: /usr/bin/nvidia-smi: 7 bytes abab") for line in lines)


def test_amis_are_found_under_out(images: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", "ami-0ab", "ami-0cd"]) == 0
    assert capsys.readouterr().out.startswith("demo (ami-0ab) → demo (ami-0cd)\n")


def test_json_is_as_its_schema_says(images: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", "out/old", "out/new", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    valid(data, "diff")
    assert cli.main(["diff", "out/old", "out/new", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == data


def test_other_formats(images: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", "out/old", "out/new", "--format", "markdown"]) == 0
    assert "| nvidia_driver.version | 580.1 | 580.2 |" in capsys.readouterr().out
    assert cli.main(["diff", "out/old", "out/new", "--format", "html"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")


def test_release_notes(images: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", "--notes", "out/old", "out/new"]) == 0
    assert capsys.readouterr().out.startswith("# demo (out/new): changes since demo (out/old)\n")


def test_release_notes_since_the_image_before_it_in_its_place(
    images: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {"ami-0cd": "ami-0ab", "ami-0ab": ""}
    monkeypatch.setattr(amis, "previous", lambda _cloud, ami: before[ami])
    monkeypatch.setattr(provider(), "running", lambda: Place(name="local", region="us-east-1"))
    monkeypatch.setattr(Cloud, "image", lambda *_: {"ImageId": "ami-0ab"})
    assert cli.main(["diff", "--notes", "out/new", "--where", "local"]) == 0
    assert capsys.readouterr().out.startswith("# demo (out/new): changes since demo (ami-0ab)\n")
    assert cli.main(["diff", "--notes", "out/old", "--where", "local"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# demo (out/old): first image" and "| nvidia_driver.version | - | 580.1 |" in lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["out/old"], "expected two images, got 1"),
        (["out/old", "out/new", "out/new"], "expected two images, got 3"),
        (["--notes", "out/new"], "the image before out/new is not known"),
        (["out/old", "out/none"], "no such file, folder or AMI id"),
        (["ami-0ab", "ami-0ffff"], "nothing is known of ami-0ffff"),
    ],
)
def test_mistakes(images: None, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", *words]) == 2
    assert message in capsys.readouterr().err


def test_two_builds_of_a_plan(images: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", "--same", "out/old", "out/old"]) == 0
    assert capsys.readouterr().out.startswith("the same: ")
    assert cli.main(["diff", "--same", "out/old", "out/new", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [row["subject"] for row in data["differences"]] == ["nvidia-utils", "/usr/bin/nvidia-smi"]


def test_two_builds_need_inventories(images: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out/new/evidence/image-files/inventory.jsonl.gz").unlink()
    assert cli.main(["diff", "--same", "out/old", "out/new"]) == 2
    assert "no inventory of its files was found" in capsys.readouterr().err


def test_a_disk_that_is_none(images: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "disk.raw").write_bytes(b"x" * 512)
    assert cli.main(["diff", "--same", "disk.raw", "out/new"]) == 2
    assert "disk.raw: expected a file system of Linux, got no partition table (512 bytes)" in capsys.readouterr().err
