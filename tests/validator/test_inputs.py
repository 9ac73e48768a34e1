"""validator.inputs: what others wrote is read within bounds."""

from __future__ import annotations

import gzip

import pytest

from validator import inputs


def test_gzip_is_unpacked_within_a_limit() -> None:
    data = gzip.compress(b"a" * 1000) + gzip.compress(b"b")
    assert inputs.gunzip(data) == b"a" * 1000 + b"b"
    with pytest.raises(ValueError, match="expected at most 999 bytes, gzip unpacks to more"):
        inputs.gunzip(data, 999)
    bomb = gzip.compress(b"\0" * (64 << 20))
    with pytest.raises(ValueError, match="unpacks to more"):
        inputs.gunzip(bomb, 1 << 20)


@pytest.mark.parametrize("data", [b"\x1f\x8b", gzip.compress(b"x", mtime=0)[:-2], b"\x1f\x8bxxxxxxxxxxxxxx"])
def test_damaged_gzip_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="gzip"):
        inputs.gunzip(data)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "\xff"])
def test_json_that_cannot_be_read_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        inputs.parse_json(text)
