"""Secrets in logs: hidden, in time that grows with the text alone. tests/importer has the shapes one by one."""

from __future__ import annotations

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
