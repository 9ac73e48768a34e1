"""Kubernetes' API over HTTPS: the few calls that a proof makes, of the stable group v1.

No client library: five verbs and JSON. Source: Kubernetes API reference (v1: Node, Pod, Status).
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

_SECONDS = 30.0
_CONTENT = {"PATCH": "application/strategic-merge-patch+json"}


class ApiError(Exception):
    """A call that failed. status: HTTP's; 0 where nothing answered. reason: of the API's Status, such as NotFound."""

    def __init__(self, call: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{call}: {reason or status}: {message}" if status else f"{call}: {message}")
        self.status, self.reason = status, reason


class Client:
    """One cluster. context: trusts its authority, and may log in with a certificate. token: a bearer token, asked for
    at each call; None: the certificate is enough."""

    def __init__(self, endpoint: str, context: ssl.SSLContext, token: Callable[[], str] | None = None) -> None:
        self.endpoint, self._token = endpoint.rstrip("/"), token
        # No proxy of the environment: a cluster's endpoint is an address of its own.
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def get(self, path: str, **query: str) -> Any:
        """An object, a list, or the text of a path that has no JSON. ApiError."""
        return self._call("GET", f"{path}?{urlencode(query)}" if query else path)

    def create(self, path: str, document: Mapping[str, Any]) -> Any:
        return self._call("POST", path, document)

    def patch(self, path: str, document: Mapping[str, Any]) -> Any:
        return self._call("PATCH", path, document)

    def delete(self, path: str, grace_seconds: int | None = None) -> bool:
        """False: there was none."""
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        try:
            self._call("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **options})
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def find(self, path: str) -> dict[str, Any] | None:
        """The object; None where there is none."""
        try:
            return dict(self.get(path))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def _call(self, verb: str, path: str, document: Mapping[str, Any] | None = None) -> Any:
        data = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(f"{self.endpoint}{path}", data, method=verb)
        request.add_header("Content-Type", _CONTENT.get(verb, "application/json"))
        request.add_header("Accept", "application/json")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token()}")
        call = f"{verb} {path.partition('?')[0]}"
        try:
            with self._opener.open(request, timeout=_SECONDS) as answer:
                return _parsed(answer.read())
        except urllib.error.HTTPError as error:
            status = _parsed(error.read())
            told = status if isinstance(status, dict) else {}
            raise ApiError(call, error.code, str(told.get("reason", "")), _message(told, status)) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise ApiError(call, 0, "", f"{self.endpoint}: {reason}") from error


def _parsed(raw: bytes) -> Any:
    text = raw.decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text


def _message(told: Mapping[str, Any], status: Any) -> str:
    return str(told.get("message", "")) or str(status)[:300] or "no message"


def trusting(authority: str) -> ssl.SSLContext:
    """A context that trusts one authority (PEM) alone. ssl.SSLError: it is none."""
    return ssl.create_default_context(cadata=authority)


def conditions(node: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Type → status and message of a node's or pod's conditions."""
    rows = node.get("status", {}).get("conditions") or []
    return {str(row["type"]): (str(row["status"]), str(row.get("message", ""))) for row in rows}
