"""The mirror's server, and which packages a plan asks it for."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.progress import Progress
from localregion.mirror import mirror

from .replica_samples import PLAN, get, plan

# The mirror's web server: files of the tree, nothing else.


pytestmark = pytest.mark.usefixtures("mirror_table")


BASE = "vendor.example"


def test_server_gives_files_and_says_no_otherwise(port: int, tree: mirror.MirrorTree) -> None:
    status, body = get(port, f"/{BASE}/keys/vendor.pub")
    assert (status, body) == (200, (tree.root / BASE / "keys/vendor.pub").read_bytes())
    assert get(port, f"/{BASE}/keys/vendor.pub", "HEAD") == (200, b"")
    assert get(port, f"/{BASE}/nothing")[0] == 404
    assert get(port, f"/{BASE}/")[0] == 404
    assert get(port, f"/{BASE}/keys/vendor.pub", "POST")[0] == 501


@pytest.mark.parametrize(
    "path",
    [
        "/../keys/pubring.kbx",
        "/%2e%2e/%2e%2e/keys/pubring.kbx",
        "/a/../../current/mirror.json",
        "//etc/passwd",
        "/mirror.json",
        "/%00",
        "/link/passwd",
    ],
)
def test_server_gives_nothing_from_outside_its_tree(port: int, tree: mirror.MirrorTree, path: str) -> None:
    link = tree.root / "link"
    if not link.is_symlink():
        link.symlink_to("/etc")
    assert get(port, path)[0] == 404
    assert mirror.locate(tree.root, path) is None


# What a plan asks of the mirror.


QUIET = Progress(mode="quiet")


AMAZON = {"id": "amzn", "version": "2023", "codename": "al2023", "family": "redhat"}


def test_amazon_linux_has_its_own_archive(fresh: Path) -> None:
    made = mirror.ensure(fresh, plan=plan(os=AMAZON, roles=["family"]), progress=QUIET)
    folder = made.root / "cdn.amazonlinux.com/al2023/core/x86_64"
    assert [path.name for path in folder.glob("*.rpm")] == ["agent-0.1-1.amzn2023.x86_64.rpm"]
    assert (folder / "repodata/repomd.xml").is_file() and (folder / "gpu-ami-mirror.pub").is_file()


@pytest.mark.parametrize(("name", "family"), [("sles", "suse"), ("rhel", "redhat")])
def test_system_without_packages_is_refused(fresh: Path, name: str, family: str) -> None:
    system = {"id": name, "version": "9", "codename": "x", "family": family}
    with pytest.raises(UsageError, match="the local region has no packages for"):
        mirror.ensure(fresh, plan=plan(os=system), progress=QUIET)


def test_only_the_roles_sections_are_wanted_or_those_named(fresh: Path) -> None:
    made = mirror.ensure(fresh, plan=plan(roles=["agent"]), progress=QUIET)
    assert made.origin == {"agent": "replica"}
    with pytest.raises(
        UsageError, match="no replica of the deb package nobody-has-this, for which plan key left_out asks"
    ):
        mirror.ensure(fresh, plan=PLAN, only=["left_out"], progress=QUIET)
    given = PLAN["agent"] | {"provided_by": "the AMI"}
    assert mirror.ensure(fresh, plan=plan(agent=given, roles=["agent"]), progress=QUIET) == made
