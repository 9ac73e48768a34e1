"""Finding what an image boots: GRUB's menu, and files read from a disk image without mounting it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.errors import MachineError
from gpu_ami.process import find_tool, run
from localregion.machines.firmware import GrubEntry, default_entry, read_boot

MENU = """\
set default="0"
menuentry 'Debian GNU/Linux' --class os $menuentry_id_option 'gnulinux-simple' {
	load_video
	linux	/boot/vmlinuz-6.1.0-2 root=UUID=1234 ro console=ttyS0,115200 log_buf_len=4M "quoted=a b"
	initrd	/boot/initrd.img-6.1.0-2
}
submenu 'Advanced options' {
	menuentry 'older' {
		linux	/boot/vmlinuz-6.1.0-1 root=UUID=1234 ro
		initrd	/boot/initrd.img-6.1.0-1
	}
}
menuentry 'memory test' {
	linux16	/boot/memtest
}
"""


def test_the_first_entry_is_the_default() -> None:
    entry = default_entry(MENU)
    assert entry is not None
    assert (entry.kernel, entry.initrd) == ("/boot/vmlinuz-6.1.0-2", "/boot/initrd.img-6.1.0-2")
    assert entry.command_line.startswith("root=UUID=1234 ro console=ttyS0,115200 log_buf_len=4M")


def test_default_counts_top_level_entries() -> None:
    assert default_entry(MENU.replace('default="0"', 'default="1"')) == GrubEntry("/boot/memtest", None, "")
    chosen = default_entry(MENU.replace('default="0"', 'default="7"'))
    assert chosen is not None and chosen.kernel == "/boot/vmlinuz-6.1.0-2"


def test_default_can_be_the_id_of_an_entry_of_a_submenu() -> None:
    """As role kernel sets it where a recipe chooses another kernel than the newest."""
    menu = MENU.replace(
        "submenu 'Advanced options'", "submenu 'Advanced options' $menuentry_id_option 'gnulinux-advanced-12'"
    )
    menu = menu.replace("menuentry 'older'", "menuentry 'older' $menuentry_id_option 'gnulinux-6.1.0-1-advanced-12'")
    chosen = default_entry(menu.replace('default="0"', 'default="gnulinux-advanced-12>gnulinux-6.1.0-1-advanced-12"'))
    assert chosen is not None and chosen.kernel == "/boot/vmlinuz-6.1.0-1"
    gone = default_entry(menu.replace('default="0"', 'default="gnulinux-advanced-12>gnulinux-5.9-advanced-12"'))
    assert gone is not None and gone.kernel == "/boot/vmlinuz-6.1.0-2"


@pytest.mark.parametrize("menu", ["", "menuentry 'bios' {\n\tchainloader +1\n}\n"])
def test_a_menu_without_kernels_has_no_entry(menu: str) -> None:
    assert default_entry(menu) is None


def disk_with(tmp_path: Path, files: dict[str, str]) -> Path:
    """A raw disk whose partition 1 is ext4 with these files."""
    tree, disk = tmp_path / "tree", tmp_path / "disk.raw"
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    tree.mkdir(exist_ok=True)
    with disk.open("wb") as stream:
        stream.truncate(16 * 1024**2)
    command = [
        find_tool("mke2fs", package="e2fsprogs"),
        "-q",
        "-t",
        "ext4",
        "-d",
        tree,
        "-E",
        "offset=1048576",
        disk,
        "15360k",
    ]
    run(command, timeout=60)
    return disk


def test_kernel_initrd_and_command_line_come_out_of_the_disk(tmp_path: Path) -> None:
    menu = "menuentry 'x' {\n\tlinux /boot/vmlinuz ro quiet\n\tinitrd /boot/initrd.img\n}\n"
    disk = disk_with(tmp_path, {"boot/grub/grub.cfg": menu, "boot/vmlinuz": "kernel", "boot/initrd.img": "initrd"})
    boot = read_boot(disk, tmp_path)
    assert boot is not None and boot.initrd is not None
    assert (boot.kernel.read_text(), boot.initrd.read_text(), boot.command_line) == ("kernel", "initrd", "ro quiet")


def test_a_disk_without_a_menu_boots_by_itself(tmp_path: Path) -> None:
    assert read_boot(disk_with(tmp_path, {"etc/hostname": "x"}), tmp_path) is None


def test_a_kernel_that_is_not_there_is_named(tmp_path: Path) -> None:
    disk = disk_with(tmp_path, {"boot/grub/grub.cfg": "menuentry 'x' {\n\tlinux /boot/vmlinuz-6 ro\n}\n"})
    with pytest.raises(MachineError, match="names /boot/vmlinuz-6, which is not in the image"):
        read_boot(disk, tmp_path)
