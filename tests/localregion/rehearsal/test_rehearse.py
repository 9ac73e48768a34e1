"""A rehearsal: its stages, what it leaves, and that an error is its own alone; many side by side, ended by Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami import observe, pipeline, process
from gpu_ami.cloud import MachineTraits, Place, resources
from gpu_ami.errors import BuildError, CloudError
from gpu_ami.progress import Progress
from gpu_ami.region import Session
from gpu_ami.validate import ProofOptions
from localregion import host
from localregion.rehearsal import candidates
from localregion.rehearsal import rehearse as rehearsing
from localregion.rehearsal.candidates import Candidate
from localregion.rehearsal.rehearse import Cancelled, Options, rehearse
from localregion.rehearsal.results import Rehearsal, load
from tests.regions import NotingRegion
from tests.report.examples import a_host, a_report, offline
from validator.results import Replica

PLACE = Place(name="local", region="us-east-1", machines=MachineTraits(simulated=True, sandbox_builder=True))
RECIPES = Path(__file__).parents[3] / "variables" / "recipes"


class Region:
    """Stages of the pipeline without a region. report: of the image's files; error: of the build."""

    def __init__(self, images: Path) -> None:
        self.images, self.calls = images, list[str]()
        self.report = a_report(offline(efa="PASS"))
        self.error: Exception | None = None
        self.differences = list[str]()
        self.asked = ProofOptions()

    def build(self, plan: Any, _out: Path, session: Session, *, fresh: bool) -> SimpleNamespace:
        self.calls.append(f"build {plan.image} in run {bool(session.run.id)}, fresh {fresh}")
        session.progress.note("Packer runs")
        if self.error:
            raise self.error
        (self.images / "ami-1").mkdir(parents=True)
        return SimpleNamespace(ami="ami-1", source_ami="ami-0", snapshots=("snap-1",))

    def validate_files(self, _plan: Any, ami: str, _out: Path, _session: Session, asked: Any) -> Any:
        self.calls.append(f"files of {ami}")
        self.asked = asked
        return self.report

    def validate(self, _plan: Any, ami: str, _out: Path, _session: Session, decided: Any) -> Any:
        self.calls.append(f"boot {ami}")
        self.asked = decided.options
        decided.options.cancelled.set()  # as at the end of each proof
        return self.report

    def observe(self, ami: str, _session: Session) -> str:
        self.calls.append(f"observe {ami}")
        return f"observation of {ami}"

    def against(self, observation: Any, recipe: Path) -> list[str]:
        assert (observation, recipe.suffix) == ("observation of ami-1", ".yml")
        return self.differences

    def remove(self, _cloud: Any, resource: resources.Resource) -> None:
        self.calls.append(f"remove {resource.id}")
        if resource.kind == "image":
            (self.images / resource.id).rmdir()


@pytest.fixture
def region(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Region]:
    recorded = Region(tmp_path / "images")
    monkeypatch.setattr(pipeline, "build_stage", recorded.build)
    monkeypatch.setattr(pipeline, "validate_files_stage", recorded.validate_files)
    monkeypatch.setattr(pipeline, "decide", lambda _plan, options, _session: SimpleNamespace(options=options))
    monkeypatch.setattr(pipeline, "validate_stage", recorded.validate)
    monkeypatch.setattr(pipeline, "observe_stage", recorded.observe)
    monkeypatch.setattr(observe, "against", recorded.against)
    monkeypatch.setattr(resources, "remove", recorded.remove)
    yield recorded


@pytest.fixture
def session(region: Region) -> Session:
    cloud: Any = None
    run: Any = SimpleNamespace(id="")
    return Session(PLACE, cloud, run, Progress("quiet"), NotingRegion(region.images))


def candidate(tmp_path: Path, *, boot: bool = False) -> Candidate:
    return prepared("debian12-gpu", tmp_path, boot=boot)


def prepared(image: str, tmp_path: Path, *, boot: bool = False) -> Candidate:
    (found,) = candidates.find([RECIPES / f"{image}.yml"], tmp_path / "out", PLACE)
    return candidates.prepare(found, PLACE, boot=boot, fresh=False)


def test_files_are_judged_and_the_image_is_removed(region: Region, session: Session, tmp_path: Path) -> None:
    row = rehearse(candidate(tmp_path), session, Options())
    assert region.calls == [
        "build debian12-gpu in run True, fresh True", "files of ami-1", "observe ami-1",
        "remove ami-1", "remove snap-1",
    ]  # fmt: skip
    assert (row.result, row.source_ami, row.kept) == ("PASS", "ami-0", False)
    assert row.finished.endswith("Z") and row.seconds >= 0
    assert load(tmp_path / "out" / "debian12-gpu") == row
    assert json.loads((tmp_path / "out/debian12-gpu/plan.json").read_text())["image"] == "debian12-gpu"


def test_keep_leaves_the_image(region: Region, session: Session, tmp_path: Path) -> None:
    assert rehearse(candidate(tmp_path), session, Options(keep=True)).kept
    assert region.calls[-1] == "observe ami-1"


def test_an_image_that_is_observed_as_something_else_fails(region: Region, session: Session, tmp_path: Path) -> None:
    region.differences = ["kernel: expected 6.12, got 6.1", "NCCL: expected 2.27.3, got nothing"]
    row = rehearse(candidate(tmp_path), session, Options())
    assert (row.result, row.exit_code, row.differences) == ("FAIL", 1, tuple(region.differences))
    assert "observed without its plan: NCCL: expected 2.27.3, got nothing" in row.reason
    assert load(tmp_path / "out" / "debian12-gpu") == row


