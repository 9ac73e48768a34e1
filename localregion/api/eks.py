"""WSGI application before moto's: calls of EKS that the region answers itself, and its API servers' token reviews."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from localregion.api.protocol import CREDENTIAL, ErrorAnswer, read_body, send, unpack
from localregion.backends import Refused

if TYPE_CHECKING:
    from localregion.eks import Eks

_REVIEW = re.compile(r"/gpu-ami/eks/(?P<name>[^/]+)/token-review")
_JSON = [("Content-Type", "application/json"), ("x-amzn-RequestId", "local")]


class EksLayer:
    """Answers what `eks` knows; every other call is `app`'s. eks: makes it at the first call."""

    def __init__(self, app: WSGIApplication, eks: Callable[[], Eks]) -> None:
        self._app, self._eks = app, eks

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path, method = environ.get("PATH_INFO", ""), environ.get("REQUEST_METHOD", "GET")
        review = _REVIEW.fullmatch(path)
        if review:
            answer: dict[str, Any] | None = self._eks().review(review["name"], read_body(environ))
            return send(start_response, "200 OK", _JSON, json.dumps(answer).encode())
        signed = CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
        if signed is None or signed["service"] != "eks":
            return self._app(environ, start_response)
        unpack(environ)
        eks = self._eks()
        try:
            answer = eks.answer(method, path, _body(environ, method))
        except Refused as error:
            status, headers, body = ErrorAnswer(error.code, error.message, error.status).encode("rest-json")
            return send(start_response, status, headers, body)
        if answer is None:
            return self._app(environ, start_response)
        return send(start_response, "200 OK", _JSON, json.dumps(answer).encode())


def _body(environ: WSGIEnvironment, method: str) -> dict[str, Any]:
    try:
        document = json.loads(read_body(environ) or b"{}") if method == "POST" else {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
