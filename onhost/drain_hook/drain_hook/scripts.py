"""The scripts of a folder: which would run, and a run before a deadline.

In the order of their names, like run-parts: hidden files and what editors and package managers leave are not scripts.
A script runs with the rights of the service, so nobody else may be able to write it.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LEFT_BEHIND = re.compile(r".*(~|\.(bak|orig|swp|tmp|rpmsave|rpmnew|rpmorig|dpkg-[a-z]+))")
GRACE = 5.0  # seconds between SIGTERM and SIGKILL


class Result(NamedTuple):
    """`outcome`: ok, failed, timed out, interrupted (the service was stopped), not started. `status` as the shell's $?,
    -N: killed by signal N."""

    outcome: str
    status: Optional[int]
    seconds: float


def listed(folder: str) -> Tuple[List[str], List[str]]:
    """The names that would run, in their order; and of the other files why not. A folder that is missing is empty."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], ["%s: %s" % (folder, error.strerror)]
    names = [name for name in names if _NAME.fullmatch(name) and not _LEFT_BEHIND.fullmatch(name)]
    reasons = {name: _refusal(os.path.join(folder, name)) for name in names}
    refused = ["%s: %s" % (os.path.join(folder, name), reason) for name, reason in reasons.items() if reason]
    return [name for name in names if not reasons[name]], refused


def _refusal(path: str) -> str:
    """Why the file does not run, or nothing."""
    try:
        found = os.stat(path)
    except OSError as error:
        return str(error.strerror)
    if not stat.S_ISREG(found.st_mode):
        return "not a regular file"
    if not found.st_mode & 0o100:
        return "not executable (chmod 0755)"
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        return "others than root can write it (chown root, chmod 0755)"
    return ""


def run(path: str, environment: Dict[str, str], seconds: float, tick: Callable[[], bool]) -> Result:
    """Runs a script for at most `seconds`; its output is the service's. `tick` is called each 0.2 s: False stops it."""
    began = time.monotonic()
    if seconds <= 0:
        return Result("not started", None, 0.0)
    try:
        child = subprocess.Popen([path], env=environment, cwd="/", stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:  # no interpreter, a wrong format
        print("%s: %s" % (path, error.strerror), flush=True)
        return Result("failed", None, 0.0)
    outcome = ""
    while child.poll() is None and not outcome:
        if not tick():
            outcome = "interrupted"
        elif time.monotonic() - began > seconds:
            outcome = "timed out"
        else:
            _wait(child, 0.2)
    if outcome:
        _end(child)
    outcome = outcome or ("ok" if child.returncode == 0 else "failed")
    return Result(outcome, child.returncode, round(time.monotonic() - began, 3))


def _wait(child: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        pass


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends the script and what it started."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, signum)
        except OSError:
            break
        _wait(child, GRACE)
    child.wait()
