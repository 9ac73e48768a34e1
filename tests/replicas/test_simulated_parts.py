"""docs/emulated-distributions.md has one table of every simulated part.

grubby of the Amazon Linux emulated distribution: its commands on the boot menu of the Debian layer below.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from localregion.mirror.table import REPLICAS, TABLE, load_rows

PAGE = Path(__file__).parents[2] / "docs/emulated-distributions.md"
# What a replica still does better than its original: a defect of the replica. None may be added.
BETTER = {"nvidia_driver", "cloudwatch_agent"}


def rows(text: str) -> dict[str, list[str]]:
    """Folder → the other columns of the table below "Simulated parts"."""
    section = text.partition("\n## Simulated parts\n")[2].partition("\n## ")[0]
    lines = [line.strip() for line in section.splitlines() if re.match(r"\| `\w+` \|", line)]
    cells = [line.removeprefix("|").removesuffix("|").split("|") for line in lines]
    return {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in cells}


PARTS = rows(PAGE.read_text(encoding="utf-8"))


def folders() -> set[str]:
    """Replicas of packages and programs, and base images."""
    return {path.name for path in REPLICAS.iterdir() if path.is_dir() and any(path.iterdir()) and path.name[0] != "."}


def test_every_part_has_a_row() -> None:
    assert set(PARTS) == folders() - {"__pycache__"}
    assert {row.family for row in load_rows(REPLICAS)} <= set(PARTS)
    assert {path.parent.name for path in REPLICAS.glob(f"*/{TABLE}")} <= set(PARTS)


@pytest.mark.parametrize("part", PARTS)
def test_a_row_says_what_it_does_and_cannot_show(part: str) -> None:
    does, better, cannot = PARTS[part]
    assert len(does) > 10 and len(cannot) > 5
    assert bool(better) == (part in BETTER), f"{part} is better than its original: {better}"


def test_a_row_is_read_from_its_own_section() -> None:
    text = "| `a` | x | | y |\n## Simulated parts\n| part | b |\n|---|---|\n| `b_c` | x | | y |\n\n## More\n| `d` | x |"
    assert rows(f"\n{text}\n") == {"b_c": ["x", "", "y"]}


PROGRAM = Path(__file__).parents[2] / "localregion/replicas/al2023_ami/rootfs/usr/sbin/grubby"
MENU = """\
set default="0"
menuentry 'Debian GNU/Linux' {
\tlinux\t/boot/vmlinuz-6.1.0-2 root=UUID=1-2 ro console=ttyS0 log_buf_len=1M
\tinitrd\t/boot/initrd.img-6.1.0-2
}
submenu 'Advanced options' {
\tmenuentry 'older' {
\t\tlinux\t/boot/vmlinuz-6.1.0-1 root=UUID=1-2 ro console=ttyS0
\t\tinitrd\t/boot/initrd.img-6.1.0-1
\t}
}
"""


@pytest.fixture
def grubby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("grubby", str(PROGRAM))
    spec = importlib.util.spec_from_loader("grubby", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(module)
    module.MENU, module.DEFAULTS = str(tmp_path / "grub.cfg"), str(tmp_path / "grub")  # type: ignore[attr-defined]
    (tmp_path / "grub.cfg").write_text(MENU)
    (tmp_path / "grub").write_text('GRUB_TIMEOUT=0\nGRUB_CMDLINE_LINUX="console=ttyS0"\n')
    return module


def call(grubby: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["grubby", *arguments])
    grubby.main()


def lines(tmp_path: Path) -> list[list[str]]:
    return [line.split() for line in (tmp_path / "grub.cfg").read_text().splitlines() if line.split()[:1] == ["linux"]]


def test_info_shows_every_entry(
    grubby: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(grubby, monkeypatch, "--info=ALL")
    said = capsys.readouterr().out
    assert said.count("index=") == 2
    assert 'kernel="/boot/vmlinuz-6.1.0-2"\nargs="ro console=ttyS0 log_buf_len=1M"\nroot="UUID=1-2"\n' in said
    assert 'initrd="/boot/initrd.img-6.1.0-1"' in said
    call(grubby, monkeypatch, "--default-kernel")
    assert capsys.readouterr().out == "/boot/vmlinuz-6.1.0-2\n"


def test_arguments_are_set_or_replaced_everywhere(
    grubby: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call(grubby, monkeypatch, "--update-kernel=ALL", "--args=log_buf_len=4M quiet")
    assert lines(tmp_path) == [
        ["linux", "/boot/vmlinuz-6.1.0-2", "root=UUID=1-2", "ro", "console=ttyS0", "log_buf_len=4M", "quiet"],
        ["linux", "/boot/vmlinuz-6.1.0-1", "root=UUID=1-2", "ro", "console=ttyS0", "log_buf_len=4M", "quiet"],
    ]
    # What a later menu is made of has it, too.
    assert 'GRUB_CMDLINE_LINUX="console=ttyS0 log_buf_len=4M quiet"\n' in (tmp_path / "grub").read_text()
    before = (tmp_path / "grub.cfg").read_text()
    call(grubby, monkeypatch, "--update-kernel=ALL", "--args=log_buf_len=4M quiet")
    assert (tmp_path / "grub.cfg").read_text() == before


def test_one_kernel_alone(grubby: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    call(grubby, monkeypatch, "--update-kernel=/boot/vmlinuz-6.1.0-1", "--remove-args=console")
    assert [("console=ttyS0" in words) for words in lines(tmp_path)] == [True, False]
    assert "console=ttyS0" in (tmp_path / "grub").read_text()


def test_an_unknown_kernel_is_an_error(grubby: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no entry for /boot/vmlinuz-9"):
        call(grubby, monkeypatch, "--update-kernel=/boot/vmlinuz-9", "--args=a")
    assert (tmp_path / "grub.cfg").read_text() == MENU


def test_a_menu_that_it_wrote_is_one_that_the_region_boots(
    grubby: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from localregion.machines.firmware import default_entry

    call(grubby, monkeypatch, "--update-kernel=ALL", "--args=log_buf_len=4M")
    entry = default_entry((tmp_path / "grub.cfg").read_text())
    assert entry is not None
    assert entry.command_line == "root=UUID=1-2 ro console=ttyS0 log_buf_len=4M"
