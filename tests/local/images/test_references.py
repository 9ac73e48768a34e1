"""Which output folders refer to an AMI: what their documents say now."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.files import write_json
from gpu_ami.local.images import references

AMI = "ami-1"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "images" / AMI).mkdir(parents=True)
    (tmp_path / "out").mkdir()
    return tmp_path / "images"


@pytest.mark.parametrize("name", references.DOCUMENTS)
def test_a_document_refers_while_it_names_the_image(images: Path, tmp_path: Path, name: str) -> None:
    references.note(images, AMI, tmp_path / "out")
    references.note(images, AMI, tmp_path / "out")
    assert references.referring(images, AMI) == []
    write_json(tmp_path / "out" / name, {"ami": AMI})
    assert references.referring(images, AMI) == [tmp_path / "out" / name]
    write_json(tmp_path / "out" / name, {"ami": "ami-2"})  # the folder's next build
    assert references.referring(images, AMI) == []


def test_other_folders_are_looked_through_once(images: Path, tmp_path: Path) -> None:
    write_json(tmp_path / "out" / "report.json", {"image": AMI})
    assert references.referring(images, AMI) == []
    assert references.referring(images, AMI, [tmp_path / "out", tmp_path / "out"]) == [tmp_path / "out" / "report.json"]


def test_a_document_that_cannot_be_read_refers(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    references.note(images, AMI, tmp_path / "out")
    write_json(tmp_path / "out" / "report.json", {})

    def refuse(_path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert references.referring(images, AMI) == [tmp_path / "out" / "report.json"]


def test_an_image_that_is_gone_is_no_error(images: Path, tmp_path: Path) -> None:
    references.note(images, "ami-gone", tmp_path / "out")
    assert not references.known(images, "ami-gone")
    assert references.referring(images, "ami-gone") == []
