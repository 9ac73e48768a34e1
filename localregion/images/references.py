"""Which output folders refer to an AMI of the local region: its builds, reports, certificates and publications.

A stage that uses an AMI notes its output folder beside the image (`images/<ami>/referenced-by`, one path a line). What
counts is what the folder says now: a folder that is gone, or whose files name another AMI, refers to nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterable, Iterator
from pathlib import Path

FILE = "referenced-by"
# The files of an output folder that name the AMI they are about.
DOCUMENTS = ("build.json", "report.json", "certificate.json", "publication.json")
_MOST_BYTES = 64 * 1024**2  # of a document; a larger one counts as one that refers


def note(images: Path, ami: str, folder: Path) -> None:
    """Notes that the output folder uses an AMI; images: folder of the AMIs. One that is gone is not an error."""
    line = f"{folder.resolve()}\n"
    with contextlib.suppress(FileNotFoundError), (images / ami / FILE).open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if line not in file:
            file.write(line)


def known(images: Path, ami: str) -> bool:
    """Whether a folder was ever noted for an AMI; not if Packer by hand or an earlier version made it."""
    return (images / ami / FILE).exists()


def referring(images: Path, ami: str, folders: Iterable[Path] = ()) -> list[Path]:
    """The documents that name an AMI: in the folders that were noted for it, and in these."""
    seen = dict.fromkeys([*_noted(images, ami), *(folder.resolve() for folder in folders)])
    return [document for folder in seen for document in _documents(folder) if _names(document, ami)]


def _noted(images: Path, ami: str) -> list[Path]:
    try:
        return [Path(line) for line in (images / ami / FILE).read_text(encoding="utf-8").splitlines() if line]
    except OSError:
        return []


def _documents(folder: Path) -> Iterator[Path]:
    for name in DOCUMENTS:
        with contextlib.suppress(OSError):
            if (folder / name).is_file():
                yield folder / name


def _names(document: Path, ami: str) -> bool:
    """Whether a document names the AMI; one that cannot be read or is too large is taken to name it."""
    try:
        return document.stat().st_size > _MOST_BYTES or ami.encode() in document.read_bytes()
    except FileNotFoundError:
        return False
    except OSError:
        return True
