"""Amazon EKS: the machines are nodes of a cluster: the place's, or one that the local region starts for the proof.

nodeadm joins the cluster at each boot: user data names it (machines/user_data.py). A node registers with a taint and
the run's label, so no foreign pod is scheduled there, and the checks' pods on no other node.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

from gpu_ami.cloud import Cluster, eks, key_name
from gpu_ami.errors import CloudError, UsageError
from validator.plan_document import section
from validator.probes.cluster import joined, kubernetes

if TYPE_CHECKING:
    from gpu_ami.cloud import Cloud, Place
    from gpu_ami.recipes import PlanDocument
    from gpu_ami.validate.clusters.node_service import CleanUp, Proven
    from validator.probes.cluster import nodes as node_files

ROLE = "node_eks"


class Eks:
    """See `service.Service`."""

    stage = "as a node of an EKS cluster"
    returns = True

    def name_of(self, join: str, place_s: str) -> str:
        return join or place_s

    def is_ready(self, plan: PlanDocument, place: Place) -> bool:
        return bool(place.clusters.name) or _version(plan) in place.clusters.versions

    def require_program(self, _plan: PlanDocument) -> None:
        """None is asked."""

    def require(self, plan: PlanDocument, cloud: Cloud, name: str) -> None:
        if not cloud.place.instance_profile:
            hint = "set instance_profile in the --where file to one with the role of the cluster's nodes"
            raise UsageError("--join: nodes of EKS need an instance profile, and the place has none", hint=hint)
        version = _version(plan)
        if not name:
            _require_own(cloud.place, version)
            return
        found = eks.describe(cloud, name)
        if found is None or found.status != eks.ACTIVE:
            state = f"is {found.status}, expected {eks.ACTIVE}" if found else f"is not in {cloud.place.region}"
            raise UsageError(f"--join {name}: the EKS cluster {state}", hint="name a cluster of that region")
        _require_version(name, found.version, version)
        _require_access(cloud, found)

    @contextmanager
    def opened(self, proven: Proven, name: str, clean_up: CleanUp) -> Iterator[Cluster]:
        cloud, run = proven.cloud, proven.run
        own = "" if name else key_name(run.id)
        if own:
            eks.create(cloud, own, _version(proven.plan), proven.tags)
        try:
            found = eks.wait_active(cloud, name or own)
            if own:
                eks.admit_nodes(cloud, own, eks.node_role(cloud), proven.tags)
            node = {"endpoint": found.endpoint, "authority": found.authority, "cidr": found.cidr}
            node["joined_at"] = cloud.place.clusters.guest_endpoint or found.endpoint
            yield Cluster("EKS", found.name, run.id, own=bool(own), version=found.version, node=node)
        finally:
            if own:
                clean_up(functools.partial(eks.delete, cloud, own))

    def described(self, proven: Proven, cluster: Cluster, nodes: Sequence[node_files.Node]) -> joined.Joined:
        reached = cluster.node or {}
        return joined.Joined(
            "eks",
            tuple(nodes),
            cluster=cluster.name,
            run=proven.run.id,
            run_tags=dict(proven.tags),
            endpoint=reached["endpoint"],
            authority=reached["authority"],
            region=proven.cloud.place.region,
        )

    def leave(self, cloud: Cloud, cluster: Cluster, instance_ids: Sequence[str]) -> None:
        """Removes the run's pods, and the machines' node objects."""
        if cluster.own:
            return  # it ends with all that is in it
        reached = cluster.node or {}
        api = eks.api(cloud, cluster.name, reached["endpoint"], reached["authority"])
        label = f"{joined.RUN_LABEL}={cluster.run}"
        try:
            for pod in api.get("/api/v1/namespaces/default/pods", labelSelector=label)["items"]:
                api.delete(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}", 0)
            for node in api.get("/api/v1/nodes", labelSelector=label)["items"]:
                if str(node["spec"].get("providerID", "")).rpartition("/")[2] in instance_ids:
                    api.delete(f"/api/v1/nodes/{quote(node['metadata']['name'])}")
        except kubernetes.ApiError as error:
            raise CloudError(f"EKS cluster {cluster.name}: {error}") from error


def _version(plan: PlanDocument) -> str:
    return str(section(plan, ROLE)["version"])


def _require_own(place: Place, version: str) -> None:
    if version in place.clusters.versions:
        return
    hint = "on AWS: --join CLUSTER, or `cluster` in the --where file; in the local region: make nodes (1.34 and 1.35)"
    raise UsageError(f"--join: {place.name} starts no EKS cluster of version {version} for a proof", hint=hint)


def _require_version(name: str, cluster: str, kubelet: str) -> None:
    if not eks.fits(cluster, kubelet):
        message = f"--join {name}: the cluster has Kubernetes {cluster}, the plan's kubelet {kubelet}"
        raise UsageError(message, hint=eks.SKEW)


def _require_access(cloud: Cloud, cluster: eks.Described) -> None:
    role = eks.node_role(cloud)
    if not role:
        profile = cloud.place.instance_profile
        hint = "set instance_profile to one with the role of the cluster's nodes"
        raise UsageError(f"--join: instance profile {profile} does not exist or has no role", hint=hint)
    if cluster.mode == eks.CONFIG_MAP:  # who may join is in a ConfigMap of the cluster
        return
    kind = eks.access_type(cloud, cluster.name, role)
    refusal = eks.refusal_of(cluster, role, kind)
    if refusal:
        message = f"--join {cluster.name}: {refusal}, so no node can join it"
        raise UsageError(message, hint=eks.how_to_admit(cluster.name, role, kind))
