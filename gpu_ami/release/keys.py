"""Keys: private ones in files or in KMS, which sign; public ones, which a verifier trusts.

A file is PEM: ed25519 as `gpu-ami key new` makes it, ECDSA or RSA as other tools do. `awskms:///ID` is a key of AWS KMS
for signing (RSA or ECDSA; KMS has no ed25519); ID is a key id, an alias (`alias/NAME`) or the ARN of either.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from securesystemslib.exceptions import UnsupportedLibraryError
from securesystemslib.signer import CryptoSigner, Key, SecretsHandler, Signature, Signer, SSlibKey

from gpu_ami.cloud import kms
from gpu_ami.errors import UsageError, counted
from gpu_ami.files import parse_yaml, write_bytes
from validator.inputs import read_bytes
from validator.schema import Day, Keys, ListOf, Text

if TYPE_CHECKING:
    from gpu_ami.cloud import Place

KMS_SCHEME = "awskms:///"
_PRIVATE_MODE, _PUBLIC_MODE = 0o600, 0o644
_READABLE_BY_OTHERS = 0o077
_LEAST_RSA_BITS = 2048  # NIST SP 800-131A rev. 2: shorter ones are not allowed for signatures
# KMS's name of an algorithm → securesystemslib's scheme; the first that a key supports is used.
_SCHEMES = {
    "ECDSA_SHA_256": "ecdsa-sha2-nistp256",
    "ECDSA_SHA_384": "ecdsa-sha2-nistp384",
    "RSASSA_PSS_SHA_256": "rsassa-pss-sha256",
    "RSASSA_PSS_SHA_384": "rsassa-pss-sha384",
    "RSASSA_PSS_SHA_512": "rsassa-pss-sha512",
}
_TRUST = Keys(
    {
        "keys": ListOf(
            Keys(
                {"name": Text("release"), "file": Text("release.pub"), "kms": Text("awskms:///alias/gpu-ami-release"),
                 "expires": Day()}
            )
        )
    },
    needed=("keys",),
)  # fmt: skip


@dataclass(frozen=True)
class TrustedKey:
    """A public key whose signatures are accepted. expires: the last day on which they are; None: no end."""

    name: str
    key: SSlibKey
    expires: datetime.date | None = None


def new_key(path: Path) -> Path:
    """Makes an ed25519 key: PATH (private, mode 0600) and PATH.pub. Returns the latter. UsageError: one is there."""
    public = path.with_name(f"{path.name}.pub")
    taken = [str(file) for file in (path, public) if file.exists() or file.is_symlink()]
    if taken:
        raise UsageError(f"{' and '.join(taken)} exists already", hint="name another file: keys are not overwritten")
    private = Ed25519PrivateKey.generate()
    content = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content, mode=_PRIVATE_MODE)
        write_bytes(public, public_pem(SSlibKey.from_crypto(private.public_key())), mode=_PUBLIC_MODE)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
    return public


def public_pem(key: SSlibKey) -> bytes:
    """The public key as PEM (SubjectPublicKeyInfo), which openssl and cosign read, too."""
    loaded: Any = key._crypto_key()  # the library has no other way to get it back
    return bytes(loaded.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))


def load_signer(text: str, place: Place | None = None) -> Signer:
    """The signer of a private key file or an `awskms:///` key. place: where KMS is. UsageError, CloudError."""
    if text.startswith(KMS_SCHEME):
        return KmsSigner(kms.Key(text.removeprefix(KMS_SCHEME), place))
    path = Path(text)
    data = _read(path)
    if path.stat().st_mode & _READABLE_BY_OTHERS:
        raise UsageError(f"{path}: the private key can be read by others", hint=f"chmod 600 {path}")
    try:
        private: Any = serialization.load_pem_private_key(data, password=None)
        _require_length(private, text)
        return CryptoSigner(private)
    except TypeError as error:  # cryptography's way to say that a passphrase is missing
        hint = "decrypt it into a file of mode 0600, or use a KMS key"
        raise UsageError(f"{path}: the private key has a passphrase", hint=hint) from error
    except (ValueError, UnsupportedAlgorithm, UnsupportedLibraryError) as error:
        hint = "`gpu-ami key new PATH` makes one; a public key cannot sign"
        raise UsageError(f"{path}: not a private key (PEM) that can sign: {error}", hint=hint) from error


def load_public(text: str, place: Place | None = None) -> SSlibKey:
    """A public key: a PEM file, or that of an `awskms:///` key. UsageError, CloudError."""
    if text.startswith(KMS_SCHEME):
        return KmsSigner(kms.Key(text.removeprefix(KMS_SCHEME), place)).public_key
    path = Path(text)
    try:
        public: Any = serialization.load_pem_public_key(_read(path))
        _require_length(public, text)
        return SSlibKey.from_crypto(public)
    except (ValueError, UnsupportedAlgorithm, UnsupportedLibraryError) as error:
        hint = "`gpu-ami key public KEY` prints the public part of a private key"
        raise UsageError(f"{path}: not a public key (PEM): {error}", hint=hint) from error


def _require_length(key: Any, name: str) -> None:
    """UsageError: an RSA key that is too short to be relied on."""
    if isinstance(key, RSAPrivateKey | RSAPublicKey) and key.key_size < _LEAST_RSA_BITS:
        hint = "`gpu-ami key new PATH` makes an ed25519 key"
        raise UsageError(f"{name}: RSA with {key.key_size} bits, at least {_LEAST_RSA_BITS} are needed", hint=hint)


def trusted(named: Sequence[str], trust_file: Path | None, place: Place | None = None) -> list[TrustedKey]:
    """The keys of --key and of a trust file. UsageError: none is named, or one cannot be read."""
    keys = [TrustedKey(Path(text).name, load_public(text, place)) for text in named]
    keys += _trust_file(trust_file, place) if trust_file else []
    if not keys:
        hint = "pass --key release.pub, or --trust FILE for several keys, each with an expiry date"
        raise UsageError("no trusted key given", hint=hint)
    return _unique(keys)


def _unique(keys: Sequence[TrustedKey]) -> list[TrustedKey]:
    """Each key once. UsageError: one is there with two last days, and which of them counts would be the order's."""
    by_id: dict[str, TrustedKey] = {}
    for key in keys:
        first = by_id.setdefault(key.key.keyid, key)
        if first.expires != key.expires:
            days = " and ".join(f"{one.name} ({one.expires or 'no end'})" for one in (first, key))
            hint = "keep one of them: trust in a key has one end"
            raise UsageError(f"the same key is trusted twice, until different days: {days}", hint=hint)
    return list(by_id.values())


