"""The architectures of images, and what others call them: EC2's name → Debian's, rpm's, the GNU triplet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """deb: as in Debian packages and AWS's download folders; rpm: as in rpm packages and `uname -m`."""

    deb: str
    rpm: str
    triplet: str


ARCHITECTURES = {
    "x86_64": Architecture("amd64", "x86_64", "x86_64-linux-gnu"),
    "arm64": Architecture("arm64", "aarch64", "aarch64-linux-gnu"),
}
