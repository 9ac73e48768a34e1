"""JSON that two readers could read in two ways is refused."""

from __future__ import annotations

import pytest

from gpu_ami.release import strict_json


@pytest.mark.parametrize(
    ("data", "duplicate"),
    [
        (b'{"a": 1, "a": 1}', "a"),
        (b'{"x": [{"b": 1, "b": 2}]}', "b"),
        (b"{", ""),
        (b"[]", ""),
        (b"\xff{}", ""),
        (b"[" * 100_000, ""),
    ],
)
def test_refused(data: bytes, duplicate: str) -> None:
    with pytest.raises(strict_json.InvalidJson) as error:
        strict_json.loads(data)
    assert error.value.duplicate == duplicate


def test_the_object_is_returned() -> None:
    assert strict_json.loads(b'{"a": {"b": [1]}}') == {"a": {"b": [1]}}
