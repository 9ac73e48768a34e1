"""Compares a configuration of the CloudWatch agent with the table of what its release accepts (release_schema.yml).

One program for two readers: the linter (validator/probes/agent/findings.py), and the agent's replica, which runs
on images.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Union

Path = tuple[Union[str, int], ...]  # keys, and positions in lists
Mistake = tuple[Path, str]  # where, and the message
Rule = Mapping[str, Any]
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


class Schema:
    """The table of a release: release, file (the rule of the whole file) and groups (rules with a name)."""

    def __init__(self, table: Rule) -> None:
        self.release: str = table["release"]
        self._file: Rule = table["file"]
        self._groups: Mapping[str, Rule] = table["groups"]

    def rule(self, *path: str) -> Rule:
        """The rule of a key; "[]" for the entries of a list: rule("logs", "logs_collected", "files")."""
        rule = self._resolved(self._file)
        for name in path:
            rule = self._resolved(rule["each"] if name == "[]" else rule["keys"][name])
        return rule

    def keys(self, *path: str) -> frozenset[str]:
        """The keys of the object at a path."""
        return frozenset(self.rule(*path)["keys"])

    def mistakes(self, config: object) -> Iterator[Mistake]:
        """Everything in a configuration that the release refuses."""
        return self._of_value(config, self._file, ())

    def _resolved(self, rule: Rule) -> Rule:
        while "use" in rule:
            rule = self._groups[rule["use"]]
        return rule

    def _of_value(self, value: object, rule: Rule | bool, path: Path) -> Iterator[Mistake]:
        if isinstance(rule, bool):
            if not rule:
                yield path, "unknown key"
            return
        rule = self._resolved(rule)
        kind = rule.get("type", "object" if "keys" in rule else None)
        kinds = [kind] if isinstance(kind, str) else kind or []
        if kinds and not any(_TYPES[one](value) for one in kinds):
            yield path, "expected %s, got %s" % (" or ".join(_NAMES.get(one, one) for one in kinds), _shown(value))
            return
        if "values" in rule and value not in rule["values"]:
            expected = [str(one) for one in rule["values"]]
            message = "expected one of %s, got %s" % (", ".join(expected), _shown(value))
            yield path, message + suggestion(str(value), expected)
            return
        yield from _bounds(value, rule, path)
        if isinstance(value, dict):
            yield from self._of_object(value, rule, path)
        elif isinstance(value, list):
            yield from self._of_list(value, rule, path)
        yield from self._alternatives(value, rule, path)

    def _of_object(self, value: Mapping[str, object], rule: Rule, path: Path) -> Iterator[Mistake]:
        known = rule.get("keys", {})
        for name in rule.get("required", ()):
            if name not in value:
                yield path + (name,), "missing: the agent refuses the configuration"
        for name, member in value.items():
            where = path + (name,)
            patterns = [of for pattern, of in rule.get("like", {}).items() if re.search(pattern, name)]
            if name in known:
                patterns.append(known[name])
            for of in patterns:
                yield from self._of_value(member, of, where)
            other = rule.get("other", True)
            if not patterns and other is False:
                yield where, "unknown key" + suggestion(name, list(known))
            elif not patterns:
                yield from self._of_value(member, other, where)

    def _of_list(self, value: Sequence[object], rule: Rule, path: Path) -> Iterator[Mistake]:
        each = rule.get("each", True)
        for index, entry in enumerate(value):
            if rule.get("unique") and entry in value[:index]:
                yield path + (index,), "duplicate entry " + _shown(entry)
            of = each if not isinstance(each, list) else each[index] if index < len(each) else True
            yield from self._of_value(entry, of, path + (index,))

    def _alternatives(self, value: object, rule: Rule, path: Path) -> Iterator[Mistake]:
        for of in rule.get("all_of", ()):
            yield from self._of_value(value, of, path)
        if "never" in rule and not list(self._of_value(value, rule["never"], path)):
            yield path, _shown(value) + " is not allowed here"
        for name in ("any_of", "one_of"):
            if name not in rule:
                continue
            tried = [list(self._of_value(value, of, path)) for of in rule[name]]
            fitting = sum(not mistakes for mistakes in tried)
            if not fitting:
                yield from min(tried, key=lambda mistakes: (any(where == path for where, _ in mistakes), len(mistakes)))
            elif name == "one_of" and fitting > 1:
                yield path, "fits several forms of which the agent allows one"


def _bounds(value: object, rule: Rule, path: Path) -> Iterator[Mistake]:
    if isinstance(value, str):
        size, low, high, what = float(len(value)), "shortest", "longest", " characters"
    elif isinstance(value, list):
        size, low, high, what = float(len(value)), "fewest", "many", " entries"
    elif isinstance(value, dict):
        size, low, high, what = float(len(value)), "fewest_keys", "most_keys", " keys"
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        size, low, high, what = float(value), "least", "most", ""
    else:
        return
    least, most = rule.get(low), rule.get(high)
    if (least is not None and size < least) or (most is not None and size > most):
        if most is None:
            bounds = "at least %s" % least
        else:
            bounds = "at most %s" % most if least is None else "%s to %s" % (least, most)
        yield path, "expected %s%s, got %g" % (bounds, what, size)
    if isinstance(value, str) and "pattern" in rule and not re.search(rule["pattern"], value):
        yield path, "expected a text that matches %s, got %s" % (rule["pattern"], _shown(value))


def suggestion(word: str, known: Collection[str]) -> str:
    """`; did you mean …?`, or "" if no known word is similar."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return "; did you mean %s?" % close[0] if close else ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
