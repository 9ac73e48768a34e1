"""The rehearsal of a recipe: a build, checks of the image's files or of a machine, its removal.

Many recipes: as many at once as the host has processors, memory and disk for.
"""

from __future__ import annotations

import functools
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from gpu_ami import observe, pipeline
from gpu_ami.cloud import resources, runs
from gpu_ami.errors import CloudError, GpuAmiError, UsageError
from gpu_ami.files import home_dir
from gpu_ami.plan import Plan, cost, make_plan
from gpu_ami.process import UnderWay
from gpu_ami.progress import Progress
from gpu_ami.report import document
from gpu_ami.validate import ProofOptions, cluster
from localregion import host, mirror
from localregion.debian import BOOKWORM, RELEASES
from localregion.rehearsal import results
from validator.deadline import wait_until
from validator.plan_document import package_system

if TYPE_CHECKING:
    from gpu_ami.build import image as builds
    from gpu_ami.region import Session
    from gpu_ami.report import Report
    from localregion.rehearsal.candidates import Candidate
    from localregion.rehearsal.results import Rehearsal


LOG_FILE = "rehearsal.log"
_REMOVED_SECONDS = 20.0


class Cancellation(threading.Event):
    """Set on Ctrl-C. A proof sets its own event when it has ended, too, so each recipe has one."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[threading.Event] = []

    def part(self) -> threading.Event:
        """An event that is set with this one, and does not set it."""
        event = threading.Event()
        self._parts.append(event)
        if self.is_set():
            event.set()
        return event

    def set(self) -> None:
        super().set()
        for event in list(self._parts):
            event.set()


@dataclass(frozen=True)
class Options:
    """keep: leaves the images."""

    keep: bool = False
    cancelled: Cancellation = field(default_factory=Cancellation)


class Cancelled(CloudError):
    """The run was interrupted: nothing is known of this recipe."""


def rehearse(candidate: Candidate, session: Session, options: Options) -> Rehearsal:
    """What is found of a recipe, in its folder, whatever goes wrong. Cancelled: the run was interrupted."""
    if options.cancelled.is_set():
        raise Cancelled(f"{candidate.image} was not rehearsed: the run was interrupted")
    candidate.out.mkdir(parents=True, exist_ok=True)
    (candidate.out / results.RESULT_FILE).unlink(missing_ok=True)
    started = time.monotonic()
    with (
        session.progress.stage(f"rehearse {candidate.image}", candidate.image),
        (candidate.out / LOG_FILE).open("w", encoding="utf-8") as log,
    ):
        row = _outcome(candidate, session, options, log)
        if options.cancelled.is_set():
            raise Cancelled(f"{candidate.image} was not judged: the run was interrupted")
        row = replace(row, seconds=round(time.monotonic() - started, 1), finished=runs.as_text(runs.now()))
        row.write(candidate.out)
        session.progress.note(" ".join(filter(None, [row.result, f"({row.checks})" * bool(row.checks), row.reason])))
    return row


def _outcome(candidate: Candidate, session: Session, options: Options, log: IO[str]) -> Rehearsal:
    """The row without its time. An error of any kind is this recipe's alone."""
    own = Progress(stream=cast(IO[str], _Log(log, session.progress.update)))
    try:
        with runs.begin(home_dir(), session.place.name) as run:
            recipe_session = replace(session, run=run, progress=own, budget=cost.Budget())
            return _build_and_judge(candidate, recipe_session, options)
    except GpuAmiError as error:
        print(error, file=log)
        return candidate.row.failing(error)
    except Exception as error:  # of gpu-ami: the other recipes are rehearsed all the same
        print(traceback.format_exc(), file=log)
        text = f"{type(error).__name__}: {error} (a defect of gpu-ami: {candidate.out / LOG_FILE})"
        return replace(candidate.row, result=str(document.ERROR), exit_code=GpuAmiError.exit_code, reason=text)


def _build_and_judge(candidate: Candidate, session: Session, options: Options) -> Rehearsal:
    out = candidate.out
    plan = make_plan(candidate.recipe, session.place)
    plan.write(out, session.place)
    made = pipeline.build_stage(plan, out, session, fresh=True)
    row = replace(candidate.row, source_ami=made.source_ami, kept=options.keep)
    try:
        report = _judge(plan, made, candidate, session, options)
        row = row.judged(report).observed(_differences(made, candidate, session))
    finally:
        if not options.keep:
            _remove(made, session)
    return replace(row, simulated=tuple(_simulated(row, plan, report)))


