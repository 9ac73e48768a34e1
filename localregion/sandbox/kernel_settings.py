"""The settings below /proc/sys as plain files, which a role may change in a sandbox without effect on the host."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping


def read(source: str) -> dict[str, str]:
    """The files below a folder of /proc/sys by their path in it, without those that cannot be read.

    What is bound from the host is left out. There are a thousand of them, hence no Path.
    """
    found = {}
    for folder, folders, files in os.walk(source):
        folders[:] = [name for name in folders if name not in ("binfmt_misc", "random")]
        for name in files:
            with contextlib.suppress(OSError), open(f"{folder}/{name}", encoding="latin-1") as file:  # noqa: PTH123
                found[os.path.relpath(f"{folder}/{name}", source)] = file.read()
    return found


def write(settings: Mapping[str, str], target: str) -> None:
    """Writes what `read` returned as plain files."""
    made: set[str] = set()
    for name, content in settings.items():
        path = f"{target}/{name}"
        folder = os.path.dirname(path)  # noqa: PTH120
        if folder not in made:
            made.add(folder)
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        with open(path, "w", encoding="latin-1") as file:  # noqa: PTH123
            file.write(content)
