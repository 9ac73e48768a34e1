"""Reads a repository with the key that the plan names for it; each key and each index once for each client."""

from __future__ import annotations

from pathlib import Path

from gpu_ami.sources.http import Client
from gpu_ami.sources.repositories import apt, dnf
from gpu_ami.sources.repositories.keys import Key, read_key
from gpu_ami.sources.repositories.repository import ReadRepository, Repository

_READERS = {"deb": apt.read, "rpm": dnf.read}


def read_repository(client: Client, repository: Repository) -> tuple[Key, ReadRepository]:
    """A repository's planned key, and its index verified with it. SourceError."""
    key = repository_key(client, repository)
    return key, read_index(client, repository, key)


def read_index(client: Client, repository: Repository, key: Key) -> ReadRepository:
    """A repository's index, verified with a key. SourceError."""
    return client.once(repository, lambda: _READERS[repository.kind](client, repository, key))


def repository_key(client: Client, repository: Repository) -> Key:
    """The planned key, of an operating system's own archive from this machine's keyring where it is of that system."""
    keyring = Path(repository.keyring)
    if not repository.keyring or not keyring.is_file():
        return key_at(client, repository.key_url, repository.key_fingerprint)
    fingerprint = repository.key_fingerprint
    return client.once(
        ("key", repository.keyring, fingerprint), lambda: read_key(keyring.read_bytes(), fingerprint, str(keyring))
    )


def key_at(client: Client, url: str, fingerprint: str) -> Key:
    """The key at an address; it must have this fingerprint. SourceError."""
    return client.once(("key", url, fingerprint), lambda: read_key(client.get(url, limit=1 << 20), fingerprint, url))