def _judge(plan: Plan, made: builds.Build, candidate: Candidate, session: Session, options: Options) -> Report:
    asked = ProofOptions(restarts=(), cancelled=options.cancelled.part())
    if not candidate.row.instance_type:
        return pipeline.validate_files_stage(plan, made.ami, candidate.out, session, asked)
    join = "" if cluster.is_supported(plan.document, session.place) else None
    asked = replace(asked, instance_types=[candidate.row.instance_type], join=join)
    decided = pipeline.decide(plan, asked, session)
    return pipeline.validate_stage(plan, made.ami, candidate.out, session, decided)


def _differences(made: builds.Build, candidate: Candidate, session: Session) -> Sequence[str]:
    """How the image, observed as one that others built, differs from its recipe."""
    lines = observe.against(pipeline.observe_stage(made.ami, session), candidate.recipe)
    # The kernel of an emulated distribution is that of the system it is emulated on.
    emulated = _system(candidate.row) not in RELEASES
    return [line for line in lines if not (emulated and line.startswith("kernel: "))]


def _system(row: Rehearsal) -> str:
    """The base image's system, without the node family."""
    return row.base_image.partition("+")[0]


def _remove(made: builds.Build, session: Session) -> None:
    """Removes the image and its snapshots, and waits until the local region has freed the space of its disk."""
    try:
        resources.remove(session.cloud, resources.Resource("image", made.ami, {}))
        for snapshot in made.snapshots:
            resources.remove(session.cloud, resources.Resource("snapshot", snapshot, {}))
    except GpuAmiError as error:
        session.progress.note(f"{made.ami} was not removed: {error.message}")
        return
    images = session.region.images
    wait_until(lambda: images is None or not (images / made.ami).exists(), _REMOVED_SECONDS, 0.1)


def _simulated(row: Rehearsal, plan: Plan, report: Report) -> Sequence[str]:
    """What stood in for the original, in words: the system, families of replicas, a machine's accelerators."""
    parts = [] if _system(row) in RELEASES else [f"system ({row.base_image} on {BOOKWORM.name})"]
    kind = package_system(plan.document["os"])
    packages = {entry.package for host in report.hosts for entry in host.replicas}
    parts += sorted({_family(package, kind) for package in packages})
    return parts + ["accelerators"] * any(not host.offline for host in report.hosts)


def _family(package: str, kind: str) -> str:
    """The family of a replica, a folder of localregion/replicas; of a library of no package, its file's name."""
    try:
        return mirror.find_row("packages", package, kind=kind, asked_by="rehearsal").family
    except UsageError:
        return package.rpartition("/")[2]


class _Log:
    """A recipe's own log, whose last line is shown while it is rehearsed."""

    def __init__(self, file: IO[str], show: Callable[[str], object]) -> None:
        self._file, self._show = file, show

    def write(self, text: str) -> int:
        if line := text.strip():
            self._show(line)
        return self._file.write(text)

    def flush(self) -> None:
        self._file.flush()


_MIB, _GIB = 1024**2, 1024**3
# Of a rehearsal: Packer, Ansible, the compiler in the sandbox, the validator; with a machine, its memory too.
FILES_BYTES, BOOT_BYTES = 1 * _GIB, 4 * _GIB
# A base image, the builder's disk and the image, with what the roles install (localregion.host.build_bytes).
DISK_BYTES = 8 * _GIB


def width(home: Path, *, boot: bool) -> int:
    """How many rehearsals run side by side; at least one, which says itself what it lacks."""
    memory = available_memory() // (BOOT_BYTES if boot else FILES_BYTES)
    return max(1, min(len(os.sched_getaffinity(0)), memory, host.free(home) // DISK_BYTES))


def available_memory() -> int:
    """Bytes; as much as a rehearsal needs where /proc does not say."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else BOOT_BYTES


def run(candidates: Sequence[Candidate], session: Session, options: Options, jobs: int) -> list[Rehearsal]:
    """Rehearses each candidate; one that fails stops no other. Ctrl-C ends all, and each cleans up."""
    under_way = UnderWay()
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=jobs))
        stack.push(functools.partial(_abandon, pool, options, under_way))
        futures: list[Future[Rehearsal]] = [
            pool.submit(under_way.run, rehearse, candidate, session, options) for candidate in candidates
        ]
        while not all(future.done() for future in futures):  # a wait without end would not see Ctrl-C
            time.sleep(0.1)
        return [future.result() for future in futures]


def _abandon(
    pool: ThreadPoolExecutor, options: Options, under_way: UnderWay, _: object, error: BaseException | None, __: object
) -> None:
    if error is None:
        return
    options.cancelled.set()  # before anything that may be interrupted again: threads that wait end at once
    pool.shutdown(wait=False, cancel_futures=True)
    under_way.end()
