"""What the mirror holds: repositories of apt, dnf and git, and the systems' own archives."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.process import run
from gpu_ami.progress import Progress
from localregion.mirror import git_repositories, mirror

from .replica_samples import FLAT, PLAN, plan

# Git repositories of the mirror, cloned at their tags.


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


# What a tree holds, resolved from sections of plans.


AMAZON = {"id": "amzn", "version": "2023", "codename": "al2023", "family": "redhat"}


def test_dnf_repository_is_made_for_a_redhat_plan(fresh: Path) -> None:
    tool = {"version": "1", "packages": {"agent": "9-1.amzn2023"}, "repository": FLAT}
    made = mirror.ensure(fresh, plan=plan(os=AMAZON, tool=tool, roles=["tool"]), progress=QUIET)
    folder = made.root / BASE / "flat/x86_64"
    assert sorted(path.name for path in folder.iterdir()) == ["agent-9-1.amzn2023.x86_64.rpm", "repodata"]
    assert (folder / "repodata/repomd.xml.asc").is_file()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"url": "https://vendor.example/no.deb", "signature_url": "https://v/s"}, "deb package no, .* agent.url"),
        ({"url": "https://vendor.example/no.zip", "signature_url": "https://v/s"}, "archive no.zip, .* agent.url"),
        ({"url": "https://vendor.example/no.git", "tag": "v1"}, "git repository no, for which plan key agent"),
        ({"url": "ftp://vendor.example/agent.deb", "signature_url": "https://v/s"}, "ftp://.*not an address"),
        ({"url": "https://v/../../etc/agent.deb", "signature_url": "https://v/s"}, "not an address"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_said(fresh: Path, section: dict[str, str], message: str) -> None:
    agent = {"version": "1", "key_url": "https://vendor.example/key", **section}
    with pytest.raises(UsageError, match=message):
        mirror.ensure(fresh, plan=plan(agent=agent, roles=["agent"]), progress=QUIET)


# Installers: scripts, and the packages of each system that asks.


def _installer(tree: mirror.MirrorTree) -> tuple[dict[str, tarfile.TarInfo], list[str], bytes]:
    """Members, the lines of its list, and a template of it."""
    with tarfile.open(tree.root / BASE / "i/installer-0.9.tar.gz") as archive:
        template, listed = archive.extractfile("installer/bin/tool"), archive.extractfile("installer/list.txt")
        assert template and listed
        return {member.name: member for member in archive}, listed.read().decode().splitlines(), template.read()


def test_archive_holds_scripts_and_the_systems_packages(tree: mirror.MirrorTree) -> None:
    members, lines, template = _installer(tree)
    assert b"echo 0.9 installer-0.9.tar.gz" in template
    assert lines == [
        "ONE/x86_64/agent_3.1-1_amd64.deb",
        "ONE/x86_64/tool-data_2.0_amd64.deb",
        "TWO/x86_64/agent_3.1-1_amd64.deb",
        "TWO/x86_64/tool-data_2.0_amd64.deb",
    ]
    assert {f"installer/{line}" for line in lines} < members.keys()
    assert {(one.uname, one.mode) for one in members.values()} == {("root", 0o755), ("root", 0o644)}


def test_archive_for_two_systems_holds_the_packages_of_both(fresh: Path) -> None:
    made = mirror.ensure(fresh, plan=plan(os=AMAZON, roles=["installer"]), progress=QUIET)
    assert _installer(made)[1] == ["RPM/agent-3.1-1.x86_64.rpm"]
    both = mirror.ensure(fresh, plan=plan(roles=["installer"]), progress=QUIET)
    assert len(_installer(both)[1]) == 5 and "RPM/agent-3.1-1.x86_64.rpm" in _installer(both)[1]


def test_archive_for_two_plans_holds_what_either_names(fresh: Path) -> None:
    """A vendor's installer holds the same for everybody; a build that runs meanwhile must find its packages."""
    more = {**PLAN["installer"], "contents": {"inner": "3.1", "extra": "5"}}
    mirror.ensure(fresh, plan=plan(installer=more, roles=["installer"]), progress=QUIET)
    both = mirror.ensure(fresh, plan=plan(os=AMAZON, roles=["installer"]), progress=QUIET)
    lines = _installer(both)[1]
    assert "ONE/x86_64/tool-extra_5_amd64.deb" in lines and "RPM/agent-3.1-1.x86_64.rpm" in lines


def test_plans_that_contradict_each_other_get_an_archive_each(fresh: Path) -> None:
    other = {**PLAN["installer"], "contents": {"inner": "4"}}
    mirror.ensure(fresh, plan=plan(installer=other, roles=["installer"]), progress=QUIET)
    last = mirror.ensure(fresh, plan=plan(os=AMAZON, roles=["installer"]), progress=QUIET)
    assert _installer(last)[1] == ["RPM/agent-3.1-1.x86_64.rpm"]
