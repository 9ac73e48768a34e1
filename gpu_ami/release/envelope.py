"""certificate.dsse.json: a statement in a DSSE envelope, by securesystemslib.

The format: https://github.com/secure-systems-lab/dsse.

JSON of files that are signed: a key that is there twice is refused, since two readers could read two values.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import Error as SecureSystemsError
from securesystemslib.signer import Signer

from gpu_ami.files import write_json
from gpu_ami.release.keys import TrustedKey


class InvalidJson(ValueError):
    """Not JSON, or not an object. duplicate: the key that is there twice, "" otherwise."""

    def __init__(self, message: str, duplicate: str = "") -> None:
        super().__init__(message)
        self.duplicate = duplicate


def loads(data: bytes) -> dict[str, Any]:
    """The object in `data`, UTF-8. InvalidJson."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for key, value in pairs:
            if key in content:
                raise InvalidJson(f"duplicate key {key!r}", key)
            content[key] = value
        return content

    try:
        document = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except InvalidJson:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidJson(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidJson(f"expected a JSON object, got {type(document).__name__}")
    return document


ENVELOPE_FILE = "certificate.dsse.json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"


class RefusedEnvelope(ValueError):
    """Not an envelope with a signature of a trusted key. name: the refusal's; hint: what to do."""

    def __init__(self, name: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.name, self.hint = name, hint


@dataclass(frozen=True)
class Signed:
    """The payload of an envelope, and the trusted keys whose signatures it has."""

    payload: bytes
    signers: tuple[TrustedKey, ...]


def sign(payload: bytes, signers: Sequence[Signer], folder: Path) -> Path:
    """Writes the envelope with a signature of each signer. Returns its path. CloudError: KMS refused to sign."""
    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    for signer in signers:
        envelope.sign(signer)
    path = folder / ENVELOPE_FILE
    write_json(path, envelope.to_dict())
    return path


def open_envelope(data: bytes, trusted: Sequence[TrustedKey], today: datetime.date) -> Signed:
    """The payload, if a trusted key that has not expired signed it. RefusedEnvelope says why not.

    Signatures of unknown keys beside a trusted one do not count and do no harm.
    """
    envelope = _read(data)
    by_id = {key.key.keyid: key for key in trusted}
    known = [by_id[keyid] for keyid in envelope.signatures if keyid in by_id]
    if not known:
        ids = ", ".join(sorted(keyid[:16] for keyid in envelope.signatures))
        names = ", ".join(f"{key.name} ({key.key.keyid[:16]})" for key in trusted)
        hint = "ask the publisher which key is theirs; do not trust a key that comes with the certificate"
        raise RefusedEnvelope("unknown-key", f"signed by key {ids}; trusted: {names}", hint)
    for key in known:  # a wrong signature under a trusted key's id is a forgery, even beside a right one
        try:
            Envelope(
                envelope.payload, envelope.payload_type, {key.key.keyid: envelope.signatures[key.key.keyid]}
            ).verify([key.key], 1)
        except SecureSystemsError as error:
            text = f"the signature under key {key.name} is not of this statement"
            hint = "statement or signature was changed: get the folder again from its publisher"
            raise RefusedEnvelope("wrong-signature", text, hint) from error
    valid = [key for key in known if key.expires is None or today <= key.expires]
    if not valid:
        ended = ", ".join(f"{key.name} on {key.expires}" for key in known)
        hint = "ask the publisher for a certificate that a current key signed"
        raise RefusedEnvelope("expired-key", f"trust in its keys has ended: {ended}", hint)
    return Signed(envelope.payload, tuple(valid))


def _read(data: bytes) -> Envelope:
    again = "get the file again from its publisher"
    try:
        document = loads(data)
    except InvalidJson as error:
        name = "duplicate-keys" if error.duplicate else "damaged-envelope"
        raise RefusedEnvelope(name, f"{ENVELOPE_FILE}: {error}", again) from error
    unknown = sorted(set(document) - {"payload", "payloadType", "signatures"})
    if unknown:
        raise RefusedEnvelope("damaged-envelope", f"{ENVELOPE_FILE}: unknown key {', '.join(unknown)}", again)
    if document.get("payloadType") != PAYLOAD_TYPE:
        text = f"payload type {document.get('payloadType')!r}, expected {PAYLOAD_TYPE}"
        raise RefusedEnvelope("payload-type", text, "name the certificate's own envelope, not another document's")
    signatures = document.get("signatures")
    if signatures in (None, []):
        hint = "`gpu-ami certify --sign KEY` signs a certificate"
        raise RefusedEnvelope("no-signature", "the envelope has no signature", hint)
    try:
        return Envelope.from_dict(document)
    except (SecureSystemsError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedEnvelope("damaged-envelope", f"{ENVELOPE_FILE}: {error!r}", again) from error
