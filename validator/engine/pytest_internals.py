"""All undocumented parts of pytest that the engine uses.

`differences()` lists where the installed pytest differs from what this module expects; the plugin then runs checks one
after the other. Compatible: pytest 9.2 (pyproject.toml limits the version).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import pluggy
import pytest
from _pytest import fixtures, python, runner
from _pytest.scope import Scope

_fixtures: Any = fixtures  # what it imports from other modules is not part of its types

__all__ = ["Scope", "runtestprotocol"]

runtestprotocol = runner.runtestprotocol
# Plugins that wrap one phase of an item and expect the next phase of the same item to follow: output is captured by
# the engine, the others are left out.
WRAPPERS = ("capturemanager", "logging-plugin", "threadexception", "unraisableexception", "timeout")
_OWN_FIXTURE_HOOKS = {"fixtures", "setuponly", "setupplan"}  # pytest's own; the latter two only without the engine
# pytest's own, whose hooks around an item matter only while it runs; the engine's hook comes before `runner`'s.
_AROUND_ITEMS = {"warnings", "assertion", "faulthandler", "unittest", "runner", "validator-engine"}
# Of the hooks of an item's setup and of its reports.
_SETUP_PLUGINS = {"runner", "skipping", "validator.plugin", *WRAPPERS}
_REPORT_PLUGINS = {"runner", "unittest", "skipping", "tmpdir", "validator.plugin"}
_REPORT_READERS = {"lfplugin", "terminalreporter", "logging-plugin", "session"}  # of calls, and of what failed
_STATUS_PLUGINS = {"terminal", "runner", "skipping", "subtests"}  # what they say of a phase that passed is known
_DECIDING_MARKERS = ("skip", "skipif", "xfail", "usefixtures")
_LOOPS = {"main", "logging-plugin", "terminalreporter", "validator-engine"}  # of these only `main` has a loop
_HOST = "_testinfra_host"  # testinfra's parameter with the host
PHASE_VARIABLE = "PYTEST_CURRENT_TEST"  # the running item and phase; pytest removes it when a phase ends

# Looked up when they are compared, so that one that is gone is a difference and no error of an import.
_PARAMETERS: tuple[tuple[str, Any, str, tuple[str, ...]], ...] = (
    ("FixtureDef.", fixtures.FixtureDef, "execute", ("self", "request")),
    ("", _fixtures, "getfuncargnames", ("function", "name", "cls")),
    ("Session.", pytest.Session, "gethookproxy", ("self", "fspath")),
    ("", runner, "runtestprotocol", ("item", "log", "nextitem")),
    ("CallInfo.", runner.CallInfo, "from_call", ("cls", "func", "when", "reraise")),
    ("PluginManager.", pluggy.PluginManager, "subset_hook_caller", ("self", "name", "remove_plugins")),
    (
        "PluginManager.", pluggy.PluginManager, "_hookexec",
        ("self", "hook_name", "methods", "kwargs", "firstresult"),
    ),
)  # fmt: skip
_ATTRIBUTES: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("FixtureDef", fixtures.FixtureDef, ("scope", "cached_result", "_finalizers", "argname", "func")),
    ("SetupState", runner.SetupState, ("stack",)),
    ("Session", pytest.Session, ("_setupstate",)),
    ("Function", pytest.Function, ("_fixtureinfo",)),
)


def differences() -> list[str]:
    """Differences of the installed pytest from what the engine expects; empty if it is compatible."""
    lines = []
    for prefix, owner, name, expected in _PARAMETERS:
        function = getattr(owner, name, None)
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code else None
        if parameters != expected:
            takes = "is no function" if parameters is None else f"takes ({', '.join(parameters)})"
            lines.append(f"{prefix}{name} {takes}, expected ({', '.join(expected)})")
    for name, kind, attributes in _ATTRIBUTES:
        stored = _stored_names(kind)
        lines += [f"{name} has no attribute {attribute}" for attribute in attributes if attribute not in stored]
    call_spec = getattr(python, "CallSpec", None) or getattr(python, "CallSpec2", None)  # renamed in pytest 9
    if not {"params", "_arg2scope"} <= set(getattr(call_spec, "__dataclass_fields__", ())):
        lines.append("CallSpec has no fields params and _arg2scope")
    if not callable(getattr(python, "get_direct_param_fixture_func", None)):
        lines.append("python has no function get_direct_param_fixture_func")
    if set(Scope.__members__) != {"Function", "Class", "Module", "Package", "Session"}:
        lines.append(f"Scope has the members {', '.join(Scope.__members__)}")
    methods = [getattr(method, "__code__", None) for method in vars(pytest.Function).values()]
    if not any({"_request", "funcargs"} <= set(code.co_names) for code in methods if code):
        lines.append("Function does not set _request and funcargs")
    return lines


def _stored_names(kind: Any) -> set[str]:
    """Names that the methods __init__ of a class and its bases use, annotations, and properties."""
    names: set[str] = set()
    for base in kind.__mro__:
        names |= set(vars(base).get("__annotations__", {}))
        names |= {name for name, value in vars(base).items() if isinstance(value, property)}
        code = getattr(vars(base).get("__init__"), "__code__", None)
        names |= set(code.co_names) if code else set()
    return names


def share_locations(items: Iterable[pytest.Function]) -> None:
    """Gives the items of a function its file and line, which pytest would look up for each item."""
    lines: dict[Any, Any] = {}
    for item in items:
        if type(item).reportinfo is not pytest.Function.reportinfo:
            continue
        if item.function not in lines:
            lines[item.function] = item.location
        else:
            item.__dict__["location"] = (*lines[item.function][:2], item.getmodpath())


@contextlib.contextmanager
def faster_lookups(session: pytest.Session) -> Iterator[None]:
    """A context in which pytest looks up once what is the same for all items.

    These are the hooks that apply to a file, and the arguments of `request`, which has none.
    """
    names = _fixtures.getfuncargnames
    _fixtures.getfuncargnames = lambda function, *, name="", cls=None: (
        () if name == "request" else names(function, name=name, cls=cls)
    )
    session.__dict__["gethookproxy"] = functools.cache(session.gethookproxy)
    try:
        yield
    finally:
        del session.__dict__["gethookproxy"]
        _fixtures.getfuncargnames = names


def may_replace_loop(session: pytest.Session) -> bool:
    """Whether pytest's loop would run the items now, and no other plugin takes part in the loop or in each item."""
    hook, option = session.config.hook, session.config.option
    if option.collectonly or (session.testsfailed and not option.continue_on_collection_errors):
        return False
    return _plugins_of(hook.pytest_runtestloop) <= _LOOPS and _plugins_of(hook.pytest_runtest_protocol) <= _AROUND_ITEMS


