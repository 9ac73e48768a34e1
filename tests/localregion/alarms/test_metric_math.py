"""Metric math, by the examples of the CloudWatch user guide ("Using math expressions with CloudWatch metrics")."""

from __future__ import annotations

import pytest

from localregion.alarms.metric_math import Series, Unsupported, compiled


def series(text: str) -> Series:
    return {position: float(word) for position, word in enumerate(text.split()) if word != "-"}


def evaluated(expression: str, **given: str) -> str:
    named = {name: series(text) for name, text in given.items()}
    periods = max((len(text.split()) for text in given.values()), default=1)
    result = compiled(expression, frozenset(named))(named, periods)
    assert isinstance(result, dict)
    return " ".join(f"{result[position]:g}" if position in result else "-" for position in range(periods))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("metric1 < metric2", "0 0 1 0"),
        ("metric1 >= 30", "1 0 0 0"),
        ("metric1 > 15 AND metric2 > 15", "1 0 0 0"),
        ("metric1 + metric2", "50 20 20 0"),
        ("metric2 / metric1", "0.666667 0 - -"),
        ("-metric1 * 2 - 1", "-61 -41 -1 -1"),
        ("metric2 > 15 || metric1 == 20", "1 1 1 0"),
        ("FILL(metric2, 7)", "20 7 20 7"),
        ("FILL(metric2, REPEAT)", "20 20 20 20"),
    ],
)
def test_operators_take_a_missing_value_as_zero(expression: str, expected: str) -> None:
    assert evaluated(expression, metric1="30 20 0 0", metric2="20 - 20 -") == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("IF(metric1, metric2, metric3)", "30 0 20 - -"),
        ("IF(metric1, 5, metric3)", "5 5 20 - -"),
        ("IF(metric1, metric2, 5)", "30 0 5 5 -"),
        ("IF(1, metric2, metric3)", "30 0 0 0 30"),
        ("IF(metric1 == 0, 1)", "- - 1 1 -"),
    ],
)
def test_if_is_evaluated_for_each_period(expression: str, expected: str) -> None:
    given = {"metric1": "1 1 0 0 -", "metric2": "30 - 0 0 30", "metric3": "0 0 20 - 20"}
    assert evaluated(expression, **given) == expected


def test_series_without_data_stays_without_data() -> None:
    assert evaluated("FILL(a, 0)", a="- -", b="1 1") == "- -"
    assert evaluated("a + b", a="- -", b="1 -") == "1 -"


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("SEARCH('{CWAgent}', 'Sum')", "SEARCH"),
        ("RATE(a)", "the function RATE"),
        ("a + c", "'c' in the expression a + c is the Id of no query"),
        ("a +", "ends too early"),
        ("(a", "ends too early"),
        ("a b", "unexpected 'b'"),
        ("IF(a)", "1 arguments of IF"),
        ("a % 2", "'% 2'"),
        ("IF(a, 1, 2", "ends too early"),
    ],
)
def test_what_is_not_evaluated_is_refused_by_its_name(expression: str, named: str) -> None:
    with pytest.raises(Unsupported) as refusal:
        compiled(expression, frozenset({"a", "b"}))
    assert named in str(refusal.value)
