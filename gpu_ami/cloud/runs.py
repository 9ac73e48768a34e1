"""Runs of the driver on this machine: an id, a temporary key, and a record by which `sweep` knows a dead run.

A record (`<home>/runs/<id>/run.json`) is written before anything is created in a cloud and removed after everything
is gone, also when the run fails; a record whose process has ended is a run that left something behind. While a run
lives, it touches a file beside its record: what it made last may be in no list of AWS yet when it is swept.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpu_ami.errors import GpuAmiError
from gpu_ami.files import write_json
from gpu_ami.process import ProcessIdentity, identify

TAG_RUN = "gpu-ami:run"
TAG_EXPIRES = "gpu-ami:expires"
TAG_RECIPE = "gpu-ami:recipe"
TAG_PLAN = "gpu-ami:plan"
# In the place of a place's name, of runs that create nothing in a cloud: of a host, of image files, of a recording.
WITHOUT_PLACE = HOST, FILES, RECORDING = "host", "files", "record"
LIFETIME = timedelta(hours=4)
_LEFT_BEHIND = "left-behind"
REMEDY = "`gpu-ami sweep` (on AWS with --where) removes the rest"
_BUILDERS = "builders"  # ids of instances, one a line
_IMAGES = "images"  # ids of AMIs that a build.json names, one a line; versions before 0.3 wrote no such file
_ALIVE = "alive"  # its time is when the run was last alive
BEAT_SECONDS = 5.0
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_ID = re.compile(r"(?P<started>\d{8}-\d{6})-[0-9a-f]{6}")
_LONGEST = timedelta(hours=24)  # no run takes so long


@dataclass(frozen=True)
class PlaceFile:
    """A `--where` file: its absolute path, and what in it tells its account and region from those of another."""

    path: str
    region: str
    profile: str = ""
    endpoint: str = ""

    @staticmethod
    def from_json(data: Mapping[str, str]) -> PlaceFile:
        return PlaceFile(data["path"], data["region"], data.get("profile", ""), data.get("endpoint", ""))

    def is_same(self, other: PlaceFile) -> bool:
        """Whether `other` is this file, or the one that it was moved to."""
        return self == other or (replace(self, path=other.path) == other and not Path(self.path).exists())


@dataclass(frozen=True)
class Run:
    """One run: its id, when it began (UTC), when what it creates at its start expires, and its private folder.

    place_file: of its place; None in the local region, and for a machine that was given by its address.
    """

    id: str
    started: str
    expires: str
    folder: Path
    process: ProcessIdentity
    place: str = "local"
    place_file: PlaceFile | None = None

    @property
    def key_file(self) -> Path:
        """Private key of the machines of this run (0600, gone with the run)."""
        return self.folder / "id_ed25519"

    @property
    def lifetime(self) -> timedelta:
        """How long something that it creates may stay."""
        return datetime.strptime(self.expires, _TIME) - datetime.strptime(self.started, _TIME)

    def expiry(self) -> str:
        """When something that is created now expires: a machine after a long build lives as long as any other."""
        return as_text(now() + self.lifetime)

    def note_builder(self, instance_id: str) -> None:
        """Keeps a builder's id: Packer before 1.7 makes an image that has no tags until it is complete."""
        with (self.folder / _BUILDERS).open("a", encoding="utf-8") as file:
            file.write(f"{instance_id}\n")

    def note_image(self, ami: str) -> None:
        """Keeps the id of an AMI that is complete and named by a build.json: `sweep` leaves it."""
        with (self.folder / _IMAGES).open("a", encoding="utf-8") as file:
            file.write(f"{ami}\n")

    def tags(self, *, recipe: str = "", plan_digest: str = "") -> dict[str, str]:
        """The tags that everything of this run carries from its creating call."""
        tags = {TAG_RUN: self.id, TAG_EXPIRES: self.expiry(), "Name": f"gpu-ami {recipe or 'run'} {self.id}"}
        named = {TAG_RECIPE: recipe, TAG_PLAN: plan_digest}
        return tags | {key: value for key, value in named.items() if value}


@dataclass(frozen=True)
class Record:
    """What `sweep` reads of a run that may be dead.

    last_alive: seconds since 1970; 0.0 where it is not known. builders: instances that Packer made images of. images:
    AMIs that were recorded in a build.json; None where it is not known. place_file: of its place, None without one;
    versions before 0.3 wrote only the place's name, which several files may have (names_file).
    """

    id: str
    expires: str
    folder: Path
    alive: bool
    place: str = field(default="local")
    last_alive: float = 0.0
    builders: tuple[str, ...] = ()
    images: tuple[str, ...] | None = None
    place_file: PlaceFile | None = None
    names_file: bool = False

    def is_of(self, place: str, file: PlaceFile | None) -> bool:
        """Whether the run worked in the place of that name and file."""
        if self.place != place:
            return False
        if self.place_file is None or file is None:
            return not self.names_file or self.place_file is file
        return self.place_file.is_same(file)


