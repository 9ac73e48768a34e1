"""Runs pytest items as concurrent tasks: many are set up at the same time, each as if it ran alone.

pytest runs one item after the other, with one stack of set-up nodes (SetupState) and one cached value per fixture.
When an item resumes, its own stack and function-scoped values are restored; when it is suspended, they are saved.
Fixtures of a class, module or package are shared by the items of one host: set up once, torn down after the last item
that needs them. Fixtures of the session are shared by all items. See docs/engine.md.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, Protocol

import pytest

from validator import deadline
from validator.engine import pytest_internals, scheduler
from validator.engine.pytest_internals import Scope, scope_of
from validator.selection import marker_of
from validator.transport import backend

# Fixtures that change shared state or capture the output of all items: an item with one of these runs alone.
_ALONE = frozenset(
    {"capsys", "capfd", "capsysbinary", "capfdbinary", "capteesys", "caplog"}
    | {"monkeypatch", "recwarn", "pytester", "testdir", "doctest_namespace"}
)
_PHASE = pytest_internals.PHASE_VARIABLE
_LEFT_OUT = (*pytest_internals.WRAPPERS, "validator.plugin")  # ours sets the deadline of a check that runs alone
_NOT_A_VERDICT = (KeyboardInterrupt,)  # pytest.exit of a check is its error
CHECKS = Path(__file__).parent.parent / "checks"  # ours, which change no host unless they are marked live
_OF_A_HOST = (Scope.Class, Scope.Module, Scope.Package)
_HIGHER = (*_OF_A_HOST, Scope.Session)


def can_run_concurrently(item: pytest.Item) -> bool:
    """Whether an item uses a host of this plugin, is not a user's marked live, and has no fixture of _ALONE.

    A mark filterwarnings works by pytest's own plugin around an item that runs alone.
    """
    if not isinstance(item, pytest.Function) or (is_live(item) and not is_ours(item)):
        return False
    callspec = getattr(item, "callspec", None)
    host = callspec.params.get("_testinfra_host") if callspec else None
    if callspec is None or not isinstance(getattr(host, "backend", None), backend.BatchBackend):
        return False
    if not _ALONE.isdisjoint(item.fixturenames) or marker_of(item, "filterwarnings"):
        return False
    scopes = pytest_internals.parameter_scopes(item)
    return all(name == "_testinfra_host" or scope not in _HIGHER for name, scope in scopes.items())


def is_live(item: pytest.Item) -> bool:
    """Whether an item is marked live: it changes its host."""
    return marker_of(item, "live") is not None


def is_ours(item: pytest.Item) -> bool:
    """Whether an item is one of the built-in checks."""
    return _in_checks(item.path)


@functools.cache
def _in_checks(path: Path) -> bool:
    return path.parent == CHECKS


def is_beside_live(item: pytest.Item) -> bool:
    """Whether an item is a built-in check that is safe beside live checks: by its mark, or as it reads files alone.

    A real fault on a GPU (--provoke-xid) may affect what the mark is for.
    """
    if not is_ours(item) or is_live(item):
        return False
    tier = marker_of(item, "tier")
    if tier is not None and tier.args[0] == "T0":
        return True
    return marker_of(item, "beside_live") is not None and not item.config.getoption("provoke_xid", False)


class NoteRunning(Protocol):
    """What is told of an item that goes on (runs), or is suspended."""

    def __call__(self, item: pytest.Item, *, runs: bool) -> None: ...


class ConcurrentItems:
    """Items that run concurrently. The `reports` of an item are complete once it is among those that have `ended`."""

    def __init__(
        self,
        session: pytest.Session,
        items: list[pytest.Function],
        nextitem: pytest.Item | None,
        note_running: NoteRunning,
    ) -> None:
        """note_running: called when an item goes on, and when it is suspended or has ended."""
        self.session = session
        self.items = items
        self.nextitem = nextitem
        self.reports: dict[pytest.Item, list[pytest.TestReport]] = {item: [] for item in items}
        self._not_a_verdict = (*_NOT_A_VERDICT, scheduler.killed())
        self._unfinished = dict.fromkeys(items)
        self._in_teardown: dict[pytest.Function, None] = {}
        self.ended: set[pytest.Item] = set()
        self._busy: dict[Any, scheduler.Task] = {}  # fixture being set up → its task
        stack = pytest_internals.setup_stack(session)
        self._session_entry = {session: stack[session]} if session in stack else {}
        hosts: dict[Any, _SharedState] = {}
        self._states = {
            item: _ItemState(
                session, item, hosts.setdefault(_host_of(item), _SharedState(self._session_entry)), note_running
            )
            for item in items
        }
        for item, state in self._states.items():
            for node in state.parents:
                state.shared.unfinished.setdefault(node, {})[item] = None
        self._hooks: dict[Any, dict[str, pytest_internals.ItemHook]] = {}
        self._arguments = pytest_internals.KnownArguments(session.config)
        self._empty_setups = pytest_internals.EmptySetups(session.config)
        self._all_reports = pytest_internals.reads_all_reports(session.config)
        pytest_internals.share_locations(items)

    def tasks(self, mutating: Set[pytest.Item], seconds: float) -> list[scheduler.Task]:
        """One task for each item, in order. mutating: items that may change their host; seconds: deadline of each."""
        return [
            scheduler.Task(
                item.nodeid,
                lambda item=item: self._protocol(item),  # type: ignore[misc]
                state.enter,
                state.leave,
                state.shared,
                mutates=item in mutating,
                live=is_live(item),  # a user's is not among these items
                beside=is_beside_live(item),
                seconds=seconds,
            )
            for item, state in self._states.items()
        ]

    @contextlib.contextmanager
    def exclusive_setup(self) -> Iterator[None]:
        """A context in which one item sets up a shared fixture while other items that need it wait."""

        def execute(original: Any, fixture: Any, request: Any) -> Any:
            scope, item = scope_of(fixture), request._pyfuncitem
            node = item if scope is Scope.Function else scope_node(item, fixture)
            if item in self._states:
                self._states[item].add_fixture(fixture, node)
            active = scheduler.active()
            task = active.task if active else None
            if scope is Scope.Function or active is None or task is None:
                return original(fixture, request)
            key = (fixture, None, None) if scope is Scope.Session else (fixture, task.host, node)
            active.wait_until(lambda: self._busy.get(key) in (None, task))
            if self._busy.get(key) is task:
                return original(fixture, request)
            self._busy[key] = task
            try:
                return original(fixture, request)
            finally:
                del self._busy[key]

        with pytest_internals.replaced_execute(execute), pytest_internals.faster_lookups(self.session):
            yield

    def _protocol(self, item: pytest.Function) -> None:
        known = self._arguments.of(item)
        item.funcargs.update(known)
        empty = self._empty_setups.has(item, known)
        try:
            if empty or self._phase(item, "setup").passed:
                self._phase(item, "call")
        finally:
            self._ended(item)
            nextitem = self._next(item)
            ends = self._nodes_that_end(item, nextitem)
            self._wait_for_teardowns(item, ends)
            self._phase(item, "teardown", empty=empty and not ends, nextitem=nextitem)
            pytest_internals.forget_arguments(item)
            del self._in_teardown[item]
            self.ended.add(item)

    def _phase(self, item: pytest.Function, when: Any, *, empty: bool = False, **arguments: Any) -> pytest.TestReport:
        """Runs a phase and reports it. empty: nothing happens in it."""
        hooks, left = self._hooks_of(item), 0.0

        def run() -> None:
            nonlocal left
            try:
                if not empty:
                    hooks[when](item=item, **arguments)
            finally:
                left = deadline.pause()  # the deadline is the check's, not that of the report on it

        call = pytest_internals.call_phase(run, when, self._not_a_verdict)
        self._states[item].add_sections(when)
        report: pytest.TestReport = hooks["report"](item=item, call=call)
        # pytest shows what a teardown printed with the check's failure.
        printed = when == "teardown" and any("teardown" in title for title, _ in report.sections)
        if when == "call" or printed or not report.passed or self._all_reports:
            self.reports[item].append(report)
        deadline.resume(left)
        return report

    def _hooks_of(self, item: pytest.Function) -> dict[str, Any]:
        """The hooks of the phases and of the report: the same for all items of a file."""
        if item.path not in self._hooks:
            hooks = {
                when: pytest_internals.ItemHook(item, f"pytest_runtest_{when}", _LEFT_OUT)
                for when in ("setup", "call", "teardown")
            }
            hooks["report"] = pytest_internals.ItemHook(item, "pytest_runtest_makereport")
            self._hooks[item.path] = hooks
        return self._hooks[item.path]

    def _next(self, item: pytest.Function) -> Any:
        """The next pending item with the deepest shared scope, so that shared fixtures stay set up."""
        shared = self._states[item].shared
        for node in reversed(self._states[item].parents[1:]):
            unfinished = shared.unfinished.get(node)
            if unfinished:
                return next(iter(unfinished))
        # Where other hosts continue, this host's fixtures are torn down, and the session's are kept.
        return OnlySession(self.session) if self._unfinished else self.nextitem

    def _nodes_that_end(self, item: pytest.Function, nextitem: Any) -> list[Any]:
        """The nodes around an item that are set up, and that its teardown ends."""
        stack = pytest_internals.setup_stack(self.session)
        kept = set(nextitem.listchain()) if stack and nextitem else set()
        return [node for node in stack if node is not item and node not in kept]

    def _wait_for_teardowns(self, item: pytest.Function, ends: list[Any]) -> None:
        """Waits for items that still need one of the nodes: each knew of an item that would follow, and kept it."""
        active, shared = scheduler.active(), self._states[item].shared
        if active is None:
            return
        active.renew()
        others = [
            other
            for other in self._in_teardown
            if other is not item
            and any(node is self.session or shared is self._states[other].shared for node in ends)
            and not set(ends).isdisjoint(self._states[other].parents)
        ]
        if others:
            active.wait_untimed(lambda: self._in_teardown.keys().isdisjoint(others))

    def _ended(self, item: pytest.Function) -> None:
        del self._unfinished[item]
        self._in_teardown[item] = None
        state = self._states[item]
        for node in state.parents:
            state.shared.unfinished[node].pop(item, None)


class OnlySession:
    """In the place of a next item: what is set up for the session is kept, and nothing else."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session

    def listchain(self) -> list[Any]:
        return [self._session]


