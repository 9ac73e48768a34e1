"""Reading an inventory: what is cut off, foreign or of another schema is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.validator.file_account import tree
from validator.file_account import InvalidInventory, read
from validator.remote import inventory as program


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
