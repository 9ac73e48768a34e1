"""pytest items as tasks: many are set up at the same time, and each finds pytest as if it were alone.

pytest runs one item after the other, with one stack of what is set up (SetupState) and one cached value a fixture.
A slice of an item swaps in its own stack and its own function-scoped values, and takes them out again. What is shared
(class, module, package) is shared among the items of one host, is set up once, and goes when the last item that needs
it has ended; what is of the session is shared among all.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Set
from typing import Any

import pytest
from _pytest.fixtures import FixtureDef
from _pytest.runner import CallInfo
from _pytest.scope import Scope

from validator import gather
from validator.backend import BatchBackend

# They change something that all items share, or catch what all items write: an item with one of these runs alone.
_ALONE = frozenset(
    {"capsys", "capfd", "capsysbinary", "capfdbinary", "capteesys", "caplog"}
    | {"monkeypatch", "recwarn", "pytester", "testdir", "doctest_namespace"}
)
# They wrap a phase of an item and expect the next one only after it: capture is done here instead.
_WRAPPERS = ("capturemanager", "logging-plugin", "threadexception", "unraisableexception", "timeout")
_PHASE = "PYTEST_CURRENT_TEST"
_NOT_A_VERDICT = (pytest.exit.Exception, KeyboardInterrupt)
_OF_A_HOST = (Scope.Class, Scope.Module, Scope.Package)
_HIGHER = (*_OF_A_HOST, Scope.Session)


def can_gather(item: pytest.Item) -> bool:
    """Whether an item only looks at a host of ours, and depends on nothing that must be its own."""
    if not isinstance(item, pytest.Function) or item.get_closest_marker("live") is not None:
        return False
    callspec = getattr(item, "callspec", None)
    host = callspec.params.get("_testinfra_host") if callspec else None
    if callspec is None or not isinstance(getattr(host, "backend", None), BatchBackend):
        return False
    if _ALONE & set(item.fixturenames):
        return False
    shared = {name for name, scope in callspec._arg2scope.items() if scope in _HIGHER}
    return shared <= {"_testinfra_host"}


class Items:
    """The items of one gathering. `reports` of an item are complete once it has ended."""

    def __init__(self, session: pytest.Session, items: list[pytest.Function], nextitem: pytest.Item | None) -> None:
        self.session = session
        self.items = items
        self.nextitem = nextitem
        self.reports: dict[pytest.Item, list[pytest.TestReport]] = {item: [] for item in items}
        self._left = dict.fromkeys(items)
        self._busy: dict[Any, gather.Task] = {}  # shared fixtures that are being made, by whom
        self._session_entry: dict[Any, Any] = {}
        worlds: dict[Any, _World] = {}
        self._slices = {
            item: _Slice(self, item, worlds.setdefault(_host_of(item), _World(self._session_entry))) for item in items
        }
        for item, one in self._slices.items():
            for node in item.listchain():
                one.world.left.setdefault(node, {})[item] = None
        self._hooks: dict[Any, Any] = {}

    def tasks(self, alone: Set[pytest.Item], seconds: float) -> list[gather.Task]:
        """One task an item, in the items' order. `alone`: those that may change their host; seconds: for each."""
        return [
            gather.Task(
                item.nodeid,
                lambda item=item: self._protocol(item),  # type: ignore[misc]
                one.enter,
                one.leave,
                one.world,
                alone=item in alone,
                seconds=seconds,
            )
            for item, one in self._slices.items()
        ]

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """While it lasts, a shared fixture is made by one item, and the others that want it wait for it."""
        real = FixtureDef.execute

        def execute(fixture: Any, request: Any) -> Any:
            gatherer = gather.active()
            task = gatherer.task if gatherer else None
            if fixture._scope is Scope.Function or gatherer is None or task is None:
                return real(fixture, request)
            place: tuple[Any, Any] = (None, None)
            if fixture._scope is not Scope.Session:
                place = (task.world, scope_node(request._pyfuncitem, fixture))
            key = (fixture, *place)
            gatherer.wait_until(lambda: self._busy.get(key) in (None, task))
            if self._busy.get(key) is task:
                return real(fixture, request)
            self._busy[key] = task
            try:
                return real(fixture, request)
            finally:
                del self._busy[key]

        FixtureDef.execute = execute  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            FixtureDef.execute = real  # type: ignore[method-assign]

    def _protocol(self, item: pytest.Function) -> None:
        try:
            if self._phase(item, "setup").passed:
                self._phase(item, "call")
        finally:
            self._ended(item)
            self._phase(item, "teardown", nextitem=self._next(item))
            item._request = False  # type: ignore[assignment]
            item.funcargs = None  # type: ignore[assignment]

    def _phase(self, item: pytest.Function, when: Any, **arguments: Any) -> pytest.TestReport:
        hook = self._hook(item, f"pytest_runtest_{when}")
        call = CallInfo.from_call(
            lambda: hook(item=item, **arguments), when=when, reraise=(*_NOT_A_VERDICT, gather.killed())
        )
        self._slices[item].add_sections(when)
        report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
        self.reports[item].append(report)
        return report

    def _hook(self, item: pytest.Function, name: str) -> Any:
        foreign = tuple(getattr(item.ihook, "remove_mods", ()))
        key = (name, *map(id, foreign))
        if key not in self._hooks:
            manager = item.config.pluginmanager
            removed = [*(manager.get_plugin(wrapper) for wrapper in _WRAPPERS), *foreign]
            self._hooks[key] = manager.subset_hook_caller(name, [plugin for plugin in removed if plugin is not None])
        return self._hooks[key]

    def _next(self, item: pytest.Function) -> Any:
        """Whoever of those that still need something shares most with `item`: what they share must stay."""
        world = self._slices[item].world
        for node in reversed(item.listchain()[1:]):
            left = world.left.get(node)
            if left:
                return next(iter(left))
        if self._left:
            return _OnlySession(self.session)  # other hosts go on: what is of this one goes, what is of all stays
        return self.nextitem

    def _ended(self, item: pytest.Function) -> None:
        del self._left[item]
        for node in item.listchain():
            self._slices[item].world.left[node].pop(item, None)