class _SharedState:
    """The state of one host: set-up nodes below the session, and values of fixtures that its items share."""

    def __init__(self, session_entry: dict[Any, Any]) -> None:
        self.session_entry = session_entry
        self.entries: dict[Any, Any] = {}  # SetupState's entry of every node but items
        self.unfinished: dict[Any, dict[Any, None]] = {}  # by node: its items that have not ended
        # By node (a definition can serve many modules): values and finalizers of its fixtures.
        self.fixtures: dict[Any, dict[Any, tuple[Any, list[Any]]]] = {}

    def restore_values(self, chain: list[Any]) -> None:
        for node in chain:
            _restore(self.fixtures.get(node, {}))

    def save_values(self, chain: list[Any], shared: Mapping[Any, Any]) -> None:
        """shared: the item's fixtures of a class, module or package, each with its node."""
        if not shared and not self.fixtures:
            return
        stored = {fixture: node for node in chain for fixture in self.fixtures.get(node, ())}
        for fixture, node in {**stored, **shared}.items():
            value = pytest_internals.take_value(fixture)
            if value is not None:
                self.fixtures.setdefault(node, {})[fixture] = value
            elif fixture in stored:
                del self.fixtures[node][fixture]

    def stack(self, chain: list[Any]) -> dict[Any, Any]:
        """The nodes of a chain that are set up. chain: the session first."""
        if not self.session_entry:
            return {}
        entries = self.entries
        return self.session_entry | {node: entries[node] for node in chain if node in entries}

    def save_stack(self, chain: list[Any], stack: Mapping[Any, Any]) -> None:
        session, *nodes = chain
        for node, entries in ((session, self.session_entry), *((node, self.entries) for node in nodes)):
            if node in stack:
                entries[node] = stack[node]
            else:
                entries.pop(node, None)


