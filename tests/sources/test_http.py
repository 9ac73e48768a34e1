"""HTTP of sources: requests, caches, proxies and errors."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from gpu_ami.files import cache_dir
from gpu_ami.sources.http import Cache, Client, Kept, NotThere, SourceError, Unreachable
from tests.sources.conftest import PATIENT, QUICK, Response, Web, drip, serve, stall

# Kept answers: what is read again, and what is not trusted.


URL = "https://vendor.example/index"


def test_answer_is_kept_with_its_conditions(tmp_path: Path) -> None:
    Cache(tmp_path).put(Kept(URL, b"a\nb", '"1"', "yesterday"))
    kept = Cache(tmp_path).get(URL)
    assert kept == Kept(URL, b"a\nb", '"1"', "yesterday")
    assert kept.conditions == {"If-None-Match": '"1"', "If-Modified-Since": "yesterday"}
    assert Kept(URL, b"").conditions == {}
    assert Cache(tmp_path).get("https://vendor.example/other") is None


@pytest.mark.parametrize("content", [b"", b"{}", b"{}\nx", b"no json\nx", b"[]\nx"])
def test_damaged_file_is_no_answer(tmp_path: Path, content: bytes) -> None:
    Cache(tmp_path).put(Kept(URL, b"body"))
    file = next(tmp_path.iterdir())
    file.write_bytes(content)
    assert Cache(tmp_path).get(URL) is None


def test_body_that_was_cut_off_is_no_answer(tmp_path: Path) -> None:
    Cache(tmp_path).put(Kept(URL, b"body"))
    file = next(tmp_path.iterdir())
    file.write_bytes(file.read_bytes()[:-1])
    assert Cache(tmp_path).get(URL) is None


def test_old_answers_are_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put(Kept(URL, b"old"))
    old = next(tmp_path.iterdir())
    os.utime(old, (time.time() - 40 * 86400,) * 2)
    cache.put(Kept("https://vendor.example/new", b"new"))
    cache.forget_old()
    assert cache.get(URL) is None and cache.get("https://vendor.example/new")


def test_folder_that_cannot_be_made_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "folder")
    cache.put(Kept(URL, b"body"))
    cache.forget_old()
    assert cache.get(URL) is None


def test_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPU_AMI_HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "home" / "cache"
    monkeypatch.delenv("GPU_AMI_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_dir() == tmp_path / "cache" / "gpu-ami"


# HTTP: what misbehaves is named within its deadline; what was fetched is not fetched again.


@pytest.mark.parametrize(
    ("response", "kind", "message"),
    [
        (Response(b"", 404), NotThere, "HTTP 404"),
        (Response(b"", 403), NotThere, "HTTP 403"),
        (Response(b"", 403, {"X-RateLimit-Remaining": "0"}), Unreachable, "HTTP 403: the server limits the rate"),
        (Response(b"", 403, {"Retry-After": "60"}), Unreachable, "HTTP 403: the server limits the rate"),
        (Response(b"", 503), Unreachable, "HTTP 503"),
        (Response(b"", 407), Unreachable, "HTTP 407"),
        (Response(b"", 302, {"Location": "/file"}), Unreachable, "more than 3 redirects, the last to .*/file"),
        (Response(b"  <!DOCTYPE HTML><p>log in"), SourceError, "an HTML page instead of the file"),
        (Response(b"hello", headers={"Content-Type": "text/html; charset=utf-8"}), SourceError, "an HTML page"),
        (Response(b"half", length=100), Unreachable, "incomplete|IncompleteRead|Connection broken"),
        (Response(write=stall), Unreachable, "no data for 0 s"),
        (Response(write=drip), Unreachable, "incomplete at the deadline, after"),
        (Response(b"x" * (3 << 20)), SourceError, "larger than 2 MiB"),
    ],
    ids=[
        "404",
        "403",
        "limit",
        "retry",
        "503",
        "407",
        "redirects",
        "page",
        "page-by-type",
        "half",
        "stalled",
        "slow",
        "large",
    ],
)
def test_bad_answer_is_named_within_its_deadline(
    web: Web, response: Response, kind: type[SourceError], message: str
) -> None:
    web.files["/file"] = response
    started = time.monotonic()
    client = Client(limits=QUICK if response.write else PATIENT)
    with pytest.raises(kind, match=message) as caught:
        client.get(f"{web.url}/file", limit=2 << 20)
    assert type(caught.value) is kind and f"{web.url}/file" in caught.value.message
    assert time.monotonic() - started < 20


def test_nothing_listens(client: Client) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(Unreachable, match="Connection refused") as caught:
        client.get(f"http://127.0.0.1:{port}/file")
    assert "0x" not in caught.value.message


def test_failure_that_passes_is_tried_again(web: Web, client: Client) -> None:
    def fail_once(handler: object) -> None:
        web.put("/file", b"content")

    web.files["/file"] = Response(write=fail_once)
    assert client.get(f"{web.url}/file") == b"content"
    assert len(web.asked("/file")) == 2


def test_redirect_is_followed(web: Web, client: Client) -> None:
    web.put("/file", b"", status=301, headers={"Location": "other"})
    web.put("/other", b"content")
    assert client.get(f"{web.url}/file") == b"content"


def test_file_is_asked_for_once_by_many_threads(web: Web, client: Client) -> None:
    web.put("/file", b"content")
    web.delay_s = 0.1
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(client.get(f"{web.url}/file"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == [b"content"] * 8 and len(web.requests) == 1


def test_unchanged_file_is_not_transferred_again(web: Web, tmp_path: Path) -> None:
    web.put("/file", b"content", headers={"ETag": '"1"', "Last-Modified": "Mon, 02 Nov 2026 00:00:00 GMT"})
    for _ in range(2):
        assert Client(Cache(tmp_path), PATIENT).get(f"{web.url}/file") == b"content"
    first, second = web.asked("/file")
    assert "if-none-match" not in first
    assert (second["if-none-match"], second["if-modified-since"]) == ('"1"', "Mon, 02 Nov 2026 00:00:00 GMT")
    web.put("/file", b"changed", headers={"ETag": '"2"'})
    assert Client(Cache(tmp_path), PATIENT).get(f"{web.url}/file") == b"changed"


def test_file_of_a_known_digest_is_not_asked_for_again(web: Web, tmp_path: Path) -> None:
    web.put("/file", b"content")
    digest = hashlib.sha256(b"content").hexdigest()
    for _ in range(2):
        assert Client(Cache(tmp_path), PATIENT).get(f"{web.url}/file", digest=f"sha256:{digest}") == b"content"
    assert len(web.requests) == 1
    web.put("/file", b"replaced")
    with pytest.raises(SourceError, match=f"expected SHA-256 {'0' * 64}, as its signed index says, got"):
        Client(Cache(tmp_path), PATIENT).get(f"{web.url}/file", digest=f"sha256:{'0' * 64}")
    kept = Cache(tmp_path).get(f"{web.url}/file")
    assert kept and kept.body == b"content"  # what had the wrong digest is not kept


def test_size_comes_without_the_file(web: Web, client: Client) -> None:
    web.put("/installer", b"x" * 5000)
    assert client.describe(f"{web.url}/installer").size == 5000
    assert [method for method, _, _ in web.requests] == ["HEAD"]


def test_size_of_a_server_that_refuses_head(web: Web, client: Client) -> None:
    def answer(handler: object) -> None:
        method = web.requests[-1][0]
        handler.send_response(405 if method == "HEAD" else 206)  # type: ignore[attr-defined]
        handler.send_header("Content-Range", "bytes 0-0/7000")  # type: ignore[attr-defined]
        handler.send_header("Content-Length", "1" if method == "GET" else "0")  # type: ignore[attr-defined]
        handler.end_headers()  # type: ignore[attr-defined]

    web.files["/installer"] = Response(write=answer)
    assert client.describe(f"{web.url}/installer").size == 7000
    assert web.asked("/installer")[-1]["range"] == "bytes=0-0"


def test_proxy_of_the_environment_is_used_but_for_excluded_hosts(
    web: Web, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, server = serve()
    try:
        monkeypatch.setenv("http_proxy", f"http://user:secret@{proxy.url.removeprefix('http://')}")
        proxy.put("/file", b"through the proxy")
        assert client.get("http://vendor.example/file") == b"through the proxy"
        assert proxy.requests[0][1] == "http://vendor.example/file"
        assert proxy.requests[0][2]["proxy-authorization"] == "Basic dXNlcjpzZWNyZXQ="
        web.put("/file", b"direct")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert client.get(f"{web.url}/file") == b"direct"
    finally:
        server.shutdown()
        server.server_close()


def test_address_is_found_at_the_mirror(web: Web) -> None:
    web.put("/vendor.example/file", b"mirrored")
    client = Client(limits=PATIENT, rewrite=lambda url: url.replace("https://", f"{web.url}/"))
    assert client.get("https://vendor.example/file") == b"mirrored"


def test_certificates_are_verified(client: Client) -> None:
    import ssl

    assert client.tls.verify_mode == ssl.CERT_REQUIRED and client.tls.check_hostname


# Exit codes: 2 where a source lacks something or serves something else, 4 where it cannot be reached.


def test_exit_codes_and_states() -> None:
    kinds = [(kind.exit_code, kind.state) for kind in (SourceError, NotThere, Unreachable)]
    assert kinds == [(2, "wrong"), (2, "missing"), (4, "unreachable")]
