"""The page: what is red, what it costs, what to do; self-contained, and nothing of CloudWatch becomes markup.

The server of the page: on the loopback, for its own name alone, and not more often from CloudWatch than said.
"""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from gpu_ami.errors import CloudError
from gpu_ami.telemetry import page
from gpu_ami.telemetry.page import Event, Instance, Parser, Readings
from validator.results import MetricSeries

NOW = time.time()
SERIES = MetricSeries("nvidia_smi_utilization_gpu", 0, NOW - 180, 60, (1.0, 2.0, None))
HEALTHY = Parser(60, 20.0, 0.5, 0, 0)
FOUND = Readings(
    "us-east-1", "CWAgent", NOW - 3600, NOW,
    [
        Instance("i-1", "g4dn.xlarge", [SERIES], HEALTHY, [0], 0.526),
        Instance("i-2", "unknown.type", [SERIES], replace(HEALTHY, lost=3), [0], None),
        Instance("i-3", "", (), replace(HEALTHY, heartbeat_age=900.0)),
        Instance("i-4", "", (), None),
    ],
    [
        Event("i-1", "xid", "13", 2), Event("i-2", "xid", "79", 1), Event("i-2", "sxid", "12028", 1),
        Event("i-2", "xid", "999", 1),
    ],
    {"fatal": 1, "app": 2}, 4,
)  # fmt: skip


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))


def tags(html: str) -> list[tuple[str, dict[str, Any]]]:
    parser = Tags()
    parser.feed(html)
    return parser.tags


def test_page_says_what_is_wrong_and_what_to_do() -> None:
    html = page.render(FOUND, "production")
    for words in (
        "production, us-east-1", "Xid 79", "GPU has fallen off the bus", "gpu-ami runbook gpu-stop-start",
        "0.53 USD", "1 type", "<b>4</b> drills", "gpu-ami runbook event-parser-behind", "Xid 999",
        "gpu-ami runbook event-parser-silent", "gpu-ami runbook gpu-metrics-missing", "idle: GPU 0",
    ):  # fmt: skip
        assert words in html, words
    assert html.index("runbook gpu-stop-start") < html.index("runbook gpu-application-error")  # pages before tickets
    assert html.index("Xid 79") < html.index("Xid 999") < html.index("Xid 13")  # the most severe first


def test_page_is_self_contained() -> None:
    found = tags(page.render(FOUND, "production"))
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in found}
    assert [attributes for tag, attributes in found if tag == "path"]
    assert all(not str(attributes.get("href", "#")).startswith("http") for _, attributes in found)
    assert not [1 for tag, attributes in found if attributes.get("http-equiv") == "refresh"]


def test_watched_page_asks_again() -> None:
    found = tags(page.render(FOUND, "production", 30))
    assert [a["content"] for tag, a in found if a.get("http-equiv") == "refresh"] == ["30"]


def test_values_are_escaped() -> None:
    bad = "<script>alert(1)</script>"
    html = page.render(replace(FOUND, region=bad, instances=[Instance(bad, bad, [SERIES], HEALTHY)]), bad)
    assert bad not in html and "&lt;script&gt;" in html


def test_page_without_metrics_says_where_to_look() -> None:
    assert "no GPU metric in this namespace" in page.render(Readings("r", "n", 0.0, 60.0, []), "p")


def test_constants_agree() -> None:
    assert page.IDLE_PERCENT == 5.0 and set(page.SEVERITIES) == {"fatal", "critical", "warning", "app", "info"}


@contextmanager
def served(make: Callable[[], str]) -> Iterator[str]:
    with page.server(make, 0, 60.0) as server:
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
