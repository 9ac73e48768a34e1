"""A table of small replicas, and a mirror of the plan that asks for them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_ami.progress import Progress
from localregion.mirror import mirror
from localregion.mirror import table as replica_table

from .replica_samples import PLAN, TABLE, write_table

QUIET = Progress(mode="quiet")


AGENT = "amazon-cloudwatch-agent"


@pytest.fixture(scope="module")
def small_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = TABLE.replace("name: agent\n", f"name: agent|{AGENT}\n")
    return write_table(tmp_path_factory.mktemp("table"), text)


@pytest.fixture(scope="module")
def mirror_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mirror-home")


@pytest.fixture(scope="module")
def tree(mirror_home: Path, small_table: Path) -> mirror.MirrorTree:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_table, "REPLICAS", small_table)
        return mirror.ensure(mirror_home, plan=PLAN, progress=QUIET)


@pytest.fixture
def mirror_table(small_table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_table, "REPLICAS", small_table)


@pytest.fixture
def fresh(tmp_path: Path, tree: mirror.MirrorTree, mirror_home: Path) -> Path:
    """A home that has a key and nothing else."""
    shutil.copytree(mirror_home / "keys", tmp_path / "fresh/keys", ignore=shutil.ignore_patterns("S.*"))
    return tmp_path / "fresh"


@pytest.fixture
def port(mirror_home: Path, tree: mirror.MirrorTree) -> Iterator[int]:
    server = mirror.Mirror(mirror_home)
    yield server.start()
    server.stop()