def _host_of(item: pytest.Function) -> Any:
    return item.callspec.params["_testinfra_host"]


_KINDS = ((Scope.Class, pytest.Class), (Scope.Module, pytest.Module), (Scope.Package, pytest.Package))


def scope_node(item: pytest.Item, fixture: Any) -> Any:
    """The node of a fixture's value: the item's class, module or package, or the session."""
    scope = scope_of(fixture)
    kind = next((kind for other, kind in _KINDS if other is scope), None)
    return (item.getparent(kind) if kind is not None else None) or (item if kind is pytest.Class else item.session)


def _restore(fixtures: dict[Any, tuple[Any, list[Any]]]) -> None:
    for fixture, saved in fixtures.items():
        pytest_internals.give_value(fixture, saved)


class _ItemState:
    """The fixtures and output of one item while it is suspended."""

    def __init__(
        self, session: pytest.Session, item: pytest.Function, shared: _SharedState, note_running: NoteRunning
    ) -> None:
        self.session = session
        self._note_running = note_running
        self.item = item
        self.shared = shared
        self.parents = item.listchain()[:-1]
        self._entry: Any = None  # its own in SetupState's stack
        self._own: set[Any] = set()  # fixtures of the function that it has used
        self._of_host: dict[Any, Any] = {}  # those of its class, module and packages, with the node
        self._fixtures: dict[Any, tuple[Any, list[Any]]] = {}  # values of its own
        self._out, self._err = io.StringIO(), io.StringIO()
        self._sudo: list[tuple[backend.BatchBackend, Any]] = []
        self._phase: str | None = None
        self._streams: tuple[Any, Any] = (None, None)
        self._link: backend.HostLink = _host_of(item).backend.link

    def enter(self) -> None:
        """Restores the state of this item, which resumes."""
        stack = self.shared.stack(self.parents)
        if self._entry is not None:
            stack[self.item] = self._entry
        pytest_internals.set_setup_stack(self.session, stack)
        self.shared.restore_values(self.parents)
        _restore(self._fixtures)
        for of_host, get_command in self._sudo:
            of_host.__dict__["get_command"] = get_command
        if self._phase is not None and os.environ.get(_PHASE) != self._phase:
            os.environ[_PHASE] = self._phase
        self._streams, (sys.stdout, sys.stderr) = (sys.stdout, sys.stderr), (self._out, self._err)
        self._note_running(self.item, runs=True)

    def leave(self) -> None:
        """Saves the state of this item, which is suspended or has ended."""
        self._note_running(self.item, runs=False)
        sys.stdout, sys.stderr = self._streams
        # `with host.sudo()` sets its own get_command on a backend (the host's or its root twin's) that all items share.
        own = [(of_host, of_host.__dict__.pop("get_command", None)) for of_host in self._link.backends]
        self._sudo = [(of_host, get_command) for of_host, get_command in own if get_command is not None]
        self._phase = os.environ.get(_PHASE)  # stays until another item sets its own
        stack = pytest_internals.setup_stack(self.session)
        self._entry = stack.get(self.item)
        self.shared.save_stack(self.parents, stack)
        values = ((fixture, pytest_internals.take_value(fixture)) for fixture in self._own)
        self._fixtures = {fixture: value for fixture, value in values if value is not None}
        self.shared.save_values(self.parents, self._of_host)

    def add_fixture(self, fixture: Any, node: Any) -> None:
        """Notes a fixture that the item uses. node: to which its value belongs; see scope_node."""
        if node is self.item:
            self._own.add(fixture)
        elif scope_of(fixture) in _OF_A_HOST:
            self._of_host[fixture] = node

    def add_sections(self, when: str) -> None:
        """Adds the output of the item to the report of this phase."""
        for name, stream in (("stdout", self._out), ("stderr", self._err)):
            if stream.tell():
                self.item.add_report_section(when, name, stream.getvalue())
                stream.seek(0)
                stream.truncate()
