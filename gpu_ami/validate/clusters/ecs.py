"""Amazon ECS: the machines are container instances of a cluster, by default of one that is made for the proof."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpu_ami.cloud import Cluster, ecs, key_name
from gpu_ami.errors import UsageError
from validator.probes.cluster import joined

if TYPE_CHECKING:
    from gpu_ami.cloud import Cloud, Place
    from gpu_ami.recipes import PlanDocument
    from gpu_ami.validate.clusters.node_service import CleanUp, Proven
    from validator.probes.cluster import nodes as node_files


class Ecs:
    """See `service.Service`."""

    stage = "as a container instance of an ECS cluster"
    returns = True

    def name_of(self, join: str, place_s: str) -> str:
        return join or place_s

    def is_ready(self, _plan: PlanDocument, _place: Place) -> bool:
        return True

    def require_program(self, _plan: PlanDocument) -> None:
        """None is asked."""

    def require(self, _plan: PlanDocument, cloud: Cloud, name: str) -> None:
        if not name:
            return  # one is made for the proof
        state = ecs.state(cloud, name)
        if state != ecs.ACTIVE:
            hint = (
                "name another cluster, or leave the name out: a cluster is made for the proof then, and costs nothing"
            )
            found = f"is {state}, expected {ecs.ACTIVE}" if state else f"is not in {cloud.place.region}"
            raise UsageError(f"--join {name}: the ECS cluster {found}", hint=hint)

    @contextmanager
    def opened(self, proven: Proven, name: str, clean_up: CleanUp) -> Iterator[Cluster]:
        cloud, run = proven.cloud, proven.run
        own = "" if name else key_name(run.id)
        if own:
            ecs.create(cloud, own, proven.tags)
        try:
            yield Cluster("ECS", name or own, run.id, own=bool(own))
        finally:
            clean_up(functools.partial(ecs.remove_definitions, cloud, run.id))
            if own:
                clean_up(functools.partial(ecs.delete, cloud, own))

    def described(self, proven: Proven, cluster: Cluster, nodes: tuple[node_files.Node, ...]) -> joined.Joined:
        return joined.Joined("ecs", nodes, cluster=cluster.name, run=proven.run.id, run_tags=dict(proven.tags))

    def leave(self, cloud: Cloud, cluster: Cluster, instance_ids: Sequence[str]) -> None:
        ecs.leave(cloud, cluster.name, instance_ids)
