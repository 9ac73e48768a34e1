"""Finds the checks that may change what other checks read, so that their order is kept.

Read-only checks can run in any order, hence concurrently. A user's file can also contain a check that writes and a
later one that reads the result. Before the run, every text that a check could pass to `host.run` (constants of its
function, fixtures, helpers and parameters) is examined. When unsure, assume that the check mutates: that costs a
round trip, while a wrong order would give a wrong verdict.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

import pytest

from validator.engine import pytest_internals
from validator.engine.commands import changes
from validator.engine.concurrent_items import can_run_concurrently, scope_node
from validator.engine.pytest_internals import Scope, scope_of

_LIBRARIES = frozenset({"builtins", "testinfra", "pytest", "_pytest", "pluggy", "validator", "gpu_ami"})
_LIMIT = 2000  # functions and values examined for one check; one with more is assumed to mutate


def concurrent_now(remaining: Sequence[pytest.Item], mutating: Set[pytest.Item]) -> list[Any]:
    """The items that can run concurrently now; if items may change the host, only up to the first that cannot."""
    chosen: list[pytest.Item] = []
    for number, item in enumerate(remaining):
        if can_run_concurrently(item):
            chosen.append(item)
        elif item.get_closest_marker("live") is None and not mutating.isdisjoint(remaining[number:]):
            break
    return chosen


class MutationAnalysis:
    """Examines the checks of one run."""

    def __init__(self) -> None:
        # By id: the value (referenced, so that its id is not reused) and the result.
        self._examined: dict[int, tuple[object, bool]] = {}
        # What the items of a function share: its fixtures that may change the host, whether it may, and itself.
        self._functions: dict[tuple[int, int], tuple[list[Any], bool, object]] = {}

    def mutating(self, items: Iterable[pytest.Item]) -> set[pytest.Item]:
        """The items that may change their host, and those that share a fixture that may."""
        mutating, shared = set(), set()
        items = list(items)
        for item in items:
            fixtures, may, _ = self._of_function(item)
            shared |= {scope_node(item, fixture) for fixture in fixtures if scope_of(fixture) is not Scope.Function}
            if fixtures or may or self._may_parameters(item):
                mutating.add(item)
        return mutating | {item for item in items if shared and shared & set(item.listchain())}

    def _of_function(self, item: pytest.Item) -> tuple[list[Any], bool, object]:
        function = getattr(item, "function", None)
        key = (pytest_internals.shared_by_function(item), id(function))
        if key not in self._functions:
            definitions = pytest_internals.definitions(item).values()
            fixtures = [fixture for named in definitions for fixture in named if self._may(fixture.func)]
            self._functions[key] = fixtures, self._may(function), function
        return self._functions[key]

    def _may_parameters(self, item: pytest.Item) -> bool:
        values = [value for value in _parameters(item) if not isinstance(value, int | float | None)]
        if all(isinstance(value, str) for value in values):
            return any(map(changes, values))
        return self._may(tuple(values))

    def _may(self, value: object) -> bool:
        known = self._examined.get(id(value))
        if known is None:
            texts = _Texts()
            known = self._examined[id(value)] = (
                value,
                any(changes(text) for text in texts.of(value)) or texts.too_many,
            )
        return known[1]


class _Texts:
    """Every text that a function could use: its constants, and those of the objects that it names."""

    def __init__(self) -> None:
        self._visited: dict[int, object] = {}
        self.too_many = False

    def of(self, value: object) -> Iterator[str]:
        if isinstance(value, str):
            yield value
            return
        if isinstance(value, bytes):
            yield value.decode(errors="replace")
            return
        if id(value) in self._visited or self.too_many:
            return
        self._visited[id(value)] = value
        self.too_many = len(self._visited) > _LIMIT
        for part in self._parts(value):
            yield from self.of(part)

    def _parts(self, value: Any) -> Iterator[object]:
        if isinstance(value, types.MethodType):
            yield value.__func__
            yield type(value.__self__)
        elif isinstance(value, types.FunctionType):
            if not _is_library(value.__module__):
                yield from self._of_function(value)
        elif isinstance(value, functools.partial):
            yield from (value.func, value.args, value.keywords)
        elif isinstance(value, dict):
            yield from value.values()
            yield from value.keys()
        elif isinstance(value, list | tuple | set | frozenset):
            yield from value
        elif isinstance(value, type):
            if not _is_library(value.__module__):
                yield from (
                    member
                    for name, member in vars(value).items()
                    if name not in ("__doc__", "__module__", "__qualname__")
                )
        elif isinstance(value, staticmethod | classmethod):
            yield value.__func__
        elif isinstance(value, property):
            yield value.fget

    def _of_function(self, function: types.FunctionType) -> Iterator[object]:
        names: set[str] = set()
        for code in _codes(function.__code__):
            names.update(code.co_names)
            constants = code.co_consts
            yield from (
                constant
                for constant in constants
                if isinstance(constant, str | tuple | frozenset | bytes) and constant != function.__doc__
            )
        yield from (function.__defaults__ or ())
        yield from (function.__kwdefaults__ or {}).values()
        for cell in function.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # the cell is empty
                continue
        for name in names & function.__globals__.keys():
            used = function.__globals__[name]
            if isinstance(used, types.ModuleType):
                if not _is_library(used.__name__):
                    yield from (vars(used)[member] for member in names & vars(used).keys())
            else:
                yield getattr(used, "__wrapped__", used)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


@functools.cache
def _is_library(module: str | None) -> bool:
    """Whether a module is a library, which cannot contain a user's command."""
    top = (module or "").partition(".")[0]
    where = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return top in _LIBRARIES or top in sys.stdlib_module_names or "-packages/" in where


def _parameters(item: pytest.Item) -> tuple[object, ...]:
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return ()
    return tuple(value for name, value in callspec.params.items() if name != "_testinfra_host")
