"""An image's files as a host: where its file system begins, what can be entered, and what comes of checks there."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests import forked_pytest
from validator.transport import cage, image_files
from validator.transport.image_files import Image, ImageUnusable

ROOT = Path(__file__).resolve().parents[3]
_LIBRARIES = ("/bin", "/sbin", "/lib", "/lib64", "/usr")


def mbr(*rows: tuple[int, int, int]) -> bytes:
    """A boot sector with a row (type, first sector, sectors) a partition."""
    table = b"".join(struct.pack("<4xB3xII", *row) for row in rows)
    return b"\0" * 446 + table.ljust(64, b"\0") + b"\x55\xaa"


def gpt(*rows: tuple[int, int]) -> bytes:
    """Protective boot sector, header, and an entry (first, last sector) a partition."""
    header = b"EFI PART" + b"\0" * 64 + struct.pack("<QII", 2, 4, 128)
    entries = b"".join(b"\1" * 32 + struct.pack("<QQ", *row) + b"\0" * 80 for row in rows)
    return mbr((0xEE, 1, 1000)) + header.ljust(512, b"\0") + entries.ljust(512, b"\0")


EXT4, LVM, LUKS = (0x438, b"\x53\xef"), (0x218, b"LVM2 001"), (0, b"LUKS\xba\xbe")
NTFS, SWAP, XFS = (3, b"NTFS    "), (0xFF6, b"SWAPSPACE2"), (0, b"XFSB")


def write_disk(path: Path, table: bytes, *contents: tuple[int, tuple[int, bytes]], sectors: int = 100000) -> Path:
    """A disk with a table, and at the first sectors of its partitions the bytes that show what they have."""
    with path.open("wb") as file:
        file.write(table)
        for start, (offset, magic) in contents:
            file.seek(start * 512 + offset)
            file.write(magic)
        file.truncate(sectors * 512)
    return path


@pytest.mark.parametrize(
    ("table", "contents", "offsets"),
    [
        (mbr((0x83, 2048, 5000)), [(2048, EXT4)], [2048]),
        (mbr((0xEF, 2048, 500), (0x83, 4096, 9000)), [(4096, XFS)], [4096]),
        (gpt((2048, 4095), (4096, 99999), (34, 2047)), [(2048, EXT4), (4096, EXT4)], [4096, 2048]),
        (gpt((2048, 4095), (4096, 99999)), [(2048, EXT4), (4096, LVM)], [2048]),
        (b"", [(0, EXT4)], [0]),  # a file system without a table
        (b"\0" * 510 + b"\x55\xaa", [(0, EXT4)], [0]),  # with a boot sector
        (mbr((0x83, 2048, 5000), (0x83, 8000, 99999)), [(2048, EXT4), (8000, EXT4)], [2048]),  # the other is cut off
    ],
)
def test_file_systems_are_found(
    tmp_path: Path, table: bytes, contents: list[tuple[int, tuple[int, bytes]]], offsets: list[int]
) -> None:
    disk = write_disk(tmp_path / "disk.raw", table, *contents)
    assert image_files.file_systems(disk) == [sector * 512 for sector in offsets]


@pytest.mark.parametrize(
    ("table", "contents", "message"),
    [
        (b"", [], "a file system of Linux, got no partition table (48.8 MiB): unknown content; name a mounted"),
        (gpt(), [], "got no partition table (48.8 MiB): unknown content"),
        (gpt((2048, 4095), (4096, 9999)), [(4096, LVM)], "partition 2 (2.88 MiB): LVM; vgchange -ay: open it, mou"),
        (gpt((2048, 9999)), [(2048, LUKS)], "got partition 1 (3.88 MiB): LUKS (encrypted); cryptsetup open"),
        (
            gpt((2048, 4095), (4096, 99999)), [(2048, SWAP), (4096, NTFS)],
            "got partition 1 (1 MiB): swap; partition 2 (46.8 MiB): NTFS (Windows); gpu-ami reads images of Linux",
        ),
        (b"\0" * 510 + b"\x55\xaa", [(0, NTFS)], "got no partition table (48.8 MiB): NTFS (Windows)"),
        (
            mbr((0x83, 2048, 999999)), [(2048, EXT4)],
            "partition 1 (488 MiB): ext4 ends at byte 513048064, and the file at byte 51200000; it is cut off",
        ),
        (b"QFI\xfb", [], "a qcow2 image, expected a raw disk image; qemu-img convert -O raw IMAGE disk.raw"),
        (b"KDMV", [], "a VMDK image, expected a raw disk image; qemu-img convert"),
        (b"etc/\0".ljust(257, b"\0") + b"ustar", [], "a tar archive (OVA, docker save), expected a raw disk ima"),
        (b"\x1f\x8b", [], "a gzip file, expected a raw disk image; unpack it"),
        (b"<?xml version='1.0'?><Envelope", [], "a text of XML (OVF), expected a raw disk image"),
        (b'{"schema": "gpu-ami/observation/1"}', [], "a text of JSON, expected a raw disk image; --read takes an obs"),
    ],
)  # fmt: skip
def test_what_is_on_the_disk_instead_is_said(
    tmp_path: Path, table: bytes, contents: list[tuple[int, tuple[int, bytes]]], message: str
) -> None:
    disk = write_disk(tmp_path / "disk.raw", table, *contents)
    with pytest.raises(ImageUnusable) as caught:
        image_files.file_systems(disk)
    assert f"{disk}: " in str(caught.value) and message in str(caught.value)


def test_an_empty_file_is_no_disk(tmp_path: Path) -> None:
    (tmp_path / "disk.raw").touch()
    with pytest.raises(ImageUnusable, match="an empty file; name a mounted tree or a raw disk image"):
        image_files.file_systems(tmp_path / "disk.raw")


@pytest.mark.parametrize(
    ("table", "size"), [(2, 0xFFFFFFF0), (2, 20), (2, 0), (1 << 60, 128), ((1 << 64) - 1, 128), (1 << 30, 128)]
)
def test_a_header_says_anything(tmp_path: Path, table: int, size: int) -> None:
    """Entries of gigabytes, too short ones, a table beyond the disk: read as no table, in a moment."""
    header = b"EFI PART" + b"\0" * 64 + struct.pack("<QII", table, 128, size)
    path = tmp_path / "disk.raw"
    path.write_bytes(mbr((0xEE, 1, 1000)) + header.ljust(512, b"\0") + b"\1" * 2048)
    os.truncate(path, 1 << 36)
    with pytest.raises(ImageUnusable, match=r"got no partition table \(64 GiB\): unknown content"):
        image_files.file_systems(path)


def test_not_there(tmp_path: Path) -> None:
    with pytest.raises(ImageUnusable, match="no such file or directory; name a mounted tree or a raw disk image"):
        image_files.enter(Image(tmp_path / "none"))


def test_only_root_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ImageUnusable, match=r"can only be entered by root .*; run it with sudo"):
        image_files.enter(Image(tmp_path))


def test_tool_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(ImageUnusable, match="mount is not installed; apt-get install mount"):
        image_files.enter(Image(tmp_path))


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("cage: /bin/sh: Exec format error", "another architecture"),
        ("cage: unshare: Operation not permitted", "in a container with --privileged"),
        ("mount: wrong fs type", "expected the root of a system"),
    ],
)
def test_advice(said: str, advice: str) -> None:
    assert advice in image_files.hint(said)


def can_enter() -> bool:
    command = ["unshare", "--mount", "--pid", "--fork", "--net", "true"]
    return os.geteuid() == 0 and subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


# Whoever runs the tests without root, or in a container, cannot enter anything: `make test` of the pipeline can.
entering = pytest.mark.skipif(not can_enter(), reason="needs root and namespaces")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The root of a system that borrows this machine's programs."""
    root = tmp_path / "root"
    for name in ("etc", "proc", "dev", "var", "root", "tmp", "run"):
        (root / name).mkdir(parents=True)
    for name in _LIBRARIES:
        path = Path(name)
        if path.is_symlink():
            (root / name[1:]).symlink_to(path.readlink())
    (root / "usr").mkdir(exist_ok=True)
    shutil.copy("/etc/passwd", root / "etc")
    (root / "etc" / "os-release").write_text('ID=test\nPRETTY_NAME="A tree"\n')
    subprocess.run(["mount", "--bind", "/usr", root / "usr"], check=True)
    yield root  # type: ignore[misc]
    subprocess.run(["umount", root / "usr"], check=True)


