"""Debian's archive beside the replicas, with an apt that reads two paragraphs and fetches what is asked of it."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpu_ami.errors import CloudError
from gpu_ami.progress import Progress
from localregion.mirror import debian_archive, debian_files, mirror

from .replica_samples import get, plan, stanzas

QUIET = Progress(mode="quiet")
INDEX = """\
Package: node-exporter
Version: 1:1.5.0-1
Architecture: amd64
Maintainer: Somebody <somebody@example.com>
Depends: libc6 (>= 2.34)
Tag: role::program
Filename: pool/main/n/node-exporter_1.5.0-1_amd64.deb
Size: 4
SHA256: 00

Package: libtool
Version: 9
Architecture: amd64
Filename: pool/main/libt/libtool_9_amd64.deb
"""
SITE = {"site": {"digest": "sha256:0"}, "monitor": {}}
PATH = "/deb.debian.org/debian/debian-archive/bookworm/amd64/node-exporter=1%3a1.5.0-1/node-exporter_1.5.0-1_amd64.deb"


class Apt:
    """Stands for apt-get. offline: it reaches nothing."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.offline = False

    def __call__(self, words: Sequence[str], state: Path, architecture: str, folder: Path) -> None:
        self.calls.append(f"{architecture}: {' '.join(words)}")
        if self.offline:
            raise CloudError(
                "apt-get ended with 100", details=["Err:1", "E: Temporary failure resolving 'deb.example'"]
            )
        if words[0] == "update":
            (state / "lists/x_Packages").write_text(INDEX)
        else:
            (folder / "node-exporter_1%3a1.5.0-1_amd64.deb").write_text("node")


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch) -> Apt:
    stands_in = Apt()
    monkeypatch.setattr(debian_files, "apt", stands_in)
    monkeypatch.setattr(
        debian_archive, "archive_sources", lambda suite: [f"deb http://deb.example/debian {suite} main"]
    )
    return stands_in


def of_site(**changes: object) -> dict[str, object]:
    return plan(roles=["family", "monitor"], **SITE, **changes)


def index_of(tree: mirror.MirrorTree) -> list[dict[str, str]]:
    return stanzas(tree.root / "deb.debian.org/debian/dists/bookworm/main/binary-amd64/Packages")


@pytest.mark.usefixtures("mirror_table")
def test_role_of_a_site_finds_debians_packages_beside_the_replicas(fresh: Path, apt: Apt) -> None:
    tree = mirror.ensure(fresh, plan=of_site(), progress=QUIET)  # type: ignore[arg-type]
    listed = {row["Package"]: row for row in index_of(tree)}
    assert listed["libtool"]["Version"] == "1.9-2", "a replica is not replaced by Debian's package of its name"
    own = listed["node-exporter"]
    assert own["Filename"] == PATH.removeprefix("/deb.debian.org/debian/").replace("%3a", ":")
    assert "Depends" in own and not {"Maintainer", "Tag"} & own.keys()
    server = mirror.Mirror(fresh)
    port = server.start()
    try:
        assert get(port, PATH) == (200, b"node")
        assert get(port, PATH) == (200, b"node")
        apt.offline = True
        status, body = get(port, PATH.replace("1.5.0-1/", "1.5.0-2/"))
        assert status == 502 and b"Temporary failure resolving" in body
        assert get(port, PATH.replace("amd64/", "sparc/"))[0] == 404
    finally:
        server.stop()
    assert apt.calls == [
        "amd64: update --error-on=any",
        "amd64: download node-exporter=1:1.5.0-1",
        "amd64: download node-exporter=1:1.5.0-2",
    ]


@pytest.mark.usefixtures("mirror_table")
def test_plan_without_a_role_of_a_site_reads_nothing_of_debian(fresh: Path, apt: Apt) -> None:
    tree = mirror.ensure(fresh, plan=plan(roles=["family"]), progress=QUIET)
    assert apt.calls == [] and {row["Package"] for row in index_of(tree)} == {"agent", "libtool"}


@pytest.mark.usefixtures("mirror_table")
def test_offline_says_what_is_missing_and_keeps_an_earlier_day(
    fresh: Path, apt: Apt, capsys: pytest.CaptureFixture[str]
) -> None:
    apt.offline = True
    mirror.ensure(fresh, plan=of_site(), progress=Progress("plain"))  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert "Debian's archive was not read: E: Temporary failure resolving 'deb.example'" in said
    assert "are missing: a role of the site that installs" in said
    apt.offline = False
    mirror.ensure(fresh, plan=of_site(), progress=QUIET)  # type: ignore[arg-type]
    os.utime(fresh / "mirror/debian-archive/bookworm-amd64-main/read", (0, 0))
    apt.offline = True
    tree = mirror.ensure(fresh, plan=of_site(), progress=Progress("plain"))  # type: ignore[arg-type]
    assert "are those of an earlier day" in capsys.readouterr().err
    assert "node-exporter" in {row["Package"] for row in index_of(tree)}


def test_ubuntu_gets_contrib_for_universe(fresh: Path, apt: Apt) -> None:
    archive = debian_archive.Archive(fresh / "archive", "bookworm", "amd64", ("main", "contrib"))
    assert archive.refresh() == "" and apt.calls
    lines = (fresh / "archive/bookworm-amd64-main-contrib/sources.list").read_text().splitlines()
    assert lines == ["deb http://deb.example/debian bookworm main contrib"]


def test_process_without_a_network_is_served_by_one_that_has_it(tmp_path: Path, apt: Apt) -> None:
    archive = debian_archive.Archive(tmp_path, "bookworm", "amd64")
    archive.refresh()
    ours, theirs = socket.socketpair()
    server = threading.Thread(target=debian_archive.serve, args=(ours, tmp_path), daemon=True)
    server.start()
    remote = debian_archive.Remote(theirs)
    found = remote(PATH)
    assert found and found.read_text() == "node" and remote("/other") is None
    shutil.rmtree(tmp_path / "bookworm-amd64-main/packages")
    apt.offline = True
    with pytest.raises(CloudError, match="Temporary failure resolving"):
        remote(PATH)


def test_package_that_apt_does_not_bring_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    monkeypatch.setattr(debian_files, "apt", nothing)
    (tmp_path / "bookworm-amd64-main").mkdir()
    with pytest.raises(CloudError, match="apt fetched no package tool 1"):
        debian_archive.Archive(tmp_path, "bookworm", "amd64").fetch("tool", "1")
