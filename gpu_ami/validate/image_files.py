"""The files of an image, without booting it (tier T0): where they are, and whether they can be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gpu_ami.errors import MachineError
from gpu_ami.report import HostReport
from gpu_ami.validate.proof import IMAGE_FILES, Proof, record_error
from gpu_ami.validate.recorder import HostRecord
from gpu_ami.validate.validator_process import ChecksIncomplete, Target

NOT_AVAILABLE = (
    "the image's files were not available (mount a volume made of its snapshot: gpu-ami validate --root DIR)"
)


@dataclass(frozen=True)
class Files:
    """A raw disk image or a mounted tree; or None, and why."""

    path: Path | None
    reason: str = ""


def find(images: Path | None, ami: str) -> Files:
    """The disk of an AMI in a place that keeps images as files in the folder `images`."""
    path = images / ami / "disk.raw" if images else None
    if path is None or not path.exists():
        return Files(None, NOT_AVAILABLE)
    reason = unusable(path)
    return Files(None, reason) if reason else Files(path)


def unusable(path: Path) -> str:
    """Why the files there cannot be read; "" where they can."""
    from validator.transport import image_files

    try:
        image_files.enter(image_files.Image(path)).close()
    except image_files.ImageUnusable as fault:
        return str(fault)
    return ""


def check(proof: Proof, path: Path) -> HostReport:
    """Runs the checks of tier T0 on an image's files. A validator that does not complete is reported, not raised."""
    target = Target(f"image://{quote(str(path.resolve()), safe='')}", name=IMAGE_FILES)
    host = HostRecord(HostReport("", host=IMAGE_FILES, offline=True))
    name = path.name if path.is_dir() else path.parent.name
    try:
        with proof.progress.stage(f"check the files of {name}", IMAGE_FILES):
            host.report = host.report.with_results(proof.check(target, options=("--tier=T0",)))
    except MachineError as error:  # the machines that are being checked meanwhile keep their reports
        if isinstance(error, ChecksIncomplete):
            host.report = host.report.with_results(error.results)
        record_error(host, error)
    return host.report
