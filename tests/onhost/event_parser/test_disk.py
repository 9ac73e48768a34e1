"""The live service and its disk: rotation, size limits, a full disk, a missing folder."""

from __future__ import annotations

import errno
import os

import pytest

from gpu_ami.events.reader import parser_module
from tests.onhost.event_parser.parser_bench import Bench, Killed, kill_at, make_bench, settle, xid  # noqa: F401  (make_bench is the fixture `bench`)


def test_rotation_by_rename_loses_nothing(bench: Bench) -> None:
    service = bench.start()
    bench.print(xid(0))
    settle(service)
    for name in ("gpuevent.log", "gpuevent.jsonl"):
        (bench.folder / name).rename(bench.folder / f"{name}.1")
    bench.print(xid(1))
    settle(service)
    (bench.folder / "gpuevent.log").unlink()
    (bench.folder / "gpuevent.log").touch()
    bench.print(xid(2))
    settle(service)
    assert bench.seqs() == [0, 1, 2]
    assert len((bench.folder / "gpuevent.log.1").read_text().splitlines()) == 1
    assert len((bench.folder / "gpuevent.log").read_text().splitlines()) == 1
    assert (bench.folder / "gpuevent.log").stat().st_mode & 0o777 == 0o644


def test_kill_during_a_write_and_rotation_before_the_restart(bench: Bench) -> None:
    with pytest.MonkeyPatch.context() as patch:
        service = bench.start()
        kill_at(patch, 3, 0.5)  # 1 state, 2 raw, 3 JSON
        bench.print(xid(0))
        with pytest.raises(Killed):
            service.drain()
    for name in ("gpuevent.log", "gpuevent.jsonl"):
        (bench.folder / name).rename(bench.folder / f"{name}.1")
        (bench.folder / name).touch()
    bench.print(xid(1))
    settle(bench.start())
    assert bench.seqs() == [0, 1]
    assert len(bench.raw()) == 2


def test_file_at_its_size_limit_is_rotated_once(bench: Bench) -> None:
    bench.options.raw_cap, bench.options.json_cap = 300, 1 << 30
    service = bench.start()
    for seq in range(6):
        bench.print(xid(seq))
        settle(service)
    assert (bench.folder / "gpuevent.log.1").stat().st_size >= 300
    assert (bench.folder / "gpuevent.log").stat().st_size < 400
    assert bench.seqs() == list(range(6))


def _full_disk(patch: pytest.MonkeyPatch, room: list[int]) -> None:
    """Writes beyond `room[0]` bytes fail as on a full ext4, after the bytes that fit."""
    write, pwrite = os.write, os.pwrite

    def limited_in_place(fd: int, data: bytes, offset: int) -> int:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = pwrite(fd, data[: room[0]], offset)
        room[0] -= count
        return count

    def limited(fd: int, data: bytes) -> int:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = write(fd, data[: room[0]])
        room[0] -= count
        return count

    patch.setattr(os, "write", limited)
    patch.setattr(os, "pwrite", limited_in_place)


@pytest.mark.parametrize("room", [0, 1, 100, 300, 500, 900, 1500, 3000])
def test_full_disk_is_reported_once_and_loses_nothing(
    bench: Bench, capsys: pytest.CaptureFixture[str], room: int
) -> None:
    service = bench.start()
    with pytest.MonkeyPatch.context() as patch:
        _full_disk(patch, [room])
        for seq in range(5):
            bench.print(xid(seq))
            service.drain()
        assert service.outbox.backlog > 0
        assert service.outbox.errors >= 1
        assert service.source.last_seq == 4, "the reader must not stop"
    service.outbox.retry_at = 0.0
    bench.print(xid(5))
    settle(service)
    assert service.outbox.backlog == 0 and service.outbox.dropped == 0
    assert bench.seqs() == list(range(6))
    assert len(bench.raw()) == 6
    errors = capsys.readouterr().err
    assert errors.count("No space left on device") == 1
    assert "writable again" in errors


@pytest.mark.parametrize("room", [0, 100, 700, 1500, 3000])
def test_killed_while_the_disk_is_full(bench: Bench, room: int) -> None:
    service = bench.start()
    with pytest.MonkeyPatch.context() as patch:
        _full_disk(patch, [room])
        for seq in range(5):
            bench.print(xid(seq))
            service.drain()
    settle(bench.start())
    assert bench.seqs() == list(range(5))
    assert len(bench.raw()) == 5


@pytest.mark.parametrize("room", [0, 700, 1500, 3000])
def test_restarted_while_the_disk_is_still_full(bench: Bench, room: int) -> None:
    service = bench.start()
    with pytest.MonkeyPatch.context() as patch:
        _full_disk(patch, [room])
        for seq in range(5):
            bench.print(xid(seq))
            service.drain()
        for _ in range(2):
            service = bench.start()
            service.drain()
        bench.print(xid(5))
        service.drain()
        assert service.outbox.backlog > 0 and service.source.last_seq == 5
    service.outbox.retry_at = 0.0
    settle(service)
    assert bench.seqs() == list(range(6))
    assert len(bench.raw()) == 6


def test_events_beyond_the_memory_limit_are_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_module("outbox"), "CAPACITY", 4000)
    service = bench.start()
    with pytest.MonkeyPatch.context() as patch:
        _full_disk(patch, [0])
        for seq in range(20):
            bench.print(xid(seq))
            service.drain()
    service.outbox.retry_at = 0.0
    settle(service)
    written = len(bench.events()) + len(bench.raw())
    assert service.outbox.dropped > 0
    assert written + service.outbox.dropped == 40


def test_unwritable_folder_is_retried_at_growing_intervals(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    service = bench.start()
    bench.options.raw_log = service.outbox.raw.path = str(bench.folder / "gone" / "gpuevent.log")
    waits = []
    bench.print(xid(0))
    service.drain()
    for _ in range(8):
        now = service.outbox.retry_at
        service.outbox.commit(now)
        waits.append(service.outbox.retry_at - now)
    assert [round(wait, 3) for wait in (*waits[:3], waits[-1])] == [2.0, 4.0, 8.0, 30.0]
    (bench.folder / "gone").mkdir()
    assert service.outbox.commit(service.outbox.retry_at)
    assert (bench.folder / "gone" / "gpuevent.log").read_text().count("\n") == 1
