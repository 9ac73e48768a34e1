"""The client of Kubernetes' API, against a server of this process."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from validator.probes.cluster import kubernetes
from validator.probes.cluster.kubernetes import ApiError, Client

SEEN: list[tuple[str, str, str | None, Any]] = []
ANSWERS: dict[str, tuple[int, str]] = {}


class Handler(BaseHTTPRequestHandler):
    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parsed = json.loads(body) if body else None
        SEEN.append((self.command, self.headers["Content-Type"], self.headers.get("Authorization"), parsed))
        status, text = ANSWERS.get(self.path, (200, "{}"))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_PATCH = do_DELETE = answer

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def client() -> Iterator[Client]:
    SEEN.clear()
    ANSWERS.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield Client(f"http://127.0.0.1:{server.server_address[1]}", ssl.create_default_context(), lambda: "secret")
    server.shutdown()
    server.server_close()


def test_verbs_token_and_content(client: Client) -> None:
    ANSWERS["/api?labelSelector=a%3Db"] = (200, '{"items": []}')
    assert client.get("/api", labelSelector="a=b") == {"items": []}
    client.create("/api", {"kind": "Pod"})
    client.patch("/api", {"spec": {}})
    assert client.delete("/api", 0) is True
    assert [row[0] for row in SEEN] == ["GET", "POST", "PATCH", "DELETE"]
    assert {row[2] for row in SEEN} == {"Bearer secret"}
    assert SEEN[2][1] == "application/strategic-merge-patch+json" and SEEN[3][3]["gracePeriodSeconds"] == 0


def test_text_that_is_no_json_is_text(client: Client) -> None:
    ANSWERS["/readyz"] = (200, "ok")
    assert client.get("/readyz") == "ok"


def test_what_is_not_there(client: Client) -> None:
    ANSWERS["/api"] = (404, '{"reason": "NotFound", "message": "pods \\"x\\" not found"}')
    assert client.find("/api") is None and client.delete("/api") is False


def test_an_error_names_call_reason_and_message(client: Client) -> None:
    ANSWERS["/api"] = (403, '{"reason": "Forbidden", "message": "no"}')
    for call in (client.get, client.find, client.delete):
        with pytest.raises(ApiError, match="/api: Forbidden: no") as caught:
            call("/api")
        assert caught.value.status == 403
    ANSWERS["/x"] = (502, "bad gateway")
    with pytest.raises(ApiError, match="GET /x: 502: bad gateway"):
        client.get("/x")


def test_nothing_listens() -> None:
    with pytest.raises(ApiError, match="refused") as caught:
        Client("http://127.0.0.1:1", ssl.create_default_context()).get("/x")
    assert caught.value.status == 0


def test_an_authority_that_is_none() -> None:
    with pytest.raises(ssl.SSLError):
        kubernetes.trusting("x")
