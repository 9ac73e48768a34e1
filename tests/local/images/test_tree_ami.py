"""A tree of files as an AMI: the record that the next region reads, and the disk that a machine boots."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.local.images import base_image, rootfs_layers, tree_ami
from gpu_ami.local.state import Layout, load_images
from gpu_ami.process import run
from gpu_ami.progress import Progress

QUIET = Progress("quiet")


def test_it_needs_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rootfs_layers.os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="the AMI of a tree needs root"):
        tree_ami.save(tmp_path, "image", tmp_path / "home", QUIET)


@pytest.mark.sandbox
def test_a_region_finds_the_image_and_its_disk_has_the_files(tmp_path: Path) -> None:
    tree, home = tmp_path / "tree", tmp_path / "home"
    (tree / "etc").mkdir(parents=True)
    (tree / "etc" / "hostname").write_text("image\n")
    ami = tree_ami.save(tree, "gpu-ami_image", home, QUIET)
    (record,) = load_images(Layout(home))
    assert (record.id, record.name) == (ami, "gpu-ami_image")
    part = tmp_path / "part"
    run(["dd", f"if={record.disk_path(Layout(home))}", f"of={part}", "bs=1M", "skip=1", "conv=sparse"], timeout=120)
    assert base_image.PARTITION_OFFSET == 1024 * 1024
    assert run(["debugfs", "-R", "cat /etc/hostname", str(part)], timeout=60).stdout == "image\n"
