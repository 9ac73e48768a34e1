"""The node's own proof (tier TN, `--join`): the machines of a proof as nodes of a cluster.

What differs between services is in node_services.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_ami.errors import UsageError
from gpu_ami.report import NODE_SERVICES
from gpu_ami.validate import machine_group
from gpu_ami.validate.node_services import CleanUp, Ecs, Eks, ParallelCluster, Proven, Service
from validator.probes.cluster import joined

if TYPE_CHECKING:
    from pathlib import Path

    from gpu_ami.cloud import Cloud, Cluster, Place
    from gpu_ami.progress import Progress
    from gpu_ami.recipes import PlanDocument
    from gpu_ami.validate.machines import Machine
    from gpu_ami.validate.proof import Proof
    from gpu_ami.validate.recorder import HostRecord
    from gpu_ami.validate.validator_process import Target

# Role of a node family → its service. The nodes of a role without one join no cluster in this release.
SERVICES: Mapping[str, Service] = {"node_eks": Eks(), "node_ecs": Ecs(), "node_parallelcluster": ParallelCluster()}


def role_of(plan: PlanDocument) -> str:
    """The role of the plan's node family that joins clusters; "" for a plain instance or a Deep Learning AMI."""
    return next((role for role in NODE_SERVICES if role in plan), "")


def is_supported(plan: PlanDocument, place: Place) -> bool:
    """Whether the plan's image can be proven with --join in a place, without the name of a cluster."""
    service = SERVICES.get(role_of(plan))
    return service is not None and service.is_ready(plan, place)


def require(plan: PlanDocument, join: str | None, cloud: Cloud) -> None:
    """UsageError, before anything is launched: this image joins no cluster, or not this one. join: None: not asked.

    CloudError: the cluster cannot be looked up.
    """
    if join is None:
        return
    _service_of(plan).require(plan, cloud, require_name(plan, join, cloud.place))


def require_name(plan: PlanDocument, join: str | None, place: Place) -> str:
    """The name of the cluster that --join means, "" for none. UsageError: this image joins none, or not by name."""
    return "" if join is None else _service_of(plan).name_of(join, place.clusters.name or "")


def require_program(plan: PlanDocument, join: str | None) -> None:
    """UsageError: a program of this machine that --join asks about the image has another release. CloudError."""
    if join is not None:
        _service_of(plan).require_program(plan)


def _service_of(plan: PlanDocument) -> Service:
    role = role_of(plan)
    names = ", ".join(NODE_SERVICES[known] for known in SERVICES)
    if not role:
        family = plan["node"]["family"] if "node" in plan else "ec2"
        hint = f"--join is for images of nodes: {names}"
        raise UsageError(f"--join: an image of node family {family} is no node of a cluster", hint=hint)
    if role not in SERVICES:
        hint = "leave out --join: tier TN is then UNPROVEN, and that keeps no proof from being green"
        raise UsageError(f"--join: nodes of {NODE_SERVICES[role]} join no cluster in this release", hint=hint)
    return SERVICES[role]


@dataclass(frozen=True)
class Joining:
    """The cluster that the machines of a proof join, and its service."""

    service: Service
    proven: Proven
    cluster: Cluster
    clean_up: CleanUp

    def describe(self, machines: Sequence[Machine]) -> Path:
        """Writes what the checks read of the cluster and these nodes of it, the first one under test. CloudError."""
        found = machine_group.nodes_of(machines, self.proven.cloud)
        # One for each instance type: they are checked side by side.
        file = self.proven.run.folder / f"join-{machines[0].instance_id}.json"
        joined.write(file, self.service.described(self.proven, self.cluster, found))
        return file

    def check(
        self, proof: Proof, host: HostRecord, target: Target, machines: Sequence[Machine], after: str = ""
    ) -> None:
        """The checks of tier TN on the machines, in the first one's report. after: the restart that they run after.

        MachineLost, ChecksIncomplete (what had been judged is in the report), MachineError, CloudError.
        """
        file = self.describe(machines)
        names = [machine.instance_id for machine in machines]
        of = self.cluster
        facts = {"service": of.service, "version": of.version, "name": of.name, "own": of.own, "nodes": names}
        if not after:
            host.report = host.report.with_facts(cluster=facts)
        stage = f"check {host.report.instance_type} {self.service.stage}"
        machine_group.check_all(
            proof, host, target, names, self.proven.cloud, what="join", file=file, stage=stage, after=after
        )

    def leave(self, instance_ids: Sequence[str]) -> None:
        """Takes the machines out of the cluster, before they are terminated."""
        self.clean_up(functools.partial(self.service.leave, self.proven.cloud, self.cluster, instance_ids))


@contextmanager
def opened(proven: Proven, join: str | None, clean_up: CleanUp, progress: Progress) -> Iterator[Joining | None]:
    """The cluster that a proof with --join asks for; what it made there is removed with the block. None: not asked.

    UsageError: no such cluster; CloudError.
    """
    if join is None:
        yield None
        return
    service = _service_of(proven.plan)
    name = service.name_of(join, proven.cloud.place.clusters.name or "")
    with ExitStack() as stack:
        with progress.stage("cluster"):
            cluster = stack.enter_context(service.opened(proven, name, clean_up))
        yield Joining(service, proven, cluster, clean_up)
