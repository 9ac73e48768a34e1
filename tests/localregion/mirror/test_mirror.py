"""The package mirror: what a plan asks for lies where the vendors have it, signed; nothing else is built or served."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_ami.errors import CloudError, MissingTool, UsageError
from gpu_ami.process import run
from gpu_ami.progress import Progress
from localregion.mirror import deb as packages
from localregion.mirror import mirror, pool

from .replica_samples import PLAN, get, plan

pytestmark = pytest.mark.usefixtures("mirror_table")
QUIET = Progress(mode="quiet")
BASE = "vendor.example"
AGENT = "amazon-cloudwatch-agent"
AMAZON = {"id": "amzn", "version": "2023", "codename": "al2023", "family": "redhat"}


def _is_signed(tree: mirror.MirrorTree, tmp_path: Path, signature: str, *file: str) -> bool:
    """Whether gpgv takes it with the published key alone."""
    ring = tmp_path / "ring.gpg"
    run(["gpg", "--batch", "--yes", "--output", ring, "--dearmor", tree.root / BASE / "keys/vendor.pub"], timeout=30)
    files = [tree.root / BASE / name for name in (signature, *file)]
    return run(["gpgv", "--keyring", ring, *files], timeout=30, check=False).returncode == 0


def test_file_and_signature_lie_at_their_addresses(tree: mirror.MirrorTree, tmp_path: Path) -> None:
    assert packages.control_field(tree.root / BASE / "a/agent.deb", "Version") == "7.8-5"
    assert _is_signed(tree, tmp_path, "a/agent.deb.sig", "a/agent.deb")
    assert _is_signed(tree, tmp_path, "i/installer-0.9.tar.gz.sig", "i/installer-0.9.tar.gz")


def test_tampering_shows(tree: mirror.MirrorTree, tmp_path: Path) -> None:
    good = tree.root / BASE / "a/agent.deb"
    bad = tmp_path / "bad.deb"
    bad.write_bytes(good.read_bytes() + b"\0")
    ring = tmp_path / "ring.gpg"
    run(["gpg", "--batch", "--output", ring, "--dearmor", tree.root / BASE / "keys/vendor.pub"], timeout=30)
    done = run(["gpgv", "--keyring", ring, f"{good}.sig", bad], timeout=30, check=False)
    assert "BAD signature" in done.stderr


def test_plan_for_the_mirror_asks_for_the_same(mirror_home: Path, tree: mirror.MirrorTree) -> None:
    text = json.dumps(PLAN).replace("https://", "http://169.254.169.252/").replace("A" * 40, "B" * 40)
    assert mirror.ensure(mirror_home, plan=json.loads(text), progress=QUIET) == tree


def test_what_nobody_asked_for_in_a_day_is_forgotten(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror.ensure(fresh, plan=plan(roles=["agent"]), progress=QUIET)
    ledger = fresh / "mirror/asked.json"
    rows = json.loads(ledger.read_text())
    ledger.write_text(json.dumps([row | {"asked": row["asked"] - 25 * 3600} for row in rows]))
    assert mirror.ensure(fresh, progress=QUIET).origin == {}


def test_ledger_that_cannot_be_read_is_begun_anew(fresh: Path) -> None:
    (fresh / "mirror").mkdir()
    (fresh / "mirror/asked.json").write_text("[{")
    assert mirror.ensure(fresh, plan=plan(roles=["agent"]), progress=QUIET).origin == {"agent": "replica"}


def test_plan_that_cannot_be_packed_here_stops_no_other(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler of arm64: plans of x86_64 are packed in the same home, before and after."""
    real = shutil.which
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(
        shutil, "which", lambda name, **rest: None if name == "aarch64-linux-gnu-gcc" else real(name, **rest)
    )
    foreign = plan(architecture="arm64", roles=["tool"])
    with pytest.raises(MissingTool, match="aarch64-linux-gnu-gcc is not installed"):
        mirror.ensure(fresh, plan=foreign, progress=QUIET)
    assert mirror.ensure(fresh, plan=plan(roles=["agent"]), progress=QUIET).origin == {"agent": "replica"}
    with pytest.raises(MissingTool):
        mirror.ensure(fresh, plan=foreign, progress=QUIET)


