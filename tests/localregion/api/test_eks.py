"""The layer that answers calls of EKS and token reviews; every other call goes on to moto."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from localregion.api import EksLayer
from localregion.backends import Refused

SIGNED = "AWS4-HMAC-SHA256 Credential=k/20261125/us-east-1/{}/aws4_request, SignedHeaders=host, Signature=0"


class Clusters:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def answer(self, method: str, path: str, body: Any) -> dict[str, Any] | None:
        self.calls.append((method, path, body))
        if path == "/clusters/x":
            raise Refused("ResourceNotFoundException", "No cluster found for name: x.", 404)
        return None if path.endswith("/node-groups") else {"clusters": []}

    def review(self, name: str, body: bytes) -> dict[str, Any]:
        return {"cluster": name, "told": body.decode()}


def ask(method: str, path: str, service: str = "eks", body: bytes = b"") -> tuple[str, dict[str, str], bytes, Clusters]:
    seen: dict[str, Any] = {}

    def start_response(status: str, headers: list[tuple[str, str]], *_: object) -> Callable[[bytes], object]:
        seen.update(status=status, headers=dict(headers))
        return lambda _: None

    def moto(_environ: Any, start: Any) -> list[bytes]:
        start("200 OK", [])
        return [b"moto"]

    environ = {
        "REQUEST_METHOD": method, "PATH_INFO": path, "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body),
        "HTTP_AUTHORIZATION": SIGNED.format(service) if service else "",
    }  # fmt: skip
    clusters: Any = Clusters()
    answer = b"".join(EksLayer(moto, lambda: clusters)(environ, start_response))
    return seen["status"], seen["headers"], answer, clusters


def test_a_call_of_eks() -> None:
    status, _, body, clusters = ask("POST", "/clusters", body=b'{"name": "c"}')
    assert (status, json.loads(body)) == ("200 OK", {"clusters": []})
    assert clusters.calls == [("POST", "/clusters", {"name": "c"})]


def test_a_refusal_is_an_error_of_eks() -> None:
    status, headers, body, _ = ask("GET", "/clusters/x")
    assert status.startswith("404") and headers["x-amzn-ErrorType"] == "ResourceNotFoundException"
    assert json.loads(body)["message"] == "No cluster found for name: x."


@pytest.mark.parametrize(
    ("path", "service"), [("/clusters/c/node-groups", "eks"), ("/clusters", "ec2"), ("/clusters", "")]
)
def test_what_is_not_its_own_is_moto_s(path: str, service: str) -> None:
    assert ask("GET", path, service)[2] == b"moto"


@pytest.mark.parametrize("body", [b"x", b"[]", b""])
def test_a_body_that_is_no_object_is_empty(body: bytes) -> None:
    assert ask("POST", "/clusters", body=body)[3].calls == [("POST", "/clusters", {})]


def test_a_review_needs_no_signature() -> None:
    _, _, body, _ = ask("POST", "/gpu-ami/eks/c/token-review", "", b"{}")
    assert json.loads(body) == {"cluster": "c", "told": "{}"}
