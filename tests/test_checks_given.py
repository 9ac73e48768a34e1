"""--checks and --waivers are read before anything is launched for them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from gpu_ami.commands import stages
from gpu_ami.errors import UsageError


def options(*words: str) -> list[str]:
    parser = argparse.ArgumentParser()
    stages.add_checks(parser)
    return stages.validator_options(parser.parse_args(words))


def test_checks_that_can_be_collected(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("def test_it(host):\n    assert host.file('/').exists\n")
    assert options("--checks", str(tmp_path)) == []


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("test_mine.py", "import there_is_no_such_module\n", "there_is_no_such_module"),
        ("test_mine.py", "def test_it(host:\n", "SyntaxError"),
        ("mine.py", "def test_it(host):\n    pass\n", "no check was found in"),
    ],
)
def test_checks_that_cannot(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as refused:
        options("--checks", str(tmp_path))
    assert told in str(refused.value)


def test_waivers_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "waivers.yml"
    file.write_text("- {check: 'boot::*'}\n")
    with pytest.raises(UsageError, match="--waivers"):
        options("--waivers", str(file))
