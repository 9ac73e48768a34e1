"""What the region keeps on disk."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gpu_ami.local.state import (
    ImageFields,
    ImageRecord,
    Layout,
    clear_partial_images,
    load_images,
    save_image,
)

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
