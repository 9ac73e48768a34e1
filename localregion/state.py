"""What the local region keeps on disk.

Everything is below one home directory; docs/local-region.md has the table of paths.

Removes what a killed region left: machines, disks, sockets, incomplete images.

A process belongs to the region if its pid and start time are those that were recorded; its name does not count.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NotRequired, TypedDict

from gpu_ami.files import read_json, write_json
from gpu_ami.process import ProcessIdentity, end
from localregion import host
from localregion.machines import PROCESS

FROM_BASE, FROM_LAYER = "from base", "from layer"  # what an image is built from
CALLER = "gpu-ami-local"  # access key and secret key of who calls the region's API: they name their origin in a log
LIFELINE = "lifeline"  # the daemon's name for the hold of the process that started it


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
    def last_sources(self) -> Path:
        """Which image the last build from a base AMI started from, and the last one from a layer image; their disks."""
        return self.region / "last-sources.json"

    @property
    def kubernetes(self) -> Path:
        """What `make nodes` built."""
        return self.home / "kubernetes"

    @property
    def clusters(self) -> Path:
        """Folders of running EKS clusters."""
        return self.region / "clusters"

    @property
    def cluster_port(self) -> Path:
        """The port of the running EKS cluster's API server; there while one runs."""
        return self.region / "cluster-port"

    @property
    def instances(self) -> Path:
        return self.region / "instances"

    @property
    def spare(self) -> Path:
        """Copies of images' disks for launches that have not come yet."""
        return self.instances / "spare"

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
        """Makes the folders. CloudError: one cannot be written."""
        for folder in (self.home, self.region, self.instances, self.images):
            host.require_writable(folder)


class ImageFields(TypedDict):
    """The fields of an ImageRecord as JSON holds them."""

    id: str
    name: str
    description: str
    owner_id: str
    architecture: str
    root_device_name: str
    snapshot_id: str
    size_gib: int
    creation_date: str
    encrypted: NotRequired[bool]
    kms_key_id: NotRequired[str | None]
    source_instance_id: NotRequired[str | None]
    source_image_id: NotRequired[str | None]
    owner_alias: NotRequired[str | None]
    public: NotRequired[bool]
    tags: NotRequired[dict[str, str]]
    snapshot_tags: NotRequired[dict[str, str]]
    disk: NotRequired[str | None]


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
    write_json(layout.image(record.id) / "image.json", asdict(record), mode=0o600)


def load_images(layout: Layout) -> Iterator[ImageRecord]:
    """The complete images; `clear_partial_images` removes what a crash left incomplete."""
    for path in sorted(layout.images.glob("ami-*/image.json")):
        data = read_json(path)
        if data is None or not (path.parent / "disk.raw").exists():
            continue
        with contextlib.suppress(TypeError):  # a field that this version does not know: the image is of another version
            yield ImageRecord(**data)


def clear_partial_images(layout: Layout) -> list[str]:
    """Removes image folders without a readable record; returns their names."""
    whole = {record.id for record in load_images(layout)}
    partial = [path for path in layout.images.glob("*") if path.is_dir() and path.name not in whole]
    for path in partial:
        shutil.rmtree(path, ignore_errors=True)
    return sorted(path.name for path in partial)


def clear(layout: Layout) -> list[str]:
    """Removes everything; returns a line for each thing that was removed. The caller holds the region's lock."""
    removed = clear_instances(layout)
    removed += [f"incomplete image {name}" for name in clear_partial_images(layout)]
    if layout.clusters.is_dir():
        shutil.rmtree(layout.clusters, ignore_errors=True)
        removed.append(str(layout.clusters))
    for path in (layout.region_file, layout.control, layout.cluster_port):
        if path.exists() or path.is_socket():
            path.unlink(missing_ok=True)
            removed.append(str(path))
    return removed


def clear_instances(layout: Layout) -> list[str]:
    """Ends the instances' machines and removes their folders."""
    removed = []
    for folder in sorted(layout.instances.glob("*")):
        identity = ProcessIdentity.from_json(read_json(folder / PROCESS))
        if identity and identity.alive():
            end(identity, first=signal.SIGKILL)
            removed.append(f"machine of {folder.name} (pid {identity.pid})")
        shutil.rmtree(folder, ignore_errors=True)
        removed.append(f"disk of {folder.name}")
    return removed
