"""Tags of git repositories, as smart and dumb servers advertise them."""

from __future__ import annotations

import pytest

from gpu_ami.sources import git
from gpu_ami.sources.http.cache import NotThere, SourceError, Unreachable
from gpu_ami.sources.http.client import Client

from .conftest import Web

A, B, C = "a" * 40, "b" * 40, "c" * 40
REFS = "/tool.git/info/refs?service=git-upload-pack"


def packets(*lines: str) -> bytes:
    encoded = [f"{len(line) + 4:04x}{line}".encode() if line else b"0000" for line in lines]
    return b"".join(encoded)


SMART = packets(
    "# service=git-upload-pack\n", "", f"{A} HEAD\0multi_ack symref=HEAD:refs/heads/main\n", f"{A} refs/heads/main\n",
    f"{B} refs/tags/v1.0\n", f"{C} refs/tags/v1.0^{{}}\n", f"{A} refs/tags/v1.1\n", "",
)  # fmt: skip


def test_annotated_tag_is_the_commit_that_it_names(web: Web, client: Client) -> None:
    web.put(REFS, SMART)
    assert git.read_tags(client, f"{web.url}/tool.git") == {"v1.0": C, "v1.1": A}


@pytest.mark.parametrize("first", [A, "001e" + "a" * 36])  # the second begins as a pkt-line does
def test_dumb_server(web: Web, client: Client, first: str) -> None:
    web.put(REFS, f"{first}\trefs/heads/main\n{B}\trefs/tags/v1.0\n{C}\trefs/tags/v1.0^{{}}\n".encode())
    assert git.read_tags(client, f"{web.url}/tool.git") == {"v1.0": C}


@pytest.mark.parametrize(
    ("body", "status", "kind", "message"),
    [
        (b"", 404, NotThere, "HTTP 404"),
        (b"", 401, NotThere, "no public repository: HTTP 401"),
        (b"", 503, Unreachable, "HTTP 503"),
        (b"hello", 200, SourceError, "expected the references of a git repository"),
        (b"001e# service=git-upload-pack\n0000xyz1", 200, SourceError, "expected references"),
        (SMART[:-60], 200, SourceError, "cut off"),
    ],
)
def test_what_is_no_repository_is_named(
    web: Web, client: Client, body: bytes, status: int, kind: type[SourceError], message: str
) -> None:
    web.put(REFS, body, status=status)
    with pytest.raises(kind, match=message):
        git.read_tags(client, f"{web.url}/tool.git")


def test_newer_tags_have_the_same_form() -> None:
    tags = dict.fromkeys(["v2.4", "v2.5", "v2.5.1", "v2.10", "v2.11-rc1", "2.12", "latest"], A)
    assert git.newer_tags(tags, "v2.5") == ["v2.10", "v2.5.1"]
    assert git.newer_tags(tags, "v2.10") == []
