"""Reads initial ramdisks of every compression, early archives before them and archives after them."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from onhost import initial_ramdisk as program
from tests.validator.file_account.ramdisks import FILE, LINK, cpio

FILES = {
    "init": (FILE | 0o755, b"#!/bin/sh\n"),
    "bin": (LINK | 0o777, b"usr/bin"),
    "usr/bin/x": (FILE | 0o644, b"x" * 9999),
}


def by_program(*command: str) -> Callable[[bytes], bytes]:
    return lambda data: subprocess.run(command, input=data, capture_output=True, check=True).stdout


COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    "none": lambda data: data,
    "gzip": gzip.compress,
    "xz": lambda data: lzma.compress(data, check=lzma.CHECK_CRC32),
    "lzma": lambda data: lzma.compress(data, lzma.FORMAT_ALONE),
    "bzip2": bz2.compress,
    "zstd": by_program("zstd", "-qc"),
    "lz4": by_program("lz4", "-lqc"),
}


def listed(tmp_path: Path, data: bytes) -> dict[str, Any]:
    (tmp_path / "boot").mkdir(exist_ok=True)
    (tmp_path / "boot/initrd.img-6.1").write_bytes(data)
    command = [sys.executable, "-IS", program.__file__, "--root", str(tmp_path)]
    (line,) = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    assert found["ramdisk"] == "/boot/initrd.img-6.1"
    return found


def names(found: Mapping[str, Any]) -> list[str]:
    return [row[0] for row in found["files"]]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_compression_is_read(compression: str, tmp_path: Path) -> None:
    if compression in ("zstd", "lz4") and shutil.which(compression) is None:
        pytest.skip(f"needs {compression}")
    early = cpio({"kernel/x86/microcode/GenuineIntel.bin": (FILE, b"microcode")}) + bytes(512)
    found = listed(tmp_path, early + COMPRESSIONS[compression](cpio(FILES) + bytes(128)))
    assert (found["error"], found["unknown"]) == ("", "")
    assert names(found) == ["kernel/x86/microcode/GenuineIntel.bin", *FILES]
    rows = {row[0]: row[1:] for row in found["files"]}
    assert rows["usr/bin/x"] == ["f", 0o644, sha256(b"x" * 9999).hexdigest(), 9999]
    assert rows["bin"][:3] == ["l", 0o777, "usr/bin"]


@pytest.mark.parametrize("compression", ["none", "gzip", "xz", "bzip2"])
@pytest.mark.parametrize("appended", ["none", "gzip"])
def test_an_archive_that_was_appended_is_listed(compression: str, appended: str, tmp_path: Path) -> None:
    more = COMPRESSIONS[appended](cpio({"init": (FILE | 0o755, b"another")}))
    found = listed(tmp_path, COMPRESSIONS[compression](cpio(FILES)) + bytes(4) + more)
    assert found["error"] == "" and names(found) == [*FILES, "init"]


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_what_a_program_does_not_unpack_is_an_error(compression: str, tmp_path: Path) -> None:
    if shutil.which(compression) is None:
        pytest.skip(f"needs {compression}")
    found = listed(tmp_path, COMPRESSIONS[compression](cpio(FILES)) + cpio(FILES))
    assert "is something after the archive?" in found["error"] and names(found) == [*FILES]


@pytest.mark.parametrize(
    ("data", "key", "said"),
    [
        (cpio(FILES)[:-200], "error", "cut off"),
        (gzip.compress(cpio(FILES))[:-20], "error", "cut off"),
        (gzip.compress(b"no archive of any kind"), "error", "not a cpio archive of the new format at byte 0"),
        (cpio(FILES) + b"something else", "error", "neither an archive nor padding after the archive: 736f6d65"),
        (cpio(FILES) + b"\x89LZO\0\r\n", "unknown", "compressed in a way that is not known: it begins with 894c5a4f"),
        (b"something else", "unknown", "compressed in a way that is not known: it begins with 736f6d65"),
        (b"", "error", ""),
    ],
    ids=["cut", "cut-gzip", "text", "text-after", "lzo-after", "unknown", "empty"],
)
def test_what_is_no_ramdisk_says_why(data: bytes, key: str, said: str, tmp_path: Path) -> None:
    assert said in listed(tmp_path, data)[key]


def test_hard_links_have_the_content_of_the_last(tmp_path: Path) -> None:
    data = cpio({"a": (FILE, b""), "b": (FILE, b"content")}, links=2)
    rows = listed(tmp_path, data)["files"]
    assert [row[3] for row in rows] == [sha256(b"content").hexdigest()] * 2


def test_its_time_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "initrd"
    path.write_bytes(gzip.compress(cpio(FILES)))
    assert program.read_ramdisk(str(path), 0.0)["unknown"] == "not read within 60 s"


def test_texts_of_generated_files_are_kept(tmp_path: Path) -> None:
    order = '/scripts/init-top/udev "$@"\n'
    assert listed(tmp_path, cpio({"scripts/init-top/ORDER": (FILE, order.encode())}))["texts"] == {
        "scripts/init-top/ORDER": order
    }
