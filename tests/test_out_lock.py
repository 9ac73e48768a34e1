"""gpu_ami.out_lock; tests/attacks/test_exit_codes.py has a second process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_ami import out_lock
from gpu_ami.errors import UsageError


def test_a_folder_is_held_until_release(tmp_path: Path) -> None:
    out_lock.hold(tmp_path / "out")
    out_lock.hold(tmp_path / "out")  # the same command, at its next stage
    assert os.environ[out_lock.VARIABLE] == str((tmp_path / "out").resolve())
    out_lock.release()
    assert out_lock.VARIABLE not in os.environ
    out_lock.hold(tmp_path / "out")
    out_lock.release()


def test_another_holder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out_lock.hold(tmp_path)
    monkeypatch.setattr(out_lock, "held_locks", {})  # as in another process
    monkeypatch.delenv(out_lock.VARIABLE)
    with pytest.raises(UsageError, match=rf"another gpu-ami writes to this folder: pid {os.getpid()}, for \d+ s"):
        out_lock.hold(tmp_path)


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "pipe"])
def test_a_lock_that_leads_elsewhere_is_refused(kind: str, tmp_path: Path) -> None:
    """A folder that somebody sent: the file that `.lock` led to was emptied, or made."""
    victim, folder = tmp_path / "victim", tmp_path / "out"
    folder.mkdir()
    lock = folder / ".lock"
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "dangling link":
        lock.symlink_to(victim)
    else:
        victim.write_text("of the user")
        (lock.hardlink_to if kind == "hard link" else lock.symlink_to)(victim)
    with pytest.raises(UsageError, match=r"\.lock: expected a file of its own, got a link, a pipe or a device"):
        out_lock.hold(folder)
    assert victim.read_text() == "of the user" if victim.exists() else kind in ("pipe", "dangling link")
