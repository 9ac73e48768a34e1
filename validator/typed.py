"""Values of documents that others wrote, compared with the types that the records declare."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, TypeVar, Union

_Test = Callable[[object], bool]


def field_tests(kind: type[Any]) -> Mapping[str, tuple[str, _Test]]:
    """Of each field of a record class: its type as a message shows it, and whether a value has it."""
    return _field_tests(kind)  # type: ignore[arg-type]


@functools.cache
def _field_tests(kind: type[Any]) -> Mapping[str, tuple[str, _Test]]:
    hints = typing.get_type_hints(kind)
    return {name: (_shown(hint), _test(hint)) for name, hint in hints.items()}


def _shown(hint: object) -> str:
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    for module in ("collections.abc.", "typing.", "validator.results.", "gpu_ami.report.document."):
        text = text.replace(module, "")
    return text


def _test(hint: Any) -> _Test:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (object, Any) or isinstance(hint, TypeVar):
        return lambda _value: True
    if origin in (Union, types.UnionType):
        tests = [_test(argument) for argument in arguments]
        return lambda value: any(test(value) for test in tests)
    if origin is Literal:
        return lambda value: value in arguments
    if origin in (tuple, list) or (origin is not None and _is(origin, Sequence)):
        return _sequence(arguments[0] if arguments else object)
    if origin is not None and _is(origin, Mapping):
        return _mapping(arguments[1] if len(arguments) == 2 else object)
    if typing.is_typeddict(hint):
        return lambda value: isinstance(value, dict)
    if hint is float:
        return lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda value: isinstance(value, hint)
    if isinstance(hint, type):
        return lambda value: isinstance(value, hint)
    return lambda _value: True  # ClassVar and what has no values in a document


def _is(origin: object, kind: type) -> bool:
    return isinstance(origin, type) and issubclass(origin, kind)


def _sequence(item: Any) -> _Test:
    test = _test(item)
    return lambda value: isinstance(value, list | tuple) and all(test(entry) for entry in value)


def _mapping(item: Any) -> _Test:
    test = _test(item)
    return lambda value: (
        isinstance(value, Mapping) and all(isinstance(key, str) and test(entry) for key, entry in value.items())
    )
