"""Inventories of files, and how two differ."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from onhost import inventory as program
from tests.validator.file_account import tree
from tests.validator.file_account.entries import file, findings, system
from validator.file_account import Entry, InvalidInventory, read

# Reading an inventory: what is cut off, foreign or of another schema is refused.


def records(root: Path) -> list[bytes]:
    lines: list[bytes] = []
    program.inventory(str(root), False, 0.0, set(), lambda record: lines.append(tree.line(record)))
    return lines


def test_compressed_or_not(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    lines = records(tmp_path)
    assert read(b"".join(lines)) == read(gzip.compress(b"".join(lines)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no line"),
        (b"not json\n", "not an inventory"),
        (b'{"schema":"gpu-ami/inventory/0"}\n', "expected schema gpu-ami/inventory/1"),
        (gzip.compress(b"x", mtime=0)[:-4], "not an inventory"),
    ],
)
def test_something_else(data: bytes, message: str) -> None:
    with pytest.raises(InvalidInventory, match=message):
        read(data)


def test_cut_off(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    lines = records(tmp_path)
    assert json.loads(lines[-1]) == {"end": 1}
    with pytest.raises(InvalidInventory, match="cut off after 1 entries"):
        read(b"".join(lines[:-1]))


# Each difference from the base AMI, with both values.


@pytest.mark.parametrize(
    ("now", "what"),
    [
        (file("/a", mode=0o4755), "mode 4755, was 0644"),
        (file("/a", owner="admin"), "owner admin:root, was root:root"),
        (file("/a", sha256="2" * 64, size=9), "content (9 bytes, was 1)"),
        (file("/a", attributes={"security.capability": "01"}), "attributes security.capability"),
        (Entry("/a", "l", 0o777, "root", "root", target="/b"), "a link, was a file"),
        (file("/a", modified=5, changed=9), ""),
    ],
)
def test_changed_base_files(now: Entry, what: str) -> None:
    assert findings(system(now), system(file("/a"))) == ([f"/a changed: {what}"] if what else [])


def test_a_mode_that_changed_on_a_file_of_an_unchanged_package() -> None:
    before = file("/usr/bin/sudo", mode=0o4755, packages=("sudo",), differs=())
    assert findings(system(replace(before, mode=0o755)), system(before)) == [
        "/usr/bin/sudo changed: mode 0755, was 4755 (package sudo, the same as in the base AMI)"
    ]
