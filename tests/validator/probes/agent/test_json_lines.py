"""Lines of JSON values: keys, entries of lists, missing paths and duplicate keys."""

from __future__ import annotations

import json

from validator.probes.agent.json_lines import line_numbers

TEXT = """{
  "a.b": {"c": "x\\"y}",
    "d": [1,
          {"e": null}, []]},
  "f": -1.5e3, "g": {},
  "f": true
}
"""


def test_every_value_has_its_line() -> None:
    json.loads(TEXT)
    assert line_numbers(TEXT).by_path == {
        "": 1, "a.b": 2, "a.b.c": 2, "a.b.d": 3, "a.b.d[0]": 3, "a.b.d[1]": 4, "a.b.d[1].e": 4, "a.b.d[2]": 4,
        "f": 6, "g": 5,
    }  # fmt: skip


def test_a_missing_path_has_the_line_of_its_parent() -> None:
    lines = line_numbers(TEXT)
    assert [lines.nearest(path) for path in ("a.b.d[1].x.y", "a.b.d[7]", "a.b.z", "other.key")] == [4, 3, 2, 1]


def test_a_duplicate_key_is_listed_with_its_second_line() -> None:
    assert line_numbers(TEXT).duplicates == {"f": 6}


def test_a_document_may_be_a_scalar() -> None:
    assert line_numbers("\n 12 ").by_path == {"": 2}
