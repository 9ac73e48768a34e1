"""validator.transport.known_hosts: lines as OpenSSH writes and reads them."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from validator.transport import known_hosts

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDCSMrv9dYnmunKAtjNZ6713aCYG46AOFtkLvEAeDGhR"
_SALT = b"0123456789abcdef0123"
_HASHED = hmac.new(_SALT, b"[10.0.0.7]:2222", hashlib.sha1).digest()


@pytest.mark.parametrize(
    ("line", "name", "found"),
    [
        (f"10.0.0.7 {KEY}", "10.0.0.7", 1),
        (f"other,10.0.0.7 {KEY} a comment", "10.0.0.7", 1),
        (f"[10.0.0.7]:2222 {KEY}", "[10.0.0.7]:2222", 1),
        (f"[10.0.0.7]:2222 {KEY}", "10.0.0.7", 0),
        (f"*.example.com,!bad.example.com {KEY}", "good.example.com", 1),
        (f"*.example.com,!bad.example.com {KEY}", "bad.example.com", 0),
        (f"|1|{base64.b64encode(_SALT).decode()}|{base64.b64encode(_HASHED).decode()} {KEY}", "[10.0.0.7]:2222", 1),
        (f"|1|damaged|x {KEY}", "10.0.0.7", 0),
        (f"@cert-authority * {KEY}", "10.0.0.7", 0),
        (f"# 10.0.0.7 {KEY}", "10.0.0.7", 0),
        ("10.0.0.7", "10.0.0.7", 0),
        ("\xff\x00", "10.0.0.7", 0),
    ],
)
def test_lines_of_a_host_are_found(line: str, name: str, found: int, tmp_path: Path) -> None:
    (tmp_path / "known").write_text(f"\n{line}\n", encoding="latin-1")
    keys = known_hosts.find(name, [tmp_path / "known", tmp_path / "none"])
    assert [key.key for key in keys] == [KEY] * found
    assert all(key.where == f"{tmp_path}/known:2" and not key.revoked for key in keys)


def test_a_revoked_key_is_marked(tmp_path: Path) -> None:
    (tmp_path / "known").write_text(f"@revoked * {KEY}\n")
    assert [key.revoked for key in known_hosts.find("h", [tmp_path / "known"])] == [True]


def test_fingerprint() -> None:
    assert known_hosts.fingerprint(KEY).startswith("SHA256:") and known_hosts.fingerprint("x") == "no key"
