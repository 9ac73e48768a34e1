"""Two builds of one plan: what tells them apart, and what differs between any two builds, each with its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_ami.release import rebuild
from tests.release.test_comparison import file, link, taken
from validator.file_account.inventory import Ramdisk

UNIT, BASE, BOOTS = "/etc/systemd/system/x.service", "/usr/share/gpu-ami/base-inventory.jsonl.gz", rebuild.BUILDER_BOOTS
MODULE = "/usr/lib/modules/6.1.0-40-cloud-amd64/updates/dkms/nvidia.ko"
FOLDER = {"p": "/opt/x", "t": "d", "m": 0o755, "u": 0, "g": 0, "a": 1, "c": 2}


def subjects(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    return [row.subject for row in rebuild.judge(taken(*before), taken(*after)).differences]


def test_times_alone_are_no_difference() -> None:
    judged = rebuild.judge(taken(file(UNIT), FOLDER), taken(file(UNIT, a=9, c=9), FOLDER | {"a": 9}, time=99.0))
    assert judged.is_same and judged.expected == ()
    assert rebuild.text(judged) == "the same: 4 paths compared"


@pytest.mark.parametrize(
    ("before", "after", "subject"),
    [
        ([file(UNIT)], [file(UNIT, "cd")], UNIT),
        ([file(UNIT)], [file(UNIT, m=0o755)], UNIT),
        ([file(UNIT)], [file(UNIT, u=7)], UNIT),
        ([file(UNIT)], [], UNIT),
        ([], [file(UNIT)], UNIT),
        ([link("/x", "/a")], [link("/x", "/b")], "/x"),
        ([FOLDER], [FOLDER | {"m": 0o777}], "/opt/x"),
        # The reason is of content alone.
        ([file(BASE)], [file(BASE, "cd", m=0o666)], BASE),
        ([file(BASE)], [], BASE),
    ],
)
def test_what_tells_two_images_apart(before: list[dict[str, Any]], after: list[dict[str, Any]], subject: str) -> None:
    assert subjects(before, after) == [subject]


def test_packages_and_accounts_are_compared() -> None:
    other = taken(accounts={"root": [0, 0, "/root", "/bin/sh", "set"]})
    assert [row.subject for row in rebuild.judge(taken(), other).differences] == ["account root"]


def test_what_differs_between_any_two_builds_is_named_with_its_reason() -> None:
    before = taken(file(BASE), file(MODULE))
    judged = rebuild.judge(before, taken(file(BASE, "cd"), file(MODULE, "cd"), file(BOOTS)))
    assert judged.is_same
    assert rebuild.judge(taken(file("/etc/shadow-")), taken(file("/etc/shadow-", "cd"))).is_same
    assert not rebuild.judge(taken(file("/etc/shadow")), taken(file("/etc/shadow", "cd"))).is_same
    assert sorted(path for row in judged.expected for path in row.paths) == sorted([BASE, MODULE, BOOTS])
    text = rebuild.text(judged)
    assert text.splitlines()[1] == "differ between any two builds:"
    assert f"  1: DKMS signs modules with a key that it makes on each builder ({MODULE})" in text.splitlines()


def test_files_in_a_ramdisk_are_compared() -> None:
    def image(*rows: tuple[Any, ...]) -> Any:
        taken_now = taken(file("/boot/initrd.img-6"))
        return replace(taken_now, ramdisks={"/boot/initrd.img-6": Ramdisk("/boot/initrd.img-6", rows)})

    shell, module = ("bin/sh", "f", 0o755, "ab", 7), (MODULE[1:], "f", 0o644, "ab", 7)
    same = rebuild.judge(image(shell, module), image(shell, (*module[:3], "cd", 7)))
    assert same.is_same
    judged = rebuild.judge(image(shell), image((*shell[:3], "cd", 7), ("etc/x", "f", 0o644, "ab", 7)))
    assert [row.subject for row in judged.differences] == [
        "/boot/initrd.img-6: bin/sh",
        "/boot/initrd.img-6: etc/x",
    ]
    assert rebuild.text(judged).startswith("2 differences: ")
