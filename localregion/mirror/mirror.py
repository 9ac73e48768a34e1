"""The local region's package mirror: a signed tree with the paths of the vendors' hosts.

`https://HOST/PATH` of a vendor is at `/HOST/PATH`. The tree holds replicas (`replicas/README.md`) of what plans needed
lately: `ensure(home, plan=…)` adds what a plan needs, and builds only that. Everything is signed with the state
directory's own key, which a plan of the local region names. A vendor's CloudWatch agent package (`agent_package`)
replaces the replica; a vendor's signature beside it is served too, as `amazon-cloudwatch-agent.deb.vendor.sig`, which
nothing local uses.

The mirror's web server: serves the files of the current tree on loopback.

Downloads the vendor's CloudWatch agent, verifies its signature and keeps it in the home folder.

URL, key and fingerprint are in `variables/facts/cloudwatch_agent.yml`; an unverified package is not kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gpu_ami.errors import CloudError, UsageError
from gpu_ami.files import locked
from gpu_ami.process import find_tool, run
from gpu_ami.progress import Progress
from gpu_ami.recipes import PlanDocument
from localregion.architectures import ARCHITECTURES
from localregion.mirror import content as mirror_content
from localregion.mirror import deb, debian_archive, distribution_archive, git_repositories, rpm, signing
from localregion.mirror import deb as packages
from localregion.mirror.content import AGENT, Content
from localregion.mirror.package_requests import Section, sections
from localregion.mirror.pool import Pool

_CHUNK = 256 * 1024


class Mirror:
    """Serves `home/mirror/current` on loopback, GET and HEAD, files only.

    further: the file that a request of anything else names, or None; CloudError: it could not be fetched.
    """

    def __init__(self, home: Path, further: Callable[[str], Path | None] | None = None) -> None:
        self._root = home / "mirror" / "current"
        self._further = further or partial(debian_archive.of_request, home / "mirror" / debian_archive.FOLDER)
        self._server: ThreadingHTTPServer | None = None

    def start(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> int:
        """Serves from a thread of its own; the port (a free one of the loopback, unless `address` says another)."""
        server = ThreadingHTTPServer(address, handler(self._root, self._further))
        server.daemon_threads = True
        self._server = server
        threading.Thread(target=server.serve_forever, name="package-mirror", daemon=True).start()
        return int(server.server_address[1])

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def locate(root: Path, request_path: str) -> Path | None:
    """The regular file that a request names; None for anything else, such as a path outside the tree."""
    path = urllib.parse.unquote(urllib.parse.urlsplit(request_path).path)
    if "\0" in path or ".." in path.split("/"):
        return None
    real_root = root.resolve()
    file = (real_root / path.lstrip("/")).resolve()
    inside = file.is_relative_to(real_root) and file != real_root / "mirror.json"
    return file if inside and file.is_file() else None


def handler(root: Path, further: Callable[[str], Path | None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            file = locate(root, self.path)
            try:
                file = file or further(self.path)
            except CloudError as error:
                text = f"Debian's archive: {debian_archive.reason(error)}"
                self.send_error(HTTPStatus.BAD_GATEWAY, text[:300])
                return
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


__all__ = ["Mirror", "MirrorTree", "ensure", "locate", "serve"]

_ASKED_SECONDS = 24 * 3600.0
_KEPT_SECONDS = 7 * 24 * 3600.0
_LAYS_OUT = (mirror_content, deb, debian_archive, rpm, git_repositories)  # a tree is theirs as much as its content's


@dataclass(frozen=True)
class MirrorTree:
    """A finished tree. origin: package name → "replica" or "vendor"; commits: `<path>#<tag>` → commit."""

    root: Path
    key_fingerprint: str
    origin: dict[str, str]
    commits: dict[str, str] = field(default_factory=dict)


def ensure(
    home: Path,
    *,
    plan: PlanDocument | None = None,
    only: Collection[str] | None = None,
    agent_package: Path | None = None,
    progress: Progress,
) -> MirrorTree:
    """The tree with what `plan` (a plan's document) needs and what other plans of the last day needed.

    Without a plan: what is there. only: these sections of the plan instead of those of its roles. UsageError: the plan
    names a package of which there is no replica.
    """
    asked = sections(plan, only) if plan is not None else []
    if agent_package is not None:
        _check_agent_package(agent_package, asked)
    mirror_content.resolve(asked, agent_package)
    base = home / "mirror"
    base.mkdir(parents=True, exist_ok=True)
    with locked(base / "lock", lambda: progress.note("another gpu-ami builds the package mirror; waiting for it")):
        key = signing.signing_key(home)
        pool = Pool(base / "pool", key)
        recent = [
            section
            for section in _remember(base / "asked.json", asked)
            if section in asked or _is_at_hand(section, pool)
        ]
        content = mirror_content.resolve(recent, agent_package)
        _read_debian(content, pool, asked, progress)
        root = base / f"tree-{_digest(key, content, pool)}"
        if not (root / "mirror.json").exists():
            with progress.stage("package mirror: build and sign"):
                build_mirror(base, root, content, pool, key)
            pool.forget_old()
        os.utime(root)
        _point_to(base, root)
        _forget_old(base, root)
    return _described(root)


def _is_at_hand(section: Section, pool: Pool) -> bool:
    """Whether what another plan asked for can be added: without a download, and with a compiler for its packages."""
    if not ARCHITECTURES[section.architecture].can_compile():
        return False
    return not distribution_archive.is_requested(section) or pool.has_folder(distribution_archive.identity(section))


def _read_debian(content: Content, pool: Pool, asked: list[Section], progress: Progress) -> None:
    """Reads the indexes of Debian's archive that the content lists. What cannot be read is said, where it was asked."""
    for repository in content.debian:
        for part in content.debian_parts(pool, repository):
            with progress.stage("package mirror: Debian's archive"):
                reason = part.refresh()
            if reason and any("debian_archive" in section.content for section in asked):
                progress.note(
                    f"Debian's archive was not read: {reason}. Packages of it are"
                    f" {'those of an earlier day' if part.identity() else 'missing'}: a role of the site that installs"
                    " one of the system's own archive may fail"
                )


def _described(root: Path) -> MirrorTree:
    described = json.loads((root / "mirror.json").read_text(encoding="utf-8"))
    return MirrorTree(root, described["key_fingerprint"], described["origin"], described.get("commits", {}))


def _check_agent_package(deb: Path, asked: list[Section]) -> None:
    if not deb.is_file():
        raise UsageError(f"--agent-package {deb}: no such file", hint="give the vendor's amazon-cloudwatch-agent.deb")
    name = packages.control_field(deb, "Package")
    if name != AGENT:
        raise UsageError(f"--agent-package {deb}: expected package {AGENT}, got {name!r}")
    for section in asked:
        if section.kind == "rpm" and f"/{AGENT}.rpm" in section.content.get("url", ""):
            raise UsageError(f"--agent-package {deb}: expected an .rpm, as the plan installs {AGENT}, got a .deb")


def _remember(ledger: Path, asked: list[Section]) -> list[Section]:
    """Records when each section was last requested; returns those of the last day, the newest last.

    A section without a replica, because the table has changed since, is dropped.
    """
    try:
        known = {Section(**row["section"]): float(row["asked"]) for row in json.loads(ledger.read_text("utf-8"))}
    except (OSError, ValueError, KeyError, TypeError):
        known = {}
    now = time.time()
    fresh = {section: when for section, when in known.items() if now - when < _ASKED_SECONDS}
    known = {section: when for section, when in fresh.items() if _has_replica(section)}
    known |= dict.fromkeys(asked, now)
    recent = sorted(known, key=lambda section: (known[section], section.component, section.text))
    rows = [{"section": asdict(section), "asked": known[section]} for section in recent]
    written = ledger.with_suffix(".new")
    written.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    written.replace(ledger)
    return recent


def _has_replica(section: Section) -> bool:
    try:
        Content().add(section)
    except UsageError:
        return False
    return True


def _digest(key: signing.SigningKey, content: Content, pool: Pool) -> str:
    identity = json.dumps([key.fingerprint, content.identity(pool)], sort_keys=True)
    code = [Path(module.__file__ or "").read_text("utf-8") for module in _LAYS_OUT]
    return hashlib.sha256("\0".join([identity, *code]).encode()).hexdigest()[:16]


def build_mirror(base: Path, root: Path, content: Content, pool: Pool, key: signing.SigningKey) -> None:
    for stale in base.glob("build-*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix="build-", dir=base))
    try:
        with key.opened() as gpg:
            commits = content.write(work, pool, gpg)
        tree = MirrorTree(root, key.fingerprint, content.origin(), commits)
        (work / "mirror.json").write_text(json.dumps(asdict(tree), default=str, indent=1), encoding="utf-8")
        shutil.rmtree(root, ignore_errors=True)
        work.rename(root)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _point_to(base: Path, root: Path) -> None:
    """Points `current` to the tree; a running server reads it at each request."""
    fresh = base / "current.new"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(root.name)
    fresh.replace(base / "current")


def _forget_old(base: Path, root: Path) -> None:
    for old in base.glob("tree-*"):
        if old != root and time.time() - old.stat().st_mtime > _KEPT_SECONDS:
            shutil.rmtree(old, ignore_errors=True)


def serve(home: Path) -> tuple[int, str]:
    """Serves the current tree for the region's daemon (built if missing); returns port and key fingerprint."""
    current = home / "mirror" / "current"
    if (current / "mirror.json").exists():
        tree = _described(current.resolve())
    else:
        tree = ensure(home, progress=Progress(mode="quiet"))
    return Mirror(home).start(), tree.key_fingerprint


_SECONDS = 30.0  # without any data
_DOWNLOAD_CHUNK = 1 << 20
_PACKAGE = "amazon-cloudwatch-agent.deb"


def download_agent(home: Path, facts: Mapping[str, object], progress: Progress) -> Path:
    """The vendor's newest .deb for amd64, from the home if it was fetched before.

    facts: `base_url`, `key_url`, `key_fingerprint`. CloudError: not reachable, another key, or a bad signature.
    """
    kept = home / "vendor" / _PACKAGE
    if kept.exists():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    url = f"{facts['base_url']}/debian/amd64/latest/{_PACKAGE}"
    with progress.stage(f"download {url}"), tempfile.TemporaryDirectory(dir=kept.parent) as work:
        folder = Path(work)
        for name, source in ((_PACKAGE, url), (f"{_PACKAGE}.sig", f"{url}.sig"), ("key", str(facts["key_url"]))):
            _fetch(source, folder / name)
        _verify(folder, str(facts["key_fingerprint"]), url)
        (folder / f"{_PACKAGE}.sig").replace(kept.with_name(f"{_PACKAGE}.sig"))
        (folder / _PACKAGE).replace(kept)
    return kept


def _fetch(url: str, path: Path) -> None:
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer, path.open("wb") as file:
            shutil.copyfileobj(answer, file, _DOWNLOAD_CHUNK)
            length = answer.headers.get("Content-Length")
    except (urllib.error.URLError, OSError) as error:
        hint = "fetch it elsewhere and give --agent-package FILE, or leave the option out: a replica then stands in"
        raise CloudError(f"{url}: {getattr(error, 'reason', error)}", hint=hint) from error
    if length is not None and path.stat().st_size != int(length):
        raise CloudError(
            f"{url}: incomplete download: expected {length} bytes, got {path.stat().st_size}", hint="try again"
        )


def _verify(folder: Path, fingerprint: str, url: str) -> None:
    """The key is the one that the facts name, and it has signed the package."""
    gpgv, ring = find_tool("gpgv", package="gpgv"), folder / "ring.gpg"
    # gpg's home needs a short path, which the state directory may not have; public keys need no agent.
    with tempfile.TemporaryDirectory(prefix="gpu-ami-") as home:
        gpg = [find_tool("gpg", package="gnupg"), "--homedir", home, "--batch", "--quiet", "--no-autostart"]
        shown = run([*gpg, "--with-colons", "--show-keys", folder / "key"], timeout=60, check=False).stdout
        fingerprints = [line.split(":")[9] for line in shown.splitlines() if line.startswith("fpr:")]
        if fingerprint not in fingerprints[:1]:
            raise CloudError(f"{url}: signed by key {', '.join(fingerprints) or 'none'}, expected {fingerprint}")
        run([*gpg, "--import", folder / "key"], timeout=60)
        run([*gpg, "--output", ring, "--export", fingerprint], timeout=60)
    done = run([gpgv, "--keyring", ring, folder / f"{_PACKAGE}.sig", folder / _PACKAGE], timeout=120, check=False)
    if done.returncode != 0:
        raise CloudError(f"{url}: bad signature", details=done.stderr.splitlines()[-3:])
