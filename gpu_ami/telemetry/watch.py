"""Serves the page on this machine's loopback, read again from CloudWatch when a browser asks and it is old."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gpu_ami.errors import GpuAmiError

_HOSTS = ("127.0.0.1", "localhost")


class Cached:
    """What `make` returned, made again when it is older than `seconds`. Thread-safe."""

    def __init__(self, make: Callable[[], str], seconds: float) -> None:
        self._make, self._seconds = make, seconds
        self._lock = threading.Lock()
        self._made_at, self._text = -1.0, ""

    def __call__(self) -> str:
        with self._lock:
            if self._made_at < 0 or time.monotonic() - self._made_at >= self._seconds:
                self._text, self._made_at = self._make(), time.monotonic()
            return self._text


def server(make: Callable[[], str], port: int, seconds: float) -> ThreadingHTTPServer:
    """A server on 127.0.0.1; its caller runs `serve_forever`. port: 0 for any that is free."""
    page = Cached(make, seconds)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Another name in Host leads here only by a DNS entry of a foreign page.
            if (self.headers.get("Host") or "").rpartition(":")[0] not in _HOSTS:
                self.send_error(HTTPStatus.FORBIDDEN)
            elif self.path != "/":
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                self._answer(*_made(page))

        def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
            body = text.encode("utf-8", "backslashreplace")
            self.send_response(status)
            self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing: a browser that asks is no news."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def _made(page: Callable[[], str]) -> tuple[HTTPStatus, str, str]:
    try:
        return HTTPStatus.OK, "html", page()
    except GpuAmiError as error:
        return HTTPStatus.BAD_GATEWAY, "plain", f"{error}\n"
