"""A base image's tree as folders, extracted once: what cells lie on, and what disks are made of.

A tree is a stack of layers, the topmost first, as overlayfs takes them. Each layer is a folder in `home/base/trees`,
named after the digest of what makes it.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from gpu_ami.errors import CloudError, UsageError
from gpu_ami.local import base_image
from gpu_ami.log import Progress
from gpu_ami.run import find_tool, run

_KEPT_SECONDS = 7 * 24 * 3600.0


@dataclass(frozen=True)
class Tree:
    """Layers, the topmost first; none of them is ever written to."""

    layers: tuple[Path, ...]

    def kernel(self) -> str:
        """The release that the tree boots: its newest kernel with modules."""
        found = {path.name for layer in self.layers for path in layer.glob("boot/vmlinuz-*")}
        if not found:
            raise CloudError(f"{self.layers[0]}: no kernel in its /boot", hint="remove the folder; it is made anew")
        return sorted(found, key=_natural)[-1].removeprefix("vmlinuz-")


def _natural(text: str) -> list[tuple[int, str]]:
    words = "".join(letter if letter.isdigit() else f" {letter} " for letter in text).split()
    return [(int(word), "") if word.isdigit() else (-1, word) for word in words]


def ensure_debian(home: Path, progress: Progress) -> Tree:
    """Debian's tree; UsageError unless we are root, since its files have many owners."""
    require_root("a base image's tree")
    trees = home / "base" / "trees"
    layer = trees / f"debian12-{base_image.digest()}"
    if not layer.exists():
        archive = base_image.ensure_archive(home, progress)
        with base_image.only_one(trees):
            if not layer.exists():
                with progress.stage("extract the base image's tree"):
                    _extract(archive, layer)
                _forget_old(trees)
    os.utime(layer)
    return Tree((layer,))


def require_root(what: str) -> None:
    if os.geteuid() != 0:
        raise UsageError(f"{what} needs root: files of many owners, mounts", hint="run it by sudo")


def _extract(archive: Path, layer: Path) -> None:
    with base_image.scratch(layer.parent) as work:
        tree = work / "tree"
        tree.mkdir(mode=0o755)
        tar = find_tool("tar", package="tar")
        owners = ["--numeric-owner", "--xattrs", "--exclude=./dev/*"]
        run([tar, "-C", tree, *owners, "-xf", archive], timeout=300, error=CloudError)
        tree.rename(layer)


def _forget_old(trees: Path) -> None:
    for old in trees.iterdir():
        if old.is_dir() and time.time() - old.stat().st_mtime > _KEPT_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
