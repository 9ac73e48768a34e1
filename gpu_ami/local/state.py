"""What the local region keeps on disk, and how it tells its own processes from others'.

Everything is below one home directory; ARCHITECTURE.md, "The local region", has the table of paths.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LIFELINE = "lifeline"  # what the daemon calls the hold of whoever started it


@dataclass(frozen=True)
class Layout:
    """The paths of one home."""

    home: Path

    @property
    def region(self) -> Path:
        return self.home / "region"

    @property
    def region_file(self) -> Path:
        return self.region / "region.json"

    @property
    def lock(self) -> Path:
        return self.region / "lock"

    @property
    def control(self) -> Path:
        return self.region / "control.sock"

    @property
    def log(self) -> Path:
        return self.region / "server.log"

    @property
    def instances(self) -> Path:
        return self.region / "instances"

    @property
    def images(self) -> Path:
        return self.home / "images"

    @property
    def kvm(self) -> Path:
        return self.home / "kvm.json"

    def instance(self, instance_id: str) -> Path:
        return self.instances / instance_id

    def image(self, image_id: str) -> Path:
        return self.images / image_id

    def make(self) -> None:
        for folder in (self.home, self.region, self.instances, self.images):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def write_json(path: Path, data: object) -> None:
    """Writes whole or not at all; readable by its owner only."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(data, stream, indent=2, ensure_ascii=False, default=str)
            stream.write("\n")
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """The file's object; None where there is none or it is broken (a crash of the machine can leave it empty)."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


@dataclass(frozen=True)
class ProcessIdentity:
    """A process that no other can be mistaken for: pids are reused, a pid with its start time is not."""

    pid: int
    started: str  # "<boot id>/<clock ticks since boot>"

    def alive(self) -> bool:
        return identify(self.pid) == self

    @staticmethod
    def from_json(data: object) -> ProcessIdentity | None:
        if isinstance(data, dict) and isinstance(data.get("pid"), int) and isinstance(data.get("started"), str):
            return ProcessIdentity(data["pid"], data["started"])
        return None


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of a running process; None if there is none (or only its zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (OSError, IndexError):
        return None
    # Counted from field 3 (state): proc(5).
    return None if fields[0] in "ZX" else ProcessIdentity(pid, f"{boot}/{fields[19]}")


@dataclass(frozen=True)
class ImageRecord:
    """An AMI as `images/<id>/image.json` keeps it; its disk is `disk.raw` beside it, or `disk` where that is set."""

    id: str
    name: str
    description: str
    owner_id: str
    architecture: str
    root_device_name: str
    snapshot_id: str
    size_gib: int
    creation_date: str  # ISO 8601, UTC
    encrypted: bool = False
    kms_key_id: str | None = None
    source_instance_id: str | None = None
    source_image_id: str | None = None
    owner_alias: str | None = None  # "amazon"
    public: bool = False
    tags: dict[str, str] = field(default_factory=dict)
    snapshot_tags: dict[str, str] = field(default_factory=dict)
    disk: str | None = None

    def disk_path(self, layout: Layout) -> Path:
        return Path(self.disk) if self.disk else layout.image(self.id) / "disk.raw"


def save_image(layout: Layout, record: ImageRecord) -> None:
    write_json(layout.image(record.id) / "image.json", asdict(record))


def load_images(layout: Layout) -> Iterator[ImageRecord]:
    """The images that are whole; what a crash left half-made is for `clear_partial_images`."""
    for path in sorted(layout.images.glob("ami-*/image.json")):
        data = read_json(path)
        if data is None or not (path.parent / "disk.raw").exists():
            continue
        with contextlib.suppress(TypeError):  # a field that this version does not know: not ours to use
            yield ImageRecord(**data)


def clear_partial_images(layout: Layout) -> list[str]:
    """Removes image folders without a readable record; returns their names."""
    whole = {record.id for record in load_images(layout)}
    partial = [path for path in layout.images.glob("*") if path.is_dir() and path.name not in whole]
    for path in partial:
        shutil.rmtree(path, ignore_errors=True)
    return sorted(path.name for path in partial)
