"""What a check is called in the results, whose it is, and what it promises."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from validator import tiers
from validator.results import CheckRecord

LOCAL = "local://"


def describe(item: pytest.Item) -> CheckRecord:
    """The check that an item is, before it has run."""
    role = item.path.stem
    name = getattr(item, "originalname", None) or item.name
    function = getattr(item, "function", None)
    promise = ((function.__doc__ if function else "") or name.removeprefix("test_").replace("_", " ")).strip()
    promise = promise.split("\n")[0]
    after = item.config.getoption("after") or ""
    classes = "".join(f"{node.name}::" for node in item.listchain() if isinstance(node, pytest.Class))
    return CheckRecord(
        f"{role}::{classes}{name}{_parameters(item)}{f'@{after}' if after else ''}",
        role,
        tier_of(item),
        f"After {after}: {promise}" if after else promise,
        after=after,
    )


def tier_of(item: pytest.Item) -> str:
    """The tier that an item is marked with; T1 where it is not. UsageError: there is none of that name."""
    marker = item.get_closest_marker("tier")
    name = str(marker.args[0]) if marker and marker.args else "T1"
    if name not in tiers.NAMES:
        raise pytest.UsageError(f"{item.nodeid}: tier {name!r} is none of {', '.join(tiers.NAMES)}")
    return name


def host_of(item: pytest.Item) -> tuple[str, Any]:
    """The id of an item's host, and the host; both local where it has none."""
    host = getattr(getattr(item, "callspec", None), "params", {}).get("_testinfra_host")
    name = host.backend.get_pytest_id() if host is not None else LOCAL
    return name, host


def make_distinct(record: CheckRecord, item: pytest.Item, taken: Collection[str]) -> CheckRecord:
    """The record with an id that is not in `taken`: two files of one name, or one check on two hosts, both count."""
    if record.id in taken:
        role = str(_below(item.path, item.config).with_suffix(""))
        record = dataclasses.replace(record, id=f"{role}{record.id.removeprefix(record.role)}", role=role)
    suffix = f"@{record.after}" if record.after else ""
    plain = record.id.removesuffix(suffix)
    for number in itertools.count(2):
        if record.id not in taken:
            break
        record = dataclasses.replace(record, id=f"{plain}#{number}{suffix}")
    return record


def path_of(given: str, config: pytest.Config) -> Path:
    """The file or folder that an argument of the command line names."""
    return (config.invocation_params.dir / given.partition("::")[0]).resolve()


def _below(path: Path, config: pytest.Config) -> Path:
    """A file's path from the folder that was given on the command line, with that folder's name."""
    for given in config.args:
        folder = path_of(given, config)
        if path.is_relative_to(folder) and path != folder:
            return path.relative_to(folder.parent)
    return path


def _parameters(item: pytest.Item) -> str:
    """A check's own parameters in brackets; which host it runs on is none of them."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return ""
    host = callspec.params.get("_testinfra_host")
    found = f"-{callspec.id}-".replace(f"-{host.backend.get_pytest_id()}-", "-", 1) if host is not None else callspec.id
    return f"[{found.strip('-')}]" if found.strip("-") else ""
