"""Machines without QEMU whose SSM Agent is the region's own replica: it runs real shell in a folder of its own.

Each is a thread. The programs of a machine (systemctl, dpkg, …) are what its folder `bin` has, before this host's.
"""

from __future__ import annotations

import importlib.util
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

from localregion.backends import instance_access_key

PROGRAM = Path(__file__).resolve().parents[2] / "localregion" / "replicas" / "ssm_agent" / "amazon_ssm_agent.py"


def load_agent() -> ModuleType:
    spec = importlib.util.spec_from_file_location("amazon_ssm_agent", PROGRAM)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class MetadataService:
    """IMDSv2 with the credentials of one instance's profile; none where it has no role."""

    def __init__(self, instance_id: str, role: str) -> None:
        keys = json.dumps({"AccessKeyId": instance_access_key(instance_id), "SecretAccessKey": "s", "Token": "t"})
        folder = "/latest/meta-data/iam/security-credentials/"
        own = {"/latest/api/token": "token", "/latest/meta-data/instance-id": instance_id}
        found = {**own, **({folder: role, folder + role: keys} if role else {})}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = found.get(self.path, "").encode()
                self.send_response(200 if body else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_PUT = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class ManagedMachine:
    """One instance's machine: its files under `root`, and its agent while it is started."""

    def __init__(self, endpoint: str, instance_id: str, root: Path, role: str = "gpu-ami-local") -> None:
        self.instance_id, self.root = instance_id, root
        self.programs = root / "bin"
        self.programs.mkdir(parents=True)
        self._metadata = MetadataService(instance_id, role)
        self.environment = {
            "PATH": f"{self.programs}:{os.environ['PATH']}", "GPU_AMI_ROOT": str(root),
            "GPU_AMI_API": endpoint, "GPU_AMI_METADATA": self._metadata.url,
        }  # fmt: skip
        self._agent: Any = None
        self._thread: threading.Thread | None = None

    def program(self, name: str, text: str) -> None:
        path = self.programs / name
        path.write_text(text)
        path.chmod(0o755)

    @property
    def is_started(self) -> bool:
        return self._agent is not None

    def start(self) -> None:
        self._agent = load_agent().Agent(self.environment)
        self._thread = threading.Thread(target=self._agent.run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops the agent; what it runs is over first."""
        if self._agent is not None and self._thread is not None:
            self._agent.stopped = True
            self._thread.join(10)
            self._agent = None

    def close(self) -> None:
        self.stop()
        self._metadata.close()
