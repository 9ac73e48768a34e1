"""A package mirror gone bad, for tests: a copy of a home's good tree with a damage, served in its place for a while.

    with damaged(home, tampered(f"{repository}/nvidia-smi_550.163.01-1_amd64.deb")):
        ...                     # whatever serves the home's mirror (region, sandbox, Mirror) gives out the bad tree

A damage is named after what is wrong; addresses are the plan's (https://HOST/PATH, or below the mirror's own address).
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from gpu_ami.process import run
from localregion.mirror import mirror as mirror_server
from localregion.mirror import rpm, signing

Damage = Callable[[Path], None]
_SIGNATURES = ("InRelease", "Release.gpg", "repodata/repomd.xml.asc")


def below(address: str) -> str:
    """HOST/PATH of a vendor's address, or of the mirror's."""
    path = re.sub(r"^https?://(169\.254\.169\.252/|127\.0\.0\.1:\d+/)?", "", address)
    return path.rstrip("/").removesuffix("/.")


@contextmanager
def damaged(home: Path, *damages: Damage) -> Iterator[Path]:
    """Inside the block the home's mirror serves a copy with those damages (its root); afterwards the good tree."""
    current = home / "mirror" / "current"
    good = current.resolve()
    with tempfile.TemporaryDirectory(dir=current.parent, prefix="bad-") as name:
        bad = Path(name) / "tree"
        shutil.copytree(good, bad, symlinks=True)  # not links: the pool's own files stay as they are
        for damage in damages:
            damage(bad)
        _point(current, bad)
        try:
            yield bad
        finally:
            _point(current, good)


def _point(current: Path, tree: Path) -> None:
    fresh = current.with_name("current.bad")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(tree)
    fresh.replace(current)


def tampered(address: str) -> Damage:
    """The file (a package, an archive, a key) has one byte changed in its middle; its size is the same."""

    def damage(tree: Path) -> None:
        file = tree / below(address)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(data)

    return damage


def tampered_index(repository: str) -> Damage:
    """The repository's index was changed after it had been signed."""

    def damage(tree: Path) -> None:
        for index in _indexes(tree / below(repository)):
            file = index / ("repodata/repomd.xml" if (index / "repodata").exists() else "Release")
            for one in (file, file.with_name("InRelease")):
                if one.exists():
                    one.write_text(re.sub(r"\b[0-9a-f]{64}\b", "0" * 64, one.read_text(), count=1))

    return damage


def missing(address: str) -> Damage:
    """404: the file, or everything below the folder, is not there."""

    def damage(tree: Path) -> None:
        path = tree / below(address)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def half(address: str) -> Damage:
    """Of the file only the first half is there, and the server calls it whole: what a broken-off download leaves."""

    def damage(tree: Path) -> None:
        file = tree / below(address)
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    return damage


def unsigned(address: str) -> Damage:
    """The signature is gone: of a file (`address` + .sig), or of a repository's index."""

    def damage(tree: Path) -> None:
        path = tree / below(address)
        found = [path.with_name(f"{path.name}.sig")] if path.is_file() else []
        found += [index / name for index in _indexes(path) for name in _SIGNATURES]
        assert [one.unlink() for one in found if one.exists()], f"{path} has no signature"

    return damage


def signed_by_another(address: str, other: Path) -> Damage:
    """The file, or the repository's index, is signed by the key of the home `other`; the published key is not."""

    def damage(tree: Path) -> None:
        path = tree / below(address)
        with signing.signing_key(other).opened() as gpg:
            if path.is_file():
                gpg.sign(path, path.with_name(f"{path.name}.sig"))
            for index in _indexes(path):
                _sign_index(index, gpg)

    return damage


def packages_signed_by_another(repository: str, other: Path, home: Path) -> Damage:
    """The .rpms are signed by the key of the home `other`; the index fits them and is signed by the right key."""

    def damage(tree: Path) -> None:
        folder = tree / below(repository)
        rpms = sorted(folder.glob("*.rpm"))
        assert rpms, f"{folder} has no .rpm"
        with signing.signing_key(other).opened() as gpg:
            run(["rpmsign", "--delsign", *rpms], timeout=120)
            rpm.sign(rpms, gpg)
        shutil.rmtree(folder / "repodata")
        with signing.signing_key(home).opened() as gpg:
            rpm.write_repository(folder, gpg)

    return damage


def another_key(key_url: str, other: Path) -> Damage:
    """The published key is that of the home `other`: not the one that the plan names."""

    def damage(tree: Path) -> None:
        signing.signing_key(other).export(tree / below(key_url), armor=True)

    return damage


def expired_key(key_url: str, home: Path) -> Damage:
    """The published key is the right one by its fingerprint, but it has expired."""

    def damage(tree: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="gpu-ami-") as name:
            copy = Path(name)
            key = signing.signing_key(home)
            armored = key.export(copy / "public", armor=True)
            with key.opened() as gpg:
                secret = run([*gpg.command, "--armor", "--export-secret-keys", key.fingerprint], timeout=60).stdout
            (copy / "secret").write_text(secret)
            gpg_copy = ["gpg", "--homedir", name, "--batch", "--yes", "--no-tty", "--pinentry-mode", "loopback"]
            copy.chmod(0o700)
            try:
                run([*gpg_copy, "--import", armored, copy / "secret"], timeout=60)
                created = _created(gpg_copy, key.fingerprint)
                early = [*gpg_copy, "--faked-system-time", str(created + 1), "--ignore-time-conflict"]
                run([*early, "--quick-set-expire", key.fingerprint, "seconds=1"], timeout=60)
                while time.time() < created + 5:  # a key that is younger has not expired yet
                    time.sleep(0.2)
                run([*gpg_copy, "--armor", "--output", tree / below(key_url), "--export", key.fingerprint], timeout=60)
            finally:
                run(["gpgconf", "--homedir", name, "--kill", "all"], timeout=30, check=False)

    return damage


def _created(gpg: list[str], fingerprint: str) -> int:
    shown = run([*gpg, "--with-colons", "--fixed-list-mode", "--list-keys", fingerprint], timeout=60).stdout
    return int(next(line.split(":")[5] for line in shown.splitlines() if line.startswith("pub:")))


def _indexes(repository: Path) -> list[Path]:
    """The folders that have an index: the repository's own, or those of its suites."""
    own = [repository] if (repository / "Release").exists() or (repository / "repodata").exists() else []
    return own + [path.parent for path in sorted(repository.glob("dists/*/Release"))]


def _sign_index(index: Path, gpg: signing.Gpg) -> None:
    if (index / "repodata").exists():
        file = index / "repodata" / "repomd.xml"
        gpg.sign(file, file.with_name("repomd.xml.asc"), armor=True)
    else:
        gpg.sign(index / "Release", index / "InRelease", clear=True)
        gpg.sign(index / "Release", index / "Release.gpg", armor=True)


@contextmanager
def breaking_off(home: Path, *addresses: str) -> Iterator[str]:
    """A server of the home's mirror that hangs up in the middle of those files; its address. (For what runs here: a
    sandbox or a machine asks the home's own server, where `half` leaves what a client that did not notice has.)"""
    root = home / "mirror" / "current"
    cut = {(root / below(address)).resolve() for address in addresses}
    whole: Any = mirror_server.handler(root, lambda _: None)

    class Handler(whole):  # type: ignore[misc]
        def do_GET(self) -> None:
            file = mirror_server.locate(root, self.path)
            if file is None or file not in cut:
                super().do_GET()
                return
            data = file.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
