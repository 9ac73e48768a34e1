"""Debian's archive beside the replicas, for what roles of a site install from their operating system's own archive.

The repository of the operating system lists Debian's packages, too; one is fetched when a machine asks for it.
apt of this host reads the archive that base images are made of, and verifies it with Debian's keys. Nothing of it is a
replica, and no package of a replica's name is listed. Debian 12's stands in for Ubuntu's archive, with contrib for
universe.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import threading
import time
import urllib.parse
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_ami.errors import CloudError, GpuAmiError
from localregion.host import archive_sources
from localregion.mirror import debian_files

# Below a repository's folder: FOLDER/<suite>/<architecture>/<package>=<version>/<file name>.
FOLDER = "debian-archive"
_REQUEST = re.compile(
    rf"(?P<base>.+)/{FOLDER}/(?P<suite>[a-z]+)/(?P<architecture>[a-z0-9]+)"
    r"/(?P<package>[a-z0-9][a-z0-9.+-]+)=(?P<version>[\w.+:~-]+)/[^/]+"
)
# What apt decides by; the other fields make half of the index.
_FIELDS = (
    "Package", "Source", "Version", "Architecture", "Multi-Arch", "Essential", "Priority", "Section", "Installed-Size",
    "Pre-Depends", "Depends", "Recommends", "Provides", "Conflicts", "Breaks", "Replaces", "Size", "SHA256",
    "Description",
)  # fmt: skip
_NAME = re.compile(r"^Package: *(\S+)", re.MULTILINE)
_DAY = 24 * 3600.0
_ONE_FETCH = threading.Lock()


class Archive:
    """A suite's part for one architecture (Debian's name of it), kept in a folder. components: main, contrib, …"""

    def __init__(self, folder: Path, suite: str, architecture: str, components: Sequence[str] = ("main",)) -> None:
        self._state = folder / f"{suite}-{architecture}-{'-'.join(components)}"
        self._suite, self._architecture, self._components = suite, architecture, components

    def refresh(self) -> str:
        """Reads the indexes, at most once a day. Returns why not, where they are older or missing; "" else."""
        stamp = self._state / "read"
        if stamp.exists() and time.time() - stamp.stat().st_mtime < _DAY:
            return ""
        lines = [re.sub(r" main$", f" {' '.join(self._components)}", line) for line in archive_sources(self._suite)]
        debian_files.prepare(self._state, lines)
        try:
            debian_files.apt(["update", "--error-on=any"], self._state, self._architecture, self._state)
        except GpuAmiError as error:
            return reason(error)
        stamp.touch()
        return ""

    def identity(self) -> list[object]:
        """JSON that differs wherever two indexes differ."""
        return [[path.name, path.stat().st_mtime_ns, path.stat().st_size] for path in self._lists()]

    def stanzas(self, without: Collection[str]) -> Iterator[str]:
        """The index's paragraphs, except those of packages `without`; each names a file below FOLDER."""
        for path in self._lists():
            for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
                name = _NAME.search(paragraph)
                if name and name[1] not in without:
                    yield self._stanza(name[1], paragraph)

    def _stanza(self, name: str, paragraph: str) -> str:
        fields = dict(re.findall(r"^([\w-]+): *(.*)$", paragraph, re.MULTILINE))
        file = f"{FOLDER}/{self._suite}/{self._architecture}/{name}={fields['Version']}/{Path(fields['Filename']).name}"
        kept = "".join(f"{key}: {fields[key]}\n" for key in _FIELDS if key in fields)
        return f"{kept}Filename: {file}\n"

    def _lists(self) -> list[Path]:
        return sorted((self._state / "lists").glob("*_Packages"))

    def fetch(self, package: str, version: str) -> Path:
        """One package as a file. CloudError: the archive does not have it, or cannot be reached."""
        kept = self._state / "packages" / f"{package}={version}.deb"
        with _ONE_FETCH:
            if not kept.exists():
                kept.parent.mkdir(exist_ok=True)
                with TemporaryDirectory(dir=self._state, prefix="fetch-") as folder:
                    debian_files.apt(
                        ["download", f"{package}={version}"], self._state, self._architecture, Path(folder)
                    )
                    found = list(Path(folder).glob("*.deb"))
                    if len(found) != 1:
                        raise CloudError(f"apt fetched no package {package} {version} ({self._architecture})")
                    shutil.move(found[0], kept)
        return kept


def of_request(folder: Path, request_path: str) -> Path | None:
    """The package that a request of the mirror names, as a file; None for any other request.

    folder: where archives are kept. CloudError: the archive does not have the package, or cannot be reached.
    """
    found = _REQUEST.fullmatch(urllib.parse.unquote(urllib.parse.urlsplit(request_path).path))
    states = sorted(folder.glob(f"{found['suite']}-{found['architecture']}-*")) if found else []
    if not found or not states:
        return None
    # Of two sets of components, the larger one has all that the other has.
    components = max((state.name.split("-")[2:] for state in states), key=len)
    return Archive(folder, found["suite"], found["architecture"], components).fetch(found["package"], found["version"])


class Remote:
    """`of_request` of a process with a network, for one without: a connection to `serve`."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rw", encoding="utf-8")
        self._lock = threading.Lock()

    def __call__(self, request_path: str) -> Path | None:
        with self._lock:
            print(json.dumps(request_path), file=self._file, flush=True)
            answer = json.loads(self._file.readline() or '{"error": "the process that fetches packages has ended"}')
        if "error" in answer:
            raise CloudError(answer["error"])
        return Path(answer["file"]) if answer["file"] else None


def serve(connection: socket.socket, folder: Path) -> None:
    """Answers a `Remote` until it closes its end."""
    with connection, connection.makefile("rw", encoding="utf-8") as file, contextlib.suppress(OSError):
        for line in file:
            try:
                found = of_request(folder, json.loads(line))
                answer = {"file": str(found or "")}
            except CloudError as error:
                answer = {"error": reason(error)}
            print(json.dumps(answer), file=file, flush=True)


def reason(error: GpuAmiError) -> str:
    """The last line of what apt printed, or the message."""
    return next((line.strip() for line in reversed(error.details) if line.strip()), error.message)
