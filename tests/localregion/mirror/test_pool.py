"""Built replicas: kept by digest, only what changed is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_ami.progress import Progress
from localregion.mirror import deb as packages
from localregion.mirror import mirror, pool

from .replica_samples import PLAN, SUITE, plan, stanzas

pytestmark = pytest.mark.usefixtures("mirror_table")


QUIET = Progress(mode="quiet")


BASE = "vendor.example"


def test_second_time_is_the_same_tree_and_builds_nothing(
    mirror_home: Path, tree: mirror.MirrorTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "build_mirror", lambda *_: pytest.fail("it builds again"))
    assert mirror.ensure(mirror_home, plan=PLAN, progress=QUIET) == tree
    assert mirror.ensure(mirror_home, progress=QUIET) == tree


def test_further_plan_adds_what_it_needs_and_builds_only_that(
    mirror_home: Path, tree: mirror.MirrorTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def noting(package: Any, into: Path, *further: Any) -> Path:
        built.append(f"{package.name} {package.full_version}")
        return packages.build(package, into)

    monkeypatch.setitem(pool.BUILDERS, "deb", noting)
    tool = {"version": "1", "packages": {"agent": "9-1", "libtool": "2:4.5-1"}, "repository": SUITE}
    more = mirror.ensure(mirror_home, plan=plan(tool=tool, roles=["tool"]), progress=QUIET)
    assert built == ["agent 9-1"]
    index = more.root / BASE / "suite/dists/jammy/main/binary-amd64/Packages"
    assert [one["Package"] for one in stanzas(index)] == ["agent", "libtool"]
    assert (more.root / BASE / "suite" / stanzas(index)[0]["Filename"]).is_file()
    release = (more.root / BASE / "suite/dists/jammy/Release").read_text()
    assert "Suite: jammy\n" in release and "main/binary-amd64/Packages.gz\n" in release
    assert (more.root / BASE / "flat/x86_64/Packages").is_file()  # what other plans asked for is still there
    assert more.root != tree.root


def test_changed_replica_rebuilds_only_itself(
    small_table: Path, mirror_home: Path, tree: mirror.MirrorTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = small_table / "family/lib/tool.c"
    before = source.read_text()
    source.write_text(f"{before}int more(void) {{ return 1; }}\n")
    built: list[str] = []
    real = packages.build
    monkeypatch.setitem(
        pool.BUILDERS, "deb", lambda package, into, *further: (built.append(package.name), real(package, into))[1]
    )
    try:
        assert mirror.ensure(mirror_home, plan=PLAN, progress=QUIET).root != tree.root
    finally:
        source.write_text(before)
    assert built == ["libtool"]
