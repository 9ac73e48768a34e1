"""What takes disk space in the home of the local region, and the removal of what nothing needs.

A finished image stays while a document refers to it (below), an instance was launched from it, a living
run made it, or it is among the newest of its recipe. Base images, layers and packages of the mirror are made again when
they are needed, so only their age and their users count. Two runs at once take turns; a region that is up deregisters
its images itself, as EC2 would.

Which output folders refer to an AMI of the local region: its builds, reports, certificates and publications.

A stage that uses an AMI notes its output folder beside the image (`images/<ami>/referenced-by`, one path a line). What
counts is what the folder says now: a folder that is gone, or whose files name another AMI, refers to nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpu_ami.cloud import Cloud, amis, resources, runs
from gpu_ami.errors import CloudError, GpuAmiError, UsageError
from gpu_ami.files import locked
from gpu_ami.progress import Progress
from localregion import host, region
from localregion.state import ImageRecord, Layout, load_images

UNUSED = timedelta(days=7)  # base images, layers and packages that no command used for so long go
KEEP = 1  # unreferenced images of each recipe that stay
SHARE_VARIABLE, SHARE_PERCENT = "GPU_AMI_IMAGES_SHARE", 25.0  # of the disk, before a build removes images


@dataclass(frozen=True)
class Item:
    """Something in the home: its kind (image, layer-image, base-image, base-layer, mirror, or a folder's name), its
    id or path, bytes on the disk, age in seconds since it was made or last used, what it is, and why it stays ("" where
    nothing needs it).

    error: why it could not be removed, or "".
    """

    kind: str
    id: str
    bytes: int
    age: float
    text: str
    needed_by: str = ""
    error: str = ""


@dataclass(frozen=True)
class Policy:
    """keep: how many unreferenced images of each recipe stay; older_than: younger ones stay; folders: where documents
    are looked for, beside the folders that were noted."""

    keep: int = KEEP
    older_than: timedelta = timedelta()
    folders: Sequence[Path] = ()


def examine(home: Path, policy: Policy | None = None) -> list[Item]:
    """Everything in the home that takes space, the largest first, each with why it stays or ""."""
    policy = policy or Policy()
    layout = Layout(home)
    items = [*_images(layout, policy), *_base(home), *_mirror(home)]
    for name in ("cache", "sandboxes", "region", "runs"):
        if size := _bytes(home / name):
            items.append(Item(name, str(home / name), size, _age(home / name), *_ROOMS[name]))
    return sorted(items, key=lambda item: -item.bytes)


# What else takes space, with who removes it.
_ROOMS = {
    "cache": ("compiled Python files", "removed with its folder"),
    "sandboxes": ("sandboxes in use", "each ends with its command"),
    "region": ("instances, logs", "`gpu-ami region down` ends them"),
    "runs": ("records of runs", "`gpu-ami sweep` removes those of dead runs"),
}


def prune(
    home: Path, policy: Policy, progress: Progress, *, dry_run: bool = False, until_below: int | None = None
) -> list[Item]:
    """Removes what nothing needs, images the oldest first; returns what was removed, or would be.

    until_below: stop when the home's images take fewer bytes; None for no limit. An item that cannot be removed has an
    error. One process prunes at a time.
    """
    with locked(home / "prune.lock", lambda: progress.note("another process prunes this home; waiting for it")):
        items = examine(home, policy)
        total = sum(item.bytes for item in items if item.kind in ("image", "layer-image"))
        removed = []
        for item in sorted((item for item in items if not item.needed_by), key=lambda item: -item.age):
            if until_below is not None and (item.kind not in ("image", "layer-image") or total < until_below):
                continue
            total -= item.bytes
            removed.append(item if dry_run else _remove(home, item, progress))
        return removed


def make_room(home: Path, folders: Sequence[Path], progress: Progress) -> list[Item]:
    """Before a build: removes images that nothing needs, the oldest first, while images take more than their share.

    The share is GPU_AMI_IMAGES_SHARE, in percent of the disk; 0 for never. UsageError: no number from 0 to 100.
    """
    share = _share(os.environ.get(SHARE_VARIABLE, str(SHARE_PERCENT)))
    if not share:
        return []
    limit = int(shutil.disk_usage(home).total * share / 100)
    taken = sum(host.allocated(disk) for disk in (home / "images").glob("*/disk.raw"))
    if taken < limit:
        return []
    progress.note(
        f"images of the local region take {host.gib(taken)}, more than {share:g} % of the disk ({SHARE_VARIABLE}); "
        "removing those that nothing needs"
    )
    removed = prune(home, Policy(folders=folders), progress, until_below=limit)
    if not removed:
        progress.note("every image is needed; `gpu-ami region prune --dry-run` says by what")
    return removed


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 100:
        raise UsageError(f"{SHARE_VARIABLE} is {text!r}, expected a percentage from 0 to 100 (0: never remove images)")
    return share


def _images(layout: Layout, policy: Policy) -> Iterator[Item]:
    """The AMIs that builds made, each with why it stays."""
    running = region.status(layout.home)["instances"]
    instances = {row["image"]: row["id"] for row in running if row["state"] != "terminated"}
    alive = {record.id for record in runs.records(layout.home) if record.alive}
    kept: dict[str, int] = {}
    records = sorted(load_images(layout), key=lambda record: record.creation_date, reverse=True)
    for record in records:
        if record.disk:  # a source AMI's disk is the base image's
            continue
        recipe, layer = record.tags.get(runs.TAG_RECIPE, ""), amis.layer_of(record.tags)
        kind, group = ("layer-image", f"{recipe}/{layer}") if layer else ("image", recipe)
        age = _seconds_since(record.creation_date)
        needed_by = _needed_by(layout, record, policy, instances, alive)
        if not needed_by and not known(layout.images, record.id) and not policy.older_than:
            needed_by = "no output folder is known for it; removed by age alone (--older-than)"
        if not needed_by:
            kept[group] = kept.get(group, 0) + 1
            if kept[group] <= policy.keep:
                newest = "the newest" if policy.keep == 1 else f"among the {policy.keep} newest"
                needed_by = f"{newest} of {group or record.name} (--keep)"
            elif age < policy.older_than.total_seconds():
                needed_by = "newer than --older-than"
        yield Item(kind, record.id, _disk_bytes(record, layout), age, record.name, needed_by)


def _needed_by(layout: Layout, record: ImageRecord, policy: Policy, instances: dict[str, str], alive: set[str]) -> str:
    """What needs an image: an instance, a living run, or a document; "" where nothing does."""
    if record.id in instances:
        return f"instance {instances[record.id]} was launched from it"
    if record.tags.get(runs.TAG_RUN) in alive:
        return f"run {record.tags[runs.TAG_RUN]} is alive"
    documents = referring(layout.images, record.id, policy.folders)
    return f"{documents[0]} names it" if documents else ""


def _base(home: Path) -> Iterator[Item]:
    """Disks, archives and layers of base images. Their time is that of their last use."""
    in_use = _sandboxes_in_use(home)
    base = home / "base"
    for path in [*base.glob("*.raw"), *base.glob("*.tar"), *(base / "trees").glob("*-*")]:
        kind = "base-layer" if path.parent.name == "trees" else "base-image"
        age = _age(path)
        stays = "" if age > UNUSED.total_seconds() else f"used within {UNUSED.days} days"
        if not stays and in_use:
            stays = f"{in_use} may use it"
        yield Item(kind, str(path), _bytes(path), age, path.name, stays)


def _mirror(home: Path) -> Iterator[Item]:
    """Packages and trees of the mirror: one item, since the mirror itself removes what was not used for a week."""
    folder = home / "mirror"
    if size := _bytes(folder):
        text = "packages that plans asked for"
        yield Item("mirror", str(folder), size, _age(folder), text, "the mirror removes what a week did not use")


def _sandboxes_in_use(home: Path) -> str:
    folders = [path.name for path in (home / "sandboxes").glob("*") if path.is_dir()]
    return f"sandbox {folders[0]}" if folders else "the running region" if region.is_up(home) else ""


def _remove(home: Path, item: Item, progress: Progress) -> Item:
    """Removes an item that nothing needs; the same item, with an error if that failed."""
    try:
        if item.kind in ("image", "layer-image"):
            _remove_image(home, item.id)
        else:
            _remove_path(home, Path(item.id))
    except (GpuAmiError, OSError) as error:
        progress.note(f"{item.kind} {item.id}: {error}")
        return replace(item, error=str(error))
    progress.note(f"removed {item.kind} {item.id} ({host.gib(item.bytes)}, {item.text})")
    return item


def _remove_image(home: Path, ami: str) -> None:
    """Deregisters an AMI in a region that is up, else removes its folder while none can start.

    CloudError: it is neither up nor down for long, or an instance was launched from it meanwhile.
    """
    with region.kept_down(home) as is_down:
        if is_down:
            folder = Layout(home).image(ami)
            # The record goes first: a folder without one is no image, and the next `up` clears it.
            (folder / "image.json").unlink(missing_ok=True)
            shutil.rmtree(folder)
            return
    if any(row["image"] == ami and row["state"] != "terminated" for row in region.status(home)["instances"]):
        raise CloudError(f"an instance was launched from {ami} meanwhile")
    if not region.is_up(home):
        raise CloudError("the local region is starting or ending", hint="try again when it has")
    resources.remove(Cloud(region.local_place(home)), resources.Resource("image", ami, {}, "available", ()))


def _remove_path(home: Path, path: Path) -> None:
    with locked(home / "base" / "lock"):
        if time.time() - path.stat().st_mtime < UNUSED.total_seconds():
            raise CloudError(f"{path.name} was used meanwhile")
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _disk_bytes(record: ImageRecord, layout: Layout) -> int:
    with contextlib.suppress(OSError):
        return host.allocated(record.disk_path(layout))
    return 0


def _bytes(path: Path) -> int:
    """Bytes that a file or a folder takes on the disk; a file with several names counts once."""
    if not path.is_dir():
        with contextlib.suppress(OSError):
            return host.allocated(path)
        return 0
    sizes: dict[tuple[int, int], int] = {}
    for folder, _folders, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                status = Path(folder, name).lstat()
                sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _seconds_since(moment: str) -> float:
    """moment: ISO 8601, UTC. 0.0 where it is no time: an image of unknown age is not old."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
    except (ValueError, TypeError):
        return 0.0


def total(items: Iterable[Item]) -> int:
    return sum(item.bytes for item in items)


FILE = "referenced-by"
# The files of an output folder that name the AMI they are about.
DOCUMENTS = ("build.json", "report.json", "certificate.json", "publication.json")
_MOST_BYTES = 64 * 1024**2  # of a document; a larger one counts as one that refers


def note(images: Path, ami: str, folder: Path) -> None:
    """Notes that the output folder uses an AMI; images: folder of the AMIs. One that is gone is not an error."""
    line = f"{folder.resolve()}\n"
    with contextlib.suppress(FileNotFoundError), (images / ami / FILE).open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if line not in file:
            file.write(line)


def known(images: Path, ami: str) -> bool:
    """Whether a folder was ever noted for an AMI; not if Packer by hand or an earlier version made it."""
    return (images / ami / FILE).exists()


def referring(images: Path, ami: str, folders: Iterable[Path] = ()) -> list[Path]:
    """The documents that name an AMI: in the folders that were noted for it, and in these."""
    seen = dict.fromkeys([*_noted(images, ami), *(folder.resolve() for folder in folders)])
    return [document for folder in seen for document in _documents(folder) if _names(document, ami)]


def _noted(images: Path, ami: str) -> list[Path]:
    try:
        return [Path(line) for line in (images / ami / FILE).read_text(encoding="utf-8").splitlines() if line]
    except OSError:
        return []


def _documents(folder: Path) -> Iterator[Path]:
    for name in DOCUMENTS:
        with contextlib.suppress(OSError):
            if (folder / name).is_file():
                yield folder / name


def _names(document: Path, ami: str) -> bool:
    """Whether a document names the AMI; one that cannot be read or is too large is taken to name it."""
    try:
        return document.stat().st_size > _MOST_BYTES or ami.encode() in document.read_bytes()
    except FileNotFoundError:
        return False
    except OSError:
        return True
