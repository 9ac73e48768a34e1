"""AMIs and their disks: made of an instance's disk, copied, registered again at the next `up`, removed.

An image of a machine that is off has the same file as the instance, by a second name, as most builders are terminated
next. The machine's next start takes a copy first (`own_disk`), so nothing writes to an image.

An image is available before the host's disk has all of it, and its record (image.json) is written after that: a host
that loses power meanwhile has a folder without a record, which is no image.

Copies of images' disks that are begun before the launch that takes them.

A build says which image it starts from while Packer starts (control.py, "expect"): the copy takes as long as that. A
launch that was not announced copies for itself. A sandbox mounts the copy's loop device, which is set up while the
copy is empty; a machine needs none. Measured with the mount option barrier=0, on 2 cores: from launch to login 0.6 s,
before 1.6 to 2.4 s, which is 5 to 9 % of a build of the last layer (19 s).

A loop device is a raw disk as a block device, attached before the disk has content, so that nothing is waited for:
Linux writes all of a file to the host's disk when a loop device is set up on it: half a second to two for the copy of
an image. A file that is still empty has nothing to write. The device is gone with the last of its open descriptors,
also after SIGKILL. Source: Linux 6.18, drivers/block/loop.c, include/uapi/linux/loop.h and fs.h.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.errors import CloudError, GpuAmiError
from gpu_ami.progress import Progress
from localregion import host
from localregion.images import base_image
from localregion.state import ImageRecord, Layout, load_images, save_image

if TYPE_CHECKING:
    from localregion.backends import Ec2


_FICLONE = 0x40049409  # ioctl_ficlone(2)
PART_BYTES = 64 * 1024**2  # copied between two looks at whether the copy was given up
_GET_FREE, _CONFIGURE, _SET_CAPACITY, _FLUSH = 0x4C82, 0x4C0A, 0x4C07, 0x1261
_AUTOCLEAR = 4
# struct loop_config: fd, block size, loop_info64, reserved. Of loop_info64: three numbers of devices and inodes,
# offset, size limit, number, two of encryption, flags, and names and keys.
_CONFIG = "II" + "QQQ" + "QQ" + "IIII" + "64s64s32s16x" + "64x"
LOOP_CONTROL = Path("/dev/loop-control")
_TRIES = 8  # another program may take the free device first


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
            copied = os.sendfile(target, source, place, min(end - place, PART_BYTES))
            if not copied:
                raise OSError(errno.EIO, "the file became shorter while it was copied")
            place += copied


def flush_to_disk(path: Path) -> None:
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
        job.future = self._submit(self.copy_as, job)
        job.future.add_done_callback(lambda _: self._wake())

    def copy_as(self, job: ImageJob) -> None:
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
                flush_to_disk(path)
            with self._saving:
                self._written.add(image_id)
                if record := self._records.get(image_id):
                    save_image(self._layout, record)
            flush_to_disk(folder)
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


class LoopDevice:
    """/dev/loopN of a disk's partition. `fileno` keeps it: it is closed here, or by the process that was given it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def refresh(self) -> None:
        """Shows the size and the content that the disk's file has now."""
        fcntl.ioctl(self._descriptor, _SET_CAPACITY)
        fcntl.ioctl(self._descriptor, _FLUSH)  # what the host has read of the device before

    def close(self) -> None:
        """Lets the device go, unless something else has it open or mounted."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()  # of a machine that was prepared and never started


def attach(disk: Path, offset: int) -> LoopDevice | None:
    """A device of the disk from `offset` on; None where this host gives none (not root, no device, Linux < 5.8)."""
    with contextlib.suppress(OSError), disk.open("r+b") as file:
        for _ in range(_TRIES):
            device = open_free()
            config = struct.pack(_CONFIG, file.fileno(), 0, 0, 0, 0, offset, 0, 0, 0, 0, _AUTOCLEAR, b"", b"", b"")
            try:
                fcntl.ioctl(device.fileno(), _CONFIGURE, config)
                return device
            except OSError as error:
                device.close()
                if error.errno != errno.EBUSY:
                    raise
    return None


def open_free() -> LoopDevice:
    with LOOP_CONTROL.open("rb") as control:
        path = Path(f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}")
    return LoopDevice(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))


_MOST = 2  # copies that nobody has taken; the oldest is removed for another


@dataclass(frozen=True)
class SpareDisk:
    """A copy. loop: its partition as a block device, where the host has one."""

    path: Path
    loop: LoopDevice | None

    def remove(self) -> None:
        if self.loop:
            self.loop.close()
        with contextlib.suppress(OSError):
            self.path.unlink()


@dataclass
class _Copy:
    """A copy that has begun. guess: nobody has asked for it yet."""

    guess: bool
    given_up: threading.Event
    future: Future[SpareDisk]

    def give_up(self) -> None:
        """Ends it if it is under way, and removes it."""
        self.given_up.set()
        self.future.add_done_callback(_remove)


class SpareDisks:
    """The spare disks of a region, in a folder of theirs. submit: of an executor."""

    def __init__(self, folder: Path, submit: Callable[..., Future[SpareDisk]]) -> None:
        self._folder, self._submit = folder, submit
        self._lock = threading.Lock()
        self.begun_copies: dict[str, _Copy] = {}  # by image, the oldest first
        self.awaited: list[_Copy] = []  # launches wait for them

    def guess(self, image_id: str, source: Path) -> None:
        """Begins a copy of an image's disk that may be asked for, where it takes no space that a build may need."""
        with contextlib.suppress(OSError):
            needed = host.allocated(source) + host.build_bytes(source)
            if host.free(source.parent) >= needed:
                self._begin(image_id, source, guess=True)

    def begin(self, image_id: str, source: Path) -> None:
        """Begins a copy of an image's disk, unless there is one. Gives up what was guessed, and is of another."""
        with self._lock:
            if image_id in self.begun_copies:
                self.begun_copies[image_id].guess = False
            for other in [other for other, copy in self.begun_copies.items() if copy.guess]:
                self.begun_copies.pop(other).give_up()
        self._begin(image_id, source, guess=False)

    def _begin(self, image_id: str, source: Path, *, guess: bool) -> None:
        with self._lock:
            if image_id in self.begun_copies:
                return
            for oldest in list(self.begun_copies)[: len(self.begun_copies) - _MOST + 1]:
                self.begun_copies.pop(oldest).give_up()
            given_up = threading.Event()
            future = self._submit(self.copy_as, image_id, source, given_up.is_set)
            self.begun_copies[image_id] = _Copy(guess, given_up, future)

    def take(self, image_id: str, target: Path) -> SpareDisk | None:
        """Moves the copy of an image's disk to `target`, when it is complete; None if there is none.

        CloudError: the region ended meanwhile.
        """
        with self._lock:
            copy = self.begun_copies.pop(image_id, None)
            if copy is None:
                return None
            self.awaited.append(copy)
        try:
            spare = copy.future.result()
        except (OSError, GpuAmiError):  # no space for it: the launch says so, if that is still the case
            if copy.given_up.is_set():
                raise
            return None
        finally:
            with self._lock:
                self.awaited.remove(copy)
        try:
            spare.path.rename(target)
        except OSError:
            spare.remove()
            return None
        return SpareDisk(target, spare.loop)

    def end(self) -> None:
        """Gives up all copies, also those that launches wait for."""
        with self._lock:
            for copy in self.awaited:
                copy.given_up.set()
            while self.begun_copies:
                self.begun_copies.popitem()[1].give_up()

    def copy_as(self, image_id: str, source: Path, given_up: Callable[[], bool]) -> SpareDisk:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        host.require(self._folder, host.allocated(source) + host.BOOT_BYTES, f"a copy of the disk of {image_id}")
        # A name of its own: the image may be copied again before this one is taken.
        path = self._folder / f"{image_id}.{secrets.token_hex(4)}.raw"
        path.touch()
        spare = SpareDisk(path, attach(path, base_image.PARTITION_OFFSET))
        try:
            fill_disk(source, path, given_up)
        except BaseException:
            spare.remove()
            raise
        return spare


def _remove(copied: Future[SpareDisk]) -> None:
    with contextlib.suppress(OSError, GpuAmiError):
        copied.result().remove()
