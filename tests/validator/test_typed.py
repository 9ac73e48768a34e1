"""validator.results: the types of what others wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from validator import results


@dataclass
class Row:
    text: str
    number: float
    count: int
    flag: bool
    values: tuple[float | None, ...]
    facts: Mapping[str, object]
    maybe: str | None


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [
        ("text", "x", True),
        ("text", 5, False),
        ("number", 1, True),
        ("number", True, False),
        ("count", 1.5, False),
        ("flag", 1, False),
        ("values", [1.0, None], True),
        ("values", ["x"], False),
        ("values", "x", False),
        ("facts", {"a": []}, True),
        ("facts", [], False),
        ("maybe", None, True),
        ("maybe", [], False),
    ],
)
def test_a_value_is_compared_with_its_type(name: str, value: Any, fits: bool) -> None:
    assert results.field_tests(Row)[name][1](value) is fits