@entering
def test_files_below_mounts_are_listed(tree: Path, tmp_path: Path) -> None:
    """The cage mounts over /dev and /proc, as a machine does: what a build left there was in no list of files."""
    (tmp_path / "empty").mkdir()

    def listed() -> list[str]:
        words = cage.command("files", tmp_path / "empty", ["/bin/cat", cage.HIDDEN_FILES], str(tree))
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    (tree / "dev/console").touch()  # without content, as a mount point of a file
    (tree / "dev/log").symlink_to("/etc/passwd")
    assert listed() == []
    (tree / "dev/shm/build").mkdir(parents=True)
    (tree / "dev/shm/build/token").write_text("x")
    (tree / "proc/no\nte").write_text("x")
    assert listed() == ["/dev/shm/build/token", "/proc/no?te"]
    subprocess.run(["mount", "-t", "proc", "proc", tree / "proc"], check=True)
    try:
        assert listed() == ["/dev/shm/build/token"]  # those of another file system are the host's
    finally:
        subprocess.run(["umount", tree / "proc"], check=True)


CHECKS = """
import os, pytest
pytestmark = pytest.mark.tier("T0")
def test_sees_the_tree(host, observe):
    assert host.file("/etc/os-release").contains("A tree") and not host.file("/work").exists
    assert host.run("id -u; umask").stdout == "0\\n0022\\n"
def test_cannot_write(host):
    assert host.run("touch /etc/new").rc != 0
def test_has_no_network_and_no_other_processes(host):
    assert host.run("cat /proc/net/dev").stdout.count(":") == 1
    assert "OUTSIDE" not in host.run("cat /proc/[0-9]*/environ | tr '\\\\0' '\\\\n'").stdout
@pytest.mark.offline
def test_only_for_files(host):
    assert host.file("/etc/os-release").exists
@pytest.mark.tier("T1")
def test_needs_a_boot(host):
    assert False
def test_is_red(host):
    assert host.file("/etc/none").exists
"""


