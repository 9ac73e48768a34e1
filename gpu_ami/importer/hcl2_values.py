"""Values of HCL2 expressions: literals, `var.x` and `local.x`, templates of them, conditions, and common functions.

Packer's documentation, "HCL templates: expressions and functions", read 2026-11-25. What is not understood is left in
the value as `${…}`, and its kind is reported, never its text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

_UNKNOWN = "${...}"


class NotUnderstood(Exception):
    """Names the kind of an expression (`function templatefile`) whose value is not known."""


def _known(value: object) -> object:
    if not isinstance(value, str) or "${" not in value:
        return value
    raise NotUnderstood("a value that is not known")


def _compact(items: Any) -> list[object]:
    return [item for item in items if item not in ("", None)]


def _replaced(text: str, old: str, new: str) -> str:
    if len(old) > 1 and old.startswith("/") and old.endswith("/"):
        return re.sub(old[1:-1], re.sub(r"\$(\d)", r"\\\1", new), text)
    return text.replace(old, new)


def _merged(*maps: Any) -> dict[str, object]:
    return {key: value for mapping in maps if mapping for key, value in mapping.items()}


_FUNCTIONS: Mapping[str, Callable[..., object]] = {
    "coalesce": lambda *values: next((value for value in values if value not in (None, "")), None),
    "compact": _compact,
    "concat": lambda *lists: [item for items in lists for item in items],
    "join": lambda separator, items: str(separator).join(str(item) for item in items),
    "length": len,
    "lower": lambda text: str(text).lower(),
    "merge": _merged,
    "replace": _replaced,
    "split": lambda separator, text: str(text).split(str(separator)),
    "tolist": list,
    "tonumber": lambda value: float(value) if "." in str(value) else int(value),
    "toset": list,
    "tostring": lambda value: None if value is None else _text(value),
    "trimspace": lambda text: str(text).strip(),
    "upper": lambda text: str(text).upper(),
}
_OPERATORS: Mapping[str, Callable[[Any, Any], object]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "&&": lambda left, right: left and right,
    "||": lambda left, right: left or right,
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    ">": lambda left, right: left > right,
    "<": lambda left, right: left < right,
    ">=": lambda left, right: left >= right,
    "<=": lambda left, right: left <= right,
}


class Evaluator:
    """The values of expressions (nodes of python-hcl2's tree).

    lookup: the value of `var.x` or `local.x` by its two names, or NotUnderstood. `not_understood`: what was met;
    `environment`: the variables that `env()` has asked for.
    """

    def __init__(self, lookup: Callable[[str, str], object]) -> None:
        self._lookup = lookup
        self.not_understood: list[str] = []
        self.environment: set[str] = set()

    def value(self, node: Any) -> Any:
        """The value of an expression; `${…}` in its text stands for what is not understood."""
        try:
            return self._value(node)
        except NotUnderstood as error:
            self.not_understood.append(str(error))
            return _source(node)

    def _value(self, node: Any) -> Any:
        kind = node.lark_name()
        if kind == "expr_term":
            return self._value(node.expression)
        method = getattr(self, f"_{kind}", None)
        if method is None:
            raise NotUnderstood(_KINDS.get(kind, kind.replace("_", " ")))
        return method(node)

    def _string(self, node: Any) -> object:
        """The text of a string; of a single `${…}` its value, which may be a list or mapping."""
        parts = [part.content for part in node.string_parts]
        if len(parts) == 1 and parts[0].lark_name() == "interpolation":
            return self._value(parts[0].expression)
        return "".join(self._part(part.content) for part in node.string_parts)

    def _part(self, content: Any) -> str:
        kind = content.lark_name()
        if kind == "interpolation":
            return _text(self.value(content.expression))
        text = str(content.serialize())
        if kind == "STRING_CHARS":
            return _unescaped(text)
        if kind in ("ESCAPED_INTERPOLATION", "ESCAPED_DIRECTIVE"):
            return text[1:]
        self.not_understood.append("a template directive (%{…})")
        return _UNKNOWN

    def _heredoc_template(self, node: Any) -> object:
        return _plain(node)

    _heredoc_template_trim = _heredoc_template

    def _literal_value(self, node: Any) -> object:
        return node.serialize()

    _int_lit = _float_lit = _literal_value

    def _identifier(self, node: Any) -> object:
        raise NotUnderstood(f"the name {node.serialize()}")

    def _tuple(self, node: Any) -> object:
        return [self.value(element) for element in node.elements]

    def _object(self, node: Any) -> object:
        return {self._key(element.key): self.value(element.expression) for element in node.elements}

    def _key(self, key: Any) -> str:
        if key.lark_name() == "object_elem_key":
            value = key.value
            return str(value.serialize()) if value.lark_name() == "identifier" else _text(self.value(value))
        expression = key.expression
        inner = expression.expression if expression.lark_name() == "expr_term" else expression
        return str(inner.serialize()) if inner.lark_name() == "identifier" else _text(self.value(expression))

    def _conditional(self, node: Any) -> object:
        condition = _known(self._value(node.condition))
        return self._value(node.if_true if condition in (True, "true") else node.if_false)

    def _binary_op(self, node: Any) -> object:
        operator = str(node.binary_term.binary_operator.serialize())
        if operator not in _OPERATORS:
            raise NotUnderstood(f"the operator {operator}")
        left = _known(self._value(node.expr_term))
        right = _known(self._value(node.binary_term.expr_term))
        try:
            return _OPERATORS[operator](left, right)
        except TypeError:
            raise NotUnderstood(f"the operator {operator} between these values") from None

    def _unary_op(self, node: Any) -> object:
        value = _known(self._value(node.expr_term))
        if node.operator == "!":
            return value not in (True, "true")
        if isinstance(value, int | float):
            return -value
        raise NotUnderstood("the operator -")

    def _function_call(self, node: Any) -> object:
        name = "::".join(str(part.serialize()) for part in node.identifiers)
        arguments = [self._value(argument) for argument in node.arguments.arguments] if node.arguments else []
        if name == "env" and len(arguments) == 1:
            self.environment.add(str(arguments[0]))
            return os.environ.get(str(arguments[0]), "")
        if name not in _FUNCTIONS:
            raise NotUnderstood(f"the function {name}")
        for argument in arguments:
            _known(argument)
        try:
            return _FUNCTIONS[name](*arguments)
        except (TypeError, ValueError, AttributeError, re.error):
            raise NotUnderstood(f"the function {name} of these values") from None

    def _get_attr_expr_term(self, node: Any) -> object:
        attribute = str(node.get_attr.identifier.serialize())
        below = node.expr_term
        below = below.expression if below.lark_name() == "expr_term" else below
        if below.lark_name() == "identifier":
            return self._lookup(str(below.serialize()), attribute)
        return _item(self._value(node.expr_term), attribute)

    def _index_expr_term(self, node: Any) -> object:
        below, index = node.children[0], node.children[1]
        key = index.index.serialize() if index.lark_name() == "short_index" else self._value(index.index_expression)
        return _item(self._value(below), key)


_KINDS = {
    "for_tuple_expr": "a for expression",
    "for_object_expr": "a for expression",
    "attr_splat_expr_term": "a splat expression",
    "full_splat_expr_term": "a splat expression",
}


def _item(value: Any, key: Any) -> object:
    try:
        return value[key if isinstance(value, Mapping) else int(key)]
    except (KeyError, IndexError, TypeError, ValueError):
        raise NotUnderstood("an attribute or index that is not there") from None


def _plain(node: Any) -> object:
    from hcl2 import SerializationOptions

    return node.serialize(SerializationOptions(strip_string_quotes=True, preserve_heredocs=False))


def _source(node: Any) -> object:
    """An expression as it is written, in `${…}`."""
    text = str(_plain(node))
    return text if text.startswith("${") else f"${{{text}}}"


def _unescaped(text: str) -> str:
    from hcl2.utils import process_escape_sequences

    return str(process_escape_sequences(text))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
