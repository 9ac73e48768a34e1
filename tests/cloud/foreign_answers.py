"""Answers that AWS never gives, put in the place of real ones: bodies of something else, and answers with a hole.

Between botocore and the endpoint: a call that is answered by something else does not arrive.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from gpu_ami.cloud import Cloud

ERROR = "<Response><Errors><Error><Code>InternalError</Code></Error></Errors><RequestID>1</RequestID></Response>"
BODIES: dict[str, tuple[int, str]] = {
    "a login page": (200, "<html><body><form>Sign in</form></body></html>"),
    "a login page that is no XML": (200, "<!doctype html><p>Sign in<br>"),
    "an error document with status 200": (200, ERROR),
    "nothing": (200, ""),
    "half a document": (200, ERROR[:50]),
    "JSON": (200, '{"Reservations": []}'),
    "a JSON list": (200, "[]"),
    "a proxy's 407": (407, "<html>Proxy Authentication Required</html>"),
    "a 404 of a web server": (404, "Not Found"),
    "a redirect": (302, ""),
}


@dataclass
class Wire:
    """What passes between botocore and AWS. operation: whose answers are replaced or changed, of all regions."""

    operation: str = ""
    body: tuple[int, str] | None = None
    change: Callable[[bytes], bytes] | None = None
    answers: dict[str, bytes] = field(default_factory=dict)  # the longest of each operation
    replaced: int = 0

    def watch(self, client: Any) -> None:
        service = client.meta.service_model.service_id.hyphenize()
        for operation in client.meta.service_model.operation_names:
            client.meta.events.register(f"before-send.{service}.{operation}", self._send(operation))
        client.meta.events.register("before-parse", self._parse)

    def _send(self, operation: str) -> Callable[..., AWSResponse | None]:
        def send(request: Any, **_: Any) -> AWSResponse | None:
            if operation != self.operation or self.body is None:
                return None
            self.replaced += 1
            status, text = self.body
            raw: Any = BytesIO(text.encode())
            raw.stream = lambda *_, **__: iter([text.encode()])
            return AWSResponse(request.url, status, {"Content-Length": str(len(text))}, raw)

        return send

    def _parse(self, operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
        name, body = operation_model.name, response_dict["body"]
        if len(body) > len(self.answers.get(name, b"")):
            self.answers[name] = body
        if name == self.operation and self.change is not None and response_dict["status_code"] == 200:
            self.replaced += 1
            response_dict["body"] = self.change(body)

    def replace(self, operation: str, body: tuple[int, str] | None = None, change: Any = None) -> None:
        self.operation, self.body, self.change, self.replaced = operation, body, change, 0


def watch_clients(monkeypatch: pytest.MonkeyPatch, watch: Callable[[Any], object]) -> None:
    """Calls `watch` once with every client that a Cloud makes from now on."""
    make, watched = Cloud.client, list[Any]()

    def client(cloud: Cloud, service: str) -> Any:
        made = make(cloud, service)
        if made not in watched:
            watched.append(made)
            watch(made)
        return made

    monkeypatch.setattr(Cloud, "client", client)


def wire_of(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Watches every client that a Cloud makes from now on."""
    wire = Wire()
    watch_clients(monkeypatch, wire.watch)
    return wire


def holes(body: bytes) -> Iterator[tuple[str, Callable[[bytes], bytes]]]:
    """Each element or key of an answer: without it, and with nothing or another kind of value in it."""
    if body.lstrip().startswith(b"{"):
        for key in dict.fromkeys(_keys(json.loads(body))):
            yield f"no {key}", lambda text, key=key: _without(text, key)
            yield f"{key} is null", lambda text, key=key: _with(text, key, None)
            yield f"{key} is a text", lambda text, key=key: _with(text, key, "x")
        return
    for name in dict.fromkeys(re.findall(r"<(\w+)[ />]", body.decode())):
        if name.endswith(("Response", "equestId")):
            continue
        element = re.compile(rf"<{name}(?: [^>]*)?>.*?</{name}>|<{name}/>".encode(), re.DOTALL)
        yield f"no {name}", lambda text, element=element: element.sub(b"", text)
        yield (
            f"{name} is a text",
            lambda text, element=element, name=name: element.sub(f"<{name}>x</{name}>".encode(), text),
        )


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)


def _without(text: bytes, key: str) -> bytes:
    return json.dumps(json.loads(text, object_hook=lambda row: {k: v for k, v in row.items() if k != key})).encode()


def _with(text: bytes, key: str, value: object) -> bytes:
    def put(row: dict[str, object]) -> dict[str, object]:
        return row | ({key: value} if key in row else {})

    return json.dumps(json.loads(text, object_hook=put)).encode()