def test_the_kernel_of_an_emulated_distribution_is_no_difference(
    region: Region, session: Session, tmp_path: Path
) -> None:
    region.differences = ["kernel: expected 7.0, got 6.1"]
    row = rehearse(prepared("ubuntu2404-compute", tmp_path), session, Options())
    assert (row.result, row.differences) == ("PASS", ())


def test_boot_proves_the_smallest_machine_without_restarts(region: Region, session: Session, tmp_path: Path) -> None:
    machine = replace(a_host("g5.12xlarge"), replicas=(Replica("libnccl2", "2.1", "a replica"),), facts={})
    region.report = a_report(offline(efa="PASS"), machine)
    row = rehearse(candidate(tmp_path, boot=True), session, Options())
    assert region.calls[1] == "boot ami-1"
    assert (region.asked.instance_types, region.asked.restarts) == (["g5.12xlarge"], ())
    assert region.asked.join is None
    rehearse(prepared("pcluster-3.16-ubuntu2404", tmp_path, boot=True), session, Options())
    assert region.asked.join == "", "a ParallelCluster image is a node of its own Slurm cluster"
    assert row.result == "PASS"
    assert row.simulated == ("nccl", "accelerators")


def test_what_stood_in_for_the_original_is_named(region: Region, session: Session, tmp_path: Path) -> None:
    packages = ("kmod-nvidia-open-dkms", "libnccl", "nvidia-driver-cuda", "/opt/x/lib/libnccl-net.so")
    replicas = tuple(Replica(package, "1", "a replica") for package in packages)
    region.report = a_report(replace(offline(efa="PASS"), replicas=replicas))
    row = rehearse(prepared("al2023-compute", tmp_path), session, Options())
    assert row.simulated == ("system (al2023@6.12 on Debian 12)", "libnccl-net.so", "nccl", "nvidia_driver")
    assert row.replicas == tuple(sorted(f"{package} 1" for package in packages))


@pytest.mark.parametrize(
    ("error", "result", "code"),
    [
        (BuildError("Packer failed (exit code 1): efa"), "NOT BUILT", 3),
        (CloudError("no space for a build"), "ERROR", 4),
        (KeyError("nccl"), "ERROR", 4),
    ],
)
def test_an_error_is_the_recipes_alone(
    region: Region, session: Session, tmp_path: Path, error: Exception, result: str, code: int
) -> None:
    region.error = error
    row = rehearse(candidate(tmp_path), session, Options())
    assert (row.result, row.exit_code) == (result, code)
    log = (tmp_path / "out" / "debian12-gpu" / rehearsing.LOG_FILE).read_text()
    assert str(error) in log
    if isinstance(error, KeyError):
        assert "a defect of gpu-ami" in row.reason and "Traceback" in log


def test_the_image_is_removed_where_it_was_not_judged(
    region: Region, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise CloudError("the files of ami-1 cannot be checked")

    monkeypatch.setattr(pipeline, "validate_files_stage", fails)
    row = rehearse(candidate(tmp_path), session, Options())
    assert (row.result, row.source_ami) == ("ERROR", "")
    assert region.calls[-2:] == ["remove ami-1", "remove snap-1"]


def test_a_removal_that_fails_is_noted_and_no_verdict(
    region: Region, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise CloudError("removing image ami-1: UnauthorizedOperation")

    monkeypatch.setattr(resources, "remove", refused)
    assert rehearse(candidate(tmp_path), session, Options()).result == "PASS"
    log = (tmp_path / "out" / "debian12-gpu" / rehearsing.LOG_FILE).read_text()
    assert "ami-1 was not removed: removing image ami-1: UnauthorizedOperation" in log


def test_nothing_is_written_of_an_interrupted_recipe(
    region: Region, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options()
    found = candidate(tmp_path)

    def interrupted(*_: Any) -> Any:
        options.cancelled.set()
        return region.report

    monkeypatch.setattr(pipeline, "validate_files_stage", interrupted)
    with pytest.raises(Cancelled, match="debian12-gpu was not judged"):
        rehearse(found, session, options)
    assert load(found.out) is None and "remove ami-1" in region.calls
    region.calls.clear()
    with pytest.raises(Cancelled, match="debian12-gpu was not rehearsed"):
        rehearse(found, session, options)
    assert region.calls == []


def test_the_last_line_of_the_log_is_shown(region: Region, session: Session, tmp_path: Path) -> None:
    shown: list[str] = []

    class Watched(Progress):
        def update(self, text: str = "", **_: int) -> None:
            shown.append(text)

    found = candidate(tmp_path)
    rehearse(found, replace(session, progress=Watched("quiet")), Options())
    assert shown == ["· Packer runs"]
    assert (found.out / rehearsing.LOG_FILE).read_text() == "· Packer runs\n"


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

    monkeypatch.setattr(rehearsing, "rehearse", rehearse)
    rows = rehearsing.run(some("a", "b", "c"), SESSION, Options(), 2)
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

    monkeypatch.setattr(rehearsing, "rehearse", rehearse)
    rehearsing.run(some(*"abcdef"), SESSION, Options(), 2)
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

    monkeypatch.setattr(rehearsing, "rehearse", rehearse)
    options, started = Options(), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        rehearsing.run(some(*"abcdef"), SESSION, options, 2)
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
    monkeypatch.setattr(rehearsing, "available_memory", lambda: memory_gib * 1024**3)
    monkeypatch.setattr(host, "free", lambda _folder: disk_gib * 1024**3)
    assert rehearsing.width(tmp_path, boot=boot) == expected


def test_available_memory_is_read() -> None:
    assert rehearsing.available_memory() > 1024**2
