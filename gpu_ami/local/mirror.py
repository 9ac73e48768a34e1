"""The local region's package mirror: a signed tree that answers for the vendors' hosts, and a server for it.

`https://HOST/PATH` of a vendor lies at `/HOST/PATH`. The tree holds replica packages (`replicas/README.md`) and, where
one was given, the vendor's own CloudWatch agent package instead of the replica. Whatever is served is signed with the
state directory's own key, since that is the key a plan of the local region names. A vendor's signature found beside the
vendor's package is served too, as `amazon-cloudwatch-agent.deb.vendor.sig`; nothing local relies on it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gpu_ami.errors import UsageError
from gpu_ami.local import packages
from gpu_ami.log import Progress

_AGENT = "amazon-cloudwatch-agent"
_KEPT_SECONDS = 7 * 24 * 3600.0
_CHUNK = 256 * 1024


@dataclass(frozen=True)
class MirrorTree:
    """A finished tree. origin: package name → "replica" or "vendor"."""

    root: Path
    key_fingerprint: str
    origin: dict[str, str]


def ensure(home: Path, *, agent_package: Path | None, progress: Progress) -> MirrorTree:
    """The tree for these sources, this agent package and this key; built when there is none yet (seconds)."""
    if agent_package is not None:
        _check_agent_package(agent_package)
    base = home / "mirror"
    base.mkdir(parents=True, exist_ok=True)
    with _only_one(base / "lock"):
        key = packages.signing_key(home)
        root = base / f"tree-{_digest(key.fingerprint, agent_package)}"
        if not (root / "mirror.json").exists():
            with progress.stage("package mirror: build and sign"):
                _build(base, root, key, agent_package)
        os.utime(root)
        _point_to(base, root)
        _forget_old(base, root)
    return _described(root)


def _described(root: Path) -> MirrorTree:
    described = json.loads((root / "mirror.json").read_text(encoding="utf-8"))
    return MirrorTree(root, described["key_fingerprint"], described["origin"])


def _check_agent_package(deb: Path) -> None:
    if not deb.is_file():
        raise UsageError(f"--agent-package {deb}: no such file", hint="give the vendor's amazon-cloudwatch-agent.deb")
    name = packages.control_field(deb, "Package")
    if name != _AGENT:
        raise UsageError(f"--agent-package {deb}: holds package {name!r}, not {_AGENT}")


def _digest(fingerprint: str, agent_package: Path | None) -> str:
    sha = hashlib.sha256(f"{packages.sources_digest()}\0{fingerprint}\0".encode() + Path(__file__).read_bytes())
    if agent_package is not None:
        sha.update(agent_package.read_bytes())
        signature = agent_package.with_name(agent_package.name + ".sig")
        sha.update(signature.read_bytes() if signature.exists() else b"")
    return sha.hexdigest()[:16]


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(base: Path, root: Path, key: packages.SigningKey, agent_package: Path | None) -> None:
    for stale in base.glob("build-*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix="build-", dir=base))
    try:
        table = packages.load_table()
        origin = {
            package.name: "replica"
            for family in ("nvidia_driver", "cloudwatch_agent")
            for package in packages.listed(family)
        }
        _add_driver(work, table["nvidia_driver"], key)
        _add_agent(work, table["cloudwatch_agent"], key, agent_package)
        if agent_package is not None:
            origin[_AGENT] = "vendor"
        tree = MirrorTree(root, key.fingerprint, origin)
        (work / "mirror.json").write_text(json.dumps(asdict(tree), default=str, indent=1), encoding="utf-8")
        shutil.rmtree(root, ignore_errors=True)
        work.rename(root)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _add_driver(work: Path, row: dict[str, str], key: packages.SigningKey) -> None:
    folder = work / row["repository"]
    folder.mkdir(parents=True)
    for package in packages.listed("nvidia_driver"):
        packages.build(package, folder)
    packages.write_repository(folder, key)
    key.export(folder / row["key_file"], armor=True)
    key.export(folder / "gpu-ami-archive-keyring.gpg", armor=False)


def _add_agent(work: Path, row: dict[str, str], key: packages.SigningKey, agent_package: Path | None) -> None:
    host = work / row["host"]
    (host / "assets").mkdir(parents=True)
    key.export(host / "assets" / f"{_AGENT}.gpg", armor=True)
    if agent_package is not None:
        version = packages.control_field(agent_package, "Version").partition("-")[0]
        offered = {"latest": agent_package, version: agent_package}
    else:
        built = {item.version: packages.build(item, host) for item in packages.listed("cloudwatch_agent")}
        offered = {**built, "latest": built[list(built)[-1]]}
    for directory, deb in offered.items():
        target = host / "debian" / "amd64" / directory / f"{_AGENT}.deb"
        target.parent.mkdir(parents=True)
        shutil.copyfile(deb, target)
        key.sign(target)
        vendor_signature = deb.with_name(deb.name + ".sig")
        if agent_package is not None and vendor_signature.exists():
            shutil.copyfile(vendor_signature, target.with_name(f"{_AGENT}.deb.vendor.sig"))
    for deb in host.glob("*.deb"):
        deb.unlink()


def _point_to(base: Path, root: Path) -> None:
    """`current` is what a running server reads, request by request."""
    fresh = base / "current.new"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(root.name)
    fresh.replace(base / "current")


def _forget_old(base: Path, root: Path) -> None:
    for old in base.glob("tree-*"):
        if old != root and time.time() - old.stat().st_mtime > _KEPT_SECONDS:
            shutil.rmtree(old, ignore_errors=True)


class Mirror:
    """Serves `home/mirror/current` on loopback, GET and HEAD, files only."""

    def __init__(self, home: Path) -> None:
        self._root = home / "mirror" / "current"
        self._server: ThreadingHTTPServer | None = None

    def start(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> int:
        """Serves from a thread of its own; the port (a free one of the loopback, unless `address` says another)."""
        server = ThreadingHTTPServer(address, _handler(self._root))
        server.daemon_threads = True
        self._server = server
        threading.Thread(target=server.serve_forever, name="package-mirror", daemon=True).start()
        return int(server.server_address[1])

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def serve(home: Path) -> tuple[int, str]:
    """For the region's daemon: serves the current tree (made where there is none); port and key fingerprint."""
    current = home / "mirror" / "current"
    if (current / "mirror.json").exists():
        tree = _described(current.resolve())
    else:
        tree = ensure(home, agent_package=None, progress=Progress(mode="quiet"))
    return Mirror(home).start(), tree.key_fingerprint


def locate(root: Path, request_path: str) -> Path | None:
    """The regular file of the tree that a request names; None for everything else, above all for what lies outside."""
    path = urllib.parse.unquote(urllib.parse.urlsplit(request_path).path)
    if "\0" in path or ".." in path.split("/"):
        return None
    real_root = root.resolve()
    found = (real_root / path.lstrip("/")).resolve()
    inside = found.is_relative_to(real_root) and found != real_root / "mirror.json"
    return found if inside and found.is_file() else None


def _handler(root: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            file = locate(root, self.path)
            if file is None:
                self.send_error(HTTPStatus.NOT_FOUND, f"the mirror has no {self.path[:200]}")
                return
            with file.open("rb") as body:
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", "application/octet-stream")
                self.send_header("Content-Length", str(os.fstat(body.fileno()).st_size))
                self.send_header("Last-Modified", self.date_time_string(int(file.stat().st_mtime)))
                self.end_headers()
                if with_body:
                    shutil.copyfileobj(body, self.wfile, _CHUNK)

        def log_message(self, format: str, *args: object) -> None:
            """Silent: the region keeps no access log of its packages."""

    return Handler
