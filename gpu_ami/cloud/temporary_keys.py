"""The temporary key pair of a run. It is removed at the end of its block, also after an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami import process
from gpu_ami.cloud import runs
from gpu_ami.cloud.sweep import key_name
from gpu_ami.errors import GpuAmiError

if TYPE_CHECKING:
    from gpu_ami.cloud.client import Cloud
    from gpu_ami.cloud.runs import Run

Leftover = Callable[[GpuAmiError], object]


def make_key(run: Run) -> str:
    """Makes the run's temporary key (0600) once; returns its public half."""
    if not run.key_file.exists():
        keygen = process.find_tool("ssh-keygen", package="openssh-client")
        command: list[str | Path] = [keygen, "-q", "-t", "ed25519", "-N", ""]
        command += ["-C", key_name(run.id), "-f", run.key_file]
        process.run(command, timeout=30)
    return run.key_file.with_suffix(".pub").read_text().strip()


@contextmanager
def temporary_key(
    cloud: Cloud, run: Run, tags: Mapping[str, str], on_leftover: Leftover | None = None, suffix: str = ""
) -> Iterator[str]:
    """Name of a key pair that lives as long as the block. on_leftover: gets the error if it cannot be deleted."""
    name = key_name(run.id) + suffix
    cloud.import_key(name, make_key(run), tags)
    try:
        yield name
    finally:
        clean_up(run, lambda: cloud.delete_key(name), on_leftover)


def clean_up(run: Run, remove: Callable[[], object], on_leftover: Leftover | None) -> None:
    """Removes something. What cannot be removed stays in the run's record for `sweep`, and does not hide results."""
    try:
        with runs.cleaning_up(run):
            remove()
    except GpuAmiError as error:
        if on_leftover is None:
            raise
        on_leftover(error)
