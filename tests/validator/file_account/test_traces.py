"""Traces that builds leave: each is unexplained in a tree of which everything else is explained."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.validator.file_account import tree
from validator.file_account import (
    Footprint,
    Inventory,
    account_packages,
    explain,
    load_footprint,
    load_system_rules,
    unexplained_accounts,
)

TRACES = yaml.safe_load(Path(__file__).with_name("traces.yml").read_text(encoding="utf-8"))
VARIABLES = {"login": ["admin"], "source": [], "key": [], "role": ["cuda", "event_parser"]}
ROLES = Path(__file__).parents[3] / "roles"


@dataclass(frozen=True)
class Trees:
    """A built tree, and the inventory of its base."""

    built: Path
    base: Inventory
    footprints: tuple[Footprint, ...]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Trees:
    folder = tmp_path_factory.mktemp("trees")
    tree.make_base(folder / "root", folder / "base-packages")
    base = tree.take(folder / "root")
    tree.build(folder / "root", folder / "packages")
    roles = ("cuda", "event_parser")
    footprints = (load_footprint(ROLES / f"{role}/meta/footprint.yml", role, VARIABLES) for role in roles)
    return Trees(folder / "root", base, tuple(footprints))


def unexplained(trees: Trees, root: Path) -> set[str]:
    """Paths without an explanation, and names of packages, accounts and groups."""
    image = tree.take(root)
    packages = account_packages(image, trees.base, ["planned"], trees.footprints)
    account = explain(
        image, trees.base, load_system_rules(VARIABLES), trees.footprints, changed_packages=packages.explained
    )
    named = [*packages.findings, *unexplained_accounts(image, trees.base, trees.footprints, "admin")]
    return {finding.path for finding in account.findings} | {
        word for text in named for word in text.split(" (")[0].split()
    }


def test_a_complete_build_has_an_explanation_for_everything(trees: Trees) -> None:
    assert unexplained(trees, trees.built) == set()


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: str(trace["id"]))
def test_a_trace_is_unexplained(trace: Mapping[str, str], trees: Trees, tmp_path: Path) -> None:
    need = trace.get("needs", "")
    if need and (os.geteuid() != 0 or shutil.which(need) is None):
        pytest.skip(f"needs root and {need}")
    root = tree.copy(trees.built, tmp_path / "root")
    tree.plant(root, trace["plant"])
    try:
        assert (trace.get("as") or trace.get("path") or trace["name"]) in unexplained(trees, root)
    finally:
        tree.plant(root, trace.get("undo", ":"))


def test_there_are_sixty_traces_and_more() -> None:
    assert len({trace["id"] for trace in TRACES}) == len(TRACES) > 60
