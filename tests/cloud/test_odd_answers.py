"""An API that misbehaves: whatever it answers, an error that says so, exit code 4, within a time limit."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import cli
from gpu_ami.cloud import Cloud, Place, aws_errors
from gpu_ami.cloud.place import Credentials
from gpu_ami.errors import CloudError
from validator import call_deadline

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
PAGE = (
    f'<?xml version="1.0"?><DescribeInstancesResponse xmlns="{NAMESPACE}"><requestId>1</requestId><reservationSet/>'
    "<nextToken>TOKEN</nextToken></DescribeInstancesResponse>"
)
ERROR = "<Response><Errors><Error><Code>InternalError</Code></Error></Errors><RequestID>1</RequestID></Response>"
NUMBERS = count()
Handler = http.server.BaseHTTPRequestHandler


def send(handler: Handler, body: str, length: int | None = None) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body.encode())


def reset(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(PAGE)))
    handler.end_headers()
    handler.wfile.write(PAGE[:40].encode())
    handler.wfile.flush()
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    handler.connection.close()
    handler.close_connection = True


def drip(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    with contextlib.suppress(OSError):
        for _ in range(1_000):
            handler.wfile.write(b" ")
            time.sleep(0.1)


ANSWERS: dict[str, tuple[Callable[[Handler], None], str]] = {
    "half a document": (lambda handler: send(handler, PAGE[: len(PAGE) // 2]), "the answer is not one of AWS"),
    "an error with status 200": (lambda handler: send(handler, ERROR), "the answer is not one of AWS: it has no"),
    "a content-length that is too small": (lambda handler: send(handler, PAGE, 60), "the answer is not one of AWS"),
    "the same page forever": (lambda handler: send(handler, PAGE), "the answer is not one of AWS: Error during pagin"),
    "pages without an end": (
        lambda handler: send(handler, PAGE.replace("TOKEN", f"t{next(NUMBERS)}")),
        "no end of answers after 5 s",
    ),
    "connections reset in the middle": (reset, "listing instances of run r: "),
    "one byte after the other": (drip, "no complete answer from "),
    "nothing": (lambda handler: send(handler, ""), "the answer is not one of AWS"),
}


@pytest.fixture(params=ANSWERS)
def odd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """A server that answers so, and what is said of it."""
    answer, said = ANSWERS[request.param]

    class Odd(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer(self)

        def log_message(self, *_: Any) -> None: ...

    if request.param == "one byte after the other":
        monkeypatch.setattr(call_deadline, "CALL_SECONDS", 0.5)
    if request.param == "pages without an end":
        monkeypatch.setattr(aws_errors, "ACTION_SECONDS", 5.0)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", said
    server.shutdown()


def test_a_listing_ends_with_an_error_that_names_the_answer(odd: tuple[str, str]) -> None:
    endpoint, said = odd
    cloud = Cloud(Place("odd", "us-east-1", endpoint=endpoint, credentials=Credentials("a", "b")))
    with pytest.raises(CloudError) as caught:
        cloud.shutting_down("r")
    assert said in str(caught.value) and caught.value.hint and caught.value.exit_code == 4


def test_sweep_ends_with_4_and_without_a_traceback(
    odd: tuple[str, str],
    tmp_path: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    where = tmp_path / "aws.yml"
    where.write_text(json.dumps({"region": "us-east-1", "endpoint": odd[0]}))
    assert cli.main(["sweep", "--where", str(where)]) == 4
    assert "Traceback" not in capsys.readouterr().err
