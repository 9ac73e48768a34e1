"""docs/emulated-distributions.md has one table of every simulated part."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_ami.local.mirror.table import REPLICAS, TABLE, load_rows

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
