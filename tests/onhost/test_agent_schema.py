"""The comparison of a configuration with the table of a release; the table itself: tests/validator/probes/agent."""

from __future__ import annotations

from typing import Any

import pytest

from onhost.agent_schema import Schema

TABLE: dict[str, Any] = {
    "release": "1",
    "file": {"keys": {"logs": {"use": "logs"}}, "required": ["logs"], "other": False},
    "groups": {
        "logs": {
            "keys": {
                "name": {"type": "string", "shortest": 1, "longest": 3, "pattern": "^a"},
                "days": {"type": "integer", "values": [1, 3]},
                "files": {
                    "type": "array", "fewest": 1, "unique": True,
                    "each": {"keys": {"path": {"type": "string"}}, "required": ["path"]},
                },
                "form": {"one_of": [{"type": "string"}, {"type": "array"}, {"values": ["x"]}]},
                "event": {"never": {"values": ["Forwarded"]}},
            },
            "like": {"^port_": {"type": "integer", "least": 1, "most": 9}},
        },
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "path", "message"),
    [
        ([], (), "expected an object, got []"),
        ({}, ("logs",), "missing: the agent refuses the configuration"),
        ({"logs": {}, "log": 1}, ("log",), "unknown key; did you mean logs?"),
        ({"logs": {"name": ""}}, ("logs", "name"), "expected 1 to 3 characters, got 0"),
        ({"logs": {"name": "b"}}, ("logs", "name"), "expected a text that matches ^a, got 'b'"),
        ({"logs": {"days": True}}, ("logs", "days"), "expected a whole number, got True"),
        ({"logs": {"days": 2}}, ("logs", "days"), "expected one of 1, 3, got 2"),
        ({"logs": {"files": []}}, ("logs", "files"), "expected at least 1 entries, got 0"),
        ({"logs": {"files": [{}]}}, ("logs", "files", 0, "path"), "missing: the agent refuses the configuration"),
        ({"logs": {"files": [{"path": "a"}] * 2}}, ("logs", "files", 1), "duplicate entry {'path': 'a'}"),
        ({"logs": {"form": "x"}}, ("logs", "form"), "fits several forms of which the agent allows one"),
        ({"logs": {"form": 1}}, ("logs", "form"), "expected a text, got 1"),
        ({"logs": {"event": "Forwarded"}}, ("logs", "event"), "'Forwarded' is not allowed here"),
        ({"logs": {"port_a": 10}}, ("logs", "port_a"), "expected 1 to 9, got 10"),
    ],
)
def test_each_rule_of_a_table(config: object, path: tuple[str | int, ...], message: str) -> None:
    assert (path, message) in list(Schema(TABLE).mistakes(config))


def test_what_fits_has_no_mistake() -> None:
    config = {
        "logs": {"name": "ab", "days": 3, "files": [{"path": "a"}], "form": [], "event": "System", "port_b": 9, "x": 1}
    }
    assert list(Schema(TABLE).mistakes(config)) == []
    assert Schema(TABLE).keys("logs", "files", "[]") == {"path"}
