"""`region prune`: what stays, what goes, and that two at once are safe."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud import runs
from gpu_ami.errors import UsageError
from gpu_ami.files import write_json
from gpu_ami.progress import Progress
from localregion import housekeeping, region
from localregion.housekeeping import Policy
from localregion.state import Layout, load_images, save_image
from tests.localregion.test_daemon import RECORD

QUIET = Progress("quiet")
MIB = 1024**2
Make = Callable[..., str]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout((tmp_path / "home").resolve())
    layout.make()
    return layout


@pytest.fixture
def make(layout: Layout, tmp_path: Path) -> Make:
    """Makes an image of a recipe; out: the output folder that was noted for it, or none."""

    def image(
        ami: str, *, hours: float = 1, recipe: str = "r", out: str = "out", tags: dict[str, str] | None = None
    ) -> str:
        created = datetime.now(UTC) - timedelta(hours=hours)
        every = {runs.TAG_RECIPE: recipe, **(tags or {})}
        record = dataclasses.replace(
            RECORD, id=ami, name=f"{recipe} {ami}", creation_date=created.isoformat(), tags=every
        )
        layout.image(ami).mkdir()
        (layout.image(ami) / "disk.raw").write_bytes(bytes(MIB) + b"x")
        save_image(layout, record)
        if out:
            housekeeping.note(layout.images, ami, tmp_path / out)
        return ami

    return image


def document(path: Path, content: dict[str, object]) -> None:
    path.parent.mkdir(exist_ok=True)
    write_json(path, content)


def pruned(layout: Layout, **asked: Any) -> list[str]:
    return sorted(Path(item.id).name for item in housekeeping.prune(layout.home, Policy(**asked), QUIET))


def left(layout: Layout) -> list[str]:
    return sorted(record.id for record in load_images(layout))


def test_of_three_images_the_one_that_a_report_names_and_the_newest_stay(
    layout: Layout, make: Make, tmp_path: Path
) -> None:
    make("ami-old", hours=3), make("ami-reported", hours=2), make("ami-new", hours=1)
    document(tmp_path / "out" / "report.json", {"image": "ami-reported"})
    wanted = [
        ("ami-new", "the newest of r (--keep)"),
        ("ami-old", ""),
        ("ami-reported", f"{tmp_path}/out/report.json names it"),
    ]
    items = [item for item in housekeeping.examine(layout.home) if item.kind == "image"]
    assert sorted((item.id, item.needed_by) for item in items) == wanted
    planned = housekeeping.prune(layout.home, Policy(), QUIET, dry_run=True)
    assert [item.id for item in planned] == ["ami-old"]
    assert left(layout) == ["ami-new", "ami-old", "ami-reported"]
    assert pruned(layout) == ["ami-old"]
    assert left(layout) == ["ami-new", "ami-reported"]
    assert not layout.image("ami-old").exists()
    assert pruned(layout) == []


def test_an_image_without_a_known_folder_goes_by_age_alone(layout: Layout, make: Make, tmp_path: Path) -> None:
    make("ami-by-hand", hours=48, out="")
    assert pruned(layout, keep=0) == []
    assert pruned(layout, keep=0, older_than=timedelta(days=3)) == []
    document(tmp_path / "elsewhere" / "report.json", {"image": "ami-by-hand"})
    assert pruned(layout, keep=0, older_than=timedelta(days=1), folders=[tmp_path / "elsewhere"]) == []
    assert pruned(layout, keep=0, older_than=timedelta(days=1)) == ["ami-by-hand"]


def test_keep_counts_each_recipe_and_layer_by_itself(layout: Layout, make: Make) -> None:
    for recipe in ("a", "b"):
        for hours in (1, 2, 3):
            make(f"ami-{recipe}{hours}", recipe=recipe, hours=hours)
    make("ami-layer", recipe="a", hours=9, tags={"gpu-ami:layer": "driver"})
    assert pruned(layout, keep=2) == ["ami-a3", "ami-b3"]


def test_older_than_keeps_younger_images(layout: Layout, make: Make) -> None:
    make("ami-1h", hours=1), make("ami-30h", hours=30)
    assert pruned(layout, keep=0, older_than=timedelta(days=1)) == ["ami-30h"]


def test_the_image_of_a_living_run_stays(layout: Layout, make: Make) -> None:
    with runs.begin(layout.home, "local") as run:
        make("ami-1", tags={runs.TAG_RUN: run.id})
        assert pruned(layout, keep=0) == []
    assert pruned(layout, keep=0) == ["ami-1"]


def test_the_image_of_an_instance_stays(layout: Layout, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    make("ami-1"), make("ami-2")
    instances = [
        {"id": "i-1", "image": "ami-1", "state": "stopped"},
        {"id": "i-2", "image": "ami-2", "state": "terminated"},
    ]
    monkeypatch.setattr(region, "status", lambda _home=None: {"instances": instances})
    assert pruned(layout, keep=0) == ["ami-2"]


def test_a_region_that_is_starting_loses_no_image(layout: Layout, make: Make) -> None:
    """Its lock is held and its socket does not answer yet."""
    make("ami-1")
    with region.kept_down(layout.home) as held:
        assert held
        removed = housekeeping.prune(layout.home, Policy(keep=0), QUIET)
    assert [item.error.splitlines()[0] for item in removed] == ["the local region is starting or ending"]
    assert left(layout) == ["ami-1"]


def test_unused_base_images_go_after_a_week(layout: Layout) -> None:
    base, trees = layout.home / "base", layout.home / "base" / "trees"
    for folder in (trees / "old-1", trees / "new-2"):
        folder.mkdir(parents=True)
    for path in (base / "old.raw", base / "new.raw", base / "old.tar"):
        path.write_bytes(b"x")
    long_ago = time.time() - 8 * 24 * 3600
    for path in (base / "old.raw", base / "old.tar", trees / "old-1"):
        os.utime(path, (long_ago, long_ago))
    (layout.home / "sandboxes" / "s").mkdir(parents=True)
    assert pruned(layout) == []  # a sandbox may have them mounted
    (layout.home / "sandboxes" / "s").rmdir()
    assert pruned(layout) == ["old-1", "old.raw", "old.tar"]
    assert sorted(path.name for path in base.iterdir()) == ["lock", "new.raw", "trees"]


def test_two_at_once_remove_each_image_once(layout: Layout, make: Make) -> None:
    for number in range(20):
        make(f"ami-{number}", hours=number + 1)
    removed: list[list[str]] = []
    threads = [threading.Thread(target=lambda: removed.append(pruned(layout, keep=0))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(removed[0] + removed[1]) == sorted(f"ami-{number}" for number in range(20))
    assert left(layout) == []


def test_a_build_makes_room_when_images_take_more_than_their_share(
    layout: Layout, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hours in (1, 2, 3, 4):
        make(f"ami-{hours}", hours=hours)
    disk = type("usage", (), {"total": 10 * MIB, "free": 10 * MIB})
    monkeypatch.setattr(housekeeping.shutil, "disk_usage", lambda _path: disk)  # type: ignore[attr-defined]
    monkeypatch.setenv(housekeeping.SHARE_VARIABLE, "0")
    assert housekeeping.make_room(layout.home, [], QUIET) == []
    monkeypatch.setenv(housekeeping.SHARE_VARIABLE, "50")
    assert housekeeping.make_room(layout.home, [], QUIET) == []  # four images of 1 MiB, below five
    monkeypatch.setenv(housekeeping.SHARE_VARIABLE, "35")
    assert [item.id for item in housekeeping.make_room(layout.home, [], QUIET)] == ["ami-4"]
    document(tmp_path / "mine" / "report.json", {"image": "ami-3"})
    monkeypatch.setenv(housekeeping.SHARE_VARIABLE, "5")
    assert [item.id for item in housekeeping.make_room(layout.home, [tmp_path / "mine"], QUIET)] == ["ami-2"]
    assert left(layout) == ["ami-1", "ami-3"]


@pytest.mark.parametrize("share", ["much", "-1", "101", "nan"])
def test_a_share_that_is_none_is_refused(layout: Layout, monkeypatch: pytest.MonkeyPatch, share: str) -> None:
    monkeypatch.setenv(housekeeping.SHARE_VARIABLE, share)
    with pytest.raises(UsageError, match="expected a percentage from 0 to 100"):
        housekeeping.make_room(layout.home, [], QUIET)
