"""Reads kernel, initrd and command line from a disk image, as firmware and boot loader would.

Reading them with debugfs and passing them to QEMU saves the seconds that a boot loader takes under emulation.
/boot/grub/grub.cfg is read again at every power-on and reboot, so a new kernel or kernel argument takes effect at the
next boot, as with GRUB.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from gpu_ami.errors import MachineError
from gpu_ami.process import find_tool, run

_PARTITION_OFFSET = 1024 * 1024  # of partition 1
_GRUB_CFG = "/boot/grub/grub.cfg"
_SECONDS = 60.0


@dataclass(frozen=True)
class Boot:
    """Kernel and initrd (files on the host), and the kernel's command line."""

    kernel: Path
    initrd: Path | None
    command_line: str


@dataclass(frozen=True)
class GrubEntry:
    """A menu entry: paths inside the image."""

    kernel: str
    initrd: str | None
    command_line: str


def read_boot(disk: Path, folder: Path) -> Boot | None:
    """Extracts what the image's default entry boots into `folder`; None if the image has no grub.cfg of that kind.

    Then the machine boots from the disk itself, by whatever boot loader is in it. MachineError: the entry names a file
    that the image does not have.
    """
    file_system = f"{disk}?offset={_PARTITION_OFFSET}"
    _replay_journal(file_system)
    config = _dump(file_system, _GRUB_CFG, folder / "grub.cfg")
    if config is None:
        return None
    entry = default_entry(config.read_text(errors="replace"))
    if entry is None:
        return None
    kernel = _required(file_system, entry.kernel, folder / "vmlinuz")
    initrd = _required(file_system, entry.initrd, folder / "initrd.img") if entry.initrd else None
    return Boot(kernel, initrd, entry.command_line)


def default_entry(config: str) -> GrubEntry | None:
    """The entry that GRUB would take: number or id `default` (0 unless set), else the first with a kernel."""
    named = re.search(r'^\s*set default="([^"$]*[^"\d$][^"$]*)"\s*$', config, re.MULTILINE)
    if named and (entry := _entry_with_id(config, named.group(1).rpartition(">")[2])):
        return entry
    chosen = re.search(r'^\s*set default="?(\d+)"?\s*$', config, re.MULTILINE)
    # A submenu's entries do not count: update-grub puts older kernels there.
    blocks = re.findall(r"^menuentry\b.*?\{\n(.*?)^\}", config, re.MULTILINE | re.DOTALL)
    entries = [entry for entry in map(_read_entry, blocks) if entry]
    if not entries:
        return None
    index = int(chosen.group(1)) if chosen else 0
    return entries[index] if index < len(entries) else entries[0]


def _entry_with_id(config: str, wanted: str) -> GrubEntry | None:
    """The entry with an id, in a submenu or not: `submenu>entry` names it by both."""
    for head, block in re.findall(r"^\s*(menuentry\b.*?)\{\n(.*?)^\s*\}", config, re.MULTILINE | re.DOTALL):
        if f"'{wanted}'" in head:
            return _read_entry(block)
    return None


def _read_entry(block: str) -> GrubEntry | None:
    kernel, initrd, arguments = None, None, ""
    for line in block.splitlines():
        words = shlex.split(line, comments=True) if line.lstrip().startswith(("linux", "initrd")) else []
        if len(words) > 1 and words[0] in ("linux", "linux16", "linuxefi"):
            kernel, arguments = words[1], " ".join(words[2:])
        elif len(words) > 1 and words[0] in ("initrd", "initrd16", "initrdefi"):
            initrd = words[1]
    return GrubEntry(kernel, initrd, arguments) if kernel else None


def _replay_journal(file_system: str) -> None:
    """A machine that lost its power left its newest files in the journal; debugfs would not see them."""
    e2fsck = find_tool("e2fsck", package="e2fsprogs")
    run([e2fsck, "-p", "-E", "journal_only", file_system], timeout=_SECONDS, check=False)


def _dump(file_system: str, path: str, target: Path) -> Path | None:
    target.unlink(missing_ok=True)
    debugfs = find_tool("debugfs", package="e2fsprogs")
    # debugfs ends with 0 whatever happened; a file that is there is the only sign of success. It follows no links.
    run([debugfs, "-R", f'dump "{path}" "{target.name}"', file_system], cwd=target.parent, timeout=_SECONDS)
    if not target.exists() or target.stat().st_size == 0:
        target.unlink(missing_ok=True)
        return None
    return target


def _required(file_system: str, path: str, target: Path) -> Path:
    extracted = _dump(file_system, path, target)
    if extracted is None:
        message = f"the image's boot menu names {path}, which is not in the image"
        raise MachineError(message, hint="run update-grub in the image")
    return extracted
