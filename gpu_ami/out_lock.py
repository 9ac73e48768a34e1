"""One command at a time writes to a folder OUT: plan, build, validate, certify, merge, prove.

Two builds in one OUT would make two AMIs and keep one record. The kernel drops the lock when its process ends, also by
SIGKILL. A process that the holder starts (`VARIABLE` is in its environment) belongs to it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from pathlib import Path
from typing import IO

from gpu_ami.errors import UsageError

VARIABLE = "GPU_AMI_OUT_HELD"
_FILE = ".lock"
held_locks: dict[Path, IO[str]] = {}


def hold(out: Path) -> None:
    """Keeps `out`, which is made, for this process until `release`. UsageError: another command writes to it."""
    out.mkdir(parents=True, exist_ok=True)
    folder = out.resolve()
    if folder in held_locks or str(folder) in os.environ.get(VARIABLE, "").split(os.pathsep):
        return
    handle = _open(folder / _FILE)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.seek(0)
        holder = _described(handle.read(4096))
        handle.close()
        hint = "wait for it, or end it; another folder can be named with -o"
        raise UsageError(f"{out}: another gpu-ami writes to this folder{holder}", hint=hint) from None
    handle.truncate(0)
    json.dump({"pid": os.getpid(), "since": round(time.time())}, handle)
    handle.flush()
    held_locks[folder] = handle
    os.environ[VARIABLE] = os.pathsep.join(map(str, held_locks))


def _open(path: Path) -> IO[str]:
    """The lock file. A folder may be another's: a link would have the file that it leads to emptied."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise _not_a_lock(path) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise _not_a_lock(path)
    return os.fdopen(descriptor, "r+")


def _not_a_lock(path: Path) -> UsageError:
    return UsageError(
        f"{path}: expected a file of its own, got a link, a pipe or a device",
        hint="gpu-ami makes no such file: remove it, and see what else in the folder is not what it seems",
    )


def _described(text: str) -> str:
    try:
        record = json.loads(text)
        return f": pid {int(record['pid'])}, for {max(0, round(time.time() - record['since']))} s"
    except (ValueError, KeyError, TypeError):
        return ""


def release() -> None:
    """At the end of a command."""
    for handle in held_locks.values():
        handle.close()
    if held_locks:
        held_locks.clear()
        os.environ.pop(VARIABLE, None)
