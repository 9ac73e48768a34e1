"""The serial console's file."""

from __future__ import annotations

from pathlib import Path

from gpu_ami.local.machines.console import cap_console, note_on_console, read_console


def test_a_note_of_the_region_is_on_the_console(tmp_path: Path) -> None:
    (tmp_path / "console.log").write_bytes(b"booting")
    note_on_console(tmp_path, "paused: no space left")
    assert read_console(tmp_path) == b"booting\r\n[local region] paused: no space left\r\n"
    note_on_console(tmp_path / "gone", "x")  # no folder: no error


def test_a_console_keeps_its_tail(tmp_path: Path) -> None:
    assert read_console(tmp_path) == b""
    console = tmp_path / "console.log"
    console.write_bytes(b"a" * 900 + b"tail")
    assert read_console(tmp_path, limit=4) == b"tail"
    cap_console(tmp_path, most=1000, keep=10)
    assert console.stat().st_size == 904
    cap_console(tmp_path, most=900, keep=10)
    assert console.read_bytes() == b"aaaaaatail"
