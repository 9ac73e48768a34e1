"""Which of the collected checks run: by the plan, the kind of host, a restart before them, a tier."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from validator import identity
from validator.plan_document import PlanDocument, section
from validator.transport import backend

# Without a plan: what every image has that this project is for.
_OF_EVERY_IMAGE = ("kernel", "nvidia_driver")


def select(config: pytest.Config, items: list[pytest.Item], plan: PlanDocument | None) -> None:
    """Takes out what does not run, and puts what changes the machine behind all that only looks."""
    after, only = config.getoption("after"), config.getoption("tier")
    if plan is not None:
        _keep(config, items, lambda item: _is_planned(item, plan))
    else:
        for item in items:
            _leave_open(item)
    if not (config.getoption("collectonly") and config.getoption("results")):  # a list names those too
        _keep(config, items, lambda item: item.get_closest_marker("offline") is None or _is_offline(item))
    if after:
        _keep(config, items, lambda item: item.get_closest_marker("survives") is not None)
    if only:
        _keep(config, items, lambda item: identity.tier_of(item) == only)
    # Live checks change the machine: nothing that only looks may come after them.
    items.sort(key=lambda item: item.get_closest_marker("live") is not None)


def require_some_of_each(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """A folder in which nothing is found, for a slip in a name, must not pass for one in which all is well."""
    for given in config.args:
        path = identity.path_of(given, config)
        if not any(item.path.resolve().is_relative_to(path) for item in items):
            raise pytest.UsageError(f"no check was found in {path}: files are to be test_*.py, with functions test_*")


def _is_planned(item: pytest.Item, plan: PlanDocument) -> bool:
    return all(_has(plan, str(marker.args[0])) for marker in item.iter_markers("planned"))


def _leave_open(item: pytest.Item) -> None:
    """Without a plan nobody knows whether a machine is to have what only some images have."""
    sections = [str(marker.args[0]) for marker in item.iter_markers("planned")]
    some = [section for section in sections if section not in _OF_EVERY_IMAGE]
    if some:
        item.add_marker(pytest.mark.skip(f"no plan was given that says whether the machine is to have {some[0]}"))


def _has(plan: PlanDocument, path: str) -> bool:
    """Whether the plan has the section, and below it (`section.key`) something that is not empty."""
    name, _, key = path.partition(".")
    return name in plan and (not key or bool(section(plan, name).get(key)))


def _is_offline(item: pytest.Item) -> bool:
    _, host = identity.host_of(item)
    return isinstance(getattr(host, "backend", None), backend.ImageBackend)


def _keep(config: pytest.Config, items: list[pytest.Item], wanted: Callable[[pytest.Item], bool]) -> None:
    kept = [item for item in items if wanted(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept
