"""Debian's releases of which base images are made.

Standard library alone: `make prove` prepares base images before anything else is installed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """A release of Debian. system: as recipes name it. kernel: series of its kernel."""

    system: str
    version: str
    suite: str
    kernel: str

    @property
    def name(self) -> str:
        return f"Debian {self.version}"


# Emulated distributions are made of this one, and it is the image where no plan names another.
BOOKWORM = Release("debian12", "12", "bookworm", "6.1")
RELEASES = {release.system: release for release in (BOOKWORM, Release("debian13", "13", "trixie", "6.12"))}


def release_of(system: str) -> Release:
    """The release that a system's base image is made of: its own, or that of emulated distributions."""
    return RELEASES.get(system, BOOKWORM)
