"""The instance metadata service, IMDSv2 alone. No proxy of the environment is used."""

from __future__ import annotations

import http.client
import time
from typing import Mapping, Optional, Tuple
from urllib.parse import urlsplit

ADDRESS = "http://169.254.169.254"
_TOKEN = "X-aws-ec2-metadata-token"
_TTL = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
_LIMIT = 65536  # bytes of an answer


class MetadataError(Exception):
    """No answer, or not one of the metadata service."""


class Metadata:
    """Reads categories. The token is renewed when it is refused: after six hours, or after a stop and a start."""

    def __init__(self, address: str = ADDRESS, timeout_s: float = 2.0) -> None:
        parts = urlsplit(address)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._address = address
        self._timeout_s = timeout_s
        self._token = ""

    def get(self, category: str) -> Optional[str]:
        """The text of a category ("spot/instance-action"); None where there is none (404). MetadataError otherwise."""
        path = "/latest/meta-data/" + category
        status, text = 401, ""
        if self._token:
            status, text = self.ask("GET", path, {_TOKEN: self._token})
        if status == 401:
            self._token = self._new_token()
            status, text = self.ask("GET", path, {_TOKEN: self._token})
        if status == 404:
            return None
        if status != 200:
            raise MetadataError("%s%s: expected status 200 or 404, got %d" % (self._address, path, status))
        return text

    def _new_token(self) -> str:
        status, text = self.ask("PUT", "/latest/api/token", _TTL)
        if status != 200 or not text.isprintable() or not text:
            raise MetadataError("%s/latest/api/token: expected a token, got status %d" % (self._address, status))
        return text

    def ask(self, method: str, path: str, headers: Mapping[str, str]) -> Tuple[int, str]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request(method, path, headers=dict(headers))
            response = connection.getresponse()
            return response.status, self._body(response).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise MetadataError("no answer from %s: %s" % (self._address, error or type(error).__name__)) from error
        finally:
            connection.close()

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        """At most _LIMIT bytes, also of a service that sends them one by one."""
        body, until = b"", time.monotonic() + self._timeout_s
        while len(body) < _LIMIT:
            part = response.read1(_LIMIT)
            if not part:
                return body
            body += part
            if time.monotonic() > until:
                raise OSError("the answer took more than %g s" % self._timeout_s)
        raise OSError("the answer has more than %d bytes" % _LIMIT)
