"""What the agent's own check of its configuration refuses: keys, types, bounds and values (release_schema.yml).

The agent does not start with a file that its check refuses. The linter's other rules are stricter, and name what the
service does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from validator.probes.agent.findings import ERROR, Finding, suggestion

Rule = Mapping[str, Any]
_FACTS = Path(__file__).with_name("release_schema.yml")
_TYPES: Mapping[str, Callable[[object], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_NAMES = {
    "array": "a list",
    "object": "an object",
    "string": "a text",
    "boolean": "true or false",
    "integer": "a whole number",
}


@functools.cache
def facts() -> Mapping[str, Any]:
    """release, file (the rule of the whole file) and groups."""
    loaded: Mapping[str, Any] = yaml.safe_load(_FACTS.read_text(encoding="utf-8"))
    return loaded


def keys(*path: str) -> frozenset[str]:
    """The keys of an object of the configuration, by the path of groups' keys: keys("logs", "logs_collected")."""
    rule = _resolved(facts()["file"])
    for name in path:
        rule = _resolved(rule["keys"][name])
    return frozenset(rule["keys"])


def schema_findings(config: object) -> Iterator[Finding]:
    """Errors of what the release's check refuses, each at the key that it is about."""
    for path, message in _mistakes(config, facts()["file"], ""):
        yield Finding(ERROR, path, message)


def _resolved(rule: Rule) -> Rule:
    while "use" in rule:
        rule = facts()["groups"][rule["use"]]
    return rule


def _mistakes(value: object, rule: Rule | bool, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(rule, bool):
        if not rule:
            yield path, "unknown key"
        return
    rule = _resolved(rule)
    kind = rule.get("type", "object" if "keys" in rule else None)
    kinds = [kind] if isinstance(kind, str) else kind or []
    if kinds and not any(_TYPES[one](value) for one in kinds):
        yield path, f"expected {' or '.join(_NAMES.get(one, one) for one in kinds)}, got {_shown(value)}"
        return
    if "values" in rule and value not in rule["values"]:
        expected = [str(one) for one in rule["values"]]
        message = f"expected one of {', '.join(expected)}, got {_shown(value)}{suggestion(str(value), expected)}"
        yield path, message
        return
    yield from _bounds(value, rule, path)
    if isinstance(value, dict):
        yield from _of_object(value, rule, path)
    elif isinstance(value, list):
        yield from _of_list(value, rule, path)
    yield from _alternatives(value, rule, path)


def _bounds(value: object, rule: Rule, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        sizes: Sequence[tuple[float, str, str, str]] = [(len(value), "shortest", "longest", "characters")]
    elif isinstance(value, list):
        sizes = [(len(value), "fewest", "many", "entries")]
    elif isinstance(value, dict):
        sizes = [(len(value), "fewest_keys", "most_keys", "keys")]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        sizes = [(value, "least", "most", "")]
    else:
        sizes = []
    for size, low, high, what in sizes:
        least, most = rule.get(low), rule.get(high)
        if (least is not None and size < least) or (most is not None and size > most):
            bounds = (
                f"{least} to {most}"
                if None not in (least, most)
                else f"at least {least}"
                if most is None
                else f"at most {most}"
            )
            yield path, f"expected {bounds}{' ' + what if what else ''}, got {size}"
    if isinstance(value, str) and "pattern" in rule and not re.search(rule["pattern"], value):
        yield path, f"expected a text that matches {rule['pattern']}, got {_shown(value)}"


def _of_object(value: Mapping[str, object], rule: Rule, path: str) -> Iterator[tuple[str, str]]:
    known = rule.get("keys", {})
    for name in rule.get("required", ()):
        if name not in value:
            yield _joined(path, name), "missing: the agent refuses the configuration"
    for name, member in value.items():
        where = _joined(path, name)
        patterns = [of for pattern, of in rule.get("like", {}).items() if re.search(pattern, name)]
        if name in known:
            patterns.append(known[name])
        for of in patterns:
            yield from _mistakes(member, of, where)
        other = rule.get("other", True)
        if not patterns and other is False:
            yield where, f"unknown key{suggestion(name, list(known))}"
        elif not patterns:
            yield from _mistakes(member, other, where)


def _of_list(value: Sequence[object], rule: Rule, path: str) -> Iterator[tuple[str, str]]:
    each = rule.get("each", True)
    for index, entry in enumerate(value):
        if rule.get("unique") and entry in value[:index]:
            yield f"{path}[{index}]", f"duplicate entry {_shown(entry)}"
        of = each if not isinstance(each, list) else each[index] if index < len(each) else True
        yield from _mistakes(entry, of, f"{path}[{index}]")


def _alternatives(value: object, rule: Rule, path: str) -> Iterator[tuple[str, str]]:
    for of in rule.get("all_of", ()):
        yield from _mistakes(value, of, path)
    if "never" in rule and not list(_mistakes(value, rule["never"], path)):
        yield path, f"{_shown(value)} is not allowed here"
    for name in ("any_of", "one_of"):
        if name not in rule:
            continue
        tried = [list(_mistakes(value, of, path)) for of in rule[name]]
        fitting = sum(not mistakes for mistakes in tried)
        if not fitting:
            yield from min(tried, key=lambda mistakes: (any(where == path for where, _ in mistakes), len(mistakes)))
        elif name == "one_of" and fitting > 1:
            yield path, "fits several forms of which the agent allows one"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
