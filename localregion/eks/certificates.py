"""The certificates of one cluster: its own authority, the API server's certificate, client certificates, a signing key.

They are made when the cluster starts, last as long as a run may, and are removed with its folder.
"""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_VALID = timedelta(days=2)
_SKEW = timedelta(minutes=10)  # a guest's clock may lag


class Authority:
    """A certificate authority whose files are in a folder: ca.crt, ca.key, NAME.crt, NAME.key."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self._key = _new_key()
        self._certificate = _certificate(name, self._key, None, (), client=False)
        _write(folder / "ca.crt", _pem(self._certificate))
        _write(folder / "ca.key", _key_pem(self._key))

    def issue(self, name: str, user: str, groups: Sequence[str] = (), addresses: Sequence[str] = ()) -> None:
        """NAME.crt and NAME.key. user, groups: CN and O, as Kubernetes reads them; addresses: of a server."""
        key = _new_key()
        issuer = (self._certificate, self._key)
        _write(self.folder / f"{name}.crt", _pem(_certificate(user, key, issuer, groups, addresses=addresses)))
        _write(self.folder / f"{name}.key", _key_pem(key))

    def issue_signing_key(self, name: str) -> None:
        """NAME.key and NAME.pub, with which service accounts' tokens are signed."""
        from cryptography.hazmat.primitives import serialization

        key = _new_key()
        _write(self.folder / f"{name}.key", _key_pem(key))
        encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        _write(self.folder / f"{name}.pub", key.public_key().public_bytes(encoding, form))


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _certificate(
    user: str,
    key: EllipticCurvePrivateKey,
    issuer: tuple[x509.Certificate, EllipticCurvePrivateKey] | None,
    groups: Sequence[str],
    *,
    addresses: Sequence[str] = (),
    client: bool = True,
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    subject = x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, user)])
    now = datetime.now(UTC)
    authority, signer = issuer or (None, key)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
    )
    if authority is not None:
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if client else [])]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if addresses:
        builder = builder.add_extension(x509.SubjectAlternativeName(_names(addresses)), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _names(addresses: Sequence[str]) -> list[x509.GeneralName]:
    from cryptography import x509

    names: list[x509.GeneralName] = []
    for address in addresses:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError:
            names.append(x509.DNSName(address))
    return names


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, plain)


def _write(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
