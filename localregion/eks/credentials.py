"""The certificates of one cluster: its own authority, the API server's certificate, client certificates, a signing key.

They are made when the cluster starts, last as long as a run may, and are removed with its folder.

Whose a token of `aws eks get-token` is: a GetCallerIdentity call of STS, signed in its URL and not yet sent.

The API server of EKS sends that call to STS (aws-iam-authenticator). Here it is verified where it arrives: the region
knows the secret keys that it gave out. Source: github.com/kubernetes-sigs/aws-iam-authenticator, pkg/token/token.go;
AWS General Reference, "Create a signed AWS API request" (query string); read 2026-11-25.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlsplit

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


PREFIX = "k8s-aws-v1."
CLUSTER_HEADER = "x-k8s-aws-id"
_HOST = re.compile(r"sts(\.[a-z0-9-]+)?\.amazonaws\.com")
_PARAMETERS = {
    "action", "version", "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires",
    "x-amz-security-token", "x-amz-signature", "x-amz-signedheaders",
}  # fmt: skip
_TOKEN_VALID = timedelta(minutes=15)
_TOKEN_SKEW = timedelta(minutes=5)
_EMPTY = hashlib.sha256(b"").hexdigest()


class Rejected(Exception):
    """No such token; the message says why, for the region's log."""


def access_key(token: str, cluster: str, secret_of: Callable[[str], str | None], now: datetime | None = None) -> str:
    """The access key that has signed a token for a cluster. secret_of: the secret of an access key. Rejected."""
    url = urlsplit(_decoded(token))
    if url.scheme != "https" or not _HOST.fullmatch(url.netloc) or url.path not in ("", "/"):
        raise Rejected(f"expected https://sts.REGION.amazonaws.com/, got {url.scheme}://{url.netloc}{url.path}")
    pairs = parse_qsl(url.query, keep_blank_values=True)
    values = {name.lower(): value for name, value in pairs}
    further = sorted(set(values) - _PARAMETERS)
    if further or len(values) != len(pairs):
        raise Rejected(f"unexpected or repeated parameters: {', '.join(further) or 'repeated'}")
    if values.get("action") != "GetCallerIdentity":
        raise Rejected(f"expected action GetCallerIdentity, got {values.get('action')}")
    if CLUSTER_HEADER not in values.get("x-amz-signedheaders", "").split(";"):
        raise Rejected(f"the header {CLUSTER_HEADER} is not signed")
    _check_time(values, now or datetime.now(UTC))
    credential = values.get("x-amz-credential", "").split("/")
    secret = secret_of(credential[0])
    if len(credential) != 5 or secret is None:
        raise Rejected(f"unknown access key {credential[0]}")
    headers = {"host": url.netloc, CLUSTER_HEADER: cluster}
    if not hmac.compare_digest(signature(secret, pairs, headers), values.get("x-amz-signature", "")):
        raise Rejected(f"it is not signed for cluster {cluster} by {credential[0]}")
    return credential[0]


def _decoded(token: str) -> str:
    if not token.startswith(PREFIX):
        raise Rejected(f"it does not begin with {PREFIX}")
    text = token.removeprefix(PREFIX)
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
    except ValueError as error:  # base64's own error is one
        raise Rejected(f"its text is not base64: {error}") from error


def _check_time(values: Mapping[str, str], now: datetime) -> None:
    try:
        made = datetime.strptime(values.get("x-amz-date", ""), "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        seconds = int(values.get("x-amz-expires", "0"))
    except ValueError as error:
        raise Rejected(str(error)) from error
    if not 0 < seconds <= _TOKEN_VALID.total_seconds():
        raise Rejected(f"X-Amz-Expires: expected 1 to 900, got {seconds}")
    if not made - _TOKEN_SKEW <= now <= made + _TOKEN_VALID:
        raise Rejected(f"it was signed at {made:%H:%M:%S}, and it is {now:%H:%M:%S} UTC")


def signature(secret: str, pairs: list[tuple[str, str]], headers: Mapping[str, str]) -> str:
    """Signature Version 4 of a GET without a body. pairs: of the query; headers: those that are signed, lower-case."""
    kept = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in pairs)
    values = dict(pairs)
    query = "&".join(f"{name}={value}" for name, value in kept if name.lower() != "x-amz-signature")
    lines = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    signed = ";".join(sorted(headers))
    request = f"GET\n/\n{query}\n{lines}\n{signed}\n{_EMPTY}"
    scope = values.get("X-Amz-Credential", "").split("/")[1:]
    key = f"AWS4{secret}".encode()
    for part in scope:
        key = hmac.digest(key, part.encode(), "sha256")
    hashed = hashlib.sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{values.get('X-Amz-Date', '')}\n{'/'.join(scope)}\n{hashed}"
    return hmac.digest(key, text.encode(), "sha256").hex()
