"""A copy that was begun before the launch is taken once, when it is complete; one that failed is nobody's problem.

A loop device that is set up on an empty file shows what is written to the file afterwards, and goes by itself.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.errors import CloudError
from localregion import host
from localregion.images import SpareDisks, store

MIB = 1 << 20
devices = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/loop-control").exists(), reason="only root may set up loop devices"
)


def backing(device: Path) -> str:
    """The file behind a loop device; "" for one that is free."""
    path = Path("/sys/block") / device.name / "loop/backing_file"
    return path.read_text().strip() if path.exists() else ""


@devices
def test_it_shows_what_was_written_after_it_was_set_up(tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    disk.touch()
    loop = store.attach(disk, MIB)
    assert loop is not None
    os.read(loop.fileno(), 512)  # as a program of the host may that looks at new devices
    disk.write_bytes(b"a" * MIB + b"b" * MIB)
    loop.refresh()
    (size,) = struct.unpack("Q", fcntl.ioctl(loop.fileno(), 0x80081272, bytes(8)))  # BLKGETSIZE64
    os.lseek(loop.fileno(), 0, os.SEEK_SET)
    assert (size, os.read(loop.fileno(), 4)) == (MIB, b"bbbb")
    os.pwrite(loop.fileno(), b"c" * 4096, 0)
    os.fsync(loop.fileno())
    loop.close()
    assert disk.read_bytes()[MIB : MIB + 5000] == b"c" * 4096 + b"b" * 904


@devices
def test_it_is_free_when_it_is_closed(tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    disk.touch()
    loop = store.attach(disk, MIB)
    assert loop is not None and backing(loop.path) == str(disk)
    loop.close()
    loop.close()
    assert backing(loop.path) != str(disk)


def test_a_host_without_them_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LOOP_CONTROL", tmp_path / "loop-control")
    (tmp_path / "disk.raw").touch()
    assert store.attach(tmp_path / "disk.raw", MIB) is None


@devices
def test_a_device_that_another_program_took_first_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken.raw").touch()
    (tmp_path / "disk.raw").touch()
    taken = store.attach(tmp_path / "taken.raw", 0)
    assert taken is not None
    find, tries = store.open_free, []

    def open_free() -> store.LoopDevice:
        tries.append(1)
        if len(tries) > 1:
            return find()
        return store.LoopDevice(taken.path, os.open(taken.path, os.O_RDWR))

    monkeypatch.setattr(store, "open_free", open_free)
    loop = store.attach(tmp_path / "disk.raw", 0)
    assert loop is not None and loop.path != taken.path and len(tries) == 2
    loop.close()
    taken.close()


@pytest.fixture
def workers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
def spares(tmp_path: Path, workers: ThreadPoolExecutor) -> SpareDisks:
    return SpareDisks(tmp_path / "spare", workers.submit)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "disk.raw"
    path.write_bytes(b"content")
    return path


def test_a_copy_is_taken_once(tmp_path: Path, source: Path, spares: SpareDisks) -> None:
    spares.begin("ami-1", source)
    spares.begin("ami-1", source)
    assert not spares.take("ami-2", tmp_path / "other")
    assert spares.take("ami-1", tmp_path / "taken")
    (tmp_path / "taken").write_bytes(b"changed")
    assert source.read_bytes() == b"content"
    assert not spares.take("ami-1", tmp_path / "again") and list((tmp_path / "spare").iterdir()) == []


def test_who_comes_early_waits(
    tmp_path: Path, source: Path, spares: SpareDisks, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_copy = threading.Event()
    copy = store.fill_disk

    def slowly(*arguments: Any) -> None:
        assert may_copy.wait(20)
        copy(*arguments)

    monkeypatch.setattr(store, "fill_disk", slowly)
    spares.begin("ami-1", source)
    threading.Timer(0.2, may_copy.set).start()
    assert spares.take("ami-1", tmp_path / "taken") and (tmp_path / "taken").read_bytes() == b"content"


def test_few_are_kept(tmp_path: Path, source: Path, workers: ThreadPoolExecutor, spares: SpareDisks) -> None:
    for number in range(4):
        spares.begin(f"ami-{number}", source)
    taken = [bool(spares.take(f"ami-{number}", tmp_path / f"taken{number}")) for number in range(4)]
    assert taken == [False, False, True, True]
    workers.shutdown(wait=True)
    assert list((tmp_path / "spare").iterdir()) == []


class SlowCopies:
    """Copies wait until they are let go; `wait` until one is under way; `files` are their inodes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started, self.may_copy, self.files = threading.Semaphore(0), threading.Event(), []  # type: ignore[var-annotated]
        self._copy = store.fill_disk
        monkeypatch.setattr(store, "fill_disk", self._slowly)

    def _slowly(self, source: Path, target: Path, given_up: Callable[[], bool]) -> None:
        self.files.append(target.stat().st_ino)
        self.started.release()
        assert self.may_copy.wait(20)
        self._copy(source, target, given_up)

    def wait(self) -> None:
        assert self.started.acquire(timeout=20)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> SlowCopies:
    return SlowCopies(monkeypatch)


