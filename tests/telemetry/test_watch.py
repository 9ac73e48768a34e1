"""The server of the page: on the loopback, for its own name alone, and not more often from CloudWatch than said."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gpu_ami.errors import CloudError
from gpu_ami.telemetry import watch


@contextmanager
def served(make: Callable[[], str]) -> Iterator[str]:
    with watch.server(make, 0, 60.0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert server.server_address[0] == "127.0.0.1"
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_page_is_made_once_for_several_browsers() -> None:
    made = []

    def make() -> str:
        made.append(1)
        return f"page {len(made)}"

    with served(make) as url:
        assert [get(f"{url}/"), get(f"{url}/")] == [(200, "page 1"), (200, "page 1")]


@pytest.mark.parametrize(("path", "headers", "code"), [("/other", {}, 404), ("/", {"Host": "evil.example:80"}, 403)])
def test_nothing_else_is_served(path: str, headers: dict[str, str], code: int) -> None:
    with served(lambda: "page") as url:
        assert get(url + path, **headers)[0] == code


def test_refusal_of_cloudwatch_is_shown() -> None:
    def make() -> str:
        raise CloudError("CloudWatch did not answer: AccessDenied")

    with served(make) as url:
        assert get(f"{url}/") == (502, "CloudWatch did not answer: AccessDenied\n")
