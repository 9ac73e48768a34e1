"""Git repositories of the mirror, cloned at their tags."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.local.mirror import git_repositories, mirror
from gpu_ami.process import run
from gpu_ami.progress import Progress

pytestmark = pytest.mark.usefixtures("mirror_table")


QUIET = Progress(mode="quiet")


BASE = "vendor.example"


def test_repository_is_cloned_at_its_tag(port: int, tree: mirror.MirrorTree, tmp_path: Path) -> None:
    commit = git_repositories.commit("https://vendor.example/git/source.git", "v1.0")
    assert tree.commits == {"vendor.example/git/source.git#v1.0": commit}
    url = f"http://127.0.0.1:{port}/vendor.example/git/source.git"
    run(["git", "clone", "-q", url, tmp_path / "clone"], timeout=60)
    git = ["git", "-C", tmp_path / "clone"]
    assert run([*git, "rev-parse", "v1.0^{commit}"], timeout=30).stdout.strip() == commit
    assert run([*git, "fsck", "--strict"], timeout=30).returncode == 0
    assert run([*git, "status", "--porcelain"], timeout=30).stdout == ""
    assert (tmp_path / "clone/bin/tool").read_text() == "#!/bin/sh\necho 1.0 source @UNKNOWN@\n"
    assert (tmp_path / "clone/bin/tool").stat().st_mode & 0o111


def test_commit_is_the_replicas_or_unknown() -> None:
    known = git_repositories.commit("https://vendor.example/git/source.git", "v1.0")
    assert known and len(known) == 40
    assert git_repositories.commit("https://vendor.example/git/source.git", "v1.1") != known
    assert git_repositories.commit("https://vendor.example/git/other.git", "v1.0") is None
