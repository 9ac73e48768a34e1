"""Keys and signatures: what is accepted, and how each fault is named."""

from __future__ import annotations

import pytest

from gpu_ami.sources import openpgp
from gpu_ami.sources.http import SourceError
from tests.sources.conftest import LONG_AGO, Signer

URL = "https://vendor.example/InRelease"


def test_key_says_until_when_it_holds(signers: dict[str, Signer]) -> None:
    vendor, other = signers["vendor"], signers["other"]
    key = openpgp.read_key(vendor.public, vendor.fingerprint.lower(), URL)
    assert key.fingerprint == vendor.fingerprint and key.days_left in (399, 400)
    assert openpgp.read_key(other.public, other.fingerprint, URL).days_left is None


def test_planned_key_is_found_among_several(signers: dict[str, Signer]) -> None:
    several = signers["expired"].public + signers["vendor"].public
    assert openpgp.read_key(several, signers["vendor"].fingerprint, URL).fingerprint == signers["vendor"].fingerprint
    with pytest.raises(SourceError, match="expired on 2020-01-02") as caught:
        openpgp.read_key(several, signers["expired"].fingerprint, URL)
    assert caught.value.hint == "plan the vendor's current key"


def test_another_key_is_named(signers: dict[str, Signer]) -> None:
    with pytest.raises(SourceError, match=f"expected key {'A' * 40}, got {signers['other'].fingerprint}"):
        openpgp.read_key(signers["other"].public, "A" * 40, URL)


@pytest.mark.parametrize("data", [b"", b"<html>", b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nAAAA\n"])
def test_file_without_a_key(data: bytes) -> None:
    with pytest.raises(SourceError, match="no OpenPGP key"):
        openpgp.read_key(data, "A" * 40, URL)


def test_signed_content_alone_is_returned(vendor: Signer, key: openpgp.Key) -> None:
    signed = b"before\n" + vendor.sign(b"content\n", "--clearsign") + b"\nafter\n"
    content, signature = openpgp.verify(signed, key, URL)
    assert content == b"content\n" and signature.fingerprint == vendor.fingerprint
    assert len(signature.date) == 10


def test_detached_signature(vendor: Signer, key: openpgp.Key) -> None:
    content, signature = openpgp.verify(b"data", key, URL, vendor.sign(b"data", "--detach-sign"))
    assert content == b"data" and signature.fingerprint == vendor.fingerprint


def test_changed_content_is_refused(vendor: Signer, key: openpgp.Key) -> None:
    signed = vendor.sign(b"Version: 1\n", "--clearsign").replace(b"Version: 1", b"Version: 2")
    with pytest.raises(SourceError, match="wrong signature: the content was changed"):
        openpgp.verify(signed, key, URL)
    with pytest.raises(SourceError, match="wrong signature"):
        openpgp.verify(b"other", key, URL, vendor.sign(b"data", "--detach-sign"))


def test_signature_of_another_key_is_refused(signers: dict[str, Signer], key: openpgp.Key) -> None:
    signed = signers["other"].sign(b"content\n", "--clearsign")
    with pytest.raises(SourceError, match=f"signed by another key: .*expected {key.fingerprint}"):
        openpgp.verify(signed, key, URL)


def test_signature_of_another_key_in_the_same_file_is_refused(signers: dict[str, Signer]) -> None:
    several = signers["vendor"].public + signers["other"].public
    key = openpgp.read_key(several, signers["vendor"].fingerprint, URL)
    with pytest.raises(SourceError, match="signed by another key"):
        openpgp.verify(signers["other"].sign(b"content\n", "--clearsign"), key, URL)


def test_signature_of_an_expired_key_is_refused(signers: dict[str, Signer]) -> None:
    expired = signers["expired"]
    ring = openpgp.dearmored(expired.public, URL)
    key = openpgp.Key(expired.fingerprint, None, False, (), ring)
    with pytest.raises(SourceError, match="signed by a key that has expired"):
        openpgp.verify(expired.sign(b"content\n", "--clearsign", *LONG_AGO), key, URL)


def test_unsigned_content_is_refused(key: openpgp.Key) -> None:
    with pytest.raises(SourceError, match="not signed; expected a signature of"):
        openpgp.verify(b"Origin: somebody\n", key, URL)


def test_signature_file_names_its_maker(signers: dict[str, Signer], key: openpgp.Key) -> None:
    openpgp.require_issuer(signers["vendor"].sign(b"installer", "--detach-sign"), key, URL)
    with pytest.raises(SourceError, match=f"made by {signers['other'].fingerprint}; expected {key.fingerprint}"):
        openpgp.require_issuer(signers["other"].sign(b"installer", "--detach-sign"), key, URL)
    with pytest.raises(SourceError, match="no OpenPGP signature in it"):
        openpgp.require_issuer(b"<html>", key, URL)