def test_daemon_serves_what_is_there(mirror_home: Path, tree: mirror.MirrorTree) -> None:
    port, fingerprint = mirror.serve(mirror_home)
    assert fingerprint == tree.key_fingerprint
    assert get(port, f"/{BASE}/flat/x86_64/Release")[0] == 200


def test_daemon_without_a_tree_serves_an_empty_one(tmp_path: Path) -> None:
    port, fingerprint = mirror.serve(tmp_path)
    assert len(fingerprint) == 40 and get(port, f"/{BASE}/flat/x86_64/Release")[0] == 404


def _vendor_package(folder: Path, name: str = AGENT) -> Path:
    control = folder / "tree/DEBIAN/control"
    control.parent.mkdir(parents=True)
    fields = f"Package: {name}\nVersion: 1.300090.0b9-1\nArchitecture: amd64\n"
    control.write_text(f"{fields}Maintainer: vendor <v@example>\nDescription: real\n")
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", folder / "tree", folder / "vendor.deb"], check=True)
    return folder / "vendor.deb"


def test_vendors_package_takes_the_replicas_place(mirror_home: Path, tree: mirror.MirrorTree, tmp_path: Path) -> None:
    deb = _vendor_package(tmp_path)
    deb.with_name("vendor.deb.sig").write_bytes(b"the vendor's signature")
    url = f"https://{BASE}/c/{AGENT}.deb"
    agent = PLAN["agent"] | {"url": url, "signature_url": f"{url}.sig"}
    asked = plan(agent=agent, roles=["agent"])
    with_vendor = mirror.ensure(mirror_home, plan=asked, agent_package=deb, progress=QUIET)
    served = with_vendor.root / BASE / f"c/{AGENT}.deb"
    assert with_vendor.origin[AGENT] == "vendor"
    assert served.read_bytes() == deb.read_bytes()
    assert served.with_name(f"{AGENT}.deb.vendor.sig").read_bytes() == b"the vendor's signature"
    assert _is_signed(with_vendor, tmp_path, f"c/{AGENT}.deb.sig", f"c/{AGENT}.deb")
    assert (mirror_home / "mirror/current").resolve() == with_vendor.root.resolve()
    assert mirror.ensure(mirror_home, plan=asked, progress=QUIET).origin[AGENT] == "replica"  # and back


def test_wrong_agent_package_is_said_at_once(mirror_home: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        mirror.ensure(mirror_home, agent_package=tmp_path / "none.deb", progress=QUIET)
    with pytest.raises(UsageError, match="expected package amazon-cloudwatch-agent, got 'other'"):
        mirror.ensure(mirror_home, agent_package=_vendor_package(tmp_path, "other"), progress=QUIET)
    url = f"https://{BASE}/c/{AGENT}.rpm"
    asked = plan(os=AMAZON, agent=PLAN["agent"] | {"url": url, "signature_url": f"{url}.sig"}, roles=["agent"])
    with pytest.raises(UsageError, match=r"expected an \.rpm, as the plan installs amazon-cl.*, got a \.deb"):
        deb = _vendor_package(tmp_path / "deb")
        mirror.ensure(mirror_home, plan=asked, agent_package=deb, progress=QUIET)


def test_build_that_fails_leaves_no_tree(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise CloudError("dpkg-deb ended with 2")

    monkeypatch.setitem(pool.BUILDERS, "deb", fail)
    with pytest.raises(CloudError):
        mirror.ensure(fresh, plan=plan(roles=["agent"]), progress=QUIET)
    assert sorted(path.name for path in (fresh / "mirror").iterdir()) == ["asked.json", "lock", "pool"]
    assert [path.name for path in (fresh / "mirror/pool").iterdir() if path.name.startswith("build-")] == []
