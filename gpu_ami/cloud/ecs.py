"""Clusters of Amazon ECS: look-up, a run's own one, and what a run leaves in any of them.

A cluster without capacity providers costs nothing itself and is there at once: it is PROVISIONING only while resources
of capacity providers are created (botocore's description of Cluster.status). What it costs is not from AWS's price
list. A cluster and task definitions of a run have its id in their names; the cluster has its tags, too. A container
instance has the id in an attribute: to register with tags, the instance would need the permission ecs:TagResource.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpu_ami.cloud import aws_errors, runs
from gpu_ami.cloud.launches import RUN_ATTRIBUTE
from gpu_ami.cloud.resources import Resource
from gpu_ami.errors import CloudError

if TYPE_CHECKING:
    from gpu_ami.cloud.client import Cloud

CLUSTER, CONTAINER_INSTANCE, TASK_DEFINITION = "ecs-cluster", "container-instance", "task-definition"
KINDS = (CLUSTER, CONTAINER_INSTANCE, TASK_DEFINITION)
ACTIVE = "ACTIVE"
_PREFIX = "gpu-ami-"  # as sweep.key_name
# A cluster whose last container instance was deregistered a moment ago still counts it.
_IN_USE = {"ClusterContainsContainerInstancesException", "ClusterContainsTasksException", "UpdateInProgressException"}
_IN_USE_SECONDS, _POLL_SECONDS = 60.0, 2.0
_PAGE = 100  # of DescribeClusters and DescribeContainerInstances


def state(cloud: Cloud, name: str) -> str:
    """Status of a cluster (ACTIVE, PROVISIONING, INACTIVE, …); "" where there is none of that name. CloudError."""
    with aws_errors.translated(f"looking up ECS cluster {name}"):
        clusters = cloud.client("ecs").describe_clusters(clusters=[name])["clusters"]
        return str(clusters[0]["status"]) if clusters else ""


def create(cloud: Cloud, name: str, tags: Mapping[str, str]) -> None:
    """Creates a cluster with its tags. CloudError."""
    with aws_errors.translated(f"creating ECS cluster {name}"):
        cloud.client("ecs").create_cluster(clusterName=name, tags=_tag_list(tags))


def leave(cloud: Cloud, name: str, instance_ids: Sequence[str]) -> None:
    """Deregisters the container instances of EC2 instances, with the tasks on them. CloudError."""
    for instance_id in instance_ids:
        _deregister(cloud, name, _container_instances(cloud, name, f"ec2InstanceId == {instance_id}"))


def _deregister(cloud: Cloud, name: str, arns: Iterable[str]) -> None:
    for arn in arns:
        with aws_errors.translated(f"deregistering {arn} from ECS cluster {name}"):
            cloud.client("ecs").deregister_container_instance(cluster=name, containerInstance=arn, force=True)


def _container_instances(cloud: Cloud, name: str, query: str) -> list[str]:
    """ARNs of the cluster's container instances that a query of the cluster query language selects."""
    with aws_errors.translated(f"listing container instances of ECS cluster {name}"):
        pages = cloud.client("ecs").get_paginator("list_container_instances").paginate(cluster=name, filter=query)
        return [str(arn) for page in pages for arn in page["containerInstanceArns"]]


def remove_definitions(cloud: Cloud, run_id: str) -> None:
    """Removes the task definitions of a run. CloudError."""
    _remove_family(cloud, f"{_PREFIX}{run_id}")


def _families(cloud: Cloud) -> list[str]:
    with aws_errors.translated("listing task definitions"):
        pages = cloud.client("ecs").get_paginator("list_task_definition_families")
        listed = pages.paginate(familyPrefix=_PREFIX, status=ACTIVE)
        return [str(family) for page in listed for family in page["families"] if run_of(family)]


def _remove_family(cloud: Cloud, family: str) -> None:
    ecs = cloud.client("ecs")
    with aws_errors.translated(f"removing task definition {family}"):
        pages = ecs.get_paginator("list_task_definitions").paginate(familyPrefix=family, status=ACTIVE)
        for arn in [arn for page in pages for arn in page["taskDefinitionArns"]]:
            ecs.deregister_task_definition(taskDefinition=arn)
            ecs.delete_task_definitions(taskDefinitions=[arn])


