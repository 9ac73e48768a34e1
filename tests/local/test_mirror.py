"""The package mirror: its tree, the vendor's package in place of the replica, and a server that gives nothing else."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_ami.errors import CloudError, UsageError
from gpu_ami.local import mirror, packages
from gpu_ami.log import Progress
from gpu_ami.run import run

QUIET = Progress(mode="quiet")
AGENT = "amazoncloudwatch-agent.s3.amazonaws.com"
DRIVER = "developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mirror-home")


@pytest.fixture(scope="module")
def tree(home: Path) -> mirror.MirrorTree:
    return mirror.ensure(home, agent_package=None, progress=QUIET)


@pytest.fixture
def port(home: Path, tree: mirror.MirrorTree) -> Iterator[int]:
    server = mirror.Mirror(home)
    yield server.start()
    server.stop()


def _get(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def _keyring(tree: mirror.MirrorTree, tmp_path: Path) -> Path:
    """The published key as gpgv takes it."""
    ring = tmp_path / "ring.gpg"
    run(
        [
            "gpg",
            "--batch",
            "--yes",
            "--output",
            ring,
            "--dearmor",
            tree.root / AGENT / "assets/amazon-cloudwatch-agent.gpg",
        ],
        timeout=30,
    )
    return ring


def test_tree_lies_where_the_vendors_have_it(tree: mirror.MirrorTree) -> None:
    for path in (
        f"{DRIVER}/InRelease",
        f"{DRIVER}/3bf863cc.pub",
        f"{DRIVER}/nvidia-kernel-open-dkms_550.163.01-1_amd64.deb",
        f"{AGENT}/debian/amd64/latest/amazon-cloudwatch-agent.deb",
        f"{AGENT}/debian/amd64/1.300071.0/amazon-cloudwatch-agent.deb.sig",
    ):
        assert (tree.root / path).is_file(), path
    assert set(tree.origin.values()) == {"replica"}


def test_agent_is_signed_and_tampering_shows(tree: mirror.MirrorTree, tmp_path: Path) -> None:
    deb = tree.root / AGENT / "debian/amd64/latest/amazon-cloudwatch-agent.deb"
    check = ["gpgv", "--keyring", _keyring(tree, tmp_path), f"{deb}.sig"]
    assert run([*check, deb], timeout=30, check=False).returncode == 0
    bad = tmp_path / "bad.deb"
    bad.write_bytes(deb.read_bytes() + b"\0")
    assert "BAD signature" in run([*check, bad], timeout=30, check=False).stderr


def test_second_time_is_the_same_tree(home: Path, tree: mirror.MirrorTree) -> None:
    before = (tree.root / "mirror.json").stat().st_mtime_ns
    assert mirror.ensure(home, agent_package=None, progress=QUIET) == tree
    assert (tree.root / "mirror.json").stat().st_mtime_ns == before


def test_server_gives_files_and_says_no_otherwise(port: int, tree: mirror.MirrorTree) -> None:
    status, body = _get(port, f"/{DRIVER}/Packages")
    assert (status, body) == (200, (tree.root / DRIVER / "Packages").read_bytes())
    assert _get(port, f"/{DRIVER}/Packages", "HEAD") == (200, b"")
    assert _get(port, f"/{DRIVER}/nothing")[0] == 404
    assert _get(port, f"/{DRIVER}/")[0] == 404
    assert _get(port, f"/{DRIVER}/Packages", "POST")[0] == 501


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
    assert _get(port, path)[0] == 404
    assert mirror.locate(tree.root, path) is None


def test_daemon_serves_what_is_there(home: Path, tree: mirror.MirrorTree) -> None:
    port, fingerprint = mirror.serve(home)
    assert fingerprint == tree.key_fingerprint
    assert _get(port, f"/{DRIVER}/Release")[0] == 200


def _vendor_package(folder: Path, name: str = "amazon-cloudwatch-agent") -> Path:
    control = folder / "tree/DEBIAN/control"
    control.parent.mkdir(parents=True)
    fields = f"Package: {name}\nVersion: 1.300090.0b9-1\nArchitecture: amd64\n"
    control.write_text(f"{fields}Maintainer: vendor <v@example>\nDescription: real\n")
    run(["dpkg-deb", "--root-owner-group", "--build", folder / "tree", folder / "vendor.deb"], timeout=30)
    return folder / "vendor.deb"


def test_vendors_package_takes_the_replicas_place(home: Path, tree: mirror.MirrorTree, tmp_path: Path) -> None:
    deb = _vendor_package(tmp_path)
    deb.with_name("vendor.deb.sig").write_bytes(b"the vendor's signature")
    with_vendor = mirror.ensure(home, agent_package=deb, progress=QUIET)
    served = with_vendor.root / AGENT / "debian/amd64"
    assert with_vendor.origin["amazon-cloudwatch-agent"] == "vendor"
    assert sorted(path.name for path in served.iterdir()) == ["1.300090.0b9", "latest"]
    assert (served / "latest/amazon-cloudwatch-agent.deb").read_bytes() == deb.read_bytes()
    assert (served / "latest/amazon-cloudwatch-agent.deb.vendor.sig").read_bytes() == b"the vendor's signature"
    check = ["gpgv", "--keyring", _keyring(with_vendor, tmp_path), served / "latest/amazon-cloudwatch-agent.deb.sig"]
    assert run([*check, served / "latest/amazon-cloudwatch-agent.deb"], timeout=30, check=False).returncode == 0
    assert (home / "mirror/current").resolve() == with_vendor.root.resolve()
    assert mirror.ensure(home, agent_package=None, progress=QUIET) == tree  # and back


def test_wrong_agent_package_is_said_at_once(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        mirror.ensure(home, agent_package=tmp_path / "none.deb", progress=QUIET)
    with pytest.raises(UsageError, match="holds package 'other'"):
        mirror.ensure(home, agent_package=_vendor_package(tmp_path, "other"), progress=QUIET)


def test_build_that_fails_leaves_no_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise CloudError("dpkg-deb ended with 2")

    monkeypatch.setattr(packages, "build", fail)
    with pytest.raises(CloudError):
        mirror.ensure(tmp_path, agent_package=None, progress=QUIET)
    assert [path.name for path in (tmp_path / "mirror").iterdir()] == ["lock"]
