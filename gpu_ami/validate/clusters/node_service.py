"""What the proof of a node needs of a service of clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from validator.probes.cluster import joined

if TYPE_CHECKING:
    from gpu_ami.cloud import Cloud, Cluster, Place, Run
    from gpu_ami.recipes import PlanDocument
    from validator.probes.cluster import nodes as node_files

# Runs a removal, and decides what an error of it means.
CleanUp = Callable[[Callable[[], None]], object]


@dataclass(frozen=True)
class Proven:
    """What is proven: a plan's image, in a place, by a run with these tags. ami: the image's id."""

    plan: PlanDocument
    ami: str
    cloud: Cloud
    run: Run
    tags: Mapping[str, str]


class Service(Protocol):
    """One service. A cluster's name is "" where none was given."""

    stage: str  # what its checks are of, in the progress
    returns: bool  # whether a node that was restarted is one again, by itself

    def name_of(self, join: str, place_s: str) -> str:
        """The cluster's name: what --join says, else the place's. UsageError: it takes no name, or needs one."""

    def is_ready(self, plan: PlanDocument, place: Place) -> bool:
        """Whether `--join` without a name has a cluster in that place."""

    def require_program(self, plan: PlanDocument) -> None:
        """UsageError: a program of this machine that judges the image is of another release. CloudError: it fails."""

    def require(self, plan: PlanDocument, cloud: Cloud, name: str) -> None:
        """UsageError, before anything is launched: no such cluster, or no node can join it. CloudError."""

    def opened(self, proven: Proven, name: str, clean_up: CleanUp) -> AbstractContextManager[Cluster]:
        """The cluster of that name, or one of the run's own; what the run made in it is removed after the block."""

    def described(self, proven: Proven, cluster: Cluster, nodes: tuple[node_files.Node, ...]) -> joined.Joined:
        """What the checks of the machines read; nodes: the machines. CloudError."""

    def leave(self, cloud: Cloud, cluster: Cluster, instance_ids: Sequence[str]) -> None:
        """Takes the machines out of the cluster, before they are terminated. CloudError."""
