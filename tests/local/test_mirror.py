"""The package mirror: what a plan asks for lies where the vendors have it, signed; nothing else is built or served."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.errors import CloudError, UsageError
from gpu_ami.local import mirror, packages, replica_git, replica_pool, replica_table
from gpu_ami.log import Progress
from gpu_ami.run import run

from .replica_samples import FLAT, PLAN, SUITE, TABLE, plan, write_table

QUIET = Progress(mode="quiet")
BASE = "vendor.example"
AGENT = "amazon-cloudwatch-agent"
AMAZON = {"id": "amzn", "version": "2023", "codename": "al2023", "family": "redhat"}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = TABLE.replace("name: agent\n", f"name: agent|{AGENT}\n")
    return write_table(tmp_path_factory.mktemp("table"), text)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mirror-home")


@pytest.fixture(scope="module")
def tree(home: Path, table: Path) -> mirror.MirrorTree:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_table, "REPLICAS", table)
        return mirror.ensure(home, plan=PLAN, progress=QUIET)


@pytest.fixture(autouse=True)
def _table(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_table, "REPLICAS", table)


@pytest.fixture
def fresh(tmp_path: Path, tree: mirror.MirrorTree, home: Path) -> Path:
    """A home that has a key and nothing else."""
    shutil.copytree(home / "keys", tmp_path / "fresh/keys", ignore=shutil.ignore_patterns("S.*"))
    return tmp_path / "fresh"


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


def _is_signed(tree: mirror.MirrorTree, tmp_path: Path, signature: str, *file: str) -> bool:
    """Whether gpgv takes it with the published key alone."""
    ring = tmp_path / "ring.gpg"
    run(["gpg", "--batch", "--yes", "--output", ring, "--dearmor", tree.root / BASE / "keys/vendor.pub"], timeout=30)
    files = [tree.root / BASE / name for name in (signature, *file)]
    return run(["gpgv", "--keyring", ring, *files], timeout=30, check=False).returncode == 0


def _stanzas(index: Path) -> list[dict[str, str]]:
    return [
        dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and not line.startswith(" "))
        for stanza in index.read_text().split("\n\n")
        if stanza.strip()
    ]


def test_flat_repository_lies_where_the_plan_says(tree: mirror.MirrorTree, tmp_path: Path) -> None:
    folder = tree.root / BASE / "flat/x86_64"
    stanzas = _stanzas(folder / "Packages")
    found = {f"{one['Package']}={one['Version']}" for one in stanzas}
    assert found >= {"tool-1=1.2.3-1+x2", "tool-1=1.2.2-1+x2", "tool-data=1.2.3-1+x2", "libtool=2:4.5-1"}
    for one in stanzas:
        file = folder / one["Filename"]
        assert file.stat().st_size == int(one["Size"])
        assert run(["sha256sum", file], timeout=30).stdout.split()[0] == one["SHA256"]
    assert _is_signed(tree, tmp_path, "flat/x86_64/InRelease")
    assert _is_signed(tree, tmp_path, "flat/x86_64/Release.gpg", "flat/x86_64/Release")
    total = run(["sha256sum", folder / "Packages"], timeout=30).stdout.split()[0]
    assert f" {total} {(folder / 'Packages').stat().st_size} Packages\n" in (folder / "Release").read_text()


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


def test_repository_is_cloned_at_its_tag(port: int, tree: mirror.MirrorTree, tmp_path: Path) -> None:
    commit = replica_git.commit("https://vendor.example/git/source.git", "v1.0")
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
    known = replica_git.commit("https://vendor.example/git/source.git", "v1.0")
    assert known and len(known) == 40
    assert replica_git.commit("https://vendor.example/git/source.git", "v1.1") != known
    assert replica_git.commit("https://vendor.example/git/other.git", "v1.0") is None


def test_second_time_is_the_same_tree_and_builds_nothing(
    home: Path, tree: mirror.MirrorTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_build", lambda *_: pytest.fail("it builds again"))
    assert mirror.ensure(home, plan=PLAN, progress=QUIET) == tree
    assert mirror.ensure(home, progress=QUIET) == tree


def test_plan_for_the_mirror_asks_for_the_same(home: Path, tree: mirror.MirrorTree) -> None:
    text = json.dumps(PLAN).replace("https://", "http://169.254.169.252/").replace("A" * 40, "B" * 40)
    assert mirror.ensure(home, plan=json.loads(text), progress=QUIET) == tree


def test_further_plan_adds_what_it_needs_and_builds_only_that(
    home: Path, tree: mirror.MirrorTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def noting(package: Any, into: Path) -> Path:
        built.append(f"{package.name} {package.full_version}")
        return packages.build(package, into)

    monkeypatch.setitem(replica_pool._BUILDERS, "deb", noting)
    tool = {"version": "1", "packages": {"agent": "9-1", "libtool": "2:4.5-1"}, "repository": SUITE}
    more = mirror.ensure(home, plan=plan(tool=tool, roles=["tool"]), progress=QUIET)
    assert built == ["agent 9-1"]
    index = more.root / BASE / "suite/dists/jammy/main/binary-amd64/Packages"
    assert [one["Package"] for one in _stanzas(index)] == ["agent", "libtool"]
    assert (more.root / BASE / "suite" / _stanzas(index)[0]["Filename"]).is_file()
    release = (more.root / BASE / "suite/dists/jammy/Release").read_text()
    assert "Suite: jammy\n" in release and "main/binary-amd64/Packages.gz\n" in release
    assert (more.root / BASE / "flat/x86_64/Packages").is_file()  # what other plans asked for is still there
    assert more.root != tree.root


def test_changed_replica_rebuilds_only_itself(
    table: Path, home: Path, tree: mirror.MirrorTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = table / "family/lib/tool.c"
    before = source.read_text()
    source.write_text(f"{before}int more(void) {{ return 1; }}\n")
    built: list[str] = []
    real = packages.build
    monkeypatch.setitem(
        replica_pool._BUILDERS, "deb", lambda package, into: (built.append(package.name), real(package, into))[1]
    )
    try:
        assert mirror.ensure(home, plan=PLAN, progress=QUIET).root != tree.root
    finally:
        source.write_text(before)
    assert built == ["libtool"]


def test_dnf_repository_is_made_for_a_redhat_plan(fresh: Path) -> None:
    tool = {"version": "1", "packages": {"agent": "9-1.amzn2023"}, "repository": FLAT}
    made = mirror.ensure(fresh, plan=plan(os=AMAZON, tool=tool, roles=["tool"]), progress=QUIET)
    folder = made.root / BASE / "flat/x86_64"
    assert sorted(path.name for path in folder.iterdir()) == ["agent-9-1.amzn2023.x86_64.rpm", "repodata"]
    assert (folder / "repodata/repomd.xml.asc").is_file()


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
    assert _stanzas(without.root / where) == []
    made = mirror.ensure(fresh, plan=plan(os=system, roles=["family"]), progress=QUIET)
    found = {f"{one['Package']}={one['Version']}" for one in _stanzas(made.root / where)}
    assert found == {"agent=0.1-1", "libtool=1.9-2"}


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


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"url": "https://vendor.example/no.deb", "signature_url": "https://v/s"}, "deb package no, .* agent.url"),
        ({"url": "https://vendor.example/no.zip", "signature_url": "https://v/s"}, "archive no.zip, .* agent.url"),
        ({"url": "https://vendor.example/no.git", "tag": "v1"}, "git repository no, for which plan key agent"),
        ({"url": "ftp://vendor.example/agent.deb", "signature_url": "https://v/s"}, "ftp://.*no address"),
        ({"url": "https://v/../../etc/agent.deb", "signature_url": "https://v/s"}, "no address"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_said(fresh: Path, section: dict[str, str], message: str) -> None:
    agent = {"version": "1", "key_url": "https://vendor.example/key", **section}
    with pytest.raises(UsageError, match=message):
        mirror.ensure(fresh, plan=plan(agent=agent, roles=["agent"]), progress=QUIET)


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


def test_server_gives_files_and_says_no_otherwise(port: int, tree: mirror.MirrorTree) -> None:
    status, body = _get(port, f"/{BASE}/keys/vendor.pub")
    assert (status, body) == (200, (tree.root / BASE / "keys/vendor.pub").read_bytes())
    assert _get(port, f"/{BASE}/keys/vendor.pub", "HEAD") == (200, b"")
    assert _get(port, f"/{BASE}/nothing")[0] == 404
    assert _get(port, f"/{BASE}/")[0] == 404
    assert _get(port, f"/{BASE}/keys/vendor.pub", "POST")[0] == 501


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
    assert _get(port, f"/{BASE}/flat/x86_64/Release")[0] == 200


def test_daemon_without_a_tree_serves_an_empty_one(tmp_path: Path) -> None:
    port, fingerprint = mirror.serve(tmp_path)
    assert len(fingerprint) == 40 and _get(port, f"/{BASE}/flat/x86_64/Release")[0] == 404


def _vendor_package(folder: Path, name: str = AGENT) -> Path:
    control = folder / "tree/DEBIAN/control"
    control.parent.mkdir(parents=True)
    fields = f"Package: {name}\nVersion: 1.300090.0b9-1\nArchitecture: amd64\n"
    control.write_text(f"{fields}Maintainer: vendor <v@example>\nDescription: real\n")
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", folder / "tree", folder / "vendor.deb"], check=True)
    return folder / "vendor.deb"


def test_vendors_package_takes_the_replicas_place(home: Path, tree: mirror.MirrorTree, tmp_path: Path) -> None:
    deb = _vendor_package(tmp_path)
    deb.with_name("vendor.deb.sig").write_bytes(b"the vendor's signature")
    url = f"https://{BASE}/c/{AGENT}.deb"
    agent = PLAN["agent"] | {"url": url, "signature_url": f"{url}.sig"}
    asked = plan(agent=agent, roles=["agent"])
    with_vendor = mirror.ensure(home, plan=asked, agent_package=deb, progress=QUIET)
    served = with_vendor.root / BASE / f"c/{AGENT}.deb"
    assert with_vendor.origin[AGENT] == "vendor"
    assert served.read_bytes() == deb.read_bytes()
    assert served.with_name(f"{AGENT}.deb.vendor.sig").read_bytes() == b"the vendor's signature"
    assert _is_signed(with_vendor, tmp_path, f"c/{AGENT}.deb.sig", f"c/{AGENT}.deb")
    assert (home / "mirror/current").resolve() == with_vendor.root.resolve()
    assert mirror.ensure(home, plan=asked, progress=QUIET).origin[AGENT] == "replica"  # and back


def test_wrong_agent_package_is_said_at_once(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        mirror.ensure(home, agent_package=tmp_path / "none.deb", progress=QUIET)
    with pytest.raises(UsageError, match="holds package 'other'"):
        mirror.ensure(home, agent_package=_vendor_package(tmp_path, "other"), progress=QUIET)
    url = f"https://{BASE}/c/{AGENT}.rpm"
    asked = plan(os=AMAZON, agent=PLAN["agent"] | {"url": url, "signature_url": f"{url}.sig"}, roles=["agent"])
    with pytest.raises(UsageError, match=r"a \.deb, and the plan installs amazon-cloudwatch-agent as \.rpm"):
        deb = _vendor_package(tmp_path / "deb")
        mirror.ensure(home, plan=asked, agent_package=deb, progress=QUIET)


def test_build_that_fails_leaves_no_tree(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise CloudError("dpkg-deb ended with 2")

    monkeypatch.setitem(replica_pool._BUILDERS, "deb", fail)
    with pytest.raises(CloudError):
        mirror.ensure(fresh, plan=plan(roles=["agent"]), progress=QUIET)
    assert sorted(path.name for path in (fresh / "mirror").iterdir()) == ["asked.json", "lock", "pool"]
    assert [path.name for path in (fresh / "mirror/pool").iterdir() if path.name.startswith("build-")] == []


def test_repository_is_one_wherever_its_key_is_said_to_lie(fresh: Path) -> None:
    moved = FLAT | {"key_url": "https://vendor.example/keys/moved.pub"}
    for repository, wanted in ((FLAT, "agent"), (moved, "tool-data")):
        tool = {"version": "1", "packages": {wanted: "9-1"}, "repository": repository}
        made = mirror.ensure(fresh, plan=plan(tool=tool, roles=["tool"]), progress=QUIET)
    assert [one["Package"] for one in _stanzas(made.root / BASE / "flat/x86_64/Packages")] == ["agent", "tool-data"]
    keys = [(made.root / BASE / "keys" / name).read_bytes() for name in ("vendor.pub", "moved.pub")]
    assert keys[0] == keys[1] and b"BEGIN PGP PUBLIC KEY BLOCK" in keys[0]
