"""SECURITY.md: each row of the threat model names tests, which exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
_TABLE = PAGE.partition("| who | trusted with | not trusted with | test |\n")[2].partition("\n\n")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in _TABLE.splitlines()[1:]]


def named(cell: str) -> list[Path]:
    """The tests of a row. A name without a folder is in tests/attacks."""
    names = re.findall(r"`([^`]+)`", cell)
    return [ROOT / (name if "/" in name else f"tests/attacks/{name}") for name in names]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_row_names_tests_that_exist(row: list[str]) -> None:
    assert len(row) == 4 and all(row)
    paths = named(row[3])
    assert paths, "a row without a test is a hope"
    for path in paths:
        files = sorted(path.glob("test_*.py")) if path.is_dir() else [path]
        assert files and all("\ndef test_" in file.read_text(encoding="utf-8") for file in files), path


def test_every_attack_is_in_the_table() -> None:
    files = set((ROOT / "tests/attacks").glob("test_*.py"))
    assert files == {path for row in ROWS for path in named(row[3]) if path.parent.name == "attacks"}
