"""ParallelCluster: the machines of a proof are a Slurm cluster of their own, the first one head and compute node.

ParallelCluster launches the nodes of its clusters itself, so a proof's machines cannot join one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpu_ami.cloud import Cluster
from gpu_ami.errors import UsageError
from gpu_ami.plan import image_tags
from validator.plan_document import section
from validator.probes import joined

if TYPE_CHECKING:
    from gpu_ami.cloud import Cloud, Place
    from gpu_ami.recipes import PlanDocument
    from gpu_ami.validate.clusters.service import CleanUp, Proven
    from validator.probes import nodes as node_files

ROLE = "node_parallelcluster"


class ParallelCluster:
    """See `service.Service`."""

    stage = "as a node of a Slurm cluster"

    def name_of(self, join: str, _place_s: str) -> str:
        if join:
            hint = "--join without a name: the proof's machines are a Slurm cluster of their own (docs/nodes.md)"
            message = (
                "ParallelCluster launches the nodes of its clusters itself, and no machine of a proof can join one"
            )
            raise UsageError(f"--join {join}: {message}", hint=hint)
        return ""

    def is_ready(self, _plan: PlanDocument, _place: Place) -> bool:
        return True

    def require(self, _plan: PlanDocument, _cloud: Cloud, _name: str) -> None:
        """Nothing of it is there before the machines are."""

    @contextmanager
    def opened(self, proven: Proven, name: str, _clean_up: CleanUp) -> Iterator[Cluster]:
        version = str(section(proven.plan, ROLE)["version"])
        yield Cluster("ParallelCluster", name, proven.run.id, own=True, version=version)

    def described(
        self, proven: Proven, _cluster: Cluster, nodes: tuple[node_files.Node, ...], ami: str
    ) -> joined.Joined:
        image = proven.cloud.image(ami) or {}
        tags = {str(tag["Key"]): str(tag["Value"]) for tag in image.get("Tags", [])}
        expected = image_tags(proven.plan)
        kept = {name: tags[name] for name in expected if name in tags}
        return joined.Joined("parallelcluster", nodes, kept, expected)

    def leave(self, _cloud: Cloud, _cluster: Cluster, _instance_ids: Sequence[str]) -> None:
        """The checks end what they started."""
