"""A cluster of an orchestrator that machines of a run join: as its service describes it, and who made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RUN_ATTRIBUTE = "gpu-ami.run"  # of a node of ours, in its cluster: the run's id


@dataclass(frozen=True)
class Cluster:
    """service: as reports name it. own: made for this run, and removed with it. version: of the service, "" for none.

    node: what user data needs beside the name, such as the endpoint and certificate authority of a Kubernetes cluster.
    """

    service: str
    name: str
    run: str
    own: bool = False
    version: str = ""
    node: Mapping[str, str] | None = None
