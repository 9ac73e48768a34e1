"""The services whose nodes an image can be: what the proof of a node needs of each, behind one interface.

ECS: the machines are container instances of a cluster, by default of one that is made for the proof.

EKS: the machines are nodes of a cluster: the place's, or one that the local region starts for the proof. nodeadm joins
the cluster at each boot: user data names it (machines/launch.py). A node registers with a taint and the run's label, so
no foreign pod is scheduled there, and the checks' pods on no other node.

ParallelCluster: the machines of a proof are a Slurm cluster of their own, the first one head and compute node; its CLI
judges the AMI in a dry run. It launches the nodes of its clusters itself, so a proof's machines cannot join one.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import yaml

from gpu_ami.cloud import Cluster, ecs, eks, key_name
from gpu_ami.errors import CloudError, UsageError
from gpu_ami.plan import image_tags
from gpu_ami.process import Completed, run
from validator.plan_document import section
from validator.probes.cluster import joined, kubernetes

if TYPE_CHECKING:
    from gpu_ami.cloud import Cloud, Place, Run
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


class Ecs:
    """See `Service`."""

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


_EKS_ROLE = "node_eks"


class Eks:
    """See `Service`."""

    stage = "as a node of an EKS cluster"
    returns = True

    def name_of(self, join: str, place_s: str) -> str:
        return join or place_s

    def is_ready(self, plan: PlanDocument, place: Place) -> bool:
        return bool(place.clusters.name) or _kubernetes_version(plan) in place.clusters.versions

    def require_program(self, _plan: PlanDocument) -> None:
        """None is asked."""

    def require(self, plan: PlanDocument, cloud: Cloud, name: str) -> None:
        if not cloud.place.instance_profile:
            hint = "set instance_profile in the --where file to one with the role of the cluster's nodes"
            raise UsageError("--join: nodes of EKS need an instance profile, and the place has none", hint=hint)
        version = _kubernetes_version(plan)
        if not name:
            _require_own_eks(cloud.place, version)
            return
        found = eks.describe(cloud, name)
        if found is None or found.status != eks.ACTIVE:
            state = f"is {found.status}, expected {eks.ACTIVE}" if found else f"is not in {cloud.place.region}"
            raise UsageError(f"--join {name}: the EKS cluster {state}", hint="name a cluster of that region")
        _require_kubernetes_version(name, found.version, version)
        _require_eks_access(cloud, found)

    @contextmanager
    def opened(self, proven: Proven, name: str, clean_up: CleanUp) -> Iterator[Cluster]:
        cloud, run = proven.cloud, proven.run
        own = "" if name else key_name(run.id)
        if own:
            eks.create(cloud, own, _kubernetes_version(proven.plan), proven.tags)
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


def _kubernetes_version(plan: PlanDocument) -> str:
    return str(section(plan, _EKS_ROLE)["version"])


def _require_own_eks(place: Place, version: str) -> None:
    if version in place.clusters.versions:
        return
    hint = "on AWS: --join CLUSTER, or `cluster` in the --where file; in the local region: make nodes (1.34 and 1.35)"
    raise UsageError(f"--join: {place.name} starts no EKS cluster of version {version} for a proof", hint=hint)


def _require_kubernetes_version(name: str, cluster: str, kubelet: str) -> None:
    if not eks.fits(cluster, kubelet):
        message = f"--join {name}: the cluster has Kubernetes {cluster}, the plan's kubelet {kubelet}"
        raise UsageError(message, hint=eks.SKEW)


def _require_eks_access(cloud: Cloud, cluster: eks.Described) -> None:
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


_PCLUSTER_PACKAGE = "aws-parallelcluster"
_VERSION_SECONDS, _DRY_RUN_SECONDS = 60, 300  # the dry run took 9 s on an idle host, 45 on a busy one


def pcluster() -> str | None:
    """$PCLUSTER, or the one on the PATH; None where there is none, or the variable is empty."""
    return os.environ.get("PCLUSTER", shutil.which("pcluster") or "") or None


def pcluster_release(cli: str) -> str:
    """The release of the CLI. CloudError: it does not say."""
    done = run([cli, "version"], timeout=_VERSION_SECONDS, error=CloudError)
    found = _json_of(done).get("version")
    if not isinstance(found, str):
        raise CloudError(f"{cli} version: expected a JSON document with `version`, got {_last_line(done)}")
    return found


def pcluster_dry_run(
    cli: str, place: Place, plan: PlanDocument, ami: str, subnet_id: str, *, instance_types: Sequence[str]
) -> dict[str, Any]:
    """`message` and `findings` (level, type, message) of a cluster with this AMI on head and compute nodes.

    Where it gives no such answer, `error` says what it gave instead.
    """
    access = place.api.environment() | ({"AWS_PROFILE": place.api.profile} if place.api.profile else {})
    with tempfile.TemporaryDirectory(prefix="gpu-ami-pcluster-") as folder:
        file = Path(folder) / "cluster.yml"
        file.write_text(
            yaml.safe_dump(_pcluster_configuration(place, plan, ami, subnet_id, instance_types)), encoding="utf-8"
        )
        # boto3 takes an empty AWS_PROFILE for the name of one.
        command = ["env", "-u", "AWS_PROFILE"] if place.api.credentials else []
        command += [cli, "create-cluster", "--cluster-name", "gpu-ami-dry-run", "--cluster-configuration", str(file)]
        command += ["--region", place.region, "--dryrun", "true"]
        try:
            done = run(command, timeout=_DRY_RUN_SECONDS, env=access, check=False, error=CloudError)
        except CloudError as error:  # it did not end
            return {"error": str(error)}
    document = _json_of(done)
    findings = document.get("configurationValidationErrors") or document.get("validationMessages") or []
    if not isinstance(document.get("message"), str) or not _are_pcluster_findings(findings):
        return {"error": f"pcluster create-cluster --dryrun true: {_last_line(done)}"}
    return {"message": document["message"], "findings": findings}


def _pcluster_configuration(
    place: Place, plan: PlanDocument, ami: str, subnet_id: str, instance_types: Sequence[str]
) -> dict[str, Any]:
    """The smallest configuration that has the AMI on a head node and on a compute node of each type."""
    with_efa = {row["name"] for row in plan["instance_types"] if row["efa_interfaces"] and "efa" in plan}
    resources = [
        {
            "Name": f"type-{number}",
            "InstanceType": name,
            "MinCount": 0,
            "MaxCount": 1,
            "Efa": {"Enabled": name in with_efa},
        }
        for number, name in enumerate(instance_types)
    ]
    # Where there is EFA, pcluster wants an explicit choice; it is not about the AMI.
    network = {"SubnetIds": [subnet_id], "PlacementGroup": {"Enabled": False}}
    queue = {"Name": "gpu", "ComputeResources": resources, "Networking": network}
    return {
        "Region": place.region,
        "Image": {"Os": image_tags(plan)["parallelcluster:os"], "CustomAmi": ami},
        "HeadNode": {"InstanceType": plan["build"]["instance_type"], "Networking": {"SubnetId": subnet_id}},
        "Scheduling": {"Scheduler": "slurm", "SlurmQueues": [queue]},
    }


def _json_of(done: Completed) -> dict[str, Any]:
    """The JSON document of the output; {} for anything else."""
    try:
        found = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _are_pcluster_findings(findings: Any) -> bool:
    return isinstance(findings, list) and all(
        isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("level", "type", "message"))
        for row in findings
    )


def _last_line(done: Completed) -> str:
    lines = (done.stdout + done.stderr).strip().splitlines()
    return f"exit status {done.returncode}: {lines[-1][:300]}" if lines else f"exit status {done.returncode}, no output"


_PARALLELCLUSTER_ROLE = "node_parallelcluster"


class ParallelCluster:
    """See `Service`."""

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
        cli = pcluster()
        found, wanted = pcluster_release(cli) if cli else "", _release(plan)
        if cli and found != wanted:
            hint = (
                f"install {_PCLUSTER_PACKAGE}=={wanted} and name its pcluster in the variable PCLUSTER; with PCLUSTER="
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
        cli = pcluster()
        if cli is None:
            return {}
        machines = [proven.cloud.instance(node.name) for node in nodes]
        types = sorted({machine["InstanceType"] for machine in machines})
        return pcluster_dry_run(
            cli, proven.cloud.place, proven.plan, proven.ami, machines[0]["SubnetId"], instance_types=types
        )

    def leave(self, _cloud: Cloud, _cluster: Cluster, _instance_ids: Sequence[str]) -> None:
        """The checks end what they started."""


def _release(plan: PlanDocument) -> str:
    return str(section(plan, _PARALLELCLUSTER_ROLE)["version"])
