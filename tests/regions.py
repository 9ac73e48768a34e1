"""A region that is open and does nothing but note what it is asked for (gpu_ami.region.Region)."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class NotingRegion:
    """asked: calls in order. images: its folder of AMIs, if it has one."""

    name = "aws"
    file = None

    def __init__(self, images: Path | None = None) -> None:
        self.images, self.asked = images, list[str]()

    def open(self, _run: Any, _progress: Any) -> Any:
        raise AssertionError("it is open")

    def prepare(self, _plan: Any) -> None:
        self.asked.append("mirror")

    def publish_source_ami(self, _plan: Any) -> None:
        self.asked.append("source AMI")

    def require_programs(self, architecture: str) -> None:
        self.asked.append(f"programs of {architecture}")

    def note_use(self, _ami: str, _out: Path) -> None:
        pass

    def make_room(self, _out: Path) -> None:
        pass

    def close(self) -> None:
        self.asked.append("close")
