"""AMIs and their disks: made of an instance's disk, copied, registered again at the next `up`, removed.

An image of a machine that is off has the same file as the instance, by a second name, as most builders are terminated
next. The machine's next start takes a copy first (`own_disk`), so nothing writes to an image.

An image is available before the host's disk has all of it, and its record (image.json) is written after that: a host
that loses power meanwhile has a folder without a record, which is no image.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.errors import CloudError, GpuAmiError
from gpu_ami.progress import Progress
from localregion import host
from localregion.state import ImageRecord, Layout, load_images, save_image

if TYPE_CHECKING:
    from localregion.backends import Ec2

_FICLONE = 0x40049409  # ioctl_ficlone(2)
_PART_BYTES = 64 * 1024**2  # copied between two looks at whether the copy was given up


@dataclass
class ImageJob:
    """A copy of a disk that becomes an image. source: the disk to copy."""

    record: ImageRecord
    source: Path
    no_reboot: bool = False
    paused: bool = False  # the machine is paused while its disk is copied
    future: Future[None] | None = None

    @property
    def started(self) -> bool:
        return self.future is not None

    @property
    def done(self) -> bool:
        return self.future is not None and self.future.done()


@dataclass(frozen=True)
class Request:
    """Parameters of a CreateImage or CopyImage call that moto does not keep."""

    no_reboot: bool = False
    source_image_id: str | None = None
    encrypted: bool | None = None
    snapshot_tags: tuple[tuple[str, str], ...] = ()


def copy_disk(source: Path, target: Path) -> None:
    """Copies a raw disk: by reference where the file system can, else its data only, and leaves the holes.

    CloudError: the file system refuses it.
    """
    with _named(source, target):
        target.unlink(missing_ok=True)
        target.touch()
    fill_disk(source, target)


def fill_disk(source: Path, target: Path, given_up: Callable[[], bool] = lambda: False) -> None:
    """The same into a file that is there and empty. CloudError, too: it was given up meanwhile."""
    with _named(source, target), source.open("rb") as reading, target.open("r+b") as writing:
        try:
            fcntl.ioctl(writing, _FICLONE, reading.fileno())
        except OSError:
            _copy_data(reading.fileno(), writing.fileno(), given_up)


@contextlib.contextmanager
def _named(source: Path, target: Path) -> Iterator[None]:
    """Names the files of a copy where the file system refuses it."""
    try:
        yield
    except OSError as error:
        raise CloudError(f"cannot copy {source} to {target}: {error.strerror}") from error


def _copy_data(source: int, target: int, given_up: Callable[[], bool]) -> None:
    """Copies each part of a file that has data, from descriptor to descriptor."""
    size, place = os.fstat(source).st_size, 0
    os.ftruncate(target, size)
    while place < size:
        try:
            place = os.lseek(source, place, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole follows
                return
            raise
        end = os.lseek(source, place, os.SEEK_HOLE)
        os.lseek(target, place, os.SEEK_SET)
        while place < end:
            if given_up():
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
            copied = os.sendfile(target, source, place, min(end - place, _PART_BYTES))
            if not copied:
                raise OSError(errno.EIO, "the file became shorter while it was copied")
            place += copied


def _fsync(path: Path) -> None:
    """Waits until the host's disk has what was written to a file or to a folder's list of names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def share_disk(source: Path, target: Path) -> None:
    """Gives the disk of a machine that is off a second name. OSError: the names are of different file systems."""
    target.unlink(missing_ok=True)
    os.link(source, target)


def own_disk(disk: Path) -> None:
    """Makes a disk the machine's alone, which is about to write to it: a copy, where an image has the same file."""
    if disk.stat().st_nlink > 1:
        partial = disk.with_suffix(".partial")
        host.require(disk.parent, host.allocated(disk) + host.BOOT_BYTES, f"a copy of {disk}, which an image shares")
        copy_disk(disk, partial)
        partial.rename(disk)


