"""Metric math of alarms: operators, IF and FILL. SEARCH and the other functions are refused by their names.

A time series maps the position of a period in the evaluation range to its value; a period without data is not in it.
Source: CloudWatch user guide, "Using math expressions with CloudWatch metrics" (read 2026-11-23): arithmetic and
comparisons of two series take a value that is missing in one of them as 0; a division by zero has no datapoint; IF has
none where its condition has none.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

Series = dict[int, float]
Value = float | Series
Expression = Callable[[Mapping[str, Series], int], Value]  # the series by id, and the number of periods
_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?)|([A-Za-z_]\w*)|(==|!=|<=|>=|&&|\|\||[-+*/^<>(),]))")
_LEVELS: tuple[dict[str, Callable[[Any, Any], float]], ...] = (
    {word: lambda a, b: float(bool(a) or bool(b)) for word in ("OR", "||")},
    {word: lambda a, b: float(bool(a) and bool(b)) for word in ("AND", "&&")},
    {"==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": operator.truediv},
    {"^": operator.pow},
)


class Unsupported(ValueError):
    """The expression is not valid, or uses what is not evaluated here; the message names it."""


def compiled(text: str, ids: frozenset[str]) -> Expression:
    """`text` over the queries with these ids. Unsupported: see there."""
    parser = _Parser(text, ids)
    expression = parser.operation(0)
    if parser.tokens:
        raise Unsupported(f"unexpected {parser.tokens[0]!r} in the expression {text}")
    return expression


class _Parser:
    """Recursive descent; `tokens` are those that are left."""

    def __init__(self, text: str, ids: frozenset[str]) -> None:
        self.text, self.ids, self.tokens = text, ids, list[str]()
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise Unsupported(f"{text[position:].strip()!r} in the expression {text}")
            self.tokens.append(match.group().strip())
            position = match.end()

    def operation(self, level: int) -> Expression:
        """Left to right; the operators of a later level bind more tightly."""
        if level == len(_LEVELS):
            return self._primary()
        left = self.operation(level + 1)
        while self.tokens and self.tokens[0] in _LEVELS[level]:
            apply = _LEVELS[level][self.tokens.pop(0)]
            left = functools.partial(_binary, apply, left, self.operation(level + 1))
        return left

    def _primary(self) -> Expression:
        token = self._taken()
        if token == "-":
            return functools.partial(_binary, operator.mul, lambda *_: -1.0, self._primary())
        if token == "(":
            inside = self.operation(0)
            self._expect(")")
            return inside
        if token[0].isdigit():
            return lambda *_: float(token)
        if self.tokens[:1] == ["("]:
            return self._call(token)
        if token not in self.ids:
            raise Unsupported(f"{token!r} in the expression {self.text} is the Id of no query")
        return lambda series, _: series[token]

    def _call(self, name: str) -> Expression:
        if name not in _FUNCTIONS:
            raise Unsupported(f"the function {name} in the expression {self.text}")
        function, fewest, most = _FUNCTIONS[name]
        self._expect("(")
        arguments = [self._argument()]
        while self.tokens[:1] == [","]:
            del self.tokens[0]
            arguments.append(self._argument())
        self._expect(")")
        if not fewest <= len(arguments) <= most:
            raise Unsupported(f"{len(arguments)} arguments of {name} in the expression {self.text}")
        return functools.partial(_called, function, arguments)

    def _argument(self) -> Expression:
        if self.tokens[:1] == ["REPEAT"]:
            del self.tokens[0]
            return lambda *_: _REPEAT
        return self.operation(0)

    def _taken(self) -> str:
        if not self.tokens:
            raise Unsupported(f"the expression ends too early: {self.text}")
        return self.tokens.pop(0)

    def _expect(self, mark: str) -> None:
        token = self._taken()
        if token != mark:
            raise Unsupported(f"expected {mark}, got {token!r} in the expression {self.text}")


def _called(
    function: Callable[..., Value], arguments: list[Expression], series: Mapping[str, Series], periods: int
) -> Value:
    return function(periods, *(argument(series, periods) for argument in arguments))


def _binary(
    apply: Callable[[Any, Any], float], left: Expression, right: Expression, series: Mapping[str, Series], periods: int
) -> Value:
    one, other = left(series, periods), right(series, periods)
    if not isinstance(one, dict) and not isinstance(other, dict):
        return float(apply(one, other))
    made: Series = {}
    for position in sorted({*_positions(one), *_positions(other)}):
        try:
            made[position] = float(apply(_at(one, position), _at(other, position)))
        except ZeroDivisionError:
            continue
    return made


def _positions(value: Value) -> Series:
    return value if isinstance(value, dict) else {}


def _at(value: Value, position: int, missing: float = 0.0) -> float:
    return value.get(position, missing) if isinstance(value, dict) else value


_REPEAT: Series = {-1: 0.0}  # stands for the word in FILL(m, REPEAT)


def _fill(periods: int, value: Value, filler: Value) -> Value:
    """A series without any datapoint stays empty: what CloudWatch does there is not documented."""
    if not isinstance(value, dict) or not value:
        return value
    filled: Series = {}
    for position in range(periods):
        if position in value:
            filled[position] = value[position]
        elif filler is not _REPEAT:
            filled[position] = _at(filler, position)
        elif position - 1 in filled:
            filled[position] = filled[position - 1]
    return filled


def _if(periods: int, condition: Value, then: Value, otherwise: Value | None = None) -> Value:
    """TRUE with a missing value is 0, FALSE with a missing value or without a third argument has no datapoint."""
    conditions = condition if isinstance(condition, dict) else dict.fromkeys(range(periods), condition)
    made: Series = {}
    for position, holds in conditions.items():
        if holds:
            made[position] = _at(then, position)
        elif otherwise is not None and (not isinstance(otherwise, dict) or position in otherwise):
            made[position] = _at(otherwise, position)
    return made


_FUNCTIONS: dict[str, tuple[Callable[..., Value], int, int]] = {"IF": (_if, 2, 3), "FILL": (_fill, 2, 2)}
