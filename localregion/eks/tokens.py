"""Whose a token of `aws eks get-token` is: a GetCallerIdentity call of STS, signed in its URL and not yet sent.

The API server of EKS sends that call to STS (aws-iam-authenticator). Here it is verified where it arrives: the region
knows the secret keys that it gave out. Source: github.com/kubernetes-sigs/aws-iam-authenticator, pkg/token/token.go;
AWS General Reference, "Create a signed AWS API request" (query string); read 2026-11-25.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, quote, urlsplit

PREFIX = "k8s-aws-v1."
CLUSTER_HEADER = "x-k8s-aws-id"
_HOST = re.compile(r"sts(\.[a-z0-9-]+)?\.amazonaws\.com")
_PARAMETERS = {
    "action", "version", "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires",
    "x-amz-security-token", "x-amz-signature", "x-amz-signedheaders",
}  # fmt: skip
_VALID = timedelta(minutes=15)
_SKEW = timedelta(minutes=5)
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
    if not 0 < seconds <= _VALID.total_seconds():
        raise Rejected(f"X-Amz-Expires: expected 1 to 900, got {seconds}")
    if not made - _SKEW <= now <= made + _VALID:
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
