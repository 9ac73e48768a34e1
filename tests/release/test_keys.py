"""Keys: made with the right permissions, loaded, refused with what to do; KMS through moto; trust files."""

from __future__ import annotations

import datetime
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa, x25519
from moto import mock_aws

from gpu_ami.cloud import Cloud, Place
from gpu_ami.errors import UsageError
from gpu_ami.release import keys
from tests.cloud.moto_kms import sign_digests


@pytest.fixture
def public(tmp_path: Path) -> Path:
    return keys.new_key(tmp_path / "release.key")


def test_a_new_key_is_private_and_signs(tmp_path: Path, public: Path) -> None:
    private = tmp_path / "release.key"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    signature = keys.load_signer(str(private)).sign(b"payload")
    loaded = keys.load_public(str(public))
    loaded.verify_signature(signature, b"payload")
    assert signature.keyid == loaded.keyid
    assert keys.public_pem(loaded) == public.read_bytes()


def test_a_key_is_never_overwritten(tmp_path: Path, public: Path) -> None:
    before = public.read_bytes()
    with pytest.raises(UsageError, match="exists already"):
        keys.new_key(tmp_path / "release.key")
    (tmp_path / "release.key").unlink()
    with pytest.raises(UsageError, match="exists already"):
        keys.new_key(tmp_path / "release.key")
    assert public.read_bytes() == before


def test_a_key_that_others_can_read_is_refused(tmp_path: Path, public: Path) -> None:
    (tmp_path / "release.key").chmod(0o640)
    with pytest.raises(UsageError, match="can be read by others") as error:
        keys.load_signer(str(tmp_path / "release.key"))
    assert "chmod 600" in error.value.hint


def private_file(path: Path, key: ec.EllipticCurvePrivateKey | x25519.X25519PrivateKey, passphrase: bytes = b"") -> str:
    encryption = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    path.chmod(0o600)
    return str(path)


def test_an_ecdsa_key_of_other_tools_signs(tmp_path: Path) -> None:
    text = private_file(tmp_path / "ec.key", ec.generate_private_key(ec.SECP256R1()))
    signer = keys.load_signer(text)
    signer.public_key.verify_signature(signer.sign(b"x"), b"x")


def test_what_cannot_sign_is_refused(tmp_path: Path, public: Path) -> None:
    curve = ec.SECP256R1()
    with pytest.raises(UsageError, match="has a passphrase"):
        keys.load_signer(private_file(tmp_path / "locked", ec.generate_private_key(curve), b"secret"))
    with pytest.raises(UsageError, match="not a private key"):
        keys.load_signer(private_file(tmp_path / "x", x25519.X25519PrivateKey.generate()))
    public.chmod(0o600)
    with pytest.raises(UsageError, match="not a private key"):
        keys.load_signer(str(public))
    with pytest.raises(UsageError, match="No such file"):
        keys.load_signer(str(tmp_path / "none"))
    with pytest.raises(UsageError, match="not a public key"):
        keys.load_public(str(tmp_path / "release.key"))


def test_a_short_rsa_key_is_refused(tmp_path: Path) -> None:
    """RSA-1024 was accepted."""
    private = rsa.generate_private_key(65537, 1024)
    with pytest.raises(UsageError, match="RSA with 1024 bits, at least 2048"):
        keys.load_signer(private_file(tmp_path / "short", private))
    pem = private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "short.pub").write_bytes(pem)
    with pytest.raises(UsageError, match="RSA with 1024 bits, at least 2048"):
        keys.trusted([str(tmp_path / "short.pub")], None)


@pytest.mark.parametrize("rows", [("", ", expires: 2020-01-31"), (", expires: 2020-01-31", "")])
def test_a_key_has_one_last_day_whatever_the_order(tmp_path: Path, public: Path, rows: tuple[str, str]) -> None:
    """The last row decided: a key whose trust had ended was accepted by a second row of it."""
    file = tmp_path / "trust.yml"
    lines = [f"  - {{name: k{number}, file: {public.name}{row}}}" for number, row in enumerate(rows)]
    file.write_text("\n".join(["keys:", *lines]))
    with pytest.raises(UsageError, match="trusted twice, until different days"):
        keys.trusted([], file)
    file.write_text("\n".join(["keys:", lines[1]]))
    if rows[1]:
        with pytest.raises(UsageError, match="trusted twice"):
            keys.trusted([str(public)], file)
    assert len(keys.trusted([str(public), str(public)], None)) == 1


def test_a_kms_key_signs_and_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    sign_digests(monkeypatch)
    place = Place(name="aws", region="us-east-1")
    with mock_aws():
        client = Cloud(place).client("kms")
        made = client.create_key(KeyUsage="SIGN_VERIFY", KeySpec="ECC_NIST_P256")["KeyMetadata"]
        client.create_alias(AliasName="alias/release", TargetKeyId=made["KeyId"])
        signer = keys.load_signer("awskms:///alias/release", place)
        signature = signer.sign(b"payload")
        (trusted,) = keys.trusted(["awskms:///alias/release"], None, place)
        assert keys.load_public(f"awskms:///{made['Arn']}").keyid == trusted.key.keyid
    trusted.key.verify_signature(signature, b"payload")
    assert signature.keyid == trusted.key.keyid


@pytest.mark.parametrize("spec", ["RSA_2048"])
def test_a_kms_rsa_key_signs(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_digests(monkeypatch)
    place = Place(name="aws", region="us-east-1")
    with mock_aws():
        made = Cloud(place).client("kms").create_key(KeyUsage="SIGN_VERIFY", KeySpec=spec)["KeyMetadata"]
        signer = keys.load_signer(f"awskms:///{made['Arn']}")
        signature = signer.sign(b"payload")
    assert signer.public_key.scheme == "rsassa-pss-sha256"
    signer.public_key.verify_signature(signature, b"payload")


def test_a_trust_file_names_keys_with_a_last_day(tmp_path: Path, public: Path) -> None:
    file = tmp_path / "trust.yml"
    file.write_text(f"keys:\n  - {{name: release, file: {public.name}, expires: 2027-01-31}}\n")
    (trusted,) = keys.trusted([], file)
    assert (trusted.name, trusted.expires) == ("release", datetime.date(2027, 1, 31))
    assert trusted.key.keyid == keys.load_public(str(public)).keyid


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("keys: [{name: a}]", "keys[0]: expected name and one of file and kms"),
        ("keys: [{file: a}]", "keys[0]: expected name and one of file and kms"),
        ("keys: [{name: a, file: b, kms: c}]", "keys[0]: expected name and one of file and kms"),
        ("keys: [{name: a, file: b, expires: soon}]", "keys[0].expires: expected a date"),
        ("keys: [{name: a, file: b, until: 2027-01-31}]", "keys[0].until: unknown key"),
        ("key: []", "key: unknown key"),
    ],
)
def test_a_trust_file_with_mistakes_is_refused(tmp_path: Path, text: str, mistake: str) -> None:
    file = tmp_path / "trust.yml"
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        keys.trusted([], file)
    assert any(line.startswith(mistake) for line in error.value.details), error.value.details


def test_no_key_is_no_trust(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no trusted key given"):
        keys.trusted([], None)
    (tmp_path / "trust.yml").write_text("keys: []")
    with pytest.raises(UsageError, match="at least one item"):
        keys.trusted([], tmp_path / "trust.yml")
