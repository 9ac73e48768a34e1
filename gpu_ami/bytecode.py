"""Where compiled Python files are kept if the environment has PYTHONDONTWRITEBYTECODE: in the cache folder.

A proof starts two dozen Python programs. Without compiled files each compiles all that it imports: 4 of the 19 seconds
of a build of the last layer. CPU time (2026-11-25): `gpu-ami plan` 0.29 s instead of 0.85, a start of the validator 0.6
instead of 2.2, one of ansible-playbook 0.8 instead of 2.0. The variable keeps such files away from sources and
packages, and so does this.

The environment is not changed: `process.py` tells our own Python programs alone. Other programs make images, whose
compiled files belong into the images' own folders.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gpu_ami.files import cache_dir


def keep(environment: Mapping[str, str]) -> None:
    """Lets this program, and our own Python programs that it starts, keep compiled files in the cache folder.

    Changes nothing if the environment says itself where they go, or if the folder or one of the two above it is not
    this user's own: whoever can write there decides what is run.
    """
    if not environment.get("PYTHONDONTWRITEBYTECODE") or environment.get("PYTHONPYCACHEPREFIX"):
        return
    try:
        cache = cache_dir().absolute()
        folders = (cache.parent, cache, cache / "python")
        for folder in folders:  # each with the mode, which mkdir gives to the last one alone
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not all(map(_is_own, folders)):
            return
    except (OSError, RuntimeError):  # RuntimeError: the user has no home directory
        return
    sys.pycache_prefix = str(folders[-1])
    sys.dont_write_bytecode = False


def _is_own(folder: Path) -> bool:
    status = folder.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022
