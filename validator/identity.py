"""Id, role, tier and promise of a check in the results."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from validator import tiers
from validator.results import CheckRecord

LOCAL = "local://"


def describe(item: pytest.Item) -> CheckRecord:
    """The record of an item before it has run."""
    name = getattr(item, "originalname", None) or item.name
    function = getattr(item, "function", None)
    after = item.config.getoption("after") or ""
    described = _described(item.path, item.parent, name, function.__doc__ if function else "", tier_of(item), after)
    return described.changed({"id": f"{described.id}{_parameters(item)}{f'@{after}' if after else ''}"})


@functools.lru_cache(maxsize=256)
def _described(path: Path, parent: Any, name: str, text: str | None, tier: str, after: str) -> CheckRecord:
    """The record of a function's items, with an id that lacks their parameters. text: the function's docstring."""
    role = path.stem
    promise = (text or name.removeprefix("test_").replace("_", " ")).strip().split("\n")[0]
    classes = "".join(f"{node.name}::" for node in parent.listchain() if isinstance(node, pytest.Class))
    promise = f"After {after}: {promise}" if after else promise
    return CheckRecord(f"{role}::{classes}{name}", role, tier, promise, after=after)


def marker_of(item: pytest.Item, name: str) -> pytest.Mark | None:
    """An item's closest marker. What is not among its keywords is not searched for: most items have none."""
    return item.get_closest_marker(name) if name in item.keywords else None


def tier_of(item: pytest.Item) -> str:
    """The tier that an item is marked with; T1 by default. UsageError: unknown tier."""
    marker = marker_of(item, "tier")
    name = str(marker.args[0]) if marker and marker.args else "T1"
    if name not in tiers.NAMES:
        raise pytest.UsageError(f"{item.nodeid}: expected a tier of {', '.join(tiers.NAMES)}, got {name!r}")
    return name


def host_of(item: pytest.Item) -> tuple[str, Any]:
    """The id of an item's host and the host; LOCAL and None without a host."""
    host = getattr(getattr(item, "callspec", None), "params", {}).get("_testinfra_host")
    name = host.backend.get_pytest_id() if host is not None else LOCAL
    return name, host


def make_distinct(record: CheckRecord, item: pytest.Item, taken: Collection[str]) -> CheckRecord:
    """The record with an id that is not in `taken`: checks in files of one name, or on two hosts, differ."""
    if record.id in taken:
        role = str(_below(item.path, item.config).with_suffix(""))
        record = record.changed({"id": f"{role}{record.id.removeprefix(record.role)}", "role": role})
    suffix = f"@{record.after}" if record.after else ""
    plain = record.id.removesuffix(suffix)
    for number in itertools.count(2):
        if record.id not in taken:
            break
        record = record.changed({"id": f"{plain}#{number}{suffix}"})
    return record


def path_of(argument: str, config: pytest.Config) -> Path:
    """The file or folder that an argument of the command line names."""
    return (config.invocation_params.dir / argument.partition("::")[0]).resolve()


def _below(path: Path, config: pytest.Config) -> Path:
    """A file's path relative to the folder in the command line, with the folder's name."""
    for argument in config.args:
        folder = path_of(argument, config)
        if path.is_relative_to(folder) and path != folder:
            return path.relative_to(folder.parent)
    return path


def _parameters(item: pytest.Item) -> str:
    """A check's own parameters in brackets, without the host."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return ""
    host = callspec.params.get("_testinfra_host")
    text = f"-{callspec.id}-".replace(f"-{host.backend.get_pytest_id()}-", "-", 1) if host is not None else callspec.id
    return f"[{text.strip('-')}]" if text.strip("-") else ""
