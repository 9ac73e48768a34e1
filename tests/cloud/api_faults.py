"""Faults of an API, injected between botocore and the endpoint: refusals, lost answers, changed answers.

An operation's faults are used up one a request, retries of botocore included; `ALWAYS` repeats the last one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import pytest
from botocore import exceptions
from botocore.awsrequest import AWSResponse
from botocore.httpsession import URLLib3Session

from tests.cloud.foreign_answers import watch_clients

ALWAYS = 1_000_000
Send = Callable[[], Any]
Fault = Callable[[Any, Send], Any]


def answered(request: Any, status: int, body: bytes, **headers: str) -> AWSResponse:
    raw: Any = BytesIO(body)
    raw.stream = lambda *_, **__: iter([body])
    return AWSResponse(request.url, status, {"Content-Length": str(len(body)), **headers}, raw)


def refused(code: str, status: int = 400, message: str = "said AWS") -> Fault:
    """The service's own error, in its protocol."""

    def fault(request: Any, _: Send) -> Any:
        if "X-Amz-Target" in request.headers or "/json" in str(request.headers.get("Content-Type", "")):
            body = json.dumps({"__type": code, "message": message, "Message": message}).encode()
            return answered(request, status, body, **{"x-amzn-RequestId": "1", "x-amzn-errortype": code})
        error = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
        of_ec2 = f"<Response><Errors>{error}</Errors><RequestID>1</RequestID></Response>"
        of_query = f"<ErrorResponse>{error}<RequestId>1</RequestId></ErrorResponse>"
        body = (
            of_ec2 if ".ec2." in f".{request.url}" or b"Version=2016-11-15" in _body(request) else of_query
        ).encode()
        return answered(request, status, body)

    return fault


def lost(_: Any, send: Send) -> Any:
    """The call is carried out, and its answer does not arrive."""
    send()
    raise exceptions.ReadTimeoutError(endpoint_url="https://aws")


def changed(change: Callable[[bytes], bytes]) -> Fault:
    """The answer with another body."""

    def fault(request: Any, send: Send) -> Any:
        response = send()
        body = change(response.content)
        headers = {key: value for key, value in response.headers.items() if key.lower() != "content-length"}
        return answered(request, response.status_code, body, **headers)

    return fault


def _body(request: Any) -> bytes:
    body = request.body or b""
    return body if isinstance(body, bytes) else str(body).encode()


@dataclass
class Faults:
    """Handles botocore's event `before-send` of the clients that it watches."""

    _planned: dict[str, list[tuple[Fault, int]]] = field(default_factory=dict)

    def inject(self, operation: str, fault: Fault, times: int = 1) -> None:
        self._planned.setdefault(operation, []).append((fault, times))

    def clear(self) -> None:
        self._planned.clear()

    def send(self, request: Any, event_name: str, **_: Any) -> Any:
        """The answer of a planned fault; None: the request is sent as it is."""
        planned = self._planned.get(event_name.rpartition(".")[2], [])
        if not planned:
            return None
        fault, times = planned.pop(0)
        if times > 1:
            planned.insert(0, (fault, times - 1))
        return fault(request, lambda: URLLib3Session().send(request))


def faults_of(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Of every client that a Cloud makes from now on."""
    faults = Faults()
    watch_clients(monkeypatch, lambda made: made.meta.events.register("before-send", faults.send))
    return faults
