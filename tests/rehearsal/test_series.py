"""Many recipes: side by side, in order, each whatever the others do; Ctrl-C ends all."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import process
from gpu_ami.local import space
from gpu_ami.rehearsal import series
from gpu_ami.rehearsal.candidates import Candidate
from gpu_ami.rehearsal.rehearse import Cancelled, Options
from gpu_ami.rehearsal.results import Rehearsal

SESSION: Any = None


def some(*names: str) -> list[Candidate]:
    return [Candidate(Path(f"{name}.yml"), Path(name), Rehearsal(name, f"{name}.yml", "", "PASS", 0)) for name in names]


def test_rows_come_in_the_order_of_the_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    second = threading.Event()

    def rehearse(candidate: Candidate, _session: Any, _options: Options) -> Rehearsal:
        if candidate.image == "a":
            assert second.wait(10)  # side by side: the first waits for the second
        else:
            second.set()
        return candidate.row

    monkeypatch.setattr(series, "rehearse", rehearse)
    rows = series.run(some("a", "b", "c"), SESSION, Options(), 2)
    assert [row.image for row in rows] == ["a", "b", "c"]


def test_no_more_run_at_once_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def rehearse(candidate: Candidate, _session: Any, _options: Options) -> Rehearsal:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return candidate.row

    monkeypatch.setattr(series, "rehearse", rehearse)
    series.run(some(*"abcdef"), SESSION, Options(), 2)
    assert most == 2


def test_ctrl_c_ends_what_runs_and_starts_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    began, cleaned = list[str](), list[str]()
    main = threading.main_thread().ident
    assert main

    def rehearse(candidate: Candidate, _session: Any, options: Options) -> Rehearsal:
        if options.cancelled.is_set():
            raise Cancelled(candidate.image)
        began.append(candidate.image)
        if len(began) == 2:
            signal.pthread_kill(main, signal.SIGINT)
        try:
            process.run(["sleep", "60"], timeout=60, check=False)
        finally:
            cleaned.append(candidate.image)
        raise Cancelled(candidate.image)

    monkeypatch.setattr(series, "rehearse", rehearse)
    options, started = Options(), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        series.run(some(*"abcdef"), SESSION, options, 2)
    assert sorted(began) == sorted(cleaned) == ["a", "b"]
    assert options.cancelled.is_set() and time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("cores", "memory_gib", "disk_gib", "boot", "expected"),
    [
        (2, 23, 78, False, 2),
        (16, 23, 78, False, 9),  # the disk
        (16, 6, 200, False, 6),  # memory
        (16, 23, 200, True, 5),  # a machine's memory
        (4, 0, 0, True, 1),  # one, which says what it lacks
    ],
)
def test_width_is_what_the_host_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cores: int,
    memory_gib: int,
    disk_gib: int,
    boot: bool,
    expected: int,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    monkeypatch.setattr(series, "_available_memory", lambda: memory_gib * 1024**3)
    monkeypatch.setattr(space, "free", lambda _folder: disk_gib * 1024**3)
    assert series.width(tmp_path, boot=boot) == expected


def test_available_memory_is_read() -> None:
    assert series._available_memory() > 1024**2


def test_optional_recipes_are_begun_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "rehearse", lambda candidate, *_: candidate.row)
    needed = {"quick": 10.0, "slow": 1800.0, "always": 1800.0}
    monkeypatch.setattr(series, "expected_seconds", lambda candidate: needed[candidate.image])
    waiting = [replace(one, is_optional=one.image != "always") for one in some("always", "slow", "quick")]
    always, slow, quick = series.run(waiting, SESSION, Options(seconds=600.0), 1)
    assert (always.result, quick.result) == ("PASS", "PASS")
    assert (slow.result, slow.exit_code) == ("LEFT OUT", 0)
    assert slow.reason == "no time left: it takes about 1800 s, and 0 of 600 s had passed"
    assert [row.result for row in series.run(waiting, SESSION, Options(), 1)] == ["PASS"] * 3