class _OnlySession:
    """Stands for a next item that shares nothing but the session."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session

    def listchain(self) -> list[Any]:
        return [self._session]


class _World:
    """What is set up for one host: nodes below the session, and values of fixtures that its items share."""

    def __init__(self, session_entry: dict[Any, Any]) -> None:
        self.session_entry = session_entry
        self.entries: dict[Any, Any] = {}  # SetupState's entry of every node
        self.left: dict[Any, dict[Any, None]] = {}  # by node: its items that have not ended
        # By the node that they belong to (one definition serves many modules): what fixtures hold.
        self.fixtures: dict[Any, dict[Any, tuple[Any, list[Any]]]] = {}

    def give(self, item: pytest.Item) -> None:
        for node in item.listchain():
            _give(self.fixtures.get(node, {}))

    def take(self, item: pytest.Item, known: set[Any]) -> None:
        for node in item.listchain():
            known |= self.fixtures.get(node, {}).keys()
        for fixture in known:
            if fixture._scope in _OF_A_HOST:
                self.fixtures.setdefault(scope_node(item, fixture), {}).update(_take({fixture}))

    def stack(self, item: pytest.Item) -> dict[Any, Any]:
        known = self.session_entry | self.entries
        return {node: known[node] for node in item.listchain() if node in known}

    def keep(self, item: pytest.Item, stack: dict[Any, Any]) -> None:
        for node in item.listchain():
            kept = self.session_entry if isinstance(node, pytest.Session) else self.entries
            kept.pop(node, None)
            if node in stack:
                kept[node] = stack[node]


def _host_of(item: pytest.Function) -> Any:
    return item.callspec.params["_testinfra_host"]


def scope_node(item: pytest.Item, fixture: Any) -> Any:
    """The node that a fixture's value belongs to: an item's class, module or package; or the session."""
    kinds = {Scope.Class: pytest.Class, Scope.Module: pytest.Module, Scope.Package: pytest.Package}
    kind = kinds.get(fixture._scope)
    return (item.getparent(kind) if kind is not None else None) or (item if kind is pytest.Class else item.session)


def _take(fixtures: set[Any]) -> dict[Any, tuple[Any, list[Any]]]:
    taken = {}
    for fixture in fixtures:
        taken[fixture] = (fixture.cached_result, list(fixture._finalizers))
        fixture.cached_result = None
        fixture._finalizers.clear()
    return taken


def _give(fixtures: dict[Any, tuple[Any, list[Any]]]) -> None:
    for fixture, (cached, finalizers) in fixtures.items():
        fixture.cached_result = cached
        fixture._finalizers[:] = finalizers


class _Slice:
    """What one item has set up while it is suspended, and what it has printed."""

    def __init__(self, owner: Items, item: pytest.Function, world: _World) -> None:
        self.owner = owner
        self.item = item
        self.world = world
        self._fixtures: dict[Any, tuple[Any, list[Any]]] = {}
        self._out, self._err = io.StringIO(), io.StringIO()
        self._sudo: Any = None
        self._phase: str | None = None  # what pytest tells of in the environment, and takes back when a phase ends
        self._streams: tuple[Any, Any] = (None, None)
        self._backend: BatchBackend = _host_of(item).backend

    def enter(self) -> None:
        self.owner.session._setupstate.stack = self.world.stack(self.item)
        self.world.give(self.item)
        _give(self._fixtures)
        if self._sudo is not None:
            self._backend.__dict__["get_command"] = self._sudo
        if self._phase is not None:
            os.environ[_PHASE] = self._phase
        self._streams, (sys.stdout, sys.stderr) = (sys.stdout, sys.stderr), (self._out, self._err)

    def leave(self) -> None:
        sys.stdout, sys.stderr = self._streams
        # `with host.sudo()` puts its own get_command on the backend that all items share.
        self._sudo = self._backend.__dict__.pop("get_command", None)
        self._phase = os.environ.pop(_PHASE, None)
        self.world.keep(self.item, self.owner.session._setupstate.stack)
        known = self._known_fixtures() | self._fixtures.keys()
        self._fixtures = _take({fixture for fixture in known if fixture._scope is Scope.Function})
        self.world.take(self.item, known)

    def add_sections(self, when: str) -> None:
        for name, stream in (("stdout", self._out), ("stderr", self._err)):
            if stream.getvalue():
                self.item.add_report_section(when, name, stream.getvalue())
                stream.seek(0)
                stream.truncate()

    def _known_fixtures(self) -> set[Any]:
        known = {fixture for found in self.item._fixtureinfo.name2fixturedefs.values() for fixture in found}
        if self.item._request:
            known |= set(self.item._request._fixture_defs.values())
        return {fixture for fixture in known if fixture.argname != "request"}
