"""The mirror's key: there when it is wanted, private, and not used near its end."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpu_ami.process import Completed, find_tool, run
from localregion.mirror import signing

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> signing.SigningKey:
    return signing.signing_key(tmp_path_factory.mktemp("signing"))


def test_key_stays_and_stays_private(key: signing.SigningKey) -> None:
    assert signing.signing_key(key.folder.parent) == key
    assert oct(key.folder.stat().st_mode & 0o777) == "0o700"
    assert len(key.fingerprint) == 40


def _verify(keyring: Path, *files: Path) -> Completed:
    return run([find_tool("gpgv", package="gpgv"), "--keyring", keyring, *files], timeout=30, check=False)


def test_signature_holds_and_tampering_shows(tmp_path: Path, key: signing.SigningKey) -> None:
    file = tmp_path / "file"
    file.write_text("served")
    keyring = key.export(tmp_path / "keyring.gpg", armor=False)
    signature = key.sign(file)
    assert signature == tmp_path / "file.sig" and _verify(keyring, signature, file).returncode == 0
    file.write_text("tampered")
    assert "BAD signature" in _verify(keyring, signature, file).stderr


def test_another_key_does_not_verify(tmp_path: Path, key: signing.SigningKey) -> None:
    file = tmp_path / "file"
    file.write_text("served")
    other = signing.signing_key(tmp_path / "other")
    assert other.fingerprint != key.fingerprint
    keyring = other.export(tmp_path / "other.gpg", armor=False)
    assert _verify(keyring, key.sign(file), file).returncode != 0


def _colons(validity: str, expires: int) -> str:
    return (
        f"pub:{validity}:3072:1:AAAA:1:{expires}::u:::scESC:::+:::23::0:\n"
        f"fpr:::::::::{'A' * 40}:\ngrp:::::::::{'B' * 40}:\n"
    )


@pytest.mark.parametrize(
    ("shown", "private", "usable"),
    [
        (_colons("u", 4000000000), True, True),
        (_colons("u", 4000000000), False, False),
        (_colons("e", 4000000000), True, False),
        (_colons("u", 1000), True, False),
        (_colons("u", 0), True, False),
        ("", True, False),
    ],
)
def test_key_near_its_end_or_without_its_private_part_is_not_used(
    shown: str, private: bool, usable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "private-keys-v1.d").mkdir()
    if private:
        (tmp_path / "private-keys-v1.d" / f"{'B' * 40}.key").touch()
    monkeypatch.setattr(signing, "run", lambda *_, **__: Completed(("gpg",), 0, shown, "", 0.0))
    assert signing.valid_key(tmp_path) == ("A" * 40 if usable else None)


def test_a_lost_private_key_is_replaced(tmp_path: Path) -> None:
    first = signing.signing_key(tmp_path)
    for path in (first.folder / "private-keys-v1.d").glob("*.key"):
        path.unlink()
    assert signing.signing_key(tmp_path).fingerprint != first.fingerprint


def test_asking_for_the_key_starts_no_agent(key: signing.SigningKey) -> None:
    signing.signing_key(key.folder.parent)
    asked = ["gpgconf", "--homedir", str(key.folder), "--list-dirs", "agent-socket"]
    # In /run/user where there is such a folder of this user, else in the key's.
    socket = Path(subprocess.run(asked, check=True, timeout=20, capture_output=True, text=True).stdout.strip())
    assert not socket.exists()
    subprocess.run(["gpg", "--homedir", str(key.folder), "--list-secret-keys"], check=True, timeout=20)
    assert socket.exists()
    subprocess.run(["gpgconf", "--homedir", str(key.folder), "--kill", "gpg-agent"], check=True, timeout=20)
