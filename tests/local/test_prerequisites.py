"""The doctor and `make packages` name the same things."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from gpu_ami import cli
from gpu_ami.local import prerequisites

ROOT = Path(__file__).resolve().parents[2]


def test_makefile_installs_what_the_doctor_asks_for() -> None:
    makefile = (ROOT / "Makefile").read_text()
    found = re.search(r"^PACKAGES := ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    assert found
    assert set(prerequisites.TOOLS.values()) <= set(found.group(1).replace("\\", " ").split())


@pytest.mark.slow  # packer tells its version
def test_missing_tool_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **rest: None if name == "qemu-img" else real(name, **rest))
    assert cli.main(["doctor", "-q"]) == 2
    out = capsys.readouterr().out
    assert "MISSING qemu-img" in out and "apt-get install qemu-utils" in out


def test_each_finding_says_how_to_mend_it(home: Path) -> None:
    assert all(one.ok or one.remedy for one in prerequisites.examine(home))
