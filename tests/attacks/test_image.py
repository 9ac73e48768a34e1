"""Attempt 1: the programs of an image that tries to leave it stay inside, whatever command looks at its files."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.conftest import GpuAmi
from tests.validator.transport.test_image_files import can_enter
from validator.transport import cage

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not can_enter(), reason="needs root and namespaces")]
_CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """A file of the host, which is made only outside of the image. Its folder is anybody's."""
    before = _CORE_PATTERN.read_text()
    yield tmp_path / "mark"
    assert not (tmp_path / "mark").exists()
    assert _CORE_PATTERN.read_text() == before


def make_tree(root: Path, *macros: str) -> Path:
    """A tree whose only program is ways_out.c."""
    for name in ("bin", "proc", "dev", "etc"):
        (root / name).mkdir(parents=True)
    source = Path(__file__).with_name("ways_out.c")
    subprocess.run(["gcc", "-static", "-Wall", "-Werror", *macros, "-o", root / "bin/sh", source], check=True)
    return root


@pytest.fixture
def hostile(tmp_path: Path, mark: Path) -> Iterator[Path]:
    """A tree whose /bin/sh tries every way; a process of the host listens on the abstract socket that it asks for."""
    name = f"gpu-ami-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}\0")
        listener.listen()
        yield make_tree(tmp_path / "tree", f'-DMARK="{mark}"', f'-DABSTRACT="{name}"')


def tried(output: str) -> dict[str, str]:
    return dict(line.split() for line in output.splitlines())


def make_disk(tree: Path, disk: Path) -> Path:
    """A raw disk, without partitions, with the content of a tree."""
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", tree, disk, "16M"], check=True, capture_output=True)
    return disk


@pytest.mark.parametrize("kind", ["tree", "raw disk"])
def test_every_way_is_closed(kind: str, hostile: Path, tmp_path: Path) -> None:
    """A raw disk could not be entered at all once: its mount(8) was the first process of the PID namespace."""
    (tmp_path / "empty").mkdir()
    image = (hostile, None) if kind == "tree" else (make_disk(hostile, tmp_path / "disk.raw"), 0)
    words = cage.command("files", tmp_path / "empty", ["/bin/sh", "-c", "true"], str(image[0]), image[1])
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(tried(done.stdout)) == 24 and set(tried(done.stdout).values()) == {"in"}, done.stdout


def test_the_ways_are_open_in_a_chroot(mark: Path, tmp_path: Path) -> None:
    """The attempts are real: without the cage, those that do no more than make a file get out."""
    tree = make_tree(tmp_path / "open", f'-DMARK="{mark}"', '-DABSTRACT="x"', "-DHARMLESS")
    (tree / "dev/shm").mkdir()
    folder = os.open("/", os.O_RDONLY)
    command = ["chroot", str(tree), "/bin/sh"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, pass_fds=[folder], check=True)
    os.close(folder)
    assert tried(done.stdout) == {"device": "out", "fchdir": "out", "chroot": "out"}
    mark.unlink()


def test_validate_root_and_diff_stay_outside(hostile: Path, gpu_ami: GpuAmi, tmp_path: Path) -> None:
    done = gpu_ami("validate", "--root", hostile, "-q")
    assert done.returncode in (1, 2, 4) and b"Traceback" not in done.stderr, done.stderr
    if (tmp_path / "out/files/report.json").exists():
        assert json.loads((tmp_path / "out/files/report.json").read_text())["verdict"] != "PASS"
    disk = make_disk(hostile, tmp_path / "disk.raw")
    done = gpu_ami("diff", disk, disk)
    assert done.returncode != 0 and b"Traceback" not in done.stderr, done.stdout


@pytest.mark.parametrize("name", ["proc", "dev"])
def test_a_link_does_not_lead_a_mount_to_the_host(name: str, hostile: Path, gpu_ami: GpuAmi) -> None:
    (hostile / name).rmdir()
    (hostile / name).symlink_to("/etc")
    done = gpu_ami("validate", "--root", hostile)
    assert done.returncode == 2 and f"/{name} of the image is not a directory".encode() in done.stderr
