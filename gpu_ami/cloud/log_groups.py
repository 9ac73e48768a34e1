"""Log groups of a proof: where the agents of its machines send, and how these groups are removed.

A proof injects Xids. In production's groups they would raise alarms, so each machine that gpu-ami
launches sends to `<group>-proof/<run id>` instead (gpu_ami.validate.machines.launch changes the agent's view of its
configuration; the image's files stay as they are). The agents create the groups; nothing else writes to them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpu_ami.cloud import aws_errors, runs

if TYPE_CHECKING:
    from gpu_ami.cloud.client import Cloud
    from gpu_ami.cloud.place import Place

PROOF = "proof"  # of Place.log_groups
_INFIX = "-proof/"
_OF_RUN = re.compile(rf".+{_INFIX}(?P<run>\d{{8}}-\d{{6}}-[0-9a-f]{{6}})")


def suffix(place: Place, run: runs.Run) -> str:
    """What is appended to the names of the log groups on machines of this run; "" where production's are used."""
    return f"{_INFIX}{run.id}" if place.log_groups == PROOF else ""


def run_of(group: str) -> str:
    """Id of the run that a log group belongs to; "" for any group that is not a proof's."""
    match = _OF_RUN.fullmatch(group)
    return match["run"] if match else ""


def is_old(group: str) -> bool:
    """Whether the group's run started so long ago that it has ended, wherever it ran. False for other groups."""
    return runs.has_expired(runs.ended_by(run_of(group)))


def of_proofs(cloud: Cloud, ending: str = "") -> list[str]:
    """Names of the log groups of proofs in this place. ending: only those whose names end so. CloudError."""
    pattern = ending or _INFIX
    with aws_errors.translated(f"listing log groups with {pattern} in their names"):
        pages = cloud.client("logs").get_paginator("describe_log_groups").paginate(logGroupNamePattern=pattern)
        names = [group["logGroupName"] for page in pages for group in page["logGroups"]]
    return sorted(name for name in names if run_of(name) and name.endswith(ending))


def delete(cloud: Cloud, group: str) -> None:
    """Deletes a log group of a proof; none of that name is no error. ValueError: the group is not a proof's."""
    if not run_of(group):
        raise ValueError(f"{group} is not a log group of a proof")
    logs = cloud.client("logs")
    with aws_errors.translated(f"deleting log group {group}"):
        try:
            logs.delete_log_group(logGroupName=group)
        except logs.exceptions.ResourceNotFoundException:
            return
