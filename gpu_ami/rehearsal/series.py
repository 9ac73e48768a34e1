"""Many recipes, as many at once as the host has processors, memory and disk for."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.jobs import UnderWay
from gpu_ami.local import space
from gpu_ami.rehearsal.rehearse import Options, rehearse
from gpu_ami.rehearsal.selection import expected_seconds

if TYPE_CHECKING:
    from gpu_ami.pipeline import Session
    from gpu_ami.rehearsal.candidates import Candidate
    from gpu_ami.rehearsal.results import Rehearsal

_MIB, _GIB = 1024**2, 1024**3
# Of a rehearsal: Packer, Ansible, the compiler in the sandbox, the validator; with a machine, its memory too.
FILES_BYTES, BOOT_BYTES = 1 * _GIB, 4 * _GIB
# A base image, the builder's disk and the image, with what the roles install (gpu_ami.local.space.build_bytes).
DISK_BYTES = 8 * _GIB


def width(home: Path, *, boot: bool) -> int:
    """How many rehearsals run side by side; at least one, which says itself what it lacks."""
    memory = _available_memory() // (BOOT_BYTES if boot else FILES_BYTES)
    return max(1, min(len(os.sched_getaffinity(0)), memory, space.free(home) // DISK_BYTES))


def _available_memory() -> int:
    """Bytes; as much as a rehearsal needs where /proc does not say."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else BOOT_BYTES


def run(candidates: Sequence[Candidate], session: Session, options: Options, jobs: int) -> list[Rehearsal]:
    """Rehearses each candidate; one that fails stops no other. Ctrl-C ends all, and each cleans up.

    An optional one is left out if it would take longer than what is left of the run's time.
    """
    under_way, began = UnderWay(), time.monotonic()
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=jobs))
        stack.push(functools.partial(_abandon, pool, options, under_way))
        futures: list[Future[Rehearsal]] = [
            pool.submit(under_way.run, _begin, candidate, session, options, began) for candidate in candidates
        ]
        while not all(future.done() for future in futures):  # a wait without end would not see Ctrl-C
            time.sleep(0.1)
        return [future.result() for future in futures]


def _begin(candidate: Candidate, session: Session, options: Options, began: float) -> Rehearsal:
    needed, elapsed = expected_seconds(candidate), time.monotonic() - began
    if candidate.is_optional and options.seconds is not None and elapsed + needed > options.seconds:
        text = f"no time left: it takes about {needed:.0f} s, and {elapsed:.0f} of {options.seconds:.0f} s had passed"
        return candidate.left_out(text).row
    return rehearse(candidate, session, options)


def _abandon(
    pool: ThreadPoolExecutor, options: Options, under_way: UnderWay, _: object, error: BaseException | None, __: object
) -> None:
    if error is None:
        return
    options.cancelled.set()  # before anything that may be interrupted again: threads that wait end at once
    pool.shutdown(wait=False, cancel_futures=True)
    under_way.end()
