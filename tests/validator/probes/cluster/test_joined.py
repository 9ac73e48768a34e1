"""The file of `--join`."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.probes.cluster import joined
from validator.probes.cluster.joined import Joined
from validator.probes.cluster.nodes import Node


def test_the_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = Joined("parallelcluster", (Node("i-1", "ssh://a@h:22"),), {"a": "1"}, {"a": "1", "b": "2"})
    joined.write(tmp_path / "join.json", written)
    assert joined.read(tmp_path / "join.json") == written


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "expected schema gpu-ami/join/1"),
        ('{"schema": "gpu-ami/join/1", "service": "ecs", "nodes": []}', "at least one node"),
        ('{"schema": "gpu-ami/join/1", "service": "ecs"}', "nodes"),
        ('{"schema": "gpu-ami/join/1", "nodes": [{"name": "i-1", "url": "u"}]}', "service"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "j.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        joined.read(tmp_path / "j.json")
