"""Makes moto's KMS sign a digest as it is, as AWS does with MessageType DIGEST; moto hashes it a second time.

KMS API reference, Sign, "MessageType": "When the value is DIGEST, AWS KMS skips the hashing step in the signing
algorithm". moto says at `KmsBackend.sign` that it does not implement it.
"""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, utils
from moto.kms import utils as moto_keys

_PREHASHED = utils.Prehashed(hashes.SHA256())


def sign_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, moto signs SHA-256 digests without hashing them."""

    def ecdsa(key: moto_keys.ECDSAPrivateKey, message: bytes, signing_algorithm: str) -> bytes:
        assert signing_algorithm == "ECDSA_SHA_256" and len(message) == 32
        return bytes(key.private_key.sign(message, ec.ECDSA(_PREHASHED)))

    def rsa(key: moto_keys.RSAPrivateKey, message: bytes, signing_algorithm: str) -> bytes:
        assert signing_algorithm == "RSASSA_PSS_SHA_256" and len(message) == 32
        pss = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
        return bytes(key.private_key.sign(message, pss, _PREHASHED))

    monkeypatch.setattr(moto_keys.ECDSAPrivateKey, "sign", ecdsa)
    monkeypatch.setattr(moto_keys.RSAPrivateKey, "sign", rsa)
