"""A copy that was begun before the launch is taken once, when it is complete; one that failed is nobody's problem."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_ami.errors import CloudError
from gpu_ami.local.images import SpareDisks, spare_disks


@pytest.fixture
def workers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "disk.raw"
    path.write_bytes(b"content")
    return path


def test_a_copy_is_taken_once(tmp_path: Path, source: Path, workers: ThreadPoolExecutor) -> None:
    spares = SpareDisks(tmp_path / "spare", workers.submit)
    spares.begin("ami-1", source)
    spares.begin("ami-1", source)
    assert not spares.take("ami-2", tmp_path / "other")
    assert spares.take("ami-1", tmp_path / "taken")
    (tmp_path / "taken").write_bytes(b"changed")
    assert source.read_bytes() == b"content"
    assert not spares.take("ami-1", tmp_path / "again") and list((tmp_path / "spare").iterdir()) == []


def test_who_comes_early_waits(
    tmp_path: Path, source: Path, workers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_copy = threading.Event()
    copy = spare_disks.fill_disk

    def slowly(*paths: Path) -> None:
        assert may_copy.wait(20)
        copy(*paths)

    monkeypatch.setattr(spare_disks, "fill_disk", slowly)
    spares = SpareDisks(tmp_path / "spare", workers.submit)
    spares.begin("ami-1", source)
    threading.Timer(0.2, may_copy.set).start()
    assert spares.take("ami-1", tmp_path / "taken") and (tmp_path / "taken").read_bytes() == b"content"


def test_few_are_kept(tmp_path: Path, source: Path, workers: ThreadPoolExecutor) -> None:
    spares = SpareDisks(tmp_path / "spare", workers.submit)
    for number in range(4):
        spares.begin(f"ami-{number}", source)
    taken = [bool(spares.take(f"ami-{number}", tmp_path / f"taken{number}")) for number in range(4)]
    assert taken == [False, False, True, True]
    workers.shutdown(wait=True)
    assert list((tmp_path / "spare").iterdir()) == []


@pytest.mark.parametrize("refuses", ["fill_disk", "space.require"])
def test_a_copy_that_failed_is_none(
    tmp_path: Path,
    source: Path,
    workers: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    refuses: str,
) -> None:
    monkeypatch.setattr(f"gpu_ami.local.images.spare_disks.{refuses}", _refuse)
    spares = SpareDisks(tmp_path / "spare", workers.submit)
    spares.begin("ami-1", source)
    assert not spares.take("ami-1", tmp_path / "taken") and not (tmp_path / "taken").exists()


def _refuse(*_: object, **__: object) -> Callable[[], None]:
    raise CloudError("no space")


class Loop:
    """In the place of a loop device."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_its_loop_device_is_set_up_while_it_is_empty_and_goes_with_it(
    tmp_path: Path, source: Path, workers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops: list[Loop] = []

    def attach(disk: Path, _offset: int) -> Loop:
        assert disk.stat().st_size == 0
        loops.append(Loop())
        return loops[-1]

    monkeypatch.setattr(spare_disks.loop_device, "attach", attach)
    spares = SpareDisks(tmp_path / "spare", workers.submit)
    for number in range(3):
        spares.begin(f"ami-{number}", source)
    taken = spares.take("ami-2", tmp_path / "taken")
    workers.shutdown(wait=True)
    assert taken and taken.loop in loops and taken.path.read_bytes() == b"content"
    assert sorted(loop.closed for loop in loops) == [False, False, True]  # the oldest was given up
    monkeypatch.setattr(spare_disks, "fill_disk", _refuse)
    with ThreadPoolExecutor(1) as executor:
        failing = SpareDisks(tmp_path / "failing", executor.submit)
        failing.begin("ami-1", source)
        assert not failing.take("ami-1", tmp_path / "none")
    assert loops[-1].closed and list((tmp_path / "failing").iterdir()) == []
