"""Which checks change what other checks look at, so that those keep their order.

Checks that only look may be asked in any order, hence all at once. A user's file may also have a check that writes and
a later one that reads what it wrote. Who writes is told by the commands: every text that a check could hand to
`host.run` (constants of its function, its fixtures, its helpers, its parameters) is read before anything runs. In doubt
a check is taken for one that changes: that costs a round trip, the other way round would cost the truth.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

import pytest
from _pytest.scope import Scope

from validator.effects import changes
from validator.items import can_gather, scope_node

_BESIDE = frozenset({"builtins", "testinfra", "pytest", "_pytest", "pluggy", "validator", "gpu_ami"})
_ENOUGH = 2000  # functions and values looked at for one check: one with more is taken for one that changes


def in_order(rest: Sequence[pytest.Item], changing: Set[pytest.Item]) -> list[Any]:
    """Those that can be gathered now: none that comes after one that cannot, where either could change the other."""
    chosen: list[pytest.Item] = []
    for number, item in enumerate(rest):
        if can_gather(item):
            chosen.append(item)
        elif item.get_closest_marker("live") is None and not changing.isdisjoint(rest[number:]):
            break
    return chosen


class Effects:
    """What is known of the checks of one run."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[object, bool]] = {}  # by id: what was looked at (so that ids stay), and the finding

    def of(self, items: Iterable[pytest.Item]) -> set[pytest.Item]:
        """Those that may change something, and those that share what such a fixture has set up and takes down again."""
        found, shared = set(), set()
        items = list(items)
        for item in items:
            fixtures = [one for some in _fixtures(item).values() for one in some]
            changing = [one for one in fixtures if self._may(one.func)]
            shared |= {scope_node(item, one) for one in changing if one._scope is not Scope.Function}
            if changing or self._may(getattr(item, "function", None)) or self._may(_parameters(item)):
                found.add(item)
        return found | {item for item in items if shared & set(item.listchain())}

    def _may(self, value: object) -> bool:
        known = self._seen.get(id(value))
        if known is None:
            texts = _Texts()
            known = self._seen[id(value)] = (value, any(changes(text) for text in texts.of(value)) or texts.too_many)
        return known[1]


class _Texts:
    """Every text that a function could come to use: its constants, and those of what it names."""

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
        self.too_many = len(self._visited) > _ENOUGH
        for part in self._parts(value):
            yield from self.of(part)

    def _parts(self, value: Any) -> Iterator[object]:
        if isinstance(value, types.MethodType):
            yield value.__func__
            yield type(value.__self__)
        elif isinstance(value, types.FunctionType):
            if not _is_beside(value.__module__):
                yield from self._of_function(value)
        elif isinstance(value, functools.partial):
            yield from (value.func, value.args, value.keywords)
        elif isinstance(value, dict):
            yield from value.values()
            yield from value.keys()
        elif isinstance(value, list | tuple | set | frozenset):
            yield from value
        elif isinstance(value, type):
            if not _is_beside(value.__module__):
                yield from (
                    one for name, one in vars(value).items() if name not in ("__doc__", "__module__", "__qualname__")
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
                one for one in constants if isinstance(one, str | tuple | frozenset | bytes) and one != function.__doc__
            )
        yield from (function.__defaults__ or ())
        yield from (function.__kwdefaults__ or {}).values()
        for cell in function.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                continue
        for name in names & function.__globals__.keys():
            found = function.__globals__[name]
            if isinstance(found, types.ModuleType):
                if not _is_beside(found.__name__):
                    yield from (vars(found)[one] for one in names & vars(found).keys())
            else:
                yield getattr(found, "__wrapped__", found)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


@functools.cache
def _is_beside(module: str | None) -> bool:
    """Whether a module is a library that has no command of the user's."""
    top = (module or "").partition(".")[0]
    where = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return top in _BESIDE or top in sys.stdlib_module_names or "-packages/" in where


def _fixtures(item: pytest.Item) -> dict[str, Any]:
    info = getattr(item, "_fixtureinfo", None)
    return dict(info.name2fixturedefs) if info is not None else {}


def _parameters(item: pytest.Item) -> tuple[object, ...]:
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return ()
    return tuple(value for name, value in callspec.params.items() if name != "_testinfra_host")
