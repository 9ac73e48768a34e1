"""The primary keys of an OpenPGP keyring, binary or armored: RFC 9580, sections 4.2 (packets) and 5.5.4 (fingerprints).

Read here and not with the machine's gpg: an image need not have one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator

_ARMOR = re.compile(
    r"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[^\r\n]+\r?\n)*?\r?\n([A-Za-z0-9+/=\s]*?)(?:\r?\n=[A-Za-z0-9+/]{4})?"
    r"\s*-----END PGP PUBLIC KEY BLOCK-----"
)
_PUBLIC_KEY = 6
_NEW_FORMAT, _IS_PACKET = 0x40, 0x80


class InvalidKeyring(ValueError):
    """Not a keyring, or one that was cut off."""


def fingerprints(data: bytes) -> list[str]:
    """Fingerprints of the primary keys, in capitals. InvalidKeyring: it is none."""
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        blocks = [data]
    else:
        blocks = [base64.b64decode(block) for block in _ARMOR.findall(text)]
    try:
        found = [_fingerprint(body) for block in blocks for tag, body in _packets(block) if tag == _PUBLIC_KEY]
    except (IndexError, binascii.Error) as error:
        raise InvalidKeyring(str(error)) from error
    if not found:
        raise InvalidKeyring("no OpenPGP key in it")
    return found


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, body) of each packet."""
    at = 0
    while at < len(data):
        head = data[at]
        if not head & _IS_PACKET:
            raise InvalidKeyring(f"no packet at byte {at}")
        if head & _NEW_FORMAT:
            tag, length, at = head & 0x3F, *_new_length(data, at + 1)
        else:
            size = 1 << (head & 3)
            if size == 8:
                raise InvalidKeyring("a packet without a length")
            tag, length, at = head >> 2 & 0xF, int.from_bytes(data[at + 1 : at + 1 + size], "big"), at + 1 + size
        if at + length > len(data):
            raise InvalidKeyring("cut off")
        yield tag, data[at : at + length]
        at += length


def _new_length(data: bytes, at: int) -> tuple[int, int]:
    """Length of a body, and where it begins."""
    first = data[at]
    if first < 192:
        return first, at + 1
    if first < 224:
        return (first - 192 << 8) + data[at + 1] + 192, at + 2
    if first == 255:
        return int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
    raise InvalidKeyring("a packet in parts")


def _fingerprint(body: bytes) -> str:
    if body[0] == 4:
        return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False).hexdigest().upper()
    if body[0] == 6:
        return hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise InvalidKeyring(f"a key of version {body[0]}")
