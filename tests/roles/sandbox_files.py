"""The files that roles left in a sandbox, as those of an image."""

from __future__ import annotations

from pathlib import Path

from gpu_ami.process import run
from gpu_ami.progress import Progress
from localregion.images import rootfs_layers
from localregion.images.rootfs_layers import Base
from localregion.sandbox.sandbox import Sandbox

# What a sandbox has in its tree while it runs (sandbox_init.py), and no image has.
_OF_THE_SANDBOX = ("etc/ld.so.preload",)
_TAR = "tar --xattrs --acls --numeric-owner"
_COPY_SECONDS = 1800  # a busy machine copied 0.8 GB of small files in 300 s
_COPY = f'{_TAR} --one-file-system -C "$1" -cf - . | {_TAR} -C "$2" -xf -'


def copy(box: Sandbox, tree: Path) -> None:
    """Copies the files of a running sandbox into the empty folder `tree`. CloudError: tar failed."""
    run(["sh", "-c", _COPY, "copy", box.root, str(tree)], timeout=_COPY_SECONDS)


def restore_base_files(tree: Path, base: Base, home: Path, progress: Progress) -> None:
    """Replaces the sandbox's own files in such a copy by those of the base image, or removes them."""
    layers = rootfs_layers.ensure(base, home, progress).layers
    for name in _OF_THE_SANDBOX:
        (tree / name).unlink(missing_ok=True)
        kept = next((layer / name for layer in layers if (layer / name).exists()), None)
        if kept:
            run(["cp", "-a", str(kept), str(tree / name)], timeout=30)
