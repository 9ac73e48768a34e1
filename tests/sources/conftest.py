"""Repositories of a few packages, signed by keys of the test run, behind an HTTP server that can misbehave."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import zstandard

from gpu_ami import process
from gpu_ami.sources.http import Client, Limits
from gpu_ami.sources.openpgp import Key, read_key
from gpu_ami.sources.repositories import Repository

PATIENT = Limits(connect_s=10, idle_s=20, total_s=60, redirects=3, retries=1, pause_s=0.01)
QUICK = Limits(connect_s=1, idle_s=0.5, total_s=2, redirects=3, retries=1, pause_s=0.01)  # for what never answers


@dataclass
class Signer:
    """A key of this test run. public: its armored file."""

    home: Path
    fingerprint: str
    public: bytes

    def sign(self, data: bytes, how: str, *more: str) -> bytes:
        file, out = self.home / "data", self.home / "out"
        file.write_bytes(data)
        out.unlink(missing_ok=True)
        gpg(self.home, *more, "--local-user", self.fingerprint, "--armor", "--output", str(out), how, str(file))
        return out.read_bytes()


def gpg(home: Path, *words: str) -> str:
    command = ["gpg", "--homedir", str(home), "--batch", "--yes", "--quiet", "--pinentry-mode", "loopback"]
    return process.run([*command, "--passphrase", "", *words], timeout=60).stdout


def make_signer(home: Path, name: str, expire: str, *more: str) -> Signer:
    gpg(home, *more, "--quick-generate-key", name, "ed25519", "sign", expire)
    listed = gpg(home, "--with-colons", "--list-keys", name)
    fingerprint = next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr"))
    return Signer(home, fingerprint, gpg(home, "--armor", "--export", fingerprint).encode())


LONG_AGO = ("--faked-system-time", "20200101T000000!")


@pytest.fixture(scope="session")
def signers() -> Iterator[dict[str, Signer]]:
    """vendor: the planned key; other: somebody else's; expired: one that held for a day in 2020."""
    with tempfile.TemporaryDirectory(prefix="gpu-ami-test-") as name:
        home = Path(name)
        home.chmod(0o700)
        yield {
            "vendor": make_signer(home, "vendor", "400d"),
            "other": make_signer(home, "other", "never"),
            "expired": make_signer(home, "expired", "1d", *LONG_AGO),
        }
        process.run(["gpgconf", "--homedir", home, "--kill", "all"], timeout=20, check=False)


@pytest.fixture
def vendor(signers: dict[str, Signer]) -> Signer:
    return signers["vendor"]


@pytest.fixture
def key(vendor: Signer) -> Key:
    return read_key(vendor.public, vendor.fingerprint, "https://vendor.example/key.pub")


@dataclass
class Response:
    """body: whole, or a function that writes to the socket itself (and then closes)."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    write: Callable[[Any], None] | None = None
    length: int | None = None


@dataclass
class Web:
    """An HTTP server. files: path → what it answers; requests: method, path and headers of what was asked."""

    url: str
    files: dict[str, Response] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    delay_s: float = 0.0

    def put(self, path: str, body: bytes, **more: Any) -> None:
        self.files[path] = Response(body, **more)

    def asked(self, path: str) -> list[dict[str, str]]:
        return [headers for _, one, headers in self.requests if one == path]


def serve() -> tuple[Web, ThreadingHTTPServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # headers and body are two writes: the second would wait 40 ms

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            web.requests.append((self.command, self.path, headers))
            time.sleep(web.delay_s)
            path = self.path.partition("://")[2].partition("/")[2] if "://" in self.path else self.path
            answer = web.files.get(path if path.startswith("/") else f"/{path}", Response(b"none", 404))
            if answer.write:
                answer.write(self)
                self.close_connection = True
                return
            etag = answer.headers.get("ETag")
            if etag and headers.get("if-none-match") == etag:
                self.send_response(304)
                self.end_headers()
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
            if answer.length is not None:
                self.close_connection = True

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    web = Web(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return web, server


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    web, server = serve()
    yield web
    server.shutdown()
    server.server_close()


@pytest.fixture
def client(web: Web) -> Client:
    return Client(limits=PATIENT)


def compress(data: bytes, suffix: str) -> bytes:
    methods: dict[str, Callable[[bytes], bytes]] = {
        ".gz": gzip.compress,
        ".xz": lzma.compress,
        ".zst": zstandard.ZstdCompressor().compress,
        "": bytes,
    }
    return methods[suffix](data)


PACKAGES = """\
Package: tool
Version: 1.0-1
Architecture: amd64
Depends: libtool (= 1.0-1), libc6 (>= 2.36), tool-data | nothing
Filename: ./tool_1.0-1_amd64.deb

Package: tool
Version: 2.0-1
Architecture: amd64
Depends: libtool (= 2.0-1)
Filename: ./tool_2.0-1_amd64.deb

