"""Deadlines by instance type, and the place's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.cloud import Place, load_place
from gpu_ami.errors import UsageError
from gpu_ami.validate.machines.deadlines import Deadlines, deadlines


@pytest.mark.parametrize(
    ("instance_type", "boot", "stop"),
    [("g5.12xlarge", 600, 900), ("p5.48xlarge", 1500, 1500), ("g4dn.metal", 2700, 2700), ("p6.metal-1", 2700, 2700)],
)
def test_slow_types_have_longer_deadlines(instance_type: str, boot: float, stop: float) -> None:
    assert deadlines(instance_type) == Deadlines(boot, stop, 900)


def test_place_overrides_them(tmp_path: Path) -> None:
    file = tmp_path / "aws.yml"
    file.write_text("region: eu-central-1\ndeadlines: {boot_seconds: 3600, arrival_seconds: 1200}\n")
    place = load_place(file)
    assert deadlines("p5.48xlarge", place) == Deadlines(3600, 1500, 1200)
    assert deadlines("g5.xlarge", Place("aws", "eu-central-1")) == deadlines("g5.xlarge")


@pytest.mark.parametrize("text", ["{boot: 60}", "{boot_seconds: 0}", "{boot_seconds: soon}", "60"])
def test_mistakes_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "aws.yml"
    file.write_text(f"region: eu-central-1\ndeadlines: {text}\n")
    with pytest.raises(UsageError) as caught:
        load_place(file)
    assert "deadlines" in str(caught.value)
