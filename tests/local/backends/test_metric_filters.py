"""Filter patterns of JSON and other log events."""

from __future__ import annotations

import json

import pytest

from gpu_ami.local.backends import metric_filters

EVENT = json.dumps({"origin": "kernel", "code": 79, "incident": {"root": 79}, "answered": True})


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ('{ $.origin = "kernel" }', True),
        ('{ $.origin = "userland" }', False),
        ('{ $.origin != "userland" }', True),
        ('{ $.missing != "x" }', False),
        ("{ $.code = 79 && $.incident.root = 79 }", True),
        ("{ $.code = 48 || $.code = 79 }", True),
        ('{ $.code = 79 || $.code = 48 && $.origin = "userland" }', True),
        ('{ ($.code = 79 || $.code = 48) && $.origin = "userland" }', False),
        ("{ $.answered = 1 }", False),
        ("{ $.code > 78 && $.code <= 79 }", True),
        ("{ $.code >= 80 || $.code < 79 }", False),
        ("{ $.origin > 1 }", False),
        ("{ $.origin != 1 }", False),
        ("", True),
        ("kernel code", True),
        ("kernel absent", False),
        ("?absent ?kernel", True),
        ("?absent ?missing", False),
        ("kernel -code", False),
        ('"origin: kernel"', False),
        ("-absent", True),
    ],
)
def test_pattern_is_evaluated(pattern: str, expected: bool) -> None:
    assert metric_filters.matches(pattern, EVENT) is expected


@pytest.mark.parametrize("message", ["not JSON", "[]", ""])
def test_other_messages_match_nothing(message: str) -> None:
    assert not metric_filters.matches("{ $.code = 79 }", message)


@pytest.mark.parametrize(
    "pattern",
    [
        "{ $.a }",
        "{ ($.a = 1 }",
        "{ $.a = 1 } x",
        "{ $.a = 1 $.b = 2 }",
        '{ $.a = "x*" }',
        '{ $.a > "x" }',
        "{ $.a[0] = 1 }",
        "{ $.a IS NULL }",
        "{ $.a NOT EXISTS }",
        "%AUTH%",
        "[a, b]",
        "a ?b",
        "a.b",
    ],
)
def test_what_is_not_evaluated_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError):
        metric_filters.matches(pattern, EVENT)
