"""The engine's pytest plugin: the first item that can run concurrently runs all that can; each then reports itself.

Read-only checks can run in any order, hence concurrently. A user's file can also contain a check that writes and a
later one that reads the result: their order is kept. Before the run, every text that a check could pass to `host.run`
(constants of its function, fixtures, helpers and parameters) is examined. When unsure, assume that the check mutates:
that costs a round trip, while a wrong order would give a wrong verdict.
"""

from __future__ import annotations

import functools
import itertools
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import pytest

from validator import deadline
from validator.engine import pytest_internals, scheduler
from validator.engine.batches import changes
from validator.engine.concurrent_items import (
    ConcurrentItems,
    NoteRunning,
    OnlySession,
    can_run_concurrently,
    is_live,
    is_ours,
    scope_node,
)
from validator.engine.pytest_internals import Scope, scope_of

_LIBRARIES = frozenset({"builtins", "testinfra", "pytest", "_pytest", "pluggy", "validator", "gpu_ami"})
_LIMIT = 2000  # functions and values examined for one check; one with more is assumed to mutate


class ConcurrentChecks:
    """A pytest plugin."""

    def __init__(self, note_running: NoteRunning) -> None:
        self._note_running = note_running
        self._reports: dict[pytest.Item, list[pytest.TestReport]] = {}  # of items that have run and not reported
        self._reported: set[pytest.Item] = set()  # items that were reported while later ones ran
        self._own_loop = False  # whether the loop below runs
        self._hooks: dict[Path, Any] = {}  # by file: its hooks, which pytest would look up for each item
        self._not_run: deque[pytest.Item] = deque()  # later items that did not run with them, in order
        self._mutating: set[pytest.Item] | None = None  # which items may change their host; None: not analysed yet

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """pytest's loop, but items that have run are reported without what plugins do around an item that runs."""
        if not pytest_internals.may_replace_loop(session):
            return None
        self._own_loop = True
        for item, nextitem in itertools.zip_longest(session.items, session.items[1:]):
            if item in self._reports:
                self._report(item, self._reports.pop(item))
            elif item not in self._reported:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if item not in self._reports and can_run_concurrently(item):
            self._run_from(item)
            if item in self._reported:
                return True
        reports = self._reports.pop(item, None)
        following = self._next_to_run(item, nextitem)
        if reports is None and following is nextitem:
            return None  # pytest's own protocol
        self._report(item, reports, following)
        return True

    def _report(
        self, item: pytest.Item, reports: list[pytest.TestReport] | None, nextitem: pytest.Item | None = None
    ) -> None:
        """Reports an item. reports: None if it has not run yet."""
        hook = self._hooks.get(item.path)
        if hook is None:
            hook = self._hooks[item.path] = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        if reports is None:
            pytest_internals.runtestprotocol(item, nextitem=nextitem)
        else:
            for report in reports:
                hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _next_to_run(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        """The next item that has not run yet, so that fixtures of finished items are torn down."""
        if self._not_run and self._not_run[0] is item:
            self._not_run.popleft()
        if nextitem not in self._reports:
            if nextitem is not None and can_run_concurrently(nextitem):  # its host's fixtures are set up anew
                return OnlySession(nextitem.session)
            return nextitem
        return self._not_run[0] if self._not_run else None

    def _run_from(self, first: pytest.Item) -> None:
        """Runs `first` and all later items that can run at the same time."""
        session = first.session
        remaining = session.items[session.items.index(first) :]
        if self._mutating is None:
            users = (item for item in remaining if not is_ours(item))
            live = {item for item in remaining if is_ours(item) and is_live(item)}
            self._mutating = MutationAnalysis().mutating(users) | live
        concurrent: Sequence[pytest.Function] = concurrent_now(remaining, self._mutating)
        chosen = set(concurrent)
        self._not_run = deque(item for item in remaining if item not in chosen)
        nextitem = self._not_run[0] if self._not_run else None
        items = ConcurrentItems(session, list(concurrent), nextitem, self._note_running)
        tasks = items.tasks(self._mutating, session.config.getoption("check_deadline"))
        deadline.install()
        report = functools.partial(self._report_ended, session, deque(remaining), items)
        idle = report if self._own_loop else lambda: False
        try:
            with items.exclusive_setup():
                scheduler.Scheduler(limit=lambda task: deadline.move(task.deadline), idle=idle).run(tasks)
        finally:
            deadline.arm(0.0)
        self._reports.update((item, reports) for item, reports in items.reports.items() if item not in self._reported)

    def _report_ended(self, session: pytest.Session, remaining: deque[pytest.Item], items: ConcurrentItems) -> bool:
        """Reports the next item in pytest's order, if it has ended. Whether it did.

        On many hosts reports are a tenth of the run; these are made while the processor would wait for a host.
        """
        if not remaining or remaining[0] not in items.ended or session.shouldfail or session.shouldstop:
            return False
        item = remaining.popleft()
        self._reported.add(item)
        self._report(item, items.reports[item])
        return True


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
