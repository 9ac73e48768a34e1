"""The mirror's signing key: generated at first use in the state directory; signs everything that the mirror serves."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_ami.errors import CloudError
from gpu_ami.process import find_tool, run

_KEY_NAME = "gpu-ami package mirror (local region)"
_KEY_DAYS = 730
_KEY_LEAST_DAYS = 30


@dataclass(frozen=True)
class Gpg:
    """gpg with one home directory, whose path is short enough for its agent's socket."""

    command: tuple[str, ...]
    home: Path
    fingerprint: str

    def sign(self, file: Path, out: Path, *, clear: bool = False, armor: bool = False) -> Path:
        """A detached signature of `file` (or, with `clear`, a clear-signed copy) as `out`."""
        how = ["--clearsign"] if clear else ["--detach-sign", *(["--armor"] if armor else [])]
        run([*self.command, "--local-user", self.fingerprint, "--output", out, *how, file], timeout=60)
        return out

    def export(self, path: Path, *, armor: bool = True) -> Path:
        """The public key."""
        form = ["--armor"] if armor else []
        run([*self.command, *form, "--output", path, "--export", self.fingerprint], timeout=60)
        return path


@dataclass(frozen=True)
class SigningKey:
    """The key of one state directory; it expires after two years."""

    folder: Path
    fingerprint: str

    @contextmanager
    def opened(self) -> Iterator[Gpg]:
        """For several signatures with one agent."""
        with _gpg(self.folder) as command:
            yield Gpg(tuple(command), Path(command[command.index("--homedir") + 1]), self.fingerprint)

    def sign(self, file: Path, *, clear: bool = False, armor: bool = False, suffix: str = ".sig") -> Path:
        """A detached signature beside `file` (or, with `clear`, a clear-signed copy, InRelease): the path of it."""
        out = file.with_name("InRelease") if clear else file.with_name(file.name + suffix)
        with self.opened() as gpg:
            return gpg.sign(file, out, clear=clear, armor=armor)

    def export(self, path: Path, *, armor: bool) -> Path:
        """The public key."""
        with self.opened() as gpg:
            return gpg.export(path, armor=armor)


def signing_key(home: Path) -> SigningKey:
    """The mirror's key in `home/keys`; a new one is generated if none is valid for another month."""
    folder = home / "keys"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    fingerprint = valid_key(folder)
    if fingerprint is None:
        with _gpg(folder) as gpg:
            parameters = ["--passphrase", "", "--quick-generate-key", _KEY_NAME, "rsa3072", "sign", f"{_KEY_DAYS}d"]
            run([*gpg, *parameters], timeout=120, error=CloudError)
        fingerprint = valid_key(folder)
    if fingerprint is None:
        raise CloudError(f"gpg made no key in {folder}", hint=f"remove {folder} and try again")
    return SigningKey(folder, fingerprint)


def valid_key(folder: Path) -> str | None:
    """The key that is valid for longest, if its private part is there.

    Asks for public keys and looks for the private one's file: a question for secret keys would start gpg's agent, which
    takes a quarter of a second to start and to end.
    """
    command = [*_command(folder), "--with-colons", "--fixed-list-mode", "--with-keygrip", "--list-keys"]
    best: tuple[int, str] | None = None
    expires, fingerprint = 0, ""
    for row in (line.split(":") for line in run(command, timeout=60, check=False).stdout.splitlines()):
        if row[0] == "pub":
            expires, fingerprint = (int(row[6] or 0) if row[1] not in ("e", "r") else 0), ""
        elif row[0] == "fpr":
            fingerprint = fingerprint or row[9]
        elif row[0] == "grp" and expires > time.time() + _KEY_LEAST_DAYS * 86400:
            if (folder / "private-keys-v1.d" / f"{row[9]}.key").is_file():
                best = max(best or (0, ""), (expires, fingerprint))
            expires = 0
    return best[1] if best else None


def _command(home: Path) -> list[str]:
    return [find_tool("gpg", package="gnupg"), "--homedir", str(home), "--batch", "--yes", "--no-tty"]


@contextmanager
def _gpg(folder: Path) -> Iterator[list[str]]:
    """gpg's command on that home. Its agent's socket must have a short path (108 bytes), so the home gets a short name
    for the time; the agent is ended before that name goes."""
    with tempfile.TemporaryDirectory(prefix="gpu-ami-") as name:
        short = Path(name) / "g"
        short.symlink_to(folder.resolve(), target_is_directory=True)
        try:
            yield [*_command(short), "--pinentry-mode", "loopback"]
        finally:
            ending = [find_tool("gpgconf", package="gnupg"), "--homedir", str(short), "--kill", "all"]
            run(ending, timeout=30, check=False)
