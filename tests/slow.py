"""What makes a test slow: programs that take long, and fixtures that start them.

`make test` leaves tests marked `slow` out, `make test-all` and CI run them. A test is marked by hand, or by itself if
it uses one of FIXTURES. One that starts a program of PROGRAMS without being marked fails and says so.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FIXTURES = frozenset({"sshd", "fake_libcuda", "mirror_home"})
PROGRAMS = frozenset({
    "sshd", "gcc", "cc", "packer", "ansible", "ansible-playbook", "ansible-lint", "ansible-galaxy", "dpkg-deb",
    "rpmbuild", "createrepo_c", "apt-ftparchive", "mmdebstrap", "qemu-system-x86_64",
})  # fmt: skip
MODULES = frozenset({"hatchling", "ansible", "ansiblelint", "check_jsonschema", "pytest"})  # python -m

_watches: list[tuple[Path, list[str]]] = []  # where stand-ins are, and what was started


def program(command: Sequence[Any], search: str | None) -> Path | None:
    """The slow program that a command line starts, as a path; None if it starts another."""
    words = [str(word) for word in command[:3]]
    name = Path(words[0]).name
    if name in PROGRAMS:
        found = words[0] if "/" in words[0] else shutil.which(words[0], path=search)
        return Path(found) if found else None
    if name.startswith("python") and words[1:2] == ["-m"] and words[2:] and words[2].partition(".")[0] in MODULES:
        return Path(words[2])
    return None


@contextmanager
def watch(stand_ins: Path) -> Iterator[list[str]]:
    """The names of slow programs that this process starts meanwhile; those under `stand_ins` are tests' own."""
    started: list[str] = []
    _watches.append((stand_ins, started))
    try:
        yield started
    finally:
        _watches.pop()


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "subprocess.Popen" or not _watches:
        return
    _executable, command, _folder, environment = arguments
    if isinstance(command, (list, tuple)) and command:
        stand_ins, started = _watches[-1]
        found = program(command, (environment or {}).get("PATH"))
        if found and not found.is_relative_to(stand_ins):
            started.append(found.name)


sys.addaudithook(_heard)
