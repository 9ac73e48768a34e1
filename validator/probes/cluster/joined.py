"""What a proof with `--join` knows of the cluster and its nodes: a file that `gpu-ami` writes and the checks read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from validator import inputs
from validator.probes.cluster.nodes import Node

SCHEMA = "gpu-ami/join/1"
RUN_LABEL = "gpu-ami.run"  # of nodes and pods of a proof's run, in a Kubernetes cluster


@dataclass(frozen=True)
class Joined:
    """service: `parallelcluster`, `ecs` or `eks`. nodes: the machine under test first. tags, expected_tags: of the AMI.

    cluster: its name. run, run_tags: id and tags of the proof's run, which everything has that a check makes there.
    endpoint, authority, region: of a cluster of EKS: its API server, the certificate (base64), the AWS region.
    dry_run: what pcluster said of the AMI: `message`, `findings` (level, type, message) or `error`; {}: was not asked.
    """

    service: str
    nodes: tuple[Node, ...]
    tags: Mapping[str, str] = field(default_factory=dict)
    expected_tags: Mapping[str, str] = field(default_factory=dict)
    cluster: str = ""
    run: str = ""
    run_tags: Mapping[str, str] = field(default_factory=dict)
    endpoint: str = ""
    authority: str = ""
    region: str = ""
    dry_run: Mapping[str, Any] = field(default_factory=dict)

    @property
    def others(self) -> tuple[str, ...]:
        """The instances beside the machine under test."""
        return tuple(node.name for node in self.nodes[1:])


def write(path: Path, joined: Joined) -> None:
    """The file of `--join`."""
    path.write_text(json.dumps({"schema": SCHEMA} | asdict(joined), indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> Joined:
    """ValueError: not such a file."""
    document = inputs.parse_json(inputs.read_text(path))
    if not isinstance(document, dict) or document.pop("schema", "") != SCHEMA:
        raise ValueError(f"{path}: expected schema {SCHEMA}")
    try:
        nodes = tuple(Node(**row) for row in document.pop("nodes"))
        joined = Joined(nodes=nodes, **document)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not nodes:
        raise ValueError(f"{path}: expected at least one node")
    return joined
