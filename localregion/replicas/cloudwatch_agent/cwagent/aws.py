"""Calls to CloudWatch and CloudWatch Logs: Signature Version 4, one connection a service, retries of the transport.

Wire formats as the agent's SDK sends them: query protocol for PutMetricData, JSON 1.1 for Logs, bodies compressed.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import http.client
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from .journal import Journal
from .metadata import Metadata, Unavailable

_RETRIED = (
    "Throttling",
    "ThrottlingException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
    "InternalFailure",
    "OperationAbortedException",
    "RequestLimitExceeded",
)
_STALE_CREDENTIALS = ("ExpiredToken", "ExpiredTokenException", "UnrecognizedClientException", "InvalidClientTokenId")
FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
_SILENT_TRIES = 3  # as many as the SDK's: the agent logs a failure only after them


class ServiceError(Exception):
    """The service refused: code and message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{code}: {message} (HTTP {status})")
        self.status, self.code = status, code


class Stopping(Exception):
    """The agent was stopped while a call waited for its next attempt."""


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def sign(
    credentials: Any, region: str, service: str, headers: dict[str, str], body: bytes, now: float
) -> dict[str, str]:
    """The headers with Signature Version 4 for `POST /` (docs.aws.amazon.com, "Create a signed AWS API request")."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    signed = {name.lower(): value for name, value in headers.items()} | {"x-amz-date": stamp}
    if credentials.token:
        signed["x-amz-security-token"] = credentials.token
    names = ";".join(sorted(signed))
    canonical = "".join(f"{name}:{signed[name].strip()}\n" for name in sorted(signed))
    request = f"POST\n/\n\n{canonical}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = ("AWS4" + credentials.secret).encode()
    for part in (stamp[:8], region, service, "aws4_request"):
        key = _hmac(key, part)
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    signed["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return signed


class Service:
    """One endpoint of one service ("monitoring", "logs")."""

    def __init__(
        self, name: str, region: str, endpoint: str | None, metadata: Metadata, journal: Journal, stop: threading.Event
    ) -> None:
        url = urllib.parse.urlsplit(endpoint or f"https://{name}.{region}.amazonaws.com")
        self._name, self._region, self._metadata, self._journal, self._stop = name, region, metadata, journal, stop
        self._host = url.netloc
        self._secure = url.scheme == "https"
        self._connection: http.client.HTTPConnection | None = None

    def call(self, content_type: str, body: bytes, target: str | None = None, *, last: bool = False) -> bytes:
        """One request, retried with increasing delays after transport errors and throttling.

        `last`: the agent is ending; three tries, then Stopping.
        """
        wait, tries = FIRST_WAIT, 0
        while True:
            tries += 1
            try:
                return self._once(content_type, body, target)
            except (OSError, http.client.HTTPException, Unavailable) as error:
                trouble: Exception = error
                self._close()
            except ServiceError as error:
                if error.code in _STALE_CREDENTIALS:
                    self._metadata.forget_credentials()
                elif error.code not in _RETRIED and error.status < 500:
                    raise
                trouble = error
            if tries >= _SILENT_TRIES:
                self._journal.error(f"[{self._name}] try {tries} failed, again in {wait:.0f} s: {trouble}")
            if (last and tries == 3) or (self._stop.wait(min(wait, 1.0) if last else wait) and not last):
                raise Stopping(str(trouble))
            wait = min(2 * wait, _LONGEST_WAIT)

    def _once(self, content_type: str, body: bytes, target: str | None) -> bytes:
        compressed = gzip.compress(body, 1)
        headers = {"Host": self._host, "Content-Type": content_type, "Content-Encoding": "gzip"}
        if target:
            headers["X-Amz-Target"] = target
        signed = sign(self._metadata.credentials(), self._region, self._name, headers, compressed, time.time())
        if self._connection is None:
            kind: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
            if self._secure:
                kind = http.client.HTTPSConnection
            self._connection = kind(self._host, timeout=30)
        self._connection.request("POST", "/", compressed, signed)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise _refusal(answer.status, content)
        return content

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _refusal(status: int, content: bytes) -> ServiceError:
    text = content.decode("utf-8", "replace")
    try:
        error = json.loads(text)
        return ServiceError(
            status, str(error.get("__type", "")).rpartition("#")[2], str(error.get("message", error.get("Message", "")))
        )
    except (ValueError, AttributeError):
        code = re.search(r"<Code>([^<]*)</Code>", text)
        message = re.search(r"<Message>([^<]*)</Message>", text)
        return ServiceError(status, code.group(1) if code else "Unknown", message.group(1) if message else text[:200])
