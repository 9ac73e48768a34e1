"""ParallelCluster: the machines of a proof are a Slurm cluster of their own, the first one head and compute node.

ParallelCluster launches the nodes of its clusters itself, so a proof's machines cannot join one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpu_ami.cloud import Cluster
from gpu_ami.errors import UsageError
from gpu_ami.plan import image_tags
from gpu_ami.validate.clusters import pcluster
from validator.plan_document import section
from validator.probes.cluster import joined

if TYPE_CHECKING:
    from gpu_ami.cloud import Cloud, Place
    from gpu_ami.recipes import PlanDocument
    from gpu_ami.validate.clusters.service import CleanUp, Proven
    from validator.probes.cluster import nodes as node_files

ROLE = "node_parallelcluster"


class ParallelCluster:
    """See `service.Service`."""

    stage = "as a node of a Slurm cluster"
    returns = False  # ParallelCluster replaces a node that does not answer, and the checks start Slurm themselves

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

    def require(self, plan: PlanDocument, _cloud: Cloud, _name: str) -> None:
        self.require_program(plan)

    def require_program(self, plan: PlanDocument) -> None:
        """UsageError: pcluster is installed in another release, which refuses the AMI. CloudError: it does not run."""
        cli = pcluster.program()
        found, wanted = pcluster.version(cli) if cli else "", _release(plan)
        if cli and found != wanted:
            hint = (
                f"install {pcluster.PACKAGE}=={wanted} and name its pcluster in the variable PCLUSTER; with PCLUSTER="
                " none is asked, and the check of the AMI by pcluster is UNPROVEN (docs/nodes.md)"
            )
            raise UsageError(f"--join: {cli}: expected release {wanted}, that of the base AMI, got {found}", hint=hint)

    @contextmanager
    def opened(self, proven: Proven, name: str, _clean_up: CleanUp) -> Iterator[Cluster]:
        yield Cluster("ParallelCluster", name, proven.run.id, own=True, version=_release(proven.plan))

    def described(self, proven: Proven, _cluster: Cluster, nodes: tuple[node_files.Node, ...]) -> joined.Joined:
        image = proven.cloud.image(proven.ami) or {}
        tags = {str(tag["Key"]): str(tag["Value"]) for tag in image.get("Tags", [])}
        expected = image_tags(proven.plan)
        kept = {name: tags[name] for name in expected if name in tags}
        return joined.Joined("parallelcluster", nodes, kept, expected, dry_run=self._dry_run(proven, nodes))

    def _dry_run(self, proven: Proven, nodes: tuple[node_files.Node, ...]) -> dict[str, Any]:
        """What pcluster says of a cluster of the AMI and the machines' instance types; {} where it is not installed."""
        cli = pcluster.program()
        if cli is None:
            return {}
        machines = [proven.cloud.instance(node.name) for node in nodes]
        types = sorted({machine["InstanceType"] for machine in machines})
        return pcluster.dry_run(cli, proven.cloud.place, proven.plan, proven.ami, machines[0]["SubnetId"], types)

    def leave(self, _cloud: Cloud, _cluster: Cluster, _instance_ids: Sequence[str]) -> None:
        """The checks end what they started."""


def _release(plan: PlanDocument) -> str:
    return str(section(plan, ROLE)["version"])
