"""The drain hook as role drain_hook installs it, and an instance metadata service on loopback that it can ask."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.role_modules import role_module

ROOT = Path(__file__).resolve().parents[3]
FILES = ROOT / "onhost" / "drain_hook"
INSTANCE = {"instance-id": "i-0011223344556677a", "placement/region": "us-east-1"}
SPOT = {"spot/instance-action": '{"action": "terminate", "time": "2026-11-23T10:02:00Z"}'}
ALL = "spot-interruption,autoscaling-termination,rebalance-recommendation,maintenance-event"


def hook_module(name: str) -> ModuleType:
    """A module of the drain hook, for example "notices"."""
    return role_module(FILES, f"drain_hook.{name}")


class _Handler(BaseHTTPRequestHandler):
    server: FakeMetadata

    def do_PUT(self) -> None:
        self.server.issued += 1
        self._send(200, f"token-{self.server.issued}")

    def do_GET(self) -> None:
        time.sleep(self.server.delay_s)
        if self.headers.get("X-aws-ec2-metadata-token") != f"token-{self.server.issued}":
            self._send(401, "")
            return
        category = self.path.removeprefix("/latest/meta-data/")
        self.server.asked.append(category)
        found = self.server.categories.get(category)
        self._send(404 if found is None else self.server.status, found or "")

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


class FakeMetadata(ThreadingHTTPServer):
    """IMDSv2 of an instance. `issued`: tokens; only the newest is valid, so `issued += 1` lets a token expire."""

    daemon_threads = True

    def __init__(self, **categories: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.categories = INSTANCE | categories
        self.asked: list[str] = []
        self.issued, self.delay_s, self.status = 0, 0.0, 200
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def __exit__(self, *args: object) -> None:
        self.shutdown()
        super().__exit__(*args)


class Installed:
    """The files as the roles lay them, with folders of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scripts = folder / "drain.d"
        self.log = folder / "drain.jsonl"
        self.state = folder / "state.json"
        self.ran = folder / "ran"
        self.scripts.mkdir()
        shutil.copytree(FILES, folder / "opt" / "drain", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "onhost/event_parser", folder / "opt" / "nvidia")

    def script(self, name: str, body: str, mode: int = 0o755) -> None:
        """A script that notes its name in the file `ran` first."""
        path = self.scripts / name
        path.write_text(f"#!/bin/sh\necho {name} >> {self.ran}\n{body}\n")
        path.chmod(mode)

    def command(self, imds: str, *options: str) -> list[str]:
        return [
            sys.executable, "-sSE", str(self.folder / "opt/drain/gpu-ami-drain-hook.py"), "--imds", imds,
            "--log", str(self.log), "--state", str(self.state), "--status", str(self.folder / "status.json"),
            "--scripts", str(self.scripts), "--drill-scripts", str(self.folder / "opt/drain/drill.d"),
            "--interval", "0.2", *([] if "--notices" in options else ["--notices", ALL]), *options,
        ]  # fmt: skip

    def start(self, imds: str, *options: str, **environment: str) -> subprocess.Popen[str]:
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(self.command(imds, *options), env={"PATH": "/usr/bin:/bin", **environment}, **pipes)

    def once(self, imds: str, *options: str) -> tuple[int, str]:
        running = self.start(imds, "--once", *options)
        output, _ = running.communicate(timeout=60)
        return running.returncode, output

    def lines(self, event: str = "") -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
        return [row for row in rows if event in ("", row["event"])]

    def names_run(self) -> list[str]:
        return self.ran.read_text().split() if self.ran.exists() else []
