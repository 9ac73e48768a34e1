"""A service for tests: a socket pair stands for /dev/kmsg, a folder for the disk."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.events.reader import parser_module

BOOT = "11111111-2222-3333-4444-555555555555"
kmsg = parser_module("kmsg")
service_module = parser_module("service")
sinks = parser_module("sinks")
state_module = parser_module("state")


def record(seq: int, text: str, priority: int = 4, microseconds: int | None = None) -> bytes:
    return f"{priority},{seq},{seq * 1000 if microseconds is None else microseconds},c;{text}\n".encode()


def xid(seq: int, code: int = 31, priority: int = 4) -> bytes:
    return record(seq, f"NVRM: Xid (PCI:0000:00:1e): {code}, pid=1, name=job {seq}, Ch 00000008", priority)


def noise(seq: int) -> bytes:
    return record(seq, "usb 1-1: new device")


def _open_files() -> Iterator[tuple[int, Path]]:
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it was that of the listing
            yield int(entry.name), entry.readlink()


class Bench:
    """The paths of one service, and a kernel ring buffer that keeps every record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ring: list[bytes] = []
        self.boot = BOOT
        self.far: socket.socket | None = None
        self._near = ""  # the service's end of the socket pair, as /proc/self/fd shows it
        (folder / "state").mkdir()
        (folder / "run").mkdir()
        self.options = service_module.Options()
        self.options.raw_log = str(folder / "gpuevent.log")
        self.options.json_log = str(folder / "gpuevent.jsonl")
        self.options.state_dir = str(folder / "state")
        self.options.status_path = str(folder / "run" / "status.json")
        self.options.policy = str(folder / "no-policy.json")
        self.options.nvidia_smi = str(folder / "no-nvidia-smi")

    def start(self) -> Any:
        """Starts a service, which reads the ring buffer from its oldest record as from /dev/kmsg."""
        self.end()
        near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near.setblocking(False)
        self.far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        self._near = str(Path(f"/proc/self/fd/{near.fileno()}").readlink())
        service = service_module.Service(self.options, kmsg.Source(near.detach()), self.boot)
        for raw in self.ring:
            self.far.send(raw)
        return service

    def end(self) -> None:
        """Closes what the service had open, as the end of its process does."""
        if self.far is None:
            return
        self.far.close()
        self.far = None
        for fd, path in list(_open_files()):
            if self.folder in path.parents or str(path) == self._near:
                os.close(fd)

    def print(self, *records: bytes) -> None:
        """The kernel prints records."""
        assert self.far is not None
        for raw in records:
            self.ring.append(raw)
            self.far.send(raw)

    def raw(self) -> list[str]:
        return _lines(self.folder, "gpuevent.log")

    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in _lines(self.folder, "gpuevent.jsonl")]

    def events(self) -> list[dict[str, Any]]:
        return [
            event
            for event in self.documents()
            if event["kind"] in ("xid", "sxid", "gpu_lost", "neuron", "gpu_init_failed")
        ]

    def seqs(self) -> list[int]:
        return [event["seq"] for event in self.events()]


def _lines(folder: Path, name: str) -> list[str]:
    parts = [path for path in (folder / f"{name}.1", folder / name) if path.exists()]
    text = "".join(path.read_text(encoding="utf-8") for path in parts)
    assert text == "" or text.endswith("\n"), "an incomplete line"
    return text.splitlines()


@pytest.fixture(name="bench")
def make_bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.end()


def settle(service: Any) -> None:
    """Reads all records and releases the events that wait for more lines."""
    service.drain()
    service.commit([], everything=True)


class Killed(BaseException):
    """Like SIGKILL: no code of the service runs after it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, countdown: int, part: float) -> Callable[[], int]:
    """Kills the process in its n-th write after `part` of it. Returns a function that counts the writes."""
    calls = [0]
    write, pwrite = os.write, os.pwrite

    def dying_write(fd: int, data: bytes) -> int:
        calls[0] += 1
        if calls[0] == countdown:
            if part:
                write(fd, data[: max(1, int(len(data) * part))])
            raise Killed
        return write(fd, data)

    def dying_pwrite(fd: int, data: bytes, offset: int) -> int:
        calls[0] += 1
        if calls[0] == countdown:
            if part:
                pwrite(fd, data[: max(1, int(len(data) * part))], offset)
            raise Killed
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "write", dying_write)
    monkeypatch.setattr(os, "pwrite", dying_pwrite)
    return lambda: calls[0]
