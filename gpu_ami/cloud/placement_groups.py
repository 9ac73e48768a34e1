"""Cluster placement groups of a run: created with its tags, removed when its machines have ended.

EC2 puts the machines of a cluster placement group close to each other in one Availability Zone, with the network's full
bandwidth between them. A group is free, and cannot be deleted while an instance in it has not ended. Source: EC2 user
guide, "Placement strategies for your placement groups"; EC2 API reference, CreatePlacementGroup; read 2026-11-25.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpu_ami.cloud import aws_errors, resources
from gpu_ami.cloud.client import Cloud, tags_of
from gpu_ami.cloud.launches import tag_list
from gpu_ami.cloud.resources import Resource
from gpu_ami.errors import CloudError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_ec2.type_defs import FilterTypeDef, TagSpecificationTypeDef

KIND = "placement-group"
UNKNOWN, IN_USE = "InvalidPlacementGroup.Unknown", "InvalidPlacementGroup.InUse"
# Until the instances of a group have ended; those of large types take minutes.
_ENDING_SECONDS = 300.0


def create(cloud: Cloud, name: str, tags: Mapping[str, str]) -> None:
    """Creates a cluster placement group with its tags. CloudError."""
    specifications: list[TagSpecificationTypeDef] = [{"ResourceType": "placement-group", "Tags": tag_list(tags)}]
    try:
        with aws_errors.translated(f"creating placement group {name}"):
            cloud.ec2.create_placement_group(GroupName=name, Strategy="cluster", TagSpecifications=specifications)
    except CloudError as error:
        if error.code != "InvalidPlacementGroup.Duplicate" or not aws_errors.was_repeated(error):
            raise


def delete(cloud: Cloud, name: str, seconds: float = _ENDING_SECONDS) -> None:
    """Deletes a group, which may be in use for so long while its instances end; none of that name is no error."""
    resources.retried(lambda: _delete(cloud, name), {IN_USE}, seconds, cloud.say)


def _delete(cloud: Cloud, name: str) -> None:
    try:
        with aws_errors.translated(f"removing placement group {name}"):
            cloud.ec2.delete_placement_group(GroupName=name)
    except CloudError as error:
        if error.code != UNKNOWN:
            raise


@contextmanager
def temporary(
    cloud: Cloud, name: str, tags: Mapping[str, str], clean_up: Callable[[Callable[[], None]], object]
) -> Iterator[str]:
    """The name of a group that is created now and removed with the block, whose instances have then been terminated.

    clean_up: runs the removal, and decides what an error of it means.
    """
    create(cloud, name, tags)
    try:
        yield name
    finally:
        clean_up(lambda: delete(cloud, name))


def tagged(cloud: Cloud, key: str) -> list[Resource]:
    """The groups that carry the tag `key`. CloudError."""
    only: list[FilterTypeDef] = [{"Name": "tag-key", "Values": [key]}]
    with aws_errors.translated(f"listing placement groups with the tag {key}"):
        groups = cloud.ec2.describe_placement_groups(Filters=only)["PlacementGroups"]
    named = [(group.get("GroupName", ""), group) for group in groups]
    gone = ("deleting", "deleted")
    return [Resource(KIND, name, tags_of(group)) for name, group in named if group.get("State") not in gone]
