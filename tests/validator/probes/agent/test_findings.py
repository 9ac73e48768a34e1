"""Rules that several sections of the linter share."""

from __future__ import annotations

import pytest

from validator.probes.agent import findings as rules


def test_a_finding_names_severity_line_and_key() -> None:
    assert str(rules.Finding("error", "agent.x", "unknown key", 3)) == "error: line 3: agent.x: unknown key"
    assert str(rules.Finding("error", "", "not JSON")) == "error: the file: not JSON"


def test_unknown_keys_come_with_a_suggestion() -> None:
    (finding,) = rules.unknown_keys({"regon": 1, "region": 2}, ("region",), "agent")
    assert (finding.path, finding.message) == ("agent.regon", "unknown key; did you mean region?")
    assert rules.suggestion("quite else", ("region",)) == ""


@pytest.mark.parametrize(
    ("value", "wrong"), [(1, False), (172_800, False), (0, True), (172_801, True), (True, True), ("5", True)]
)
def test_seconds(value: object, wrong: bool) -> None:
    assert bool(list(rules.seconds({"interval": value}, "interval", "agent"))) is wrong


@pytest.mark.parametrize(
    ("url", "wrong"), [("http://127.0.0.1:5000", False), ("localhost", True), ("http://" + "a" * 2048, True)]
)
def test_endpoint(url: str, wrong: bool) -> None:
    assert bool(list(rules.endpoint({"endpoint_override": url}, "logs"))) is wrong


def test_not_an_object_names_the_type() -> None:
    assert rules.not_an_object("logs", []).message == "expected an object, got list"