def _trust_file(path: Path, place: Place | None) -> list[TrustedKey]:
    document = parse_yaml(_read(path).decode("utf-8", "replace"), str(path))
    mistakes = [
        f"{mistake.path}: {mistake.message}" for mistake in (*_TRUST.check(document, ""), *_TRUST.missing(document))
    ]
    if not mistakes:
        mistakes = [
            f"keys[{index}]: expected name and one of file and kms"
            for index, row in enumerate(document["keys"])
            if "name" not in row or ("file" in row) == ("kms" in row)
        ]
    if mistakes:
        raise UsageError(f"{path}: {counted(len(mistakes), 'mistake')}", details=mistakes, hint="see docs/release.md")
    keys = []
    for row in document["keys"]:
        source = row["kms"] if "kms" in row else str(path.parent / row["file"])
        keys.append(TrustedKey(row["name"], load_public(source, place), Day.parse(row.get("expires"))))
    return keys


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


class KmsSigner(Signer):
    """Signs with a key of AWS KMS, which gets the digest alone; the client is that of gpu_ami.cloud.

    securesystemslib's own signer takes neither a profile nor an endpoint.
    """

    def __init__(self, key: kms.Key) -> None:
        self._key = key
        pem, algorithms = key.public_key()
        name = next((name for name in _SCHEMES if name in algorithms), "")
        if not name:
            hint = "make it with KeyUsage SIGN_VERIFY and KeySpec ECC_NIST_P256"
            raise UsageError(f"{KMS_SCHEME}{key.id}: no supported algorithm: {', '.join(algorithms)}", hint=hint)
        self._algorithm = name
        public: Any = serialization.load_der_public_key(pem)
        self._public_key = SSlibKey.from_crypto(public, scheme=_SCHEMES[name])

    @property
    def public_key(self) -> SSlibKey:
        return self._public_key

    @classmethod
    def from_priv_key_uri(
        cls, priv_key_uri: str, public_key: Key, secrets_handler: SecretsHandler | None = None
    ) -> KmsSigner:
        """The library's constructor: the key of a URI, with credentials from the environment."""
        return cls(kms.Key(priv_key_uri.removeprefix(KMS_SCHEME), None))

    def sign(self, payload: bytes) -> Signature:
        digest = hashlib.new(self._public_key.get_hash_algorithm_name(), payload).digest()
        return Signature(self._public_key.keyid, self._key.sign(digest, self._algorithm).hex())
