"""Host keys that the user knows, as OpenSSH reads them (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT")."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LARGEST = 8 << 20


@dataclass(frozen=True)
class KnownKey:
    """A line for a host. key: `ssh-ed25519 AAAA…`; where: FILE:LINE."""

    key: str
    where: str
    revoked: bool = False


def files() -> list[Path]:
    """The user's and the system's, as ssh_config(5) has them by default."""
    own = Path.home() / ".ssh"
    return [
        own / "known_hosts",
        own / "known_hosts2",
        Path("/etc/ssh/ssh_known_hosts"),
        Path("/etc/ssh/ssh_known_hosts2"),
    ]


def find(name: str, paths: Sequence[Path]) -> list[KnownKey]:
    """The keys of a host: `address`, or `[address]:port` if the port is not 22. Lines that are damaged are left out."""
    found = []
    for path in paths:
        for number, line in enumerate(_lines(path), 1):
            words = line.split()
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            if (
                len(words) >= 3
                and not words[0].startswith("#")
                and marker != "@cert-authority"
                and _names(words[0], name)
            ):
                found.append(KnownKey(f"{words[1]} {words[2]}", f"{path}:{number}", marker == "@revoked"))
    return found


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST).decode(errors="replace").splitlines()
    except OSError:
        return []


def _names(patterns: str, name: str) -> bool:
    if patterns.startswith("|1|"):
        return _is_hash_of(patterns, name)
    listed = patterns.lower().split(",")
    negated = any(_matches(pattern[1:], name) for pattern in listed if pattern.startswith("!"))
    return not negated and any(_matches(pattern, name) for pattern in listed if not pattern.startswith("!"))


def _matches(pattern: str, name: str) -> bool:
    escaped = pattern.replace("[", "[[]")  # brackets stand for themselves: [address]:port
    return fnmatch.fnmatchcase(name.lower(), escaped)


def _is_hash_of(text: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in text.split("|")[2:4])
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)


def fingerprint(key: str) -> str:
    """`SHA256:…` of `ssh-ed25519 AAAA…`, as ssh prints it."""
    try:
        blob = base64.b64decode(key.split()[1])
    except (IndexError, ValueError):
        return "no key"
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
