"""The files of an image, without booting it (tier T0): where they are at hand, and whether they can be looked at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gpu_ami.errors import MachineError
from gpu_ami.proof import Proof, Target
from gpu_ami.report import HostReport

NAME = "image-files"  # what stands in a report, and as evidence folder, in place of an instance type
NOT_AT_HAND = "the image's files were not at hand (a volume of its snapshot, mounted: gpu-ami validate --root DIR)"


@dataclass(frozen=True)
class Files:
    """A raw disk image or a mounted tree; or None, and why."""

    path: Path | None
    reason: str = ""


def find(images: Path | None, ami: str) -> Files:
    """The disk of an AMI in a place that keeps images as files in the folder `images`."""
    path = images / ami / "disk.raw" if images else None
    if path is None or not path.exists():
        return Files(None, NOT_AT_HAND)
    why_not = unusable(path)
    return Files(None, why_not) if why_not else Files(path)


def unusable(path: Path) -> str:
    """Why the files there cannot be looked at; "" where they can."""
    from validator import offline

    try:
        offline.enter(offline.Image(path)).close()
    except offline.ImageUnusable as fault:
        return str(fault)
    return ""


def check(proof: Proof, path: Path) -> HostReport:
    """Runs the checks of tier T0 on an image's files. A validator that leaves no results is reported, not raised."""
    target = Target(f"image://{quote(str(path.resolve()), safe='')}", name=NAME)
    try:
        with proof.progress.stage(f"check the files of {path.name if path.is_dir() else path.parent.name}"):
            host = proof.check(target, options=("--tier=T0",))
    except MachineError as error:  # the machines that are being checked meanwhile keep their reports
        host = HostReport("", error=str(error), error_verdict="ERROR")
    host.host, host.offline = NAME, True
    return host
