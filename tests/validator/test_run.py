"""A run of the validator: options, inputs, tiers, deadlines of calls."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import HTTPClientError

from tests.validator.conftest import Run
from validator import deadline, tiers
from validator.inputs import read_bytes, read_text
from validator.selection import add_options

# The tiers: each says what it proves and what it leaves open; a check of an unknown tier is refused.


UNKNOWN = """
import pytest
@pytest.mark.tier("T9")
def test_of_files(host):
    assert host.run("true").rc == 0
"""


def test_every_tier_names_what_it_does_not_prove() -> None:
    assert tiers.NAMES == ("T0", "T1", "T2", "T3", "TN", "T4")
    assert all(tier.proves and tier.does_not_prove for tier in tiers.TIERS)
    assert len({tier.title for tier in tiers.TIERS}) == len({tier.proves for tier in tiers.TIERS}) == 6


def test_tier_that_does_not_exist_is_refused(run: Run) -> None:
    with pytest.raises(
        AssertionError, match="expected a tier of T0, T1, T2, T3, TN, T4, got 'T9'"
    ):  # there is no checks.json then
        run(UNKNOWN)


# Options: their types and defaults, and what is refused.


@pytest.fixture
def parser() -> pytest.Parser:
    made = pytest.Parser(_ispytest=True)
    add_options(made)
    return made


def test_defaults(parser: pytest.Parser) -> None:
    options = parser.parse([])
    assert (options.command_deadline, options.check_deadline, options.arrival_seconds) == (120.0, 1200.0, 900.0)
    assert (options.connect_timeout, options.roles_path, options.serial, options.no_evidence) == (
        15.0,
        [],
        False,
        False,
    )
    assert (options.plan, options.results, options.evidence, options.waivers) == (None, None, None, None)


def test_types(parser: pytest.Parser) -> None:
    options = parser.parse(["--plan=plan.json", "--check-deadline=5", "--roles-path=a", "--roles-path=b", "--tier=T1"])
    assert (options.plan, options.check_deadline) == (Path("plan.json"), 5.0)
    assert (options.roles_path, options.tier) == ([Path("a"), Path("b")], "T1")


@pytest.mark.parametrize("option", ["--tier=T9", "--check-deadline=soon"])
def test_what_is_refused(parser: pytest.Parser, option: str) -> None:
    with pytest.raises(pytest.UsageError, match=option.partition("=")[2]):
        parser.parse([option])


# An answer that never ends: the time limit holds for a whole request, not for each byte of its answer.


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
    monkeypatch.setattr(deadline, "CALL_SECONDS", 0.5)
    config = Config(retries={"total_max_attempts": 1}, read_timeout=60)
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    client = boto3.client("ec2", "us-east-1", endpoint_url=dripping, config=config, **keys)
    deadline.limit_requests(client)
    started = time.monotonic()
    with pytest.raises(HTTPClientError, match=r"no complete answer from .* within 0 s"):
        client.describe_instances()
    assert time.monotonic() - started < 30


# Files that a person names: what is no regular file is refused at once, and nothing waits for a writer.


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_pipe, "expected a regular file, got a named pipe"),
        (_socket, "expected a regular file, got a socket"),
        (Path.mkdir, "Is a directory"),
        (lambda path: path.symlink_to("/dev/zero"), "expected a regular file, got a device"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: None, "No such file or directory"),
    ],
)
def test_what_is_no_regular_file_is_refused(tmp_path: Path, make: object, message: str) -> None:
    make(tmp_path / "x")  # type: ignore[operator]
    with pytest.raises(OSError) as failure:
        read_text(tmp_path / "x")
    assert failure.value.strerror == message


def test_size_is_limited(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x" * 1001)
    assert len(read_bytes(tmp_path / "x", 1001)) == 1001
    with pytest.raises(OSError) as failure:
        read_bytes(tmp_path / "x", 1000)
    assert (failure.value.errno, failure.value.strerror) == (errno.EFBIG, "expected at most 1,000 bytes, got 1,001")


def test_lines_end_as_text_files_do(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a\r\nb\rc\n")
    assert read_text(tmp_path / "x") == "a\nb\nc\n"
