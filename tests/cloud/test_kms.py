"""A KMS key through moto: its public key, a signature that verifies, and what is refused."""

from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from gpu_ami.cloud import Cloud, Place, kms
from gpu_ami.errors import CloudError, UsageError
from tests.cloud.moto_kms import sign_digests


def make_key(cloud: Cloud, usage: str = "SIGN_VERIFY", spec: str = "ECC_NIST_P256") -> str:
    return str(cloud.client("kms").create_key(KeyUsage=usage, KeySpec=spec)["KeyMetadata"]["Arn"])


def test_a_digest_is_signed(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_digests(monkeypatch)
    arn = make_key(cloud)
    key = kms.Key(arn, None)  # the ARN says the region
    der, algorithms = key.public_key()
    assert algorithms == ["ECDSA_SHA_256"]
    public = serialization.load_der_public_key(der)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    digest = hashlib.sha256(b"payload").digest()
    signature = key.sign(digest, "ECDSA_SHA_256")
    public.verify(signature, digest, ec.ECDSA(utils.Prehashed(hashes.SHA256())))


def test_an_alias_needs_a_place(cloud: Cloud) -> None:
    cloud.client("kms").create_alias(AliasName="alias/release", TargetKeyId=make_key(cloud).rpartition("/")[2])
    assert kms.Key("alias/release", cloud.place).public_key()[1] == ["ECDSA_SHA_256"]
    with pytest.raises(UsageError, match="the region is not known"):
        kms.Key("alias/release", None)


def test_the_region_of_an_arn_wins(cloud: Cloud) -> None:
    arn = make_key(cloud)
    assert kms.Key(arn, Place(name="x", region="eu-central-1")).public_key()[0]


@pytest.mark.parametrize("usage", ["ENCRYPT_DECRYPT"])
def test_a_key_for_something_else_is_refused(cloud: Cloud, usage: str) -> None:
    arn = make_key(cloud, usage, "RSA_2048")
    with pytest.raises(UsageError, match="expected key usage SIGN_VERIFY, got ENCRYPT_DECRYPT"):
        kms.Key(arn, None).public_key()


def test_an_unknown_key_is_an_error_of_the_cloud(cloud: Cloud) -> None:
    with pytest.raises(CloudError, match="reading the public key of alias/none"):
        kms.Key("alias/none", cloud.place).public_key()
    with pytest.raises(UsageError, match="names no key"):
        kms.Key("", cloud.place)