@pytest.mark.slow
@entering
def test_checks_run_in_a_tree(tree: Path, tmp_path: Path) -> None:
    before = set(Path("/tmp").glob("gpu-ami-image-*"))  # of other runs on this machine
    mask = os.umask(0o077)  # as of gpu-ami's own validator
    try:
        found = run_checks(tree, tmp_path, CHECKS, "--tier=T0")
    finally:
        os.umask(mask)
    verdicts = {one["id"].rpartition("::")[2]: one["verdict"] for one in found["checks"]}
    assert verdicts == {
        "test_sees_the_tree": "PASS",
        "test_cannot_write": "PASS",
        "test_has_no_network_and_no_other_processes": "PASS",
        "test_only_for_files": "PASS",
        "test_is_red": "FAIL",
    }, found["checks"]
    assert found["facts"]["transport"]["executions"] == 1
    assert set(Path("/tmp").glob("gpu-ami-image-*")) <= before


@pytest.mark.slow
@entering
def test_unusable_image_is_reported_once(tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    write_disk(disk, b"", (0, EXT4), sectors=8)
    found = run_checks(disk, tmp_path, "def test_a(host):\n    host.run('true')\n" * 2 + CHECKS.partition("@")[0])
    messages = {one["message"] for one in found["checks"]}
    assert {one["verdict"] for one in found["checks"]} == {"UNPROVEN"} and len(messages) == 1
    assert "cannot be entered" in messages.pop()


def run_checks(path: Path, folder: Path, source: str, *options: str) -> dict[str, Any]:
    file, results = folder / "test_given.py", folder / "checks.json"
    file.write_text(source)
    command = [
        "-p", "validator.plugin", "-p", "no:cacheprovider", "-q", f"--rootdir={folder}",
        f"--hosts=image://{quote(str(path), safe='')}", f"--results={results}", *options, str(file),
    ]  # fmt: skip
    done = forked_pytest.run(command, env=os.environ | {"OUTSIDE": "1"})
    assert results.exists(), done.stdout + done.stderr
    document: dict[str, Any] = json.loads(results.read_text())
    return document
