"""HTTP to the sources: deadlines, limits of size and redirects, proxies, TLS, the cache.

HTTP_PROXY, HTTPS_PROXY and NO_PROXY are those of the environment; certificates are verified with the system's (or
SSL_CERT_FILE's). Every error names the address and what was expected.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from gpu_ami.errors import ExitCode, GpuAmiError
from gpu_ami.files import cache_dir, write_bytes

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager


class SourceError(GpuAmiError):
    """An error of one source; `gpu_ami.sources.survey` collects the errors of all."""

    exit_code: ExitCode = 2
    state = "wrong"


class NotThere(SourceError):
    state = "missing"


class Unreachable(SourceError):
    exit_code = 4
    state = "unreachable"


_KEPT_SECONDS = 30 * 24 * 3600.0


@dataclass(frozen=True)
class Kept:
    """A complete response: its body, and its ETag and Last-Modified (empty: the server sent none)."""

    url: str
    body: bytes
    etag: str = ""
    last_modified: str = ""

    @property
    def conditions(self) -> dict[str, str]:
        """Headers of a conditional request, which the server answers with 304 if nothing has changed."""
        headers = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in headers.items() if value}


class Cache:
    """A folder of responses by address. One file each, written atomically: a line of JSON, then the body."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder if folder is not None else cache_dir() / "sources"

    def _file(self, url: str) -> Path:
        return self._folder / hashlib.sha256(url.encode()).hexdigest()

    def get(self, url: str) -> Kept | None:
        """The response of an address; None if there is none, or the file is incomplete."""
        file = self._file(url)
        try:
            head, _, body = file.read_bytes().partition(b"\n")
            described = json.loads(head)
            if described["url"] != url or described["sha256"] != hashlib.sha256(body).hexdigest():
                return None
            kept = Kept(url, body, str(described["etag"]), str(described["last_modified"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        with contextlib.suppress(OSError):
            file.touch()  # the time of the last use is the file's modification time
        return kept

    def put(self, kept: Kept) -> None:
        """Saves a response. Errors of writing are ignored: they make only the next run slower."""
        described = {
            "url": kept.url,
            "sha256": hashlib.sha256(kept.body).hexdigest(),
            "etag": kept.etag,
            "last_modified": kept.last_modified,
        }
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_bytes(self._file(kept.url), json.dumps(described).encode() + b"\n" + kept.body)

    def forget_old(self) -> None:
        """Removes responses that were not used for 30 days."""
        with contextlib.suppress(OSError):
            for file in self._folder.iterdir():
                if time.time() - file.stat().st_mtime > _KEPT_SECONDS:
                    file.unlink(missing_ok=True)


T = TypeVar("T")
_CHUNK = 1 << 16
_NOT_THERE = (403, 404, 410)  # S3 answers 403 where an object is missing and its bucket may not be listed
_TRY_AGAIN = (429, 500, 502, 503, 504)
_PASSING = frozenset({"", *map(str, _TRY_AGAIN)})  # temporary errors
_HTML = (b"<!doctype html", b"<html")


@dataclass(frozen=True)
class Limits:
    """connect_s, idle_s: without an answer, without a byte. total_s: of one request. retries: of the transport."""

    connect_s: float = 5.0
    idle_s: float = 10.0
    total_s: float = 60.0
    redirects: int = 5
    body: int = 256 << 20
    retries: int = 2
    pause_s: float = 0.5


@dataclass(frozen=True)
class Answer:
    """The response of a server. size: of the whole file, None if the server does not send it."""

    url: str
    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def size(self) -> int | None:
        """Bytes of the whole file, by Content-Range or Content-Length."""
        ranged = self.headers.get("content-range", "").rpartition("/")[2]
        length = ranged if self.status == 206 else self.headers.get("content-length", "")
        return int(length) if length.isdigit() else None


class Client:
    """Downloads each address once, however many threads request it. rewrite: maps an address to that of a mirror.

    moved: addresses that were answered with a permanent redirect (301, 308), and where to.
    """

    def __init__(
        self, cache: Cache | None = None, limits: Limits = Limits(), rewrite: Callable[[str], str] = lambda url: url
    ) -> None:
        self._cache, self._limits, self._rewrite = cache, limits, rewrite
        self._locks: dict[object, Lock] = {}
        self._results: dict[object, object] = {}
        self._guard = Lock()
        self.moved: dict[str, str] = {}

    def once(self, key: object, work: Callable[[], T]) -> T:
        """The result of `work`, which only the first caller with this key runs; all get its result or its error."""
        with self._guard:
            lock = self._locks.setdefault(key, Lock())
        with lock:
            if key not in self._results:
                try:
                    self._results[key] = work()
                except SourceError as error:
                    self._results[key] = error
            result = self._results[key]
        if isinstance(result, SourceError):
            raise result
        return result  # type: ignore[return-value]

    def get(self, url: str, *, digest: str = "", limit: int = 0, page: bool = False) -> bytes:
        """The content of an address. digest: the expected one (`sha256:` or `sha512:` and hex digits); a cached
        response that has it saves the request.

        limit: bytes. page: an HTML page is expected. NotThere, Unreachable; SourceError: an HTML page where none is
        expected, or another content than the digest says.
        """
        return self.once(("GET", url), lambda: self._get(url, digest, limit or self._limits.body, page))

    def _get(self, url: str, digest: str, limit: int, page: bool) -> bytes:
        kept = self._cache.get(url) if self._cache else None
        if kept and digest and _digest_as(digest, kept.body) == digest:
            return kept.body
        conditions = kept.conditions if kept and not digest else {}
        answer = self.ask("GET", url, limit, conditions)
        if answer.status == 304 and kept:
            return kept.body
        if not page:
            _require_no_page(answer)
        _require_digest(answer, digest)
        if self._cache:
            etag, modified = answer.headers.get("etag", ""), answer.headers.get("last-modified", "")
            self._cache.put(Kept(url, answer.body, etag, modified))
        return answer.body

    def describe(self, url: str) -> Answer:
        """Size and headers of a file without its content: by HEAD, or by a request for its first byte."""
        return self.once(("HEAD", url), lambda: self._describe(url))

    def _describe(self, url: str) -> Answer:
        try:
            answer = self.ask("HEAD", url, 0, {})
        except SourceError as error:
            if error.code not in ("403", "405"):  # for servers that support only GET
                raise
            answer = self.ask("GET", url, 0, {"Range": "bytes=0-0"})
        _require_no_page(answer)
        return answer

    def ask(self, method: str, url: str, limit: int, headers: Mapping[str, str]) -> Answer:
        """Send a request, again where that may help. limit: bytes of the body; 0: it is not read. Unreachable."""
        stop_at = time.monotonic() + self._limits.total_s
        for attempt in range(self._limits.retries + 1):
            if attempt:
                time.sleep(self._limits.pause_s * attempt)
            try:
                return self._follow(method, url, limit, headers, stop_at)
            except Unreachable as error:
                if error.code not in _PASSING or attempt == self._limits.retries or time.monotonic() >= stop_at:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _follow(self, method: str, url: str, limit: int, headers: Mapping[str, str], stop_at: float) -> Answer:
        """One request, and its redirects."""
        target = self._rewrite(url)
        for _ in range(self._limits.redirects + 1):
            answer = self._request(method, url, target, limit, headers, stop_at=stop_at)
            if answer.status not in (301, 302, 303, 307, 308):
                return answer
            location = urllib.parse.urljoin(target, answer.headers.get("location", ""))
            if target.startswith("https:") and not location.startswith("https:"):
                raise Unreachable(f"{url}: redirected from https to {location}: expected https", code="final")
            if answer.status in (301, 308):
                self.moved[url] = location
            target = location
        raise Unreachable(f"{url}: more than {self._limits.redirects} redirects, the last to {target}", code="final")

    def _request(
        self, method: str, url: str, target: str, limit: int, headers: Mapping[str, str], *, stop_at: float
    ) -> Answer:
        import urllib3

        timeout = urllib3.Timeout(connect=self._limits.connect_s, read=self._limits.idle_s)
        sent = {"User-Agent": "gpu-ami", "Accept-Encoding": "identity", **headers}
        try:
            response = self._pools(target).request(
                method, target, headers=sent, timeout=timeout, retries=False, redirect=False, preload_content=False
            )
            try:
                body = b"" if limit == 0 else _read(response, url, limit, stop_at)
                answer = Answer(
                    url, response.status, body, {name.lower(): text for name, text in response.headers.items()}
                )
            finally:
                response.close()
        except urllib3.exceptions.ReadTimeoutError as error:
            raise Unreachable(f"{url}: no data for {self._limits.idle_s:.0f} s") from error
        except urllib3.exceptions.LocationValueError as error:
            raise SourceError(f"{url}: not an address: {error}") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(f"{url}: {_reason(error)}") from error
        _require_success(answer)
        return answer

    def _pools(self, target: str) -> PoolManager:
        """The connection pool of an address's host, through the proxy of the environment."""
        parts = urllib.parse.urlsplit(target)
        proxy = urllib.request.getproxies().get(parts.scheme, "")
        direct = not proxy or bool(urllib.request.proxy_bypass(parts.netloc))
        return self.once(("pool", "" if direct else proxy), lambda: self._new_pools("" if direct else proxy))

    def _new_pools(self, proxy: str) -> PoolManager:
        import urllib3

        if not proxy:
            return urllib3.PoolManager(num_pools=32, maxsize=8, ssl_context=self.tls)
        parsed = urllib3.util.parse_url(proxy)
        login = urllib3.make_headers(proxy_basic_auth=urllib.parse.unquote(parsed.auth)) if parsed.auth else None
        return urllib3.ProxyManager(proxy, num_pools=32, maxsize=8, ssl_context=self.tls, proxy_headers=login)

    @cached_property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


def mirrored(mirror: str | None) -> Callable[[str], str]:
    """Maps addresses to those of a mirror, `https://HOST/PATH` (or `http:`) to `MIRROR/HOST/PATH`; None without one."""
    if not mirror:
        return lambda url: url
    base = mirror.rstrip("/")

    def rewritten(url: str) -> str:
        host = url.partition("://")[2]
        return url if not host or url.startswith(base) else f"{base}/{host}"

    return rewritten


def _read(response: BaseHTTPResponse, url: str, limit: int, stop_at: float) -> bytes:
    """The body, read in chunks, so that the limits of size and time are enforced."""
    body = bytearray()
    while piece := response.read1(_CHUNK, decode_content=False):
        body += piece
        if len(body) > limit:
            raise SourceError(f"{url}: larger than {limit >> 20} MiB, which no index or key is")
        if time.monotonic() > stop_at:
            raise Unreachable(f"{url}: incomplete at the deadline, after {len(body)} bytes", code="final")
    expected = response.headers.get("content-length", "")
    if expected.isdigit() and int(expected) != len(body):
        raise Unreachable(f"{url}: incomplete: expected {expected} bytes, got {len(body)}")
    return bytes(body)


def _require_success(answer: Answer) -> None:
    status = answer.status
    if status < 400:
        return
    # GitHub answers 403 where a limit of requests is reached (REST API, "Rate limits", read 2026-11-29).
    if "retry-after" in answer.headers or answer.headers.get("x-ratelimit-remaining") == "0":
        raise Unreachable(f"{answer.url}: HTTP {status}: the server limits the rate of requests", code=str(status))
    if status in _NOT_THERE:
        raise NotThere(f"{answer.url}: HTTP {status}", code=str(status))
    if status in _TRY_AGAIN:
        raise Unreachable(f"{answer.url}: HTTP {status}", code=str(status))
    if status == 405:
        raise SourceError(f"{answer.url}: HTTP 405", code="405")
    raise Unreachable(f"{answer.url}: HTTP {status}", code=str(status))


def _require_no_page(answer: Answer) -> None:
    """SourceError for an HTML page with status 200, as a proxy or a login portal sends."""
    is_page = answer.headers.get("content-type", "").startswith("text/html")
    if is_page or answer.body[:200].lstrip().lower().startswith(_HTML):
        raise SourceError(f"{answer.url}: an HTML page instead of the file; is a proxy or a login page in between?")


def _digest_as(digest: str, body: bytes) -> str:
    """The body's digest by the algorithm of another: `sha512:` and hex digits."""
    algorithm = digest.partition(":")[0]
    return f"{algorithm}:{hashlib.new(algorithm, body).hexdigest()}"


def _require_digest(answer: Answer, digest: str) -> None:
    if digest and (found := _digest_as(digest, answer.body)) != digest:
        algorithm, _, expected = digest.partition(":")
        name = algorithm.upper().replace("SHA", "SHA-")
        got = found.partition(":")[2]
        message = f"{answer.url}: expected {name} {expected}, as its signed index says, got {got}"
        raise SourceError(message, hint="a cut-off or replaced file, or an update in progress: try again later")


def _reason(error: BaseException) -> str:
    """The text of the innermost cause, without addresses of Python objects."""
    cause: BaseException = error
    while inner := (getattr(cause, "reason", None) or getattr(cause, "original_error", None)):
        if not isinstance(inner, BaseException):
            break
        cause = inner
    text = str(cause).rpartition(">: ")[2] or str(cause)
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__
