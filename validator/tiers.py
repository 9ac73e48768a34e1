"""Proof tiers: what the checks of each tier prove, and what they do not prove.

A check belongs to the tier of what it needs (`@pytest.mark.tier("T0")`; T1 by default). Only the checks of a tier prove
it, never those of another tier.
"""

from __future__ import annotations

from dataclasses import dataclass

# They run in passes of their own, with --join and --nodes.
NODE, SEVERAL_NODES = "TN", "T4"


@dataclass(frozen=True)
class Tier:
    """One tier: what its checks prove when they pass, and what they do not prove."""

    name: str
    title: str
    proves: str
    does_not_prove: str


TIERS = (
    Tier(
        "T0",
        "offline",
        "the image's files are as planned before any boot: versions, modules, units, configuration, no build traces",
        "that the image boots, or that anything in it runs",
    ),
    Tier(
        "T1",
        "boot",
        "the image boots, its services run, and what they write arrives in CloudWatch",
        "that a GPU does any work",
    ),
    Tier(
        "T2",
        "one GPU",
        "a GPU computes right, and a fault of one GPU arrives in the logs and in CloudWatch",
        "anything of the other GPUs, nor that a Neuron device computes",
    ),
    Tier(
        "T3",
        "all GPUs",
        "every GPU that the instance type promises is there, is measured and computes right, as do copies between them",
        "that GPUs are as fast as they should be, nor traffic between machines",
    ),
    Tier(
        NODE,
        "node",
        "the image is a node of a cluster: it joins and registers its GPUs, and a job, task or pod computes on all",
        "what the cluster's own installer does on a node, nor clusters of other versions",
    ),
    Tier(
        SEVERAL_NODES,
        "several nodes",
        "machines work together: logins, TCP and Open MPI between them, EFA, NCCL over all their GPUs",
        "clusters of more nodes than took part",
    ),
)
NAMES = tuple(tier.name for tier in TIERS)
