"""An answer that never ends: the time limit holds for a whole request, not for each byte of its answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import HTTPClientError

from validator import call_deadline

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"


@pytest.fixture(params=["body", "headers", "status line"])
def dripping(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that sends one byte after the other, without an end."""
    sent_at_once = {"body": HEAD, "headers": b"HTTP/1.1 200 OK\r\nX-Long: ", "status line": b"HTTP/1.1 200 "}
    server, ended = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def drip() -> None:
        connection, _ = server.accept()
        connection.sendall(sent_at_once[request.param])
        while not ended.wait(0.05):
            connection.sendall(b"x")

    threading.Thread(target=drip, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    ended.set()
    server.close()


def test_a_dripping_answer_is_given_up(dripping: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_deadline, "CALL_SECONDS", 0.5)
    config = Config(retries={"total_max_attempts": 1}, read_timeout=60)
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    client = boto3.client("ec2", "us-east-1", endpoint_url=dripping, config=config, **keys)
    call_deadline.limit(client)
    started = time.monotonic()
    with pytest.raises(HTTPClientError, match=r"no complete answer from .* within 0 s"):
        client.describe_instances()
    assert time.monotonic() - started < 30