Package: libtool
Version: 1.0-1
Architecture: amd64
Provides: libtool-api (= 1)
Filename: ./libtool_1.0-1_amd64.deb

Package: libtool
Version: 2.0-1
Architecture: amd64
Filename: ./libtool_2.0-1_amd64.deb

Package: elsewhere
Version: 1
Architecture: arm64
Filename: ./elsewhere_1_arm64.deb

Package: common
Version: 1:3.1~rc1-1
Architecture: all
Filename: ./common.deb
"""


def release(files: Mapping[str, bytes], more: str = "") -> bytes:
    sums = "".join(f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}\n" for name, data in files.items())
    return f"Origin: test\nDate: Mon, 02 Nov 2026 00:00:00 UTC\n{more}SHA256:\n{sums}".encode()


def put_apt(
    web: Web,
    signer: Signer,
    text: str = PACKAGES,
    *,
    suffix: str = ".gz",
    path: str = "/flat/",
    detached: bool = False,
    prefix: str = "",
    more: str = "",
) -> None:
    """A repository whose signed files lie at `path`."""
    packages = compress(text.encode(), suffix)
    signed = release({f"{prefix}Packages{suffix}": packages}, more)
    if detached:
        web.put(f"{path}Release", signed)
        web.put(f"{path}Release.gpg", signer.sign(signed, "--detach-sign"))
    else:
        web.put(f"{path}InRelease", signer.sign(signed, "--clearsign"))
    web.put(f"{path}{prefix}Packages{suffix}", packages)


def apt_repository(web: Web, signer: Signer, **changes: Any) -> Repository:
    values: dict[str, Any] = {
        "kind": "deb", "url": f"{web.url}/flat/", "suite": "./", "components": (), "architecture": "amd64",
        "key_url": f"{web.url}/key.pub", "key_fingerprint": signer.fingerprint,
    }  # fmt: skip
    return Repository(**(values | changes))


PRIMARY = """\
<?xml version="1.0" encoding="UTF-8"?>
<metadata xmlns="http://linux.duke.edu/metadata/common" xmlns:rpm="http://linux.duke.edu/metadata/rpm" packages="4">
<package type="rpm"><name>tool</name><arch>x86_64</arch><version epoch="0" ver="1.0" rel="1.amzn2023"/>
 <location href="tool-1.0-1.amzn2023.x86_64.rpm"/><format>
 <rpm:requires><rpm:entry name="libtool" flags="EQ" epoch="0" ver="1.0"/><rpm:entry name="libc.so.6()(64bit)"/>
 <rpm:entry name="(more if less)"/><rpm:entry name="/usr/bin/helper"/></rpm:requires>
 <rpm:provides><rpm:entry name="tool" flags="EQ" epoch="0" ver="1.0" rel="1.amzn2023"/></rpm:provides></format>
</package>
<package type="rpm"><name>libtool</name><arch>x86_64</arch><version epoch="0" ver="1.0" rel="3.amzn2023"/>
 <location href="libtool.rpm"/><format><file>/usr/bin/helper</file></format></package>
<package type="rpm"><name>epoch</name><arch>noarch</arch><version epoch="1" ver="4.6.1" rel="1"/>
 <location href="epoch.rpm"/><format/></package>
<package type="rpm"><name>elsewhere</name><arch>aarch64</arch><version epoch="0" ver="1" rel="1"/>
 <location href="elsewhere.rpm"/><format/></package>
</metadata>
"""


def put_dnf(
    web: Web,
    signer: Signer | None,
    text: str = PRIMARY,
    *,
    suffix: str = ".gz",
    path: str = "/rpm/",
    sha256: str = "",
    algorithm: str = "sha256",
) -> None:
    primary = compress(text.encode(), suffix)
    digest = sha256 or hashlib.new(algorithm, primary).hexdigest()
    repomd = (
        '<?xml version="1.0"?><repomd xmlns="http://linux.duke.edu/metadata/repo"><data type="filelists"/>'
        f'<data type="primary"><checksum type="{algorithm}">{digest}</checksum>'
        f'<location href="repodata/primary.xml{suffix}"/></data></repomd>'
    ).encode()
    web.put(f"{path}repodata/repomd.xml", repomd)
    web.put(f"{path}repodata/primary.xml{suffix}", primary)
    if signer:
        web.put(f"{path}repodata/repomd.xml.asc", signer.sign(repomd, "--detach-sign"))


def dnf_repository(web: Web, signer: Signer, **changes: Any) -> Repository:
    return apt_repository(
        web, signer, **({"kind": "rpm", "url": f"{web.url}/rpm/", "architecture": "x86_64"} | changes)
    )


def stall(handler: Any) -> None:
    """Headers, half a body, and then nothing."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100")
    handler.end_headers()
    handler.wfile.write(b"half")
    handler.wfile.flush()
    time.sleep(3)


def drip(handler: Any) -> None:
    """A byte at a time, each before the idle limit."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    for _ in range(60):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.1)
