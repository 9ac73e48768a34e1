"""The mirror's web server: files of the tree, nothing else."""

from __future__ import annotations

import pytest

from gpu_ami.local.mirror import mirror

from .replica_samples import get

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
