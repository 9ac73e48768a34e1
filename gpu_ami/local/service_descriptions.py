"""botocore's descriptions of AWS's services: each file is read once a process.

moto makes one session a partition while it is imported, and each reads the same files of several megabytes: 0.6 of the
1.6 seconds that the region took to start.
"""

from __future__ import annotations

from typing import Any

from botocore.loaders import JSONFileLoader

_read = JSONFileLoader.load_file
_kept: dict[str, Any] = {}  # by path, without its suffix


def read_once() -> None:
    """Lets every session of this process share what has been read; to be called before moto is imported."""
    JSONFileLoader.load_file = _load_file  # type: ignore[method-assign]


def _load_file(self: JSONFileLoader, file_path: str) -> Any:
    if file_path not in _kept:
        content = _read(self, file_path)
        if content is None:  # no such file in this one of the loader's folders
            return None
        _kept[file_path] = content
    return _kept[file_path]
