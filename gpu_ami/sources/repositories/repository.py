"""A package repository as a plan names it, and its index."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from gpu_ami.sources.repositories.index import Index
from gpu_ami.sources.repositories.keys import Signature


@dataclass(frozen=True)
class Repository:
    """kind: deb or rpm. url: ends with a slash. architecture: as packages of the kind name it.

    keyring: a file of the operating system with the key; where this machine has it, it is read instead of `key_url`.
    """

    kind: str
    url: str
    suite: str
    components: tuple[str, ...]
    architecture: str
    key_url: str
    key_fingerprint: str
    signed_index: bool = True
    keyring: str = ""

    @property
    def is_flat(self) -> bool:
        """An apt repository without suites: packages and index lie in one folder."""
        return self.suite.endswith("/")


@dataclass(frozen=True)
class ReadRepository:
    """folder: where its index is; digest: of the signed top of its index (`sha256:` and 64 hex digits).

    signature: None where the index is not signed by plan (`signed_index: false`).
    """

    repository: Repository
    index: Index
    folder: str
    digest: str
    signature: Signature | None


def digest(data: bytes) -> str:
    """`sha256:` and 64 hex digits."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
