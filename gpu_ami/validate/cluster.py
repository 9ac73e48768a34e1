"""The node's own proof (tier TN, `--join`): the machines of a proof as nodes of a cluster, one service a module.

ParallelCluster launches the nodes of its clusters itself, so a proof's machines cannot join one: they are a Slurm
cluster of their own, the first one head and compute node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_ami.errors import UsageError
from gpu_ami.plan import image_tags
from gpu_ami.report import NODE_SERVICES
from gpu_ami.validate import nodes
from validator.plan_document import section
from validator.probes import joined

if TYPE_CHECKING:
    from pathlib import Path

    from gpu_ami.cloud import Cloud
    from gpu_ami.recipes import PlanDocument
    from gpu_ami.validate.machines import Machine
    from gpu_ami.validate.proof import Proof
    from gpu_ami.validate.recorder import HostRecord
    from gpu_ami.validate.validator_process import Target

PARALLEL_CLUSTER = "node_parallelcluster"
_SUPPORTED = (PARALLEL_CLUSTER,)


def role_of(plan: PlanDocument) -> str:
    """The role of the plan's node family that joins clusters; "" for a plain instance or a Deep Learning AMI."""
    return next((role for role in NODE_SERVICES if role in plan), "")


def require(plan: PlanDocument, join: str | None) -> None:
    """UsageError, before anything is launched: this image joins no cluster, or not this one. join: None: not asked."""
    if join is None:
        return
    role = role_of(plan)
    if not role:
        family = plan["node"]["family"] if "node" in plan else "ec2"
        hint = "recipes with `node: parallelcluster` can be proven with --join"
        raise UsageError(f"--join: an image of node family {family} is no node of a cluster", hint=hint)
    if role not in _SUPPORTED:
        hint = "leave out --join: tier TN is then UNPROVEN, and that keeps no proof from being green"
        raise UsageError(f"--join: nodes of {NODE_SERVICES[role]} join no cluster in this release", hint=hint)
    if join:
        hint = "--join without a name: the proof's machines are a Slurm cluster of their own (docs/nodes.md)"
        message = "ParallelCluster launches the nodes of its clusters itself, and no machine of a proof can join one"
        raise UsageError(f"--join {join}: {message}", hint=hint)


def describe(plan: PlanDocument, machines: Sequence[Machine], cloud: Cloud, ami: str, file: Path) -> None:
    """Writes what the checks read of the cluster: its nodes, and the tags of their AMI. CloudError."""
    image = cloud.image(ami) or {}
    tags = {str(tag["Key"]): str(tag["Value"]) for tag in image.get("Tags", [])}
    expected = image_tags(plan)
    kept = {name: tags[name] for name in expected if name in tags}
    joined.write(file, joined.Joined("parallelcluster", nodes.nodes_of(machines, cloud), kept, expected))


def is_supported(plan: PlanDocument) -> bool:
    """Whether the plan's image can be proven with --join."""
    return role_of(plan) in _SUPPORTED


def check(
    proof: Proof, host: HostRecord, target: Target, machines: Sequence[Machine], cloud: Cloud, file: Path, ami: str
) -> None:
    """The checks of tier TN on the machines, in the first one's report. file: for what the checks read of the cluster.

    MachineLost, ChecksIncomplete (what had been judged is in the report), MachineError, CloudError.
    """
    assert proof.plan
    describe(proof.plan, machines, cloud, ami, file)
    names = [machine.instance_id for machine in machines]
    version = str(section(proof.plan, PARALLEL_CLUSTER)["version"])
    cluster = {"service": "ParallelCluster", "version": version, "name": "", "own": True, "nodes": names}
    host.report = host.report.with_facts(cluster=cluster)
    stage = f"check {host.report.instance_type} as a node of a Slurm cluster"
    nodes.check_all(proof, host, target, names, cloud, f"--join={file}", stage)
