"""A repository with its planned key: where the key comes from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gpu_ami.sources.http import Client, SourceError
from gpu_ami.sources.repositories.keys import dearmored
from gpu_ami.sources.repositories.reading import read_repository
from tests.sources.conftest import Signer, Web, apt_repository, put_apt


def test_key_of_an_archive_is_read_from_the_systems_keyring(
    web: Web, client: Client, vendor: Signer, tmp_path: Path
) -> None:
    """Where this machine is of that system; elsewhere from the address that the archive publishes it at."""
    put_apt(web, vendor)
    keyring = tmp_path / "archive-keyring.pgp"
    keyring.write_bytes(dearmored(vendor.public, "keyring"))
    nowhere = dataclasses.replace(apt_repository(web, vendor), key_url=f"{web.url}/no-key")
    key, _ = read_repository(client, dataclasses.replace(nowhere, keyring=str(keyring)))
    assert key.fingerprint == vendor.fingerprint
    with pytest.raises(SourceError, match="no-key"):
        read_repository(client, dataclasses.replace(nowhere, keyring=str(tmp_path / "missing")))
