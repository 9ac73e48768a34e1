"""Who holds the region, and the control socket."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from localregion.control import Control, Holders, ask
from localregion.state import LIFELINE, ImageRecord, Layout


def test_the_last_holder_ends_the_region() -> None:
    ended = threading.Event()
    holders = Holders(False, ended.set)
    with holders.held("a"):
        with holders.held("b"):
            assert holders.names == ["a", "b"]
        assert not ended.is_set()
    assert ended.is_set() and holders.names == []


def test_a_persistent_region_outlives_its_holders() -> None:
    ended = threading.Event()
    holders = Holders(False, ended.set)
    with holders.held("a"):
        holders.persistent = True
    assert not ended.is_set()


def test_a_lifeline_is_held_until_its_writer_is_gone() -> None:
    ended = threading.Event()
    holders = Holders(False, ended.set)
    read, write = os.pipe()
    thread = threading.Thread(target=holders.watch_pipe, args=(read,))
    thread.start()
    while holders.names != [LIFELINE]:
        assert thread.is_alive()
    os.close(write)
    thread.join(10)
    assert ended.is_set()


class FakeDaemon:
    """A daemon without a region behind it."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.ended = threading.Event()
        self.holders = Holders(False, self.ended.set)
        self.registered: list[tuple[str, str]] = []
        self.expected: list[str] = []

    def describe(self) -> dict[str, Any]:
        return {"endpoint": "http://127.0.0.1:1"}

    def status(self) -> dict[str, Any]:
        return {"holds": self.holders.names}

    def end(self) -> None:
        self.ended.set()

    def expect_launch(self, image_id: str) -> None:
        self.expected.append(image_id)

    def register_source_ami(self, record: ImageRecord, parameter: str) -> None:
        self.registered.append((record.id, parameter))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    layout = Layout(tmp_path)
    layout.make()
    daemon = FakeDaemon(layout)
    control = Control(daemon)
    yield daemon
    control.close()


def test_requests_are_answered(daemon: FakeDaemon) -> None:
    assert ask(daemon.layout, {"do": "status"}) == {"endpoint": "http://127.0.0.1:1", "holds": []}
    ask(daemon.layout, {"do": "keep"})
    assert daemon.holders.persistent is True
    ask(daemon.layout, {"do": "stop"})
    assert daemon.ended.is_set()
    assert daemon.layout.control.stat().st_mode & 0o777 == 0o600


def test_a_source_ami_is_registered_before_the_answer(daemon: FakeDaemon) -> None:
    record = ImageRecord("ami-1", "n", "", "1", "x86_64", "/dev/xvda", "snap-1", 8, "2026-11-21T00:00:00.000Z")
    ask(daemon.layout, {"do": "status", "image": asdict(record), "parameter": "/aws/service/x"})
    assert daemon.registered == [("ami-1", "/aws/service/x")]


def test_a_launch_is_announced(daemon: FakeDaemon) -> None:
    assert ask(daemon.layout, {"do": "expect", "launch": "ami-1"}) is not None
    assert daemon.expected == ["ami-1"] and not daemon.ended.is_set()


def test_nobody_answers_without_a_daemon(tmp_path: Path) -> None:
    assert ask(Layout(tmp_path), {"do": "status"}) is None
