"""Installers: scripts, and the packages of each system that asks."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from gpu_ami.local.mirror import mirror
from gpu_ami.progress import Progress

from .replica_samples import PLAN, plan

pytestmark = pytest.mark.usefixtures("mirror_table")


QUIET = Progress(mode="quiet")


BASE = "vendor.example"
AMAZON = {"id": "amzn", "version": "2023", "codename": "al2023", "family": "redhat"}


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