def test_two_launches_of_an_image_have_two_copies(
    tmp_path: Path, source: Path, spares: SpareDisks, copies: SlowCopies
) -> None:
    """The second build is announced while the first launch waits for its copy."""
    spares.begin("ami-1", source)
    copies.wait()
    with ThreadPoolExecutor(2) as launches:
        first = launches.submit(spares.take, "ami-1", tmp_path / "first")
        while spares.begun_copies:
            pass
        spares.begin("ami-1", source)
        copies.wait()
        second = launches.submit(spares.take, "ami-1", tmp_path / "second")
        copies.may_copy.set()
        assert first.result(20) and second.result(20)
    inodes = [(tmp_path / name).stat().st_ino for name in ("first", "second")]
    assert inodes == copies.files and len(set(inodes)) == 2
    assert {(tmp_path / name).read_bytes() for name in ("first", "second")} == {b"content"}


def test_one_that_was_given_up_does_not_take_the_next_with_it(tmp_path: Path, source: Path, copies: SlowCopies) -> None:
    with ThreadPoolExecutor(4) as executor:
        spares = SpareDisks(tmp_path / "spare", executor.submit)
        for image in ("ami-1", "ami-2", "ami-3", "ami-1"):
            spares.begin(image, source)
            copies.wait()
        copies.may_copy.set()
        taken = spares.take("ami-1", tmp_path / "taken")
        assert taken and taken.path.read_bytes() == b"content"


def test_a_guess_is_given_up_for_what_is_asked_for(
    tmp_path: Path, source: Path, workers: ThreadPoolExecutor, spares: SpareDisks, copies: SlowCopies
) -> None:
    spares.guess("ami-1", source)
    copies.wait()
    spares.begin("ami-2", source)
    copies.may_copy.set()
    assert not spares.take("ami-1", tmp_path / "one") and spares.take("ami-2", tmp_path / "two")
    workers.shutdown(wait=True)
    assert list((tmp_path / "spare").iterdir()) == []


def test_a_right_guess_is_kept(tmp_path: Path, source: Path, spares: SpareDisks) -> None:
    spares.guess("ami-1", source)
    spares.begin("ami-1", source)
    spares.begin("ami-2", source)
    assert spares.take("ami-1", tmp_path / "one") and spares.take("ami-2", tmp_path / "two")


@pytest.mark.parametrize(("room", "guessed"), [(0, True), (-1, False)])
def test_a_guess_leaves_what_a_build_needs(
    tmp_path: Path,
    source: Path,
    spares: SpareDisks,
    monkeypatch: pytest.MonkeyPatch,
    room: int,
    guessed: bool,
) -> None:
    needed = host.allocated(source) + host.build_bytes(source) + room
    monkeypatch.setattr(host, "free", lambda _folder: needed)
    spares.guess("ami-1", source)
    assert bool(spares.take("ami-1", tmp_path / "one")) is guessed