def _plugins_of(*hooks: Any) -> set[str]:
    """Names of the plugins that implement one of these hooks."""
    return {implementation.plugin_name for hook in hooks for implementation in hook.get_hookimpls()}


def parameter_scopes(item: pytest.Function) -> dict[str, Scope]:
    """Name of each parameter of an item → the scope that it is set up for."""
    return dict(item.callspec._arg2scope)


def scope_of(fixture: Any) -> Scope:
    """The scope of a fixture's definition."""
    return Scope(fixture.scope)


def definitions(item: pytest.Item) -> dict[str, Sequence[Any]]:
    """Name of each fixture that an item uses, also indirectly → its definitions; empty unless it is a function."""
    info = getattr(item, "_fixtureinfo", None)
    return dict(info.name2fixturedefs) if info is not None else {}


def shared_by_function(item: pytest.Item) -> int:
    """A number that the items of a function have in common: their fixtures have the same definitions."""
    info = getattr(item, "_fixtureinfo", None)
    return id(item) if info is None else id(info)


class KnownArguments:
    """Arguments of items whose values are known before their setup, so that no fixture needs to be set up for them.

    They are parameters, `request`, and testinfra's `host` where nothing overrides it. None if a plugin has a hook for
    every fixture that is set up.
    """

    def __init__(self, config: pytest.Config) -> None:
        hook = config.hook
        plugins = _plugins_of(hook.pytest_fixture_setup, hook.pytest_fixture_post_finalizer)
        self._none = not plugins <= _OWN_FIXTURE_HOOKS
        self._names: dict[int, dict[str, str]] = {}  # by what the items of a function share

    def of(self, item: pytest.Function) -> dict[str, object]:
        """Name of each argument → its value."""
        if self._none:
            return {}
        key = shared_by_function(item)
        if key not in self._names:
            self._names[key] = {name: source for name in item.fixturenames if (source := _source(item, name))}
        params = item.callspec.params
        return {name: params.get(source, item._request) for name, source in self._names[key].items()}


def reads_all_reports(config: pytest.Config) -> bool:
    """Whether a plugin may read the reports of setups and teardowns that passed, as `--durations` does."""
    lists_durations = config.getoption("durations", None) is not None
    if lists_durations or not _plugins_of(config.hook.pytest_report_teststatus) <= _STATUS_PLUGINS:
        return True
    return not _plugins_of(config.hook.pytest_runtest_logreport) <= _REPORT_READERS


