"""The envelope on disk: DSSE as its specification has it. Forgeries are in test_verification.py."""

from __future__ import annotations

import base64
import datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from gpu_ami.release import envelope, keys
from tests.release import examples

TODAY = datetime.date(2026, 11, 22)


def test_the_signature_is_over_the_pre_authentication_encoding(tmp_path: Path) -> None:
    """By hand, without the library that signed: https://github.com/secure-systems-lab/dsse, protocol.md."""
    envelope.sign(b'{"a":1}', [examples.signer(tmp_path)], tmp_path)
    content = examples.envelope(tmp_path)
    assert content["payloadType"] == "application/vnd.in-toto+json"
    assert base64.b64decode(content["payload"]) == b'{"a":1}'
    public = load_pem_public_key((tmp_path / "release.key.pub").read_bytes())
    signature = base64.b64decode(content["signatures"][0]["sig"])
    public.verify(signature, b'DSSEv1 28 application/vnd.in-toto+json 7 {"a":1}')  # type: ignore[union-attr,call-arg]


def test_the_payload_comes_with_its_signers(tmp_path: Path) -> None:
    signers = [examples.signer(tmp_path), examples.signer(tmp_path, "second.key")]
    data = envelope.sign(b"{}", signers, tmp_path).read_bytes()
    trusted = [
        keys.TrustedKey(name, keys.load_public(str(tmp_path / f"{name}.key.pub"))) for name in ("second", "release")
    ]
    signed = envelope.open_envelope(data, trusted, TODAY)
    assert (signed.payload, [key.name for key in signed.signers]) == (b"{}", ["release", "second"])


def test_a_wrong_signature_beside_a_right_one_is_refused(tmp_path: Path) -> None:
    signers = [examples.signer(tmp_path), examples.signer(tmp_path, "second.key")]
    envelope.sign(b"{}", signers, tmp_path)
    content = examples.envelope(tmp_path)
    content["signatures"][1]["sig"] = content["signatures"][0]["sig"]
    examples.write_envelope(tmp_path, content)
    trusted = [
        keys.TrustedKey(name, keys.load_public(str(tmp_path / f"{name}.key.pub"))) for name in ("release", "second")
    ]
    with pytest.raises(envelope.RefusedEnvelope) as error:
        envelope.open_envelope((tmp_path / examples.ENVELOPE).read_bytes(), trusted, TODAY)
    assert error.value.name == "wrong-signature"