def test_the_end_waits_for_no_copy(
    tmp_path: Path, workers: ThreadPoolExecutor, spares: SpareDisks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy looks after each part whether it was given up."""
    monkeypatch.setattr(store, "PART_BYTES", 4096)
    source = tmp_path / "disk.raw"
    with source.open("wb") as disk:
        disk.write(b"first part")
        disk.seek(3 * store.PART_BYTES)
        disk.write(b"last part")
    looks = iter([False, True])
    with pytest.raises(CloudError, match="canceled"):
        (tmp_path / "target").touch()
        store.fill_disk(source, tmp_path / "target", lambda: next(looks))
    assert b"last part" not in (tmp_path / "target").read_bytes()
    spares.begin("ami-1", source)
    spares.end()
    workers.shutdown(wait=True)
    assert list((tmp_path / "spare").iterdir()) == [] and not spares.take("ami-1", tmp_path / "one")


def test_the_end_waits_for_no_launch_that_waits_for_its_copy(
    tmp_path: Path, source: Path, spares: SpareDisks, copies: SlowCopies
) -> None:
    spares.begin("ami-1", source)
    copies.wait()
    with ThreadPoolExecutor(1) as launches:
        launch = launches.submit(spares.take, "ami-1", tmp_path / "taken")
        while not spares.awaited:
            pass
        spares.end()
        copies.may_copy.set()
        with pytest.raises(CloudError, match="canceled"):
            launch.result(20)
    assert list((tmp_path / "spare").iterdir()) == [] and not (tmp_path / "taken").exists()


def test_a_region_that_takes_no_more_work_can_end(tmp_path: Path, source: Path) -> None:
    def refuse(*_: object) -> Any:
        raise RuntimeError("cannot schedule new futures after shutdown")

    spares = SpareDisks(tmp_path / "spare", refuse)
    with pytest.raises(RuntimeError):
        spares.begin("ami-1", source)
    spares.end()
    assert spares.take("ami-1", tmp_path / "taken") is None


def test_one_that_cannot_be_moved_is_none(tmp_path: Path, source: Path, spares: SpareDisks) -> None:
    spares.begin("ami-1", source)
    assert not spares.take("ami-1", tmp_path / "no folder" / "taken")
    assert list((tmp_path / "spare").iterdir()) == []


@pytest.mark.parametrize("refuses", ["fill_disk", "host.require"])
def test_a_copy_that_failed_is_none(
    tmp_path: Path,
    source: Path,
    spares: SpareDisks,
    monkeypatch: pytest.MonkeyPatch,
    refuses: str,
) -> None:
    monkeypatch.setattr(f"localregion.images.store.{refuses}", _refuse)
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
    tmp_path: Path, source: Path, workers: ThreadPoolExecutor, spares: SpareDisks, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops: list[Loop] = []

    def attach(disk: Path, _offset: int) -> Loop:
        assert disk.stat().st_size == 0
        loops.append(Loop())
        return loops[-1]

    monkeypatch.setattr(store, "attach", attach)
    for number in range(3):
        spares.begin(f"ami-{number}", source)
    taken = spares.take("ami-2", tmp_path / "taken")
    workers.shutdown(wait=True)
    assert taken and taken.loop in loops and taken.path.read_bytes() == b"content"
    assert sorted(loop.closed for loop in loops) == [False, False, True]  # the oldest was given up
    monkeypatch.setattr(store, "fill_disk", _refuse)
    with ThreadPoolExecutor(1) as executor:
        failing = SpareDisks(tmp_path / "failing", executor.submit)
        failing.begin("ami-1", source)
        assert not failing.take("ami-1", tmp_path / "none")
    assert loops[-1].closed and list((tmp_path / "failing").iterdir()) == []
