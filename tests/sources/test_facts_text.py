"""Rows are added to tables without touching what is there."""

from __future__ import annotations

import pytest

from gpu_ami.files import parse_yaml
from gpu_ami.recipes import VARIABLES
from gpu_ami.sources import releases

ROW = {
    "cuda": ["12", "13"],
    "packaged": ["13.4"],
    "source": "https://v.example/ (libnccl2 2.99.0-1)",
    "date": "2026-11-22",
}


@pytest.mark.parametrize("table", ["nccl", "cudnn", "dcgm", "container_toolkit", "gdrcopy"])
@pytest.mark.parametrize("release", ["0.0.1", "2.28.99", "99.1.0"])
def test_release_is_added_in_order_to_each_table(table: str, release: str) -> None:
    text = (VARIABLES / "facts" / f"{table}.yml").read_text()
    added = releases.add_release(text, release, ROW)
    assert added is not None
    before, after = parse_yaml(text, table), parse_yaml(added, table)
    assert after["releases"].pop(release) == ROW and after == before
    (line,) = set(added.splitlines()) - set(text.splitlines())
    assert added.replace(f"{line}\n", "") == text
    keys = list(parse_yaml(added, table)["releases"])
    assert keys.index(release) == (
        0 if release == "0.0.1" else len(keys) - 1 if release == "99.1.0" else keys.index(release)
    )


def test_driver_is_added_to_its_branch() -> None:
    text = (VARIABLES / "facts" / "nvidia_drivers.yml").read_text()
    for branch in ("580", "595", "610"):
        added = releases.add_driver(text, branch, f"{branch}.999.01", "https://v.example/", "2026-11-22")
        assert added is not None
        before, after = parse_yaml(text, "x"), parse_yaml(added, "x")
        assert after["branches"][branch]["releases"].pop() == f"{branch}.999.01" and after == before
        assert f"# {branch}.999.01: https://v.example/, 2026-11-22" in added
    assert releases.add_driver(text, "999", "999.1.1", "", "") is None


@pytest.mark.parametrize("table", ["nccl", "cudnn", "dcgm", "cuda", "nvidia_drivers"])
@pytest.mark.parametrize("system", ["al2023", "ubuntu2404"])
def test_seen_row_is_new_or_replaced(table: str, system: str) -> None:
    text = (VARIABLES / "facts" / f"{table}.yml").read_text()
    row = {"releases": ["13.0", "2.32.3"], "source": "https://v.example/", "date": "2026-11-22"}
    changed = releases.set_seen(text, system, row)
    assert changed is not None
    before, after = parse_yaml(text, table), parse_yaml(changed, table)
    assert after["systems"]["seen"][system] == row
    before["systems"]["seen"].pop(system, None)
    after["systems"]["seen"].pop(system)
    assert after == before


def test_table_without_the_key_is_left() -> None:
    assert releases.add_release("other: {}\n", "1.0", {}) is None
    assert releases.set_seen("releases: {}\n", "al2023", {}) is None


@pytest.mark.parametrize(
    "value", ["13.0", "580", "1e5", "yes", "2.28.9", "2026-11-22", "a: b", "v2.5", "", "0x1f", "x#y"]
)
def test_text_stays_text(value: str) -> None:
    assert parse_yaml(f"key: {releases._flow([value])}", "x")["key"] == [value]
