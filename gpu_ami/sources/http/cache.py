"""HTTP responses in the user's cache folder, so that an unchanged index is not downloaded again.

Errors of a source: it does not serve what a plan expects.

SourceError        2  what the source serves is not what the plan expects: a signature, a digest, a format
├── NotThere       2  the source does not have it
└── Unreachable    4  the source gives no complete answer
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

from gpu_ami.errors import ExitCode, GpuAmiError
from gpu_ami.files import cache_dir, write_bytes


class SourceError(GpuAmiError):
    """An error of one source; `gpu_ami.sources.survey` collects the errors of all."""

    exit_code: ExitCode = 2
    state = "wrong"


class NotThere(SourceError):
    state = "missing"


class Unreachable(SourceError):
    exit_code = 4
    state = "unreachable"


_KEPT_SECONDS = 30 * 24 * 3600.0


@dataclass(frozen=True)
class Kept:
    """A complete response: its body, and its ETag and Last-Modified (empty: the server sent none)."""

    url: str
    body: bytes
    etag: str = ""
    last_modified: str = ""

    @property
    def conditions(self) -> dict[str, str]:
        """Headers of a conditional request, which the server answers with 304 if nothing has changed."""
        headers = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in headers.items() if value}


class Cache:
    """A folder of responses by address. One file each, written atomically: a line of JSON, then the body."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder if folder is not None else cache_dir() / "sources"

    def _file(self, url: str) -> Path:
        return self._folder / hashlib.sha256(url.encode()).hexdigest()

    def get(self, url: str) -> Kept | None:
        """The response of an address; None if there is none, or the file is incomplete."""
        file = self._file(url)
        try:
            head, _, body = file.read_bytes().partition(b"\n")
            described = json.loads(head)
            if described["url"] != url or described["sha256"] != hashlib.sha256(body).hexdigest():
                return None
            kept = Kept(url, body, str(described["etag"]), str(described["last_modified"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        with contextlib.suppress(OSError):
            file.touch()  # the time of the last use is the file's modification time
        return kept

    def put(self, kept: Kept) -> None:
        """Saves a response. Errors of writing are ignored: they make only the next run slower."""
        described = {
            "url": kept.url,
            "sha256": hashlib.sha256(kept.body).hexdigest(),
            "etag": kept.etag,
            "last_modified": kept.last_modified,
        }
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_bytes(self._file(kept.url), json.dumps(described).encode() + b"\n" + kept.body)

    def forget_old(self) -> None:
        """Removes responses that were not used for 30 days."""
        with contextlib.suppress(OSError):
            for file in self._folder.iterdir():
                if time.time() - file.stat().st_mtime > _KEPT_SECONDS:
                    file.unlink(missing_ok=True)
