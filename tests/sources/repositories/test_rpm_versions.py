"""Order of rpm versions, compared with rpm's own."""

from __future__ import annotations

import shutil

import pytest

from gpu_ami import process
from gpu_ami.sources.repositories.rpm_versions import compare, rpmvercmp, split

# rpm's own tests (tests/rpmvercmp.at) and versions as vendors write them.
PAIRS = [
    ("1.0", "1.0"), ("1.0", "2.0"), ("2.0.1", "2.0"), ("2.0.1a", "2.0.1"), ("5.5p1", "5.5p10"), ("10xyz", "10.1xyz"),
    ("xyz10", "xyz10.1"), ("xyz.4", "8"), ("5.5p10", "5.6p1"), ("5.6p1", "6.5p1"), ("6.0.rc1", "6.0"),
    ("10b2", "10a1"), ("1.0aa", "1.0a"), ("10.0001", "10.1"), ("10.0001", "10.0039"), ("4.999.9", "5.0"),
    ("20101121", "20101122"), ("2_0", "2.0"), ("a+", "a_"), ("1.0~rc1", "1.0"), ("1.0~rc1", "1.0~rc2"),
    ("1.0~rc1~git123", "1.0~rc1"), ("1.0^", "1.0"), ("1.0^git1", "1.0^git2"), ("1.0^git1", "1.01"),
    ("1.0^20160101", "1.0.1"), ("1.0~rc1^git1", "1.0~rc1"), ("1.0^git1~pre", "1.0^git1"), ("1.0^", "1.0~"),
    ("550.163.01", "550.54.15"), ("2.33.10.0_3dcef56f0", "2.33.10.0"), ("1b.fc17", "1.fc17"),
]  # fmt: skip


@pytest.mark.skipif(not shutil.which("rpm"), reason="rpm is not installed")
def test_order_is_rpms() -> None:
    calls = "".join(f"print(rpm.vercmp('{one}', '{other}')..' ')" for one, other in PAIRS)
    shown = process.run(["rpm", "--eval", f"%{{lua:{calls}}}"], timeout=30).stdout.split()
    assert [rpmvercmp(one, other) for one, other in PAIRS] == [int(order) for order in shown]
    assert [rpmvercmp(other, one) for one, other in PAIRS] == [-int(order) for order in shown]


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [
        ("1:1.0-1", "2.0-1", 1),
        ("0:2.0-1", "2.0-1", 0),
        ("2.0-1.amzn2023", "2.0", 0),
        ("2.0-1.el9", "2.0-2.el9", -1),
        ("2.1", "2.0-9", 1),
    ],
)
def test_epoch_and_release(first: str, second: str, order: int) -> None:
    assert compare(first, second) == order and compare(second, first) == -order


def test_parts_of_a_version() -> None:
    assert split("1:4.6.1-1.amzn2023") == ("1", "4.6.1", "1.amzn2023")
    assert split("4.6.1") == ("", "4.6.1", "")
