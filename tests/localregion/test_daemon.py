"""What the daemon's main reports (its process: test_region.py); each file of botocore's is read once.

What the region keeps on disk.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader

from gpu_ami.errors import CloudError
from localregion import server
from localregion.state import (
    ImageFields,
    ImageRecord,
    Layout,
    clear_partial_images,
    load_images,
    save_image,
)


def run_main(home: Path) -> tuple[int, str]:
    """The exit status, and what was reported to the caller."""
    read, write = os.pipe()
    settings = {"home": str(home), "persistent": True, "lifeline": None, "status": write}
    code = server.main(["server", json.dumps(settings)])
    with os.fdopen(read) as stream:
        return code, stream.read()


def test_a_second_daemon_is_told_that_one_runs(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.make()
    with layout.lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run_main(tmp_path) == (0, "busy\n")


@pytest.mark.parametrize(
    ("error", "code", "reported"),
    [
        (CloudError("no free network", hint="down"), 4, {"message": "no free network", "hint": "down", "details": []}),
        (ValueError("odd"), None, {"message": "ValueError: odd", "hint": "see {log}"}),
    ],
)
def test_a_daemon_that_does_not_start_reports_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int | None, reported: dict[str, Any]
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(server, "Daemon", fail)
    read, write = os.pipe()
    settings = {"home": str(tmp_path), "persistent": True, "lifeline": None, "status": write}
    if code is None:
        with pytest.raises(ValueError, match="odd"):
            server.main(["server", json.dumps(settings)])
    else:
        assert server.main(["server", json.dumps(settings)]) == code
    with os.fdopen(read) as stream:
        found = json.loads(stream.read())
    assert found == {**reported, "hint": reported["hint"].format(log=Layout(tmp_path).log)}


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is changed for the whole process is set back."""
    monkeypatch.setattr(JSONFileLoader, "load_file", JSONFileLoader.load_file)
    monkeypatch.setattr(server, "read_files", {})


def test_a_file_is_read_once_a_process(tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text('{"version": 3}')
    server.read_once()
    first = JSONFileLoader().load_file(str(tmp_path / "endpoints"))
    (tmp_path / "endpoints.json").unlink()
    assert first == {"version": 3}
    assert JSONFileLoader().load_file(str(tmp_path / "endpoints")) is first


def test_a_missing_file_is_none(tmp_path: Path) -> None:
    server.read_once()
    assert JSONFileLoader().load_file(str(tmp_path / "absent")) is None
    (tmp_path / "absent.json").write_text("{}")
    assert JSONFileLoader().load_file(str(tmp_path / "absent")) == {}


RECORD = ImageRecord(
    id="ami-1", name="n", description="", owner_id="1", architecture="x86_64", root_device_name="/dev/xvda",
    snapshot_id="snap-1", size_gib=8, creation_date="2026-11-21T00:00:00.000Z", tags={"a": "b"},
)  # fmt: skip


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    layout.make()
    return layout


def test_an_image_comes_back_as_it_was(layout: Layout) -> None:
    folder = layout.image("ami-1")
    folder.mkdir()
    save_image(layout, RECORD)
    assert list(load_images(layout)) == []  # no disk yet
    (folder / "disk.raw").touch()
    assert list(load_images(layout)) == [RECORD]


def test_half_made_images_are_cleared(layout: Layout) -> None:
    for name in ("ami-1", "ami-2"):
        layout.image(name).mkdir()
        (layout.image(name) / "disk.raw").touch()
    save_image(layout, RECORD)
    assert clear_partial_images(layout) == ["ami-2"]
    assert [path.name for path in layout.images.iterdir()] == ["ami-1"]


def test_the_fields_of_a_request_are_those_of_an_image() -> None:
    """A record is sent to the region's process as JSON: ImageFields types that, and must name every field."""
    assert list(ImageFields.__annotations__) == [field.name for field in dataclasses.fields(ImageRecord)]
