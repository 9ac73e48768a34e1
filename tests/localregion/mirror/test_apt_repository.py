"""apt repositories: flat and with suites, indexed and signed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.process import run
from gpu_ami.progress import Progress
from localregion.mirror import mirror

from .replica_samples import FLAT, plan, stanzas

pytestmark = pytest.mark.usefixtures("mirror_table")


QUIET = Progress(mode="quiet")


BASE = "vendor.example"


def _is_signed(tree: mirror.MirrorTree, tmp_path: Path, signature: str, *file: str) -> bool:
    """Whether gpgv takes it with the published key alone."""
    ring = tmp_path / "ring.gpg"
    run(["gpg", "--batch", "--yes", "--output", ring, "--dearmor", tree.root / BASE / "keys/vendor.pub"], timeout=30)
    files = [tree.root / BASE / name for name in (signature, *file)]
    return run(["gpgv", "--keyring", ring, *files], timeout=30, check=False).returncode == 0


def test_flat_repository_lies_where_the_plan_says(tree: mirror.MirrorTree, tmp_path: Path) -> None:
    folder = tree.root / BASE / "flat/x86_64"
    index = stanzas(folder / "Packages")
    found = {f"{one['Package']}={one['Version']}" for one in index}
    assert found >= {"tool-1=1.2.3-1+x2", "tool-1=1.2.2-1+x2", "tool-data=1.2.3-1+x2", "libtool=2:4.5-1"}
    for one in index:
        file = folder / one["Filename"]
        assert file.stat().st_size == int(one["Size"])
        assert run(["sha256sum", file], timeout=30).stdout.split()[0] == one["SHA256"]
    assert _is_signed(tree, tmp_path, "flat/x86_64/InRelease")
    assert _is_signed(tree, tmp_path, "flat/x86_64/Release.gpg", "flat/x86_64/Release")
    total = run(["sha256sum", folder / "Packages"], timeout=30).stdout.split()[0]
    assert f" {total} {(folder / 'Packages').stat().st_size} Packages\n" in (folder / "Release").read_text()


@pytest.mark.parametrize(
    ("system", "index"),
    [
        ({"id": "debian", "version": "12", "codename": "bookworm", "family": "debian"}, "deb.debian.org/debian"),
        ({"id": "ubuntu", "version": "24.04", "codename": "noble", "family": "debian"}, "archive.ubuntu.com/ubuntu"),
    ],
)
def test_systems_own_archive_has_what_the_roles_take_from_it(fresh: Path, system: dict[str, str], index: str) -> None:
    where = f"{index}/dists/{system['codename']}/main/binary-amd64/Packages"
    without = mirror.ensure(fresh, plan=plan(os=system, roles=["hygiene"]), progress=QUIET)
    assert stanzas(without.root / where) == []
    made = mirror.ensure(fresh, plan=plan(os=system, roles=["family"]), progress=QUIET)
    found = {f"{one['Package']}={one['Version']}" for one in stanzas(made.root / where)}
    assert found == {"agent=0.1-1", "libtool=1.9-2"}


def test_repository_is_one_wherever_its_key_is_said_to_lie(fresh: Path) -> None:
    moved = FLAT | {"key_url": "https://vendor.example/keys/moved.pub"}
    for repository, wanted in ((FLAT, "agent"), (moved, "tool-data")):
        tool = {"version": "1", "packages": {wanted: "9-1"}, "repository": repository}
        made = mirror.ensure(fresh, plan=plan(tool=tool, roles=["tool"]), progress=QUIET)
    assert [one["Package"] for one in stanzas(made.root / BASE / "flat/x86_64/Packages")] == ["agent", "tool-data"]
    keys = [(made.root / BASE / "keys" / name).read_bytes() for name in ("vendor.pub", "moved.pub")]
    assert keys[0] == keys[1] and b"BEGIN PGP PUBLIC KEY BLOCK" in keys[0]