def now() -> datetime:
    return datetime.now(UTC)


def as_text(moment: datetime) -> str:
    return moment.strftime(_TIME)


def ended_by(run_id: str) -> str:
    """When a run of this id has ended at the latest, wherever it ran (RFC 3339, UTC); "" for what is no run's id."""
    match = _ID.fullmatch(run_id)
    if not match:
        return ""
    try:
        return as_text(datetime.strptime(match["started"], "%Y%m%d-%H%M%S").replace(tzinfo=UTC) + _LONGEST)
    except ValueError:
        return ""


def has_expired(expires: str) -> bool:
    """Whether an expiry tag's time has passed. A value that is not a time never expires."""
    try:
        return datetime.strptime(expires, _TIME).replace(tzinfo=UTC) < now()
    except ValueError:
        return False


@contextmanager
def begin(home: Path, place: str, lifetime: timedelta = LIFETIME, place_file: PlaceFile | None = None) -> Iterator[Run]:
    """Registers a run; its folder (temporary key, logs) is removed after the block and its clean-up."""
    started = now()
    identity = f"{started:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    folder = home / "runs" / identity
    folder.mkdir(parents=True, mode=0o700)
    process = identify(os.getpid())
    assert process  # we run
    run = Run(identity, as_text(started), as_text(started + lifetime), folder, process, place, place_file)
    write_json(folder / "run.json", asdict(run))
    (folder / _IMAGES).touch()
    (folder / _ALIVE).touch()
    ended = threading.Event()
    threading.Thread(target=_beat, args=(folder / _ALIVE, ended), name="alive", daemon=True).start()
    try:
        yield run
    except KeyboardInterrupt as interrupt:
        if _left_behind(folder):
            raise KeyboardInterrupt("interrupted; not all that it started was cleaned up", REMEDY) from interrupt
        raise
    except GpuAmiError as error:
        if _left_behind(folder):
            error.details = (*error.details, f"not all that run {identity} started was cleaned up; {REMEDY}")
        raise
    finally:  # on an error and on Ctrl-C too: the block's own clean-up has run by now
        ended.set()
        if not _left_behind(folder):
            forget(folder)


def _beat(file: Path, ended: threading.Event) -> None:
    """Touches the file until the run has ended, or its folder is gone."""
    with contextlib.suppress(OSError):
        while not ended.wait(BEAT_SECONDS):
            os.utime(file)


@contextmanager
def cleaning_up(run: Run) -> Iterator[None]:
    """Keeps the run's record if the clean-up in the block fails, so that `sweep` finds what is left."""
    try:
        yield
    except BaseException:
        leave_behind(run.folder)
        raise


@contextmanager
def recording(run: Run, ami: str) -> Iterator[None]:
    """Keeps the run's record if the block, at whose end a build.json names the AMI, fails: `sweep` removes the AMI."""
    try:
        yield
    except BaseException as error:
        leave_behind(run.folder)
        if isinstance(error, GpuAmiError):
            error.details = (*error.details, f"{ami} was made, and no build.json names it")
        raise


def leave_behind(folder: Path) -> None:
    """Keeps the record of the run whose private folder this is: something of it could not be cleaned up."""
    (folder / _LEFT_BEHIND).touch()


def _left_behind(folder: Path) -> bool:
    return (folder / _LEFT_BEHIND).exists()


def forget(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def touch(record: Record) -> None:
    """Notes that something of the run was alive until now."""
    with contextlib.suppress(OSError):
        (record.folder / _ALIVE).touch()


def records(home: Path) -> list[Record]:
    """Every run registered on this machine, alive or dead."""
    registered = []
    for path in sorted((home / "runs").glob("*/run.json")):
        try:
            data = json.loads(path.read_text())
            process = ProcessIdentity.from_json(data.get("process"))
            alive = process is not None and process.alive()
            listed = _listed(path.parent / _BUILDERS) or (), _listed(path.parent / _IMAGES)
            known = data.get("place", "local"), _last_alive(path.parent), *listed
            file = PlaceFile.from_json(data["place_file"]) if data.get("place_file") else None
            record = Record(data["id"], data["expires"], path.parent, alive, *known, file, "place_file" in data)
            registered.append(record)
        except (ValueError, KeyError):  # cut off while it was written: nothing had been created yet
            registered.append(Record(path.parent.name, "", path.parent, False))
    return registered


def _listed(file: Path) -> tuple[str, ...] | None:
    """The ids in a file of a run; None where there is no such file."""
    try:
        return tuple(file.read_text(encoding="utf-8").split())
    except OSError:
        return None


def _last_alive(folder: Path) -> float:
    try:
        return (folder / _ALIVE).stat().st_mtime
    except OSError:
        return 0.0
