"""The grammar of YAML files: every mistake with its path, what was found, what is expected."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.files import parse_yaml
from validator.schema import (
    Choice,
    Day,
    Flag,
    Integer,
    Keys,
    ListOf,
    MapOf,
    Mistake,
    Named,
    OneOrMore,
    Text,
    did_you_mean,
    key_lines,
    key_path,
    line_of,
)

GRAMMAR = Keys(
    {
        "text": Text("a-1", r"[a-z]-\d"),
        "number": Integer(1, 9, "GiB"),
        "flag": Flag(),
        "choice": Choice(("open", "2.17")),
        "days": Choice((1, 3), {"three": "3"}),
        "named": Named("animal", ("otter", "heron"), "otter", r"wild-\w+"),
        "list": ListOf(Text("x")),
        "map": MapOf(r"[a-z]+", "abc", Integer(0, 1)),
        "keys": Keys({"needed": Flag()}, needed=("needed",)),
    },
    needed=("text",),
)
GOOD: dict[str, Any] = {
    "text": "b-2", "number": 9, "flag": False, "choice": "open", "named": "wild-cat", "list": ["a", "b"],
    "days": 3, "map": {"a": 1}, "keys": {"needed": True},
}  # fmt: skip
_BOOLEAN = "; YAML reads yes, no, on and off so: write it in quotes"


def test_lines_of_keys() -> None:
    lines = key_lines("a: &a\n  - x: 1\n    'b.c': 2\non: *a\n")
    assert [line_of(lines, path) for path in ("a", "a[0]", "a[0].x", "a[0].'b.c'", "a[0].b.c", "true")] == [
        1,
        2,
        2,
        3,
        3,
        4,
    ]
    assert line_of(lines, "a[0].missing.deeper") == 2 and line_of(lines, "missing") is None
    assert key_lines("a: [") == {} and key_lines("&a [*a]") == {"[0]": 1}


@pytest.mark.parametrize("value, mistakes", [("x", []), (["x", "x"], []), ([], []), (1, ["it"]), (["x", 1], ["it[1]"])])
def test_one_value_or_a_list_of_them(value: object, mistakes: list[str]) -> None:
    assert [mistake.path for mistake in OneOrMore(Text("x")).check(value, "it")] == mistakes
    assert OneOrMore(Text("x")).expected == "text such as x, or a list of such"


def test_a_list_is_empty_only_where_it_may_be() -> None:
    assert list(ListOf(Text("x"), may_be_empty=True).check([], "it")) == []
    (mistake,) = ListOf(Text("x"), may_be_empty=True).check("x", "it")
    assert mistake.message == "expected a list, got 'x'; in YAML write [x]"
    assert len(list(ListOf(Text("x")).check([], "it"))) == 1


def test_valid_values_have_no_mistake() -> None:
    assert [*GRAMMAR.check(GOOD, ""), *GRAMMAR.missing(GOOD)] == []


@pytest.mark.parametrize(
    "key, value, path, message",
    [
        ("text", 1.5, "text", 'expected text such as a-1, got 1.5; in YAML write "1.5"'),
        ("text", "B", "text", "expected something like a-1, got 'B'"),
        ("number", True, "number", "expected a whole number from 1 to 9 GiB, got true"),
        ("number", 10, "number", "expected a whole number from 1 to 9 GiB, got 10"),
        ("flag", "yes", "flag", "expected true or false, got 'yes'; in YAML write true without quotes"),
        ("flag", "maybe", "flag", "expected true or false, got 'maybe'"),
        ("number", "5", "number", "expected a whole number from 1 to 9 GiB, got '5'; in YAML write 5 without quotes"),
        ("number", "5GB", "number", "expected a whole number from 1 to 9 GiB, got '5GB'; write no unit"),
        ("text", "A-1", "text", "expected something like a-1, got 'A-1'; did you mean a-1?"),
        ("days", 4, "days", "expected one of 1, 3, got 4; nearest: 3"),
        ("map", {True: 1}, "map.true", f"expected a key like abc{_BOOLEAN}"),
        ("choice", "opne", "choice", "expected one of open, 2.17, got 'opne'; did you mean open?"),
        ("choice", 2.17, "choice", 'expected one of open, 2.17, got 2.17; in YAML write "2.17"'),
        ("named", "oter", "named", "no animal 'oter' in the facts; did you mean otter?"),
        ("named", 3, "named", "expected animal such as otter, got 3"),
        ("list", [], "list", "expected a list with at least one item, got an empty list"),
        ("list", ["a", "a"], "list[1]", "'a' is a duplicate entry"),
        ("map", {"A": 1}, "map.A", "expected a key like abc"),
        ("map", {"a": 2}, "map.a", "expected a whole number from 0 to 1, got 2"),
        ("map", None, "map", "expected keys and values, got nothing"),
        ("keys", {"neded": True}, "keys.neded", "unknown key; did you mean needed?; allowed: needed"),
        ("keys", [], "keys", "expected keys and values, got an empty list; allowed: needed"),
        ("text", False, "text", f"expected text such as a-1, got false{_BOOLEAN}"),
        ("choice", False, "choice", f"expected one of open, 2.17, got false{_BOOLEAN}"),
        ("named", True, "named", f"expected animal such as otter, got true{_BOOLEAN}"),
        ("days", "3", "days", "expected one of 1, 3, got '3'; in YAML write 3 without quotes"),
        ("days", "three", "days", "expected one of 1, 3, got 'three'; did you mean 3?"),
        ("list", "a", "list", "expected a list with at least one item, got 'a'; in YAML write [a]"),
    ],
)
def test_mistake_has_path_and_value(key: str, value: object, path: str, message: str) -> None:
    (mistake,) = GRAMMAR.check(GOOD | {key: value}, "")
    assert (mistake.path, mistake.message) == (path, message)


def test_missing_keys_are_named_at_every_depth() -> None:
    assert [mistake.path for mistake in GRAMMAR.missing({"keys": {}})] == ["text", "keys.needed"]


@pytest.mark.parametrize(
    ("key", "expected"),
    {
        "text": "text such as a-1",
        "number": "a whole number from 1 to 9 GiB",
        "flag": "true or false",
        "choice": "one of open, 2.17",
        "named": "animal such as otter",
        "list": "a list with at least one item, each text such as x",
        "map": "keys and values, such as abc: a whole number from 0 to 1",
        "keys": "keys and values; allowed: needed",
        "day": "a date such as 2027-01-31",
    }.items(),
)
def test_missing_key_says_what_is_expected(key: str, expected: str) -> None:
    (mistake,) = Keys({**GRAMMAR.keys, "day": Day()}, needed=(key,)).missing({})
    assert mistake.message == f"missing: expected {expected}"


def test_number_is_shown_as_it_was_written() -> None:
    document = parse_yaml("{text: 1.10, number: 0x1F}", "a.yml")
    assert [mistake.message for mistake in GRAMMAR.check(document, "")] == [
        'expected text such as a-1, got 1.10; in YAML write "1.10"',
        "expected a whole number from 1 to 9 GiB, got 0x1F",
    ]


def test_unusual_key_is_quoted() -> None:
    assert (key_path("a", "b-c"), key_path("a", "b c"), key_path("", 1)) == ("a.b-c", "a.'b c'", "1")


def test_suggestion_only_for_similar_names() -> None:
    assert did_you_mean("CUDAA", ["cuda"]) == "; did you mean cuda?"
    assert did_you_mean("zzz", ["cuda"]) == ""


def test_any_number_of_unknown_keys_is_a_few_lines() -> None:
    keys = Keys({"version": Text("1.0")})
    mistakes = list(keys.check({f"key{number}": 1 for number in range(20_000)}, ""))
    assert len(mistakes) == 51
    assert mistakes[-1] == Mistake("(whole file)", "19,950 more unknown keys; allowed: version")