def run_of(family: str) -> str:
    """Id of the run that a family of task definitions belongs to; "" for any other, whatever its name begins with."""
    run = family.removeprefix(_PREFIX)
    return run if family.startswith(_PREFIX) and runs.ended_by(run) else ""


def delete(cloud: Cloud, name: str, seconds: float = _IN_USE_SECONDS) -> None:
    """Deletes a run's own cluster, with the container instances in it; none of that name is no error. CloudError."""
    ecs, deadline = cloud.client("ecs"), time.monotonic() + seconds
    while True:
        try:
            if state(cloud, name) != ACTIVE:
                return
            _deregister(cloud, name, _container_instances(cloud, name, f"attribute:{RUN_ATTRIBUTE} exists"))
            with aws_errors.translated(f"removing ECS cluster {name}"):
                ecs.delete_cluster(cluster=name)
            return
        except CloudError as error:
            if error.code == "ClusterNotFoundException":
                return
            if error.code not in _IN_USE or time.monotonic() >= deadline:
                raise
        time.sleep(_POLL_SECONDS)


def left_of_runs(cloud: Cloud) -> list[Resource]:
    """What runs have in ECS: own clusters, task definitions, and container instances in clusters of others. CloudError.

    The tags of a cluster are its own; those of the others say which run, and when it has ended at the latest.
    """
    ecs, found = cloud.client("ecs"), list[Resource]()
    with aws_errors.translated("listing ECS clusters"):
        arns = [arn for page in ecs.get_paginator("list_clusters").paginate() for arn in page["clusterArns"]]
        described: list[Mapping[str, Any]] = []
        for first in range(0, len(arns), _PAGE):
            described += ecs.describe_clusters(clusters=arns[first : first + _PAGE], include=["TAGS"])["clusters"]
        clusters = {str(row["clusterName"]): _tags(row.get("tags", [])) for row in described if row["status"] == ACTIVE}
    for name, tags in clusters.items():
        if runs.TAG_RUN in tags:
            found.append(Resource(CLUSTER, name, tags))
        else:
            found += _instances_of_runs(cloud, name)
    return [*found, *(Resource(TASK_DEFINITION, family, _of_run(run_of(family))) for family in _families(cloud))]


def _instances_of_runs(cloud: Cloud, cluster: str) -> list[Resource]:
    """Container instances of any run in a cluster that is not of one. Their id here: the cluster's name and the ARN."""
    arns = _container_instances(cloud, cluster, f"attribute:{RUN_ATTRIBUTE} exists")
    rows: list[Mapping[str, Any]] = []
    with aws_errors.translated(f"describing container instances of ECS cluster {cluster}"):
        for first in range(0, len(arns), _PAGE):
            part = arns[first : first + _PAGE]
            answer = cloud.client("ecs").describe_container_instances(cluster=cluster, containerInstances=part)
            rows += answer["containerInstances"]
        named = [
            (str(row["containerInstanceArn"]), str(attribute.get("value", "")))
            for row in rows
            for attribute in row.get("attributes", [])
            if attribute["name"] == RUN_ATTRIBUTE
        ]
    return [Resource(CONTAINER_INSTANCE, f"{cluster} {arn}", _of_run(run)) for arn, run in named]


def remove(cloud: Cloud, resource: Resource) -> None:
    """Removes one of `left_of_runs`. CloudError."""
    if resource.kind == CLUSTER:
        delete(cloud, resource.id)
    elif resource.kind == TASK_DEFINITION:
        _remove_family(cloud, resource.id)
    else:
        cluster, _, arn = resource.id.partition(" ")
        _deregister(cloud, cluster, [arn])


def _of_run(run_id: str) -> dict[str, str]:
    return {runs.TAG_RUN: run_id, runs.TAG_EXPIRES: runs.ended_by(run_id)}


def _tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in tags.items()]


def _tags(rows: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {row["key"]: row["value"] for row in rows}
