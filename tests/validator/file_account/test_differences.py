"""Each difference from the base AMI, with both values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.validator.file_account.entries import file, findings, system
from validator.file_account import Entry


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
