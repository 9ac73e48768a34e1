"""The mirror's web server: serves the files of the current tree on loopback."""

from __future__ import annotations

import os
import shutil
import threading
import urllib.parse
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_CHUNK = 256 * 1024


class Mirror:
    """Serves `home/mirror/current` on loopback, GET and HEAD, files only."""

    def __init__(self, home: Path) -> None:
        self._root = home / "mirror" / "current"
        self._server: ThreadingHTTPServer | None = None

    def start(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> int:
        """Serves from a thread of its own; the port (a free one of the loopback, unless `address` says another)."""
        server = ThreadingHTTPServer(address, _handler(self._root))
        server.daemon_threads = True
        self._server = server
        threading.Thread(target=server.serve_forever, name="package-mirror", daemon=True).start()
        return int(server.server_address[1])

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def locate(root: Path, request_path: str) -> Path | None:
    """The regular file that a request names; None for anything else, such as a path outside the tree."""
    path = urllib.parse.unquote(urllib.parse.urlsplit(request_path).path)
    if "\0" in path or ".." in path.split("/"):
        return None
    real_root = root.resolve()
    file = (real_root / path.lstrip("/")).resolve()
    inside = file.is_relative_to(real_root) and file != real_root / "mirror.json"
    return file if inside and file.is_file() else None


def _handler(root: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            file = locate(root, self.path)
            if file is None:
                self.send_error(HTTPStatus.NOT_FOUND, f"the mirror has no {self.path[:200]}")
                return
            with file.open("rb") as body:
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", "application/octet-stream")
                self.send_header("Content-Length", str(os.fstat(body.fileno()).st_size))
                self.send_header("Last-Modified", self.date_time_string(int(file.stat().st_mtime)))
                self.end_headers()
                if with_body:
                    shutil.copyfileobj(body, self.wfile, _CHUNK)

        def log_message(self, format: str, *args: object) -> None:
            """Silent: the region keeps no access log of its packages."""

    return Handler
