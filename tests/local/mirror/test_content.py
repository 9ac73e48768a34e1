"""What a tree holds, resolved from sections of plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.local.mirror import mirror
from gpu_ami.progress import Progress

from .replica_samples import FLAT, plan

pytestmark = pytest.mark.usefixtures("mirror_table")


QUIET = Progress(mode="quiet")


BASE = "vendor.example"


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
