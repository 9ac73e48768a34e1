"""IMDSv2: tokens, categories that are not there, and services that do not answer."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from tests.onhost.drain_hook.programs import FakeMetadata, hook_module

metadata = hook_module("metadata")


def test_a_category_needs_a_token_and_may_be_missing() -> None:
    with FakeMetadata() as imds:
        found = metadata.Metadata(imds.address)
        assert found.get("instance-id") == "i-0011223344556677a"
        assert found.get("spot/instance-action") is None
        assert imds.issued == 1


def test_an_expired_token_is_renewed() -> None:
    with FakeMetadata() as imds:
        found = metadata.Metadata(imds.address)
        found.get("instance-id")
        imds.issued += 1
        assert found.get("instance-id") == "i-0011223344556677a"
        assert imds.issued == 3


@pytest.mark.parametrize("status", [401, 403, 500])
def test_other_answers_are_errors(status: int) -> None:
    with FakeMetadata() as imds:
        imds.status = status
        with pytest.raises(metadata.MetadataError, match=f"instance-id: expected status 200 or 404, got {status}"):
            metadata.Metadata(imds.address).get("instance-id")


def test_a_service_that_is_off_gives_no_token() -> None:
    with FakeMetadata() as imds, pytest.raises(metadata.MetadataError, match="expected a token, got status 200"):
        imds.issued = 7
        found = metadata.Metadata(imds.address)
        found.ask = lambda *_: (200, "a\nb")
        found.get("instance-id")


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(metadata.MetadataError, match=f"no answer from http://127.0.0.1:{port}: .*refused"):
        metadata.Metadata(f"http://127.0.0.1:{port}").get("instance-id")


def test_a_slow_service_is_left_after_the_timeout() -> None:
    with FakeMetadata() as imds:
        imds.delay_s = 2.0
        began = time.monotonic()
        with pytest.raises(metadata.MetadataError, match="timed out"):
            metadata.Metadata(imds.address, timeout_s=0.2).get("instance-id")
        assert time.monotonic() - began < 1.5


@pytest.mark.parametrize(
    ("part", "pause", "said"), [(b"x", 0.05, "took more than"), (b"x" * 65536, 0.0, "more than 65536")]
)
def test_an_endless_answer_is_left(part: bytes, pause: float, said: str) -> None:
    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            try:
                while True:
                    connection.sendall(part)
                    time.sleep(pause)
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drip, daemon=True).start()
        with pytest.raises(metadata.MetadataError, match=said):
            metadata.Metadata(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.3).get("instance-id")


def test_what_is_no_http_is_an_error() -> None:
    def talk() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"SSH-2.0-x\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=talk, daemon=True).start()
        with pytest.raises(metadata.MetadataError, match="no answer from"):
            metadata.Metadata(f"http://127.0.0.1:{listener.getsockname()[1]}").get("instance-id")
