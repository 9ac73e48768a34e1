"""IAM policies: whether statements allow an action on a resource in a context.

Identity-based policies alone: an explicit Deny wins, else an Allow decides, else the answer is no. Source: IAM user
guide, "Policy evaluation logic" and "JSON policy elements: Condition operators", read 2026-11-22.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, cast

from gpu_ami.files import data_dir
from validator.aws import NotOfAws

Texts = str | list[str]
_VARIABLE = re.compile(r"\$\{([^}]+)\}")
_ARN_SEGMENTS = 5  # colons before the resource of arn:partition:service:region:account:resource


class Statement(TypedDict, total=False):
    """A statement of an IAM policy (IAM user guide, "JSON policy element reference")."""

    Sid: str
    Effect: str
    Action: Texts
    NotAction: Texts
    Resource: Texts
    Principal: Mapping[str, Texts] | str
    Condition: Mapping[str, Mapping[str, Texts]]


@dataclass(frozen=True)
class Request:
    """One authorization that a call needs. context: condition key → value, such as aws:ResourceTag/gpu-ami:run."""

    action: str
    resource: str = "*"
    context: Mapping[str, str] = field(default_factory=dict)


def read_policy(name: str) -> list[Statement]:
    """The statements of iam/NAME.json."""
    return parse(data_dir("iam", f"{name}.json").read_text(encoding="utf-8"))


def parse(text: str) -> list[Statement]:
    """The statements of a policy's JSON. NotOfAws: it is none that IAM accepts."""
    try:
        return statements_of(json.loads(text))
    except ValueError as error:
        raise NotOfAws(f"expected a policy document, got {text!r:.60}") from error


def statements_of(document: object) -> list[Statement]:
    """The statements of a policy document. NotOfAws: it is none that IAM accepts."""
    statements = document.get("Statement") if isinstance(document, Mapping) else None
    rows = [statements] if isinstance(statements, Mapping) else statements
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) and "Effect" in row for row in rows):
        raise NotOfAws(f"expected a policy document, got {document!r:.60}")
    return [cast("Statement", row) for row in rows]


def listed(value: Texts | None) -> list[str]:
    """A policy's value that may be one text or a list of them, as a list."""
    return [value] if isinstance(value, str) else list(value or [])


def allows(statements: Sequence[Statement], request: Request) -> bool:
    """Whether the statements allow the request. ValueError: a condition operator that is not evaluated here."""
    effects = {statement["Effect"] for statement in statements if applies(statement, request)}
    return "Allow" in effects and "Deny" not in effects


def applies(statement: Statement, request: Request) -> bool:
    """Whether a statement is about the request: its action, its resource and its conditions."""
    return (
        names_action(statement, request.action)
        and any(_covers(_filled(pattern, request), request.resource) for pattern in listed(statement.get("Resource")))
        and conditions_hold(statement, request.context)
    )


def covers(statement: Statement, action: str, resource: str) -> bool:
    """Whether a statement names the action and the resource, whatever its conditions."""
    patterns = listed(statement.get("Resource"))
    return names_action(statement, action) and any(_covers(pattern, resource) for pattern in patterns)


def names_action(statement: Statement, action: str) -> bool:
    patterns = listed(statement.get("Action") or statement.get("NotAction"))
    is_named = any(_like(action.lower(), pattern.lower()) for pattern in patterns)
    return is_named == ("Action" in statement)


def conditions_hold(statement: Statement, context: Mapping[str, str]) -> bool:
    """Whether every condition holds; a key that the context lacks does not."""
    present = {key.lower(): value for key, value in context.items()}
    return all(
        _holds(operator, present.get(key.lower()), listed(values))
        for operator, entries in statement.get("Condition", {}).items()
        for key, values in entries.items()
    )


def _holds(operator: str, value: str | None, expected: Sequence[str]) -> bool:
    # A context here has one value a key, of which "any" and "each" say the same (each: also where the key is missing).
    quantifier, _, plain = operator.rpartition(":")
    name, if_exists = plain.removesuffix("IfExists"), plain.endswith("IfExists") or quantifier == "ForAllValues"
    if name not in ("StringEquals", "StringLike", "Bool", "NumericEquals"):
        raise ValueError(f"condition operator {operator} is not evaluated")
    if value is None:
        return if_exists
    if name == "StringLike":
        return any(_like(value, pattern) for pattern in expected)
    return value.lower() in [text.lower() for text in expected] if name == "Bool" else value in expected


def _filled(pattern: str, request: Request) -> str:
    """A pattern with its policy variables (`${aws:username}`) replaced; one that the context lacks matches nothing."""
    context = {key.lower(): value for key, value in request.context.items()}
    return _VARIABLE.sub(lambda match: context.get(match[1].lower(), match[0]), pattern)


def _covers(pattern: str, resource: str) -> bool:
    """Whether a pattern of the Resource element matches an ARN, segment by segment; `*` alone matches all."""
    if pattern == "*":
        return True
    expected, segments = pattern.split(":", _ARN_SEGMENTS), resource.split(":", _ARN_SEGMENTS)
    return len(expected) == len(segments) and all(map(_like, segments, expected))


def _like(text: str, pattern: str) -> bool:
    return _expression(pattern).fullmatch(text) is not None


@functools.cache
def _expression(pattern: str) -> re.Pattern[str]:
    """A pattern of IAM: `*` is any text, `?` one character, all else literal."""
    parts = [{"*": ".*", "?": "."}.get(part, re.escape(part)) for part in re.split(r"([*?])", pattern)]
    return re.compile("".join(parts), re.DOTALL)
