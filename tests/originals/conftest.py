"""A machine that has the originals, for checks: this one, in a mount namespace."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.originals import fetch
from tests.scripted_host import Reply
from tests.validator.checks.conftest import judge  # noqa: F401  (a fixture)

# /usr/local is the originals' alone, and the loader's cache has their folders.
_ENTER = """\
set -e
mount --make-rprivate /
mount -t tmpfs none /usr/local
cp -a "$1/usr/local/." /usr/local
mount --bind "$1/ld.so.cache" /etc/ld.so.cache
shift
exec /bin/sh -c "$1"
"""


@dataclass(frozen=True)
class Installed:
    """root: of files as packages have them; its `usr/local` has links to what is large."""

    root: Path

    def run(self, command: str) -> Reply:
        """The script of a scripted host: the command runs where the originals are installed."""
        words = ["unshare", "--mount", "/bin/sh", "-c", _ENTER, "enter", str(self.root), command]
        done = subprocess.run(words, capture_output=True, timeout=300, check=False)
        return done.returncode, done.stdout, done.stderr

    def index(self, *folders: str) -> None:
        """The loader's cache: that of this machine, and these folders below root."""
        configuration = self.root / "ld.so.conf"
        rows = "".join(f"{self.root}/{folder}\n" for folder in folders)
        configuration.write_text(f"{rows}include /etc/ld.so.conf\n", encoding="utf-8")
        cache = ["ldconfig", "-X", "-f", str(configuration), "-C", str(self.root / "ld.so.cache")]
        subprocess.run(cache, check=True, timeout=60, env={"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"})


def quoted(*words: str | Path) -> str:
    return shlex.join(map(str, words))


@pytest.fixture(scope="session")
def kept_originals() -> None:
    """Where originals are kept is found before a test has a home of its own."""
    fetch.root()


@pytest.fixture(scope="session")
def root_user(kept_originals: None) -> None:
    if os.geteuid() != 0:
        pytest.skip("mount namespaces need root")
