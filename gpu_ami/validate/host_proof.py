"""The proof of what gpu-ami did not launch: a host given by its address, or the files of an image.

A host is rebooted only if that was requested, and never stopped.

The files of an image, without booting it (tier T0): where they are, and whether they can be read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from gpu_ami.cloud import runs
from gpu_ami.errors import GpuAmiError, MachineError
from gpu_ami.files import write_text
from gpu_ami.report import HostReport, Report
from gpu_ami.validate import hosts
from gpu_ami.validate.machines import login, restarts
from gpu_ami.validate.proof import IMAGE_FILES, Proof, assemble, check_files, check_machine, record_error
from gpu_ami.validate.recorder import HostRecord, Recorder
from gpu_ami.validate.validator_process import ChecksIncomplete, Target
from validator.transport import parse_url


def prove_host(proof: Proof, run: runs.Run, target: Target) -> Report:
    """Checks a machine that somebody else booted; it is rebooted only if that was requested, and never stopped."""
    host = HostReport(target.instance_type, target.instance_id, target.url)
    return _prove_one(proof, run, host, functools.partial(_check_host, proof, target))


def prove_files(proof: Proof, run: runs.Run, check: Callable[[], HostReport], ami: str = "") -> Report:
    """Checks an image's files alone. ami: the one whose files they are, if it is known."""
    host = HostReport("", host=IMAGE_FILES, offline=True)
    return _prove_one(proof, run, host, lambda record: check_files(proof, record, check), ami)


def _prove_one(
    proof: Proof, run: runs.Run, report: HostReport, check: Callable[[HostRecord], None], ami: str = ""
) -> Report:
    recorder = Recorder(functools.partial(assemble, proof, run, ami), proof.out, proof.progress)
    host = recorder.add(report)
    with recorder.recording():
        try:
            check(host)
        except GpuAmiError as error:
            record_error(host, error)
    return recorder.complete()


def _check_host(proof: Proof, target: Target, host: HostRecord) -> None:
    with proof.progress.stage(f"connect to {target.url}", host.report.name):
        key = hosts.require_reachable(target.url, target.key_file, target.known_hosts)
        if key.first_contact:
            proof.progress.note(key.first_contact)
    # The checks reach the same machine: its key is pinned for them, and is part of the evidence.
    pinned = proof.evidence(target).resolve() / "known_hosts"
    write_text(pinned, f"{key.line}\n")
    target = replace(target, known_hosts=pinned)
    check_machine(proof, host, target)
    if restarts.REBOOT in proof.options.restarts:
        host.update(restarts=(restarts.REBOOT,))
        _reboot_host(proof, host, target)
    else:
        reason = "not requested: gpu-ami did not launch this machine (--reboot reboots it)"
        host.report = host.report.with_checks(restarts.not_done(restarts.REBOOT, reason))
    reason = "not tried: gpu-ami does not stop a machine that it did not launch"
    host.report = host.report.with_checks(restarts.not_done(restarts.STOP_START, reason))


def _reboot_host(proof: Proof, host: HostRecord, target: Target) -> None:
    own = target.key_file is None  # without a key named, the user expects what ssh would do
    known = {"key_file": target.key_file, "known_hosts": target.known_hosts, "agent": own, "search_keys": own}
    try:
        with proof.progress.stage(f"{restarts.REBOOT} {target.url}", host.report.name):
            machine = parse_url(target.url, **known)
            back = login.reboot_host(
                machine,
                proof.options.cancelled,
                target.instance_type,
                proof.options.boot_seconds,
                proof.progress.note,
                units=proof.units(),
            )
    except MachineError as error:
        host.report = host.report.with_checks(restarts.not_back(restarts.REBOOT, error))
        return
    host.report = host.report.with_checks(restarts.came_back(restarts.REBOOT, *back, target.url))
    check_machine(proof, host, target, after=restarts.REBOOT)


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
