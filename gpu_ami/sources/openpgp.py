"""OpenPGP with gpg and gpgv: the keys in a vendor's file, when they expire, and signatures."""

from __future__ import annotations

import base64
import binascii
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from gpu_ami import process
from gpu_ami.sources.http import SourceError

_DAY = 86400
_TIMEOUT = 30.0
_ARMOR = re.compile(
    rb"-----BEGIN PGP ([A-Z ]+)-----\n(?:[\w-]+: [^\n]*\n)*\n(.*?)\n?(?:=[\w+/]{4}\n)?-----END PGP \1-----",
    re.DOTALL,
)


@dataclass(frozen=True)
class Key:
    """A public key. expires: seconds since 1970, None: never; subkeys: fingerprints of those that sign for it."""

    fingerprint: str
    expires: int | None
    revoked: bool
    subkeys: tuple[str, ...]
    ring: bytes

    @property
    def days_left(self) -> int | None:
        """Whole days until it expires, negative if it has expired; None: it never expires."""
        return None if self.expires is None else int((self.expires - time.time()) // _DAY)


@dataclass(frozen=True)
class Signature:
    """A valid signature of a planned key. fingerprint: of the key or subkey that made it; date: ISO."""

    fingerprint: str
    date: str


def read_key(data: bytes, fingerprint: str, url: str) -> Key:
    """The planned key of a vendor's file. SourceError: not in it, expired or revoked, or the file holds no key."""
    ring = dearmored(data, url)
    keys = _listed(ring, url)
    if fingerprint.upper() not in keys:
        shown = " and ".join(keys) or "no key"
        hint = "find out why the vendor changed the key before you change the plan"
        raise SourceError(f"{url}: expected key {fingerprint.upper()}, got {shown}", hint=hint)
    key = keys[fingerprint.upper()]
    if key.revoked:
        raise SourceError(f"{url}: key {key.fingerprint} was revoked", hint="plan the vendor's current key")
    if key.days_left is not None and key.days_left < 0:
        day = time.strftime("%Y-%m-%d", time.gmtime(key.expires))
        raise SourceError(f"{url}: key {key.fingerprint} expired on {day}", hint="plan the vendor's current key")
    return key


def dearmored(data: bytes, url: str) -> bytes:
    """The packets of a file, armored (in one block or several) or not."""
    blocks = _ARMOR.findall(data.replace(b"\r\n", b"\n"))
    if not blocks:
        return data
    try:
        return b"".join(base64.b64decode(body, validate=False) for _, body in blocks)
    except binascii.Error as error:
        raise SourceError(f"{url}: not an OpenPGP file: {error}") from error


def _listed(ring: bytes, url: str) -> dict[str, Key]:
    """Keys by fingerprint, as `gpg --show-keys --with-colons` lists them (GnuPG, doc/DETAILS)."""
    gpg = process.find_tool("gpg", package="gpg")
    with tempfile.TemporaryDirectory(prefix="gpu-ami-") as home:
        file = Path(home) / "keys"
        file.write_bytes(ring)
        # "direct": with "always", gpg exits with an error where it would have to report that a key has expired
        how = ["--homedir", home, "--batch", "--no-options", "--no-autostart", "--trust-model", "direct"]
        shown = process.run([gpg, *how, "--show-keys", "--with-colons", "--fixed-list-mode", file], timeout=_TIMEOUT,
                            check=False, error=SourceError)  # fmt: skip
    keys: dict[str, Key] = {}
    fields: list[str] = []
    kind = fingerprint = ""
    subkeys: list[str] = []

    def add() -> None:
        if fingerprint:
            expires = int(fields[6]) if fields[6] else None
            keys[fingerprint] = Key(fingerprint, expires, fields[1] == "r", tuple(subkeys), ring)

    for row in (line.split(":") for line in shown.stdout.splitlines()):
        if row[0] in ("pub", "sub"):
            kind = row[0]
            if kind == "pub":
                add()
                fields, fingerprint, subkeys = row, "", []
        elif row[0] == "fpr" and kind == "pub":
            fingerprint = row[9]
        elif row[0] == "fpr" and kind == "sub":
            subkeys.append(row[9])
    add()
    if not keys:
        raise SourceError(f"{url}: no OpenPGP key in it", details=shown.stderr.splitlines()[-2:])
    return keys


def verify(data: bytes, key: Key, url: str, signature: bytes | None = None) -> tuple[bytes, Signature]:
    """The signed content and who signed it; `signature`: a detached one, else `data` is clear-signed.

    Of clear-signed text only what lies inside the signature is returned. SourceError: not signed by this key.
    """
    gpgv = process.find_tool("gpgv", package="gpgv")
    with tempfile.TemporaryDirectory(prefix="gpu-ami-") as name:
        folder = Path(name)
        (folder / "ring.gpg").write_bytes(key.ring)
        (folder / "data").write_bytes(data)
        command: list[str | Path] = [gpgv, "--status-fd", "1", "--keyring", folder / "ring.gpg"]
        if signature is None:
            command += ["--output", folder / "content", folder / "data"]
        else:
            (folder / "signature").write_bytes(dearmored(signature, url))
            command += [folder / "signature", folder / "data"]
        done = process.run(command, timeout=_TIMEOUT, env={"GNUPGHOME": name}, check=False, error=SourceError)
        made_by = _judge(done.stdout, key, url)
        content = data if signature is not None else (folder / "content").read_bytes()
    return content, made_by


def _judge(status: str, key: Key, url: str) -> Signature:
    """gpgv's status lines (GnuPG, doc/DETAILS): of several signatures, one by the planned key is enough."""
    rows = [line.split()[1:] for line in status.splitlines() if line.startswith("[GNUPG:] ")]
    expired = {row[1][-16:] for row in rows if row[0] in ("EXPKEYSIG", "EXPSIG", "REVKEYSIG")}
    for row in rows:
        if row[0] == "VALIDSIG" and row[-1] == key.fingerprint and row[1][-16:] not in expired:
            return Signature(row[1], row[2])
    for code, text in (
        ("BADSIG", "wrong signature: the content was changed after it was signed"),
        ("EXPKEYSIG", "signed by a key that has expired"),
        ("REVKEYSIG", "signed by a key that was revoked"),
        ("EXPSIG", "its signature has expired"),
        ("VALIDSIG", "signed by another key"),
        ("ERRSIG", "signed by another key"),
    ):
        by = [row[1] for row in rows if row[0] == code]
        if by:
            raise SourceError(f"{url}: {text}: {', '.join(by)}; expected {key.fingerprint}")
    raise SourceError(f"{url}: not signed; expected a signature of {key.fingerprint}")


def issuers(signature: bytes, url: str) -> list[str]:
    """Fingerprints, or key ids of 16 digits, that a detached signature names as its issuer; nothing is verified."""
    gpg = process.find_tool("gpg", package="gpg")
    with tempfile.TemporaryDirectory(prefix="gpu-ami-") as home:
        file = Path(home) / "signature"
        file.write_bytes(dearmored(signature, url))
        how = ["--homedir", home, "--batch", "--no-options", "--no-autostart", "--list-packets"]
        listed = process.run([gpg, *how, file], timeout=_TIMEOUT, check=False, error=SourceError).stdout
    named = re.findall(r"issuer fpr v\d ([0-9A-F]{40})", listed) or re.findall(
        r":signature packet: algo \d+, keyid ([0-9A-F]{16})", listed
    )
    if not named:
        raise SourceError(f"{url}: no OpenPGP signature in it")
    return named


def require_issuer(signature: bytes, key: Key, url: str) -> None:
    """SourceError: the file is not a signature, or it is of another key."""
    named = issuers(signature, url)
    if not any(own.endswith(name) for own in (key.fingerprint, *key.subkeys) for name in named):
        raise SourceError(f"{url}: made by {', '.join(named)}; expected {key.fingerprint}")
