"""What the engine relies on in pytest and pytest does not document. If this fails after an upgrade of pytest, the
message names what changed: adapt validator/engine/pytest_internals.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pluggy
import pytest
from _pytest import fixtures, python, runner

from tests.validator.conftest import LOOKS, Run
from validator.engine import pytest_internals


def test_installed_pytest_is_compatible() -> None:
    differences = pytest_internals.differences()
    assert not differences, f"pytest {pytest.__version__} changed what the engine relies on: {'; '.join(differences)}"


def test_names_of_wrapping_plugins_exist(request: pytest.FixtureRequest) -> None:
    manager = request.config.pluginmanager
    missing = [name for name in pytest_internals.WRAPPERS if name != "timeout" and not manager.has_plugin(name)]
    assert not missing, f"pytest {pytest.__version__} has no plugins {', '.join(missing)}"


CALL_SPEC = getattr(python, "CallSpec", None) or getattr(python, "CallSpec2", None)  # renamed in pytest 9


def changed_init(_self: object) -> None:
    """Sets nothing."""


# Private names of pytest, at most five, and one of pluggy: what `differences` says when each is not there any more.
PRIVATE: dict[str, tuple[Any, dict[str, object], str]] = {
    "_finalizers": (fixtures.FixtureDef, {"__init__": changed_init}, "FixtureDef has no attribute _finalizers"),
    "_setupstate": (
        pytest.Session, {"__init__": changed_init, "__annotations__": {}}, "Session has no attribute _setupstate"
    ),
    "_fixtureinfo": (pytest.Function, {"__init__": changed_init}, "Function has no attribute _fixtureinfo"),
    "_arg2scope": (CALL_SPEC, {"__dataclass_fields__": {}}, "CallSpec has no fields params and _arg2scope"),
    "_request": (
        pytest.Function, {"_initrequest": changed_init}, "Function does not set _request and funcargs"
    ),
    "_hookexec": (
        pluggy.PluginManager,
        {"_hookexec": changed_init},
        "PluginManager._hookexec takes (_self), expected (self, hook_name, methods, kwargs, firstresult)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("owner", "changes", "message"),
    [
        *PRIVATE.values(),
        (runner.SetupState, {"__init__": changed_init}, "SetupState has no attribute stack"),
        (fixtures.FixtureDef, {"__init__": changed_init}, "FixtureDef has no attribute cached_result"),
        (fixtures.FixtureDef, {"scope": None}, "FixtureDef has no attribute scope"),
        (fixtures.FixtureDef, {"execute": None}, "FixtureDef.execute is no function, expected (self, request)"),
    ],
)
def test_a_change_is_named(
    monkeypatch: pytest.MonkeyPatch, owner: Any, changes: dict[str, object], message: str
) -> None:
    with monkeypatch.context() as patch:
        for name, value in changes.items():
            patch.setattr(owner, name, value)
        differences = pytest_internals.differences()
    assert message in differences


def test_no_further_private_name_is_read() -> None:
    """Each one that the engine reads may be gone in the next release of pytest."""
    text = Path(pytest_internals.__file__).read_text(encoding="utf-8")
    read = {name for name in re.findall(r"(?:\.|\")(_[a-z]\w*)", text) if not re.search(rf"self\.{name}\b", text)}
    assert read - {"_testinfra_host"} == set(PRIVATE)


CHANGED = """
from _pytest import fixtures
original = fixtures.FixtureDef.execute
def execute(self, request, extra=None):
    return original(self, request)
fixtures.FixtureDef.execute = execute
"""


def test_checks_run_one_after_the_other_under_a_changed_pytest(
    run: Run, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "changed.py").write_text(CHANGED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = run(LOOKS, "-p", "changed", "-v")
    assert outcome.verdicts == {"test_looks": "PASS"}
    reason = "FixtureDef.execute takes (self, request, extra), expected (self, request)"
    assert f"this version of pytest is not supported: {reason}" in outcome.text


LOCATIONS = """
import functools, pytest

def wrapped(function):
    @functools.wraps(function)
    def call(*arguments, **named):
        return function(*arguments, **named)
    return call

def own(item):
    return type(item).location.func(item)  # what pytest finds, not what is stored

@pytest.mark.parametrize("number", range(3))
def test_function(host, request, number):
    assert request.node.location == own(request.node)

@wrapped
def test_wrapped(host, request):
    assert request.node.location == own(request.node)

class TestClass:
    @pytest.mark.parametrize("number", range(2))
    def test_method(self, host, request, number):
        assert request.node.location == own(request.node)
"""


def test_items_have_the_location_that_pytest_finds(run: Run) -> None:
    outcome = run(LOCATIONS)
    assert len(outcome.verdicts) == 6 and set(outcome.verdicts.values()) == {"PASS"}, outcome.text


def test_lookups_are_as_before_after_the_run(request: pytest.FixtureRequest) -> None:
    session, names = request.session, vars(fixtures)["getfuncargnames"]
    with pytest_internals.faster_lookups(session):
        assert vars(fixtures)["getfuncargnames"](lambda plan: plan, name="request") == ()
        assert vars(fixtures)["getfuncargnames"](lambda plan: plan, name="image") == ("plan",)
        assert session.gethookproxy(request.path) is session.gethookproxy(request.path)
    assert vars(fixtures)["getfuncargnames"] is names
    assert "gethookproxy" not in vars(session)