class EmptySetups:
    """Tells which items have a setup in which nothing happens, and hence a teardown in which nothing does.

    All their arguments are known before, nothing marks them to be skipped or expected to fail, neither they nor their
    parents have a method of their own for it, no plugin but pytest's and ours takes part in it, and none reads its
    report.
    """

    def __init__(self, config: pytest.Config) -> None:
        hook = config.hook
        phases = _plugins_of(hook.pytest_runtest_setup, hook.pytest_runtest_teardown)
        reports = _plugins_of(hook.pytest_runtest_makereport)
        known = phases <= _SETUP_PLUGINS and reports <= _REPORT_PLUGINS
        self._none = reads_all_reports(config) or not known
        self._functions: dict[int, bool] = {}  # by what the items of a function share

    def has(self, item: pytest.Function, known: Collection[str]) -> bool:
        """known: names of the item's known arguments."""
        if self._none or any(name in item.keywords for name in _DECIDING_MARKERS):
            return False
        key = shared_by_function(item)
        if key not in self._functions:
            plain = type(item).setup is pytest.Function.setup and type(item).teardown is pytest.Item.teardown
            parents = all(
                type(node).setup is pytest.Item.setup and type(node).teardown is pytest.Item.teardown
                for node in item.listchain()[:-1]
            )
            # A test that is given `request` can ask for a teardown; fixtures that take it are not set up here.
            arguments = "request" not in item._fixtureinfo.argnames and set(item.fixturenames) <= set(known)
            self._functions[key] = plain and parents and arguments
        return self._functions[key]


def _source(item: pytest.Function, name: str) -> str:
    """The parameter that is the value of an argument, "request" for the request, "" if a fixture is needed."""
    if name == "request":
        return name
    functions = [fixture.func for fixture in definitions(item).get(name, ())]
    if name in ("host", _HOST) and [function.__module__ for function in functions] == ["testinfra.plugin"]:
        return _HOST
    return name if functions and functions[-1] is python.get_direct_param_fixture_func else ""


def forget_arguments(item: pytest.Function) -> None:
    """Releases an item's fixture values, as pytest's own protocol does after teardown."""
    item._request = False  # type: ignore[assignment]
    item.funcargs = None  # type: ignore[assignment]


def take_value(fixture: Any) -> tuple[Any, list[Any]] | None:
    """Removes a fixture's value and finalizers from its definition; None if it is not set up."""
    if fixture.cached_result is None and not fixture._finalizers:
        return None
    saved = (fixture.cached_result, list(fixture._finalizers))
    fixture.cached_result = None
    fixture._finalizers.clear()
    return saved


def give_value(fixture: Any, saved: tuple[Any, list[Any]]) -> None:
    """Restores what `take_value` removed."""
    fixture.cached_result, fixture._finalizers[:] = saved


def setup_stack(session: pytest.Session) -> dict[Any, Any]:
    """The nodes that are currently set up, outermost first, with their finalizers."""
    return session._setupstate.stack


def set_setup_stack(session: pytest.Session, stack: dict[Any, Any]) -> None:
    session._setupstate.stack = stack


@contextlib.contextmanager
def replaced_execute(execute: Callable[[Callable[[Any, Any], Any], Any, Any], Any]) -> Iterator[None]:
    """A context in which `execute(original, fixture, request)` sets up every fixture."""
    original = fixtures.FixtureDef.execute
    fixtures.FixtureDef.execute = lambda fixture, request: execute(original, fixture, request)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        fixtures.FixtureDef.execute = original  # type: ignore[method-assign]


def call_phase(function: Callable[[], Any], when: Any, reraise: tuple[type[BaseException], ...]) -> Any:
    """Runs one phase ("setup", "call", "teardown") of an item; pytest's CallInfo."""
    return runner.CallInfo.from_call(function, when=when, reraise=reraise)


class ItemHook:
    """A hook of the items of one file: without conftest files of other folders, and without the plugins `left_out`.

    Its implementations are looked up when one was registered, while pluggy does that at each call.
    """

    def __init__(self, item: pytest.Item, name: str, left_out: Iterable[str] = ()) -> None:
        self._manager = item.config.pluginmanager
        removed = [*map(self._manager.get_plugin, left_out), *getattr(item.ihook, "remove_mods", ())]
        self._name = name
        self._of_all: Any = getattr(item.config.hook, name)
        self._of_item = self._manager.subset_hook_caller(name, [plugin for plugin in removed if plugin is not None])
        self._first = bool(self._of_all.spec.opts.get("firstresult", False))
        self._number = -1
        self._implementations: list[Any] = []

    def __call__(self, **arguments: object) -> Any:
        if self._number != (registered := len(self._of_all.get_hookimpls())):
            self._number = registered
            self._implementations = self._of_item.get_hookimpls()
        return self._manager._hookexec(self._name, self._implementations, arguments, self._first)
