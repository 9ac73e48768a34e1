"""Plays notices of interruption to the drain hook that is installed on this host, with the script of a drill.

interruption_drill.py PROGRAM SCRIPTS KIND…: a metadata service on loopback tells first nothing, then a notice of each
KIND, then the same ones again. Prints JSON: for each of the three looks the program's exit status, the notices whose
scripts ran with their outcomes, and the end of its output. The running hook, its state and its log are not touched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from socketserver import StreamRequestHandler, TCPServer
from typing import Any, Dict, List

_SECONDS = 60  # for one look
_TOKEN = "drill"
_INSTANCE = {"instance-id": "i-00000000000000000", "placement/region": "drill"}
_EVENT = {"Code": "instance-reboot", "EventId": "instance-event-0", "NotBefore": "drill", "State": "active"}
_CATEGORIES = {
    "spot-interruption": ("spot/instance-action", '{"action": "terminate", "time": "2030-01-01T00:02:00Z"}'),
    "autoscaling-termination": ("autoscaling/target-lifecycle-state", "Terminated"),
    "rebalance-recommendation": ("events/recommendations/rebalance", '{"noticeTime": "2030-01-01T00:00:00Z"}'),
    "maintenance-event": ("events/maintenance/scheduled", json.dumps([_EVENT])),
}
_told: Dict[str, str] = dict(_INSTANCE)


class Metadata(StreamRequestHandler):
    """IMDSv2: a token first, 404 where there is no notice. http.server would take longer to import than to serve."""

    timeout = 10

    def handle(self) -> None:
        method, path = self.rfile.readline().decode("ascii").split()[:2]
        headers, line = {}, self.rfile.readline().decode("ascii")
        while line.strip():
            name, _, value = line.partition(":")
            headers[name.lower()], line = value.strip(), self.rfile.readline().decode("ascii")
        status, text = 200, _told.get(path.replace("/latest/meta-data/", "", 1))
        if method == "PUT":
            text = _TOKEN
        elif headers.get("x-aws-ec2-metadata-token") != _TOKEN:
            status, text = 401, ""
        elif text is None:
            status, text = 404, ""
        self.wfile.write(b"HTTP/1.0 %d -\r\nContent-Length: %d\r\n\r\n" % (status, len(text or "")))
        self.wfile.write((text or "").encode("ascii"))


def look(program: str, scripts: str, kinds: List[str], folder: str, port: int) -> Dict[str, Any]:
    """One look of the program; its state is that of the looks before."""
    log = os.path.join(folder, "log")
    before = len(_lines(log))
    options = {"imds": "http://127.0.0.1:%d" % port, "scripts": scripts, "notices": ",".join(kinds), "log": log}
    options.update({name: os.path.join(folder, name) for name in ("state", "status")})
    words = ["/usr/bin/python3", "-sSE", program, "--once", *("--%s=%s" % option for option in options.items())]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_SECONDS
        )
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as expired:
        status, output = 124, expired.stdout or b""
    ended = [json.loads(line) for line in _lines(log)[before:] if '"event":"drained"' in line]
    drained = {line["notice"]: {ran["name"]: ran["outcome"] for ran in line["scripts"]} for line in ended}
    return {"status": status, "drained": drained, "output": output[-1000:].decode("utf-8", "replace")}


def _lines(path: str) -> List[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def main(program: str, scripts: str, *kinds: str) -> int:
    server = TCPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = tempfile.mkdtemp(prefix="gpu-ami-drill-")
    looks = []
    try:
        for notices in ({}, dict(_CATEGORIES[kind] for kind in kinds), {}):
            _told.update(notices)
            looks.append(look(program, scripts, list(kinds), folder, server.server_address[1]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    json.dump(looks, sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
