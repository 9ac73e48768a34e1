"""The check of a console, and its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_ami.errors import CloudError
from gpu_ami.validate.machines import console

PANIC = "[    2.1] Kernel panic - not syncing: VFS"


@pytest.mark.parametrize(
    ("text", "error", "verdict", "message"),
    [
        ("[    0.0] Linux version 6.1\n", "", "PASS", ""),
        (PANIC, "", "FAIL", "Kernel panic"),
        ("", "", "UNPROVEN", "the console was empty"),
        ("", "refused", "UNPROVEN", "refused"),
    ],
)
def test_verdict(text: str, error: str, verdict: str, message: str) -> None:
    record = console.judge(text, error, "reboot")
    assert (record.verdict, record.after, message in record.message) == (verdict, "reboot", True)
    assert record.id == "boot::test_console_shows_no_panic@reboot" and record.promise.startswith("After reboot:")


class Ec2:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def console(self, _: str) -> str:
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


def test_console_is_kept_and_judged(tmp_path: Path) -> None:
    ec2: Any = Ec2("[ 0.0] Linux \udcff")
    assert console.keep(ec2, "i-1", tmp_path).verdict == "PASS"
    assert (tmp_path / "console.log").read_text() == "[ 0.0] Linux \\udcff"


def test_console_that_may_not_be_read_is_no_failure(tmp_path: Path) -> None:
    ec2: Any = Ec2(CloudError("reading the console of i-1: UnauthorizedOperation"))
    assert console.keep(ec2, "i-1", tmp_path).verdict == "UNPROVEN"
    assert "UnauthorizedOperation" in (tmp_path / "console.log").read_text()


def test_full_disk_does_not_hide_a_panic(tmp_path: Path) -> None:
    ec2: Any = Ec2(PANIC)
    assert console.keep(ec2, "i-1", tmp_path / "not there").verdict == "FAIL"
