"""Secrets in logs: hidden, in time that grows with the text alone. tests/importer has the shapes one by one."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.attacks.test_growth import ratio
from validator import secret_shapes

PARTS = (
    "a.",
    "-eyJaaaaaaaa",
    "token-",
    "password ",
    "?a",
    "&key",
    "-----BEGIN PRIVATE KEY-----",
    "a://",
    "bearer ",
    "x:",
)


@pytest.mark.parametrize("part", PARTS)
def test_hostile_logs_are_read_in_linear_time(part: str) -> None:
    assert ratio(secret_shapes.hidden, lambda size: (part * size)[:size], 8000) < 12


@pytest.mark.parametrize(
    "line",
    [
        "systemd[1]: Started systemd-ask-password-wall.path - Forward Password Requests to Wall Directory Watch.",
        "NVRM: Xid (PCI:0000:00:1e): 31, pid=1234, name=python, Ch 00000008, intr 00000000. MMU Fault",
        "kernel: Key type dns_resolver registered",
        "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    ],
)
def test_other_lines_stay(line: str) -> None:
    assert secret_shapes.hidden(line) == line
    assert secret_shapes.hidden_bytes(b"\xff" + line.encode()) == b"\xff" + line.encode()


def test_a_file_is_unpacked_as_far_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb, members one after the other, and a file that is cut off."""
    monkeypatch.setattr(secret_shapes, "UNPACKED_BYTES", 1 << 20)
    kept, note = secret_shapes.hidden_file("x.gz", gzip.compress(bytes(64 << 20)))
    assert len(gzip.decompress(kept)) == 1 << 20 and note == "the first 1 MiB of its content"
    two = gzip.compress(b"a ") + gzip.compress(b"password=b\n")
    kept, note = secret_shapes.hidden_file("x.gz", two)
    assert (gzip.decompress(kept), note) == (b"a password=[not shown]\n", "")
    kept, note = secret_shapes.hidden_file("x.gz", two + b"rest")
    assert gzip.decompress(kept) == b"a password=[not shown]\n" and note.startswith("not gzip from byte 13 ")


@pytest.mark.parametrize(
    ("name", "data", "kept"),
    [
        ("x.json", b'{"a": 1,   "key": "of a map"}', None),
        ("x.json", b'{"db": {"db_password": ["p", ""], "n": 5}}', {"db": {"db_password": ["[not shown]", ""], "n": 5}}),
        ("x.json", b'{"t": "token=x", "token": 5}', {"t": "token=[not shown]", "token": 5}),
        ("x.jsonl", b'{"a": 1}\n', None),
        ("x.xml", b"<a>plain</a>", None),
    ],
)
def test_json_stays_json(name: str, data: bytes, kept: object) -> None:
    found, note = secret_shapes.hidden_file(name, data)
    assert note == "" and (found == data if kept is None else json.loads(found) == kept)


def test_what_is_no_json_is_read_as_lines() -> None:
    assert secret_shapes.hidden_file("x.json", b"password=x" + b"[" * 200_000)[0].startswith(b"password=[not shown]")
