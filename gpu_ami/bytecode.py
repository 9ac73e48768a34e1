"""Where compiled Python files are kept if the environment has PYTHONDONTWRITEBYTECODE: in the cache folder.

A proof starts two dozen Python programs. Without compiled files each compiles all that it imports: 4 of the 19 seconds
of a build of the last layer. The variable keeps such files away from sources and packages, and so does this.

The environment is not changed: `process.py` tells our own Python programs alone. Other programs make images, whose
compiled files belong into the images' own folders.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from gpu_ami.files import cache_dir


def keep(environment: Mapping[str, str]) -> None:
    """Lets this program, and our own Python programs that it starts, keep compiled files in the cache folder.

    Changes nothing if the environment says itself where they go, or if the folder is not this user's own: whoever can
    write there decides what is run.
    """
    if not environment.get("PYTHONDONTWRITEBYTECODE") or environment.get("PYTHONPYCACHEPREFIX"):
        return
    folder = cache_dir().absolute() / "python"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
    except OSError:
        return
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        return
    sys.pycache_prefix = str(folder)
    sys.dont_write_bytecode = False
