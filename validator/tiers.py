"""How deep a check reaches into an image, and what nobody may conclude from it.

A check belongs to the tier of what it needs (`@pytest.mark.tier("T0")`, T1 if it says nothing). A tier is proven by the
checks that ran on it, never by those of another one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tier:
    """One depth: what its checks show when they pass, and what stays open even then."""

    name: str
    title: str
    proves: str
    does_not_prove: str


TIERS = (
    Tier(
        "T0",
        "offline",
        "the image's files before any boot: versions, module and units on disk, configuration, no trace of the build",
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
        "a fault of one GPU makes its whole way from the kernel to CloudWatch",
        "anything of the other GPUs, nor that a GPU computes right",
    ),
    Tier(
        "T3",
        "all GPUs",
        "every GPU that the instance type promises is there and measured",
        "how fast GPUs are, alone or together, nor traffic between machines",
    ),
    Tier(
        "T4",
        "several nodes",
        "machines work together: EFA between them, NCCL over all their GPUs",
        "clusters of more nodes than took part",
    ),
)
NAMES = tuple(tier.name for tier in TIERS)