class ImageStore:
    """The region's images. Its methods are called under the reconciler's lock; copies run in worker threads."""

    def __init__(
        self,
        layout: Layout,
        ec2: Ec2,
        submit: Callable[..., Future[Any]],
        wake: Callable[[], None],
        progress: Progress,
    ) -> None:
        self._layout, self._ec2, self._submit, self._wake, self._progress = layout, ec2, submit, wake, progress
        self._records: dict[str, ImageRecord] = {}
        self._jobs: dict[str, ImageJob] = {}
        self._requests: dict[str, Request] = {}
        self._saved_tags: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
        self._written: set[str] = set()  # images whose disk is on the host's disk
        self._saving = threading.Lock()

    def register_saved(self) -> None:
        """Registers every image of the home."""
        for record in load_images(self._layout):
            self.register(record)

    def register(self, record: ImageRecord) -> None:
        """Registers an image that has a disk."""
        if record.id not in self._records:
            self._records[record.id] = record
            self._written.add(record.id)
            self._saved_tags[record.id] = (record.tags, record.snapshot_tags)
            self._ec2.register(record)

    def disk_of(self, image_id: str) -> tuple[Path, ImageRecord]:
        """Disk and record of an available image. GpuAmiError: there is none."""
        image = self._ec2.images().get(image_id)
        record = self._records.get(image_id)
        if image is None or record is None or image.state != "available":
            raise GpuAmiError(f"there is no image {image_id}", hint="gpu-ami region status lists the images")
        return record.disk_path(self._layout), record

    def announce(self, image_id: str, request: Request) -> None:
        """Keeps the parameters of the call that created an image; called before `absorb` sees the image."""
        self._requests[image_id] = request

    def absorb(self) -> list[ImageJob]:
        """Reads new, changed and deregistered images; returns the jobs that wait for an instance's disk."""
        images = self._ec2.images()
        for image_id in [known for known in self._records if known not in images]:
            self._remove(image_id)
        new = [self._admit(image) for image_id, image in images.items() if image_id not in self._records]
        self._save_tags()
        return [job for job in new if job and job.record.source_instance_id]

    def _admit(self, image: Any) -> ImageJob | None:
        request = self._requests.pop(image.id, Request())
        record = self._ec2.record_of_new(image)
        record = replace(record, snapshot_tags=dict(request.snapshot_tags))
        if request.encrypted:
            record = replace(record, encrypted=True)
        source: Path | None = None
        if record.source_instance_id:
            source = self._layout.instance(record.source_instance_id) / "disk.raw"
        elif request.source_image_id in self._records:
            of = self._records[request.source_image_id]
            source = of.disk_path(self._layout)
            record = replace(
                record, source_image_id=of.id, size_gib=of.size_gib, root_device_name=of.root_device_name,
                encrypted=record.encrypted or of.encrypted,
            )  # fmt: skip
        self._records[record.id] = record
        self._ec2.adopt(image, record, "pending" if source else "failed")
        self._ec2.backend.create_tags([record.snapshot_id], record.snapshot_tags)
        if source is None:
            return None
        job = self._jobs[record.id] = ImageJob(record, source, request.no_reboot)
        if not record.source_instance_id:
            self.start(job)
        return job

    def start(self, job: ImageJob) -> None:
        job.future = self._submit(self._copy, job)
        job.future.add_done_callback(lambda _: self._wake())

    def _copy(self, job: ImageJob) -> None:
        folder = self._layout.image(job.record.id)
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / "disk.raw.partial"
        if job.record.source_instance_id and not job.paused:
            with contextlib.suppress(OSError):
                share_disk(job.source, partial)
        if not partial.exists():
            host.require(folder, host.allocated(job.source), f"the disk of image {job.record.id}")
            copy_disk(job.source, partial)
        partial.rename(folder / "disk.raw")

    def step(self) -> None:
        """Shows images as `available` when their copy is complete, as `failed` when it failed."""
        for image_id, job in [(key, job) for key, job in self._jobs.items() if job.done]:
            del self._jobs[image_id]
            image = self._ec2.images().get(image_id)
            assert job.future
            error = job.future.exception()
            if image is None:  # deregistered meanwhile
                shutil.rmtree(self._layout.image(image_id), ignore_errors=True)
            elif error:
                self._ec2.set_image_state(image, "failed")
                self._progress.note(f"{image_id}: {error}")
            else:
                self._save(image_id)
                self._submit(self._write_out, image_id)
                self._ec2.set_image_state(image, "available")
                self._progress.note(f"{image_id}: available ({job.record.name})")

    def _save(self, image_id: str) -> None:
        record = self._records[image_id]
        tags, snapshot_tags = self._ec2.tags(image_id), self._ec2.tags(record.snapshot_id)
        record = self._records[image_id] = replace(record, tags=tags, snapshot_tags=snapshot_tags)
        self._saved_tags[image_id] = (tags, snapshot_tags)
        with self._saving:
            if record.disk is None and image_id in self._written:
                save_image(self._layout, record)

    def _write_out(self, image_id: str) -> None:
        """In a worker thread: waits until the host's disk has the image, then keeps its record."""
        folder = self._layout.image(image_id)
        try:
            for path in (folder / "disk.raw", folder):
                _fsync(path)
            with self._saving:
                self._written.add(image_id)
                if record := self._records.get(image_id):
                    save_image(self._layout, record)
            _fsync(folder)
        except FileNotFoundError:  # deregistered meanwhile
            return
        except OSError as error:
            self._progress.note(f"{image_id}: not kept after this region ends: {error.strerror}")

    def _save_tags(self) -> None:
        """Saves changed tags of images for the next `up`."""
        for image_id, record in list(self._records.items()):
            now = (self._ec2.tags(image_id), self._ec2.tags(record.snapshot_id))
            if image_id in self._saved_tags and self._saved_tags[image_id] != now:
                self._save(image_id)

    def _remove(self, image_id: str) -> None:
        with self._saving:
            record = self._records.pop(image_id)
            self._written.discard(image_id)
        self._saved_tags.pop(image_id, None)
        if record.disk is None and image_id not in self._jobs:
            shutil.rmtree(self._layout.image(image_id), ignore_errors=True)
