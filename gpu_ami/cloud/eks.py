"""Calls to Amazon EKS: a cluster, who may join it, and its Kubernetes API with the caller's token.

A run makes a cluster only in a place that has them at once (Place.cluster_versions); it is removed with the run.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_ami.cloud import aws_errors
from gpu_ami.cloud.client import Cloud
from gpu_ami.errors import CloudError
from validator import eks_token
from validator.probes import kubernetes

ACTIVE = "ACTIVE"
CONFIG_MAP = "CONFIG_MAP"  # authentication mode without access entries
NODES = "EC2_LINUX"  # type of the access entries with which nodes join
# Kubernetes, "Version Skew Policy".
_OLDER = 3
SKEW = f"a kubelet is never newer than the API server, and at most {_OLDER} minor versions older"
_NOT_FOUND = "ResourceNotFoundException"
_ACTIVE_SECONDS, _POLL_SECONDS = 300.0, 0.5


@dataclass(frozen=True)
class Described:
    """A cluster. authority: its certificate, in base64; cidr: of its services; mode: of authentication.

    vpc, security_group: of its network, "" where they are not told; public: its API can be reached from outside.
    """

    name: str
    status: str
    version: str
    endpoint: str = ""
    authority: str = ""
    cidr: str = ""
    mode: str = CONFIG_MAP
    issues: tuple[str, ...] = ()
    vpc: str = ""
    security_group: str = ""
    public: bool = True


def describe(cloud: Cloud, name: str) -> Described | None:
    """The cluster of a name; None where the region has none. CloudError."""
    try:
        with aws_errors.translated(f"describing EKS cluster {name}"):
            found = cloud.client("eks").describe_cluster(name=name)["cluster"]
    except CloudError as error:
        if error.code == _NOT_FOUND:
            return None
        raise
    issues = (found.get("health") or {}).get("issues") or []
    network = found.get("resourcesVpcConfig") or {}
    return Described(
        name,
        str(found["status"]),
        str(found["version"]),
        str(found.get("endpoint", "")),
        str((found.get("certificateAuthority") or {}).get("data", "")),
        str((found.get("kubernetesNetworkConfig") or {}).get("serviceIpv4Cidr", "")),
        str((found.get("accessConfig") or {}).get("authenticationMode", CONFIG_MAP)),
        tuple(f"{issue.get('code')}: {issue.get('message')}" for issue in issues),
        str(network.get("vpcId", "")),
        str(network.get("clusterSecurityGroupId", "")),
        bool(network.get("endpointPublicAccess", True)),
    )


def fits(cluster: str, kubelet: str) -> bool:
    """Whether a kubelet may run in a cluster, by their Kubernetes versions."""
    (major, minor), (own_major, own) = (tuple(map(int, text.split(".")[:2])) for text in (cluster, kubelet))
    return major == own_major and minor - _OLDER <= own <= minor


def create(cloud: Cloud, name: str, version: str, tags: Mapping[str, str]) -> None:
    """Creates a cluster in which access entries count. CloudError."""
    with aws_errors.translated(f"creating EKS cluster {name}"):
        cloud.client("eks").create_cluster(
            name=name,
            version=version,
            roleArn=node_role(cloud),
            resourcesVpcConfig={"subnetIds": list(cloud.place.subnets)},
            accessConfig={"authenticationMode": "API"},
            tags=dict(tags),
        )


def wait_active(cloud: Cloud, name: str, seconds: float = _ACTIVE_SECONDS) -> Described:
    """The cluster when it is active. CloudError: it failed, or is not in time."""
    deadline = time.monotonic() + seconds
    while True:
        found = describe(cloud, name)
        if found and found.status == ACTIVE:
            return found
        status = found.status if found else "gone"
        if status not in ("CREATING", "UPDATING") or time.monotonic() > deadline:
            details = found.issues if found else ()
            raise CloudError(f"EKS cluster {name} is {status}, expected {ACTIVE}", details=details)
        time.sleep(_POLL_SECONDS)


def delete(cloud: Cloud, name: str) -> None:
    """Deletes a cluster; none of that name is no error."""
    try:
        with aws_errors.translated(f"removing EKS cluster {name}"):
            cloud.client("eks").delete_cluster(name=name)
    except CloudError as error:
        if error.code != _NOT_FOUND:
            raise


def node_role(cloud: Cloud) -> str:
    """The ARN of the role that the place's instances run with; "" where they have none. CloudError."""
    profile = cloud.place.instance_profile
    if not profile:
        return ""
    with aws_errors.translated(f"reading instance profile {profile}"):
        found = cloud.client("iam").get_instance_profile(InstanceProfileName=profile)["InstanceProfile"]
    return next((str(role["Arn"]) for role in found["Roles"]), "")


def access_type(cloud: Cloud, name: str, role: str) -> str | None:
    """The type of the cluster's access entry for a role, `EC2_LINUX` for nodes; None: it has none. CloudError."""
    try:
        with aws_errors.translated(f"reading the access entry of {role} in EKS cluster {name}"):
            found = cloud.client("eks").describe_access_entry(clusterName=name, principalArn=role)
    except CloudError as error:
        if error.code == _NOT_FOUND:
            return None
        raise
    return str((found.get("accessEntry") or {}).get("type", ""))


def how_to_admit(name: str, role: str) -> str:
    """The command with which an administrator lets instances with a role join."""
    return f"aws eks create-access-entry --cluster-name {name} --principal-arn {role} --type {NODES}"


def addons(cloud: Cloud, name: str) -> list[str]:
    """Names of the cluster's add-ons; what was installed in another way is not among them. CloudError."""
    with aws_errors.translated(f"listing the add-ons of EKS cluster {name}"):
        pages = cloud.client("eks").get_paginator("list_addons").paginate(clusterName=name)
        return [str(addon) for page in pages for addon in page["addons"]]


def admit_nodes(cloud: Cloud, name: str, role: str, tags: Mapping[str, str]) -> None:
    """Lets instances with a role join the cluster. CloudError."""
    with aws_errors.translated(f"adding an access entry for {role} to EKS cluster {name}"):
        cloud.client("eks").create_access_entry(clusterName=name, principalArn=role, type=NODES, tags=dict(tags))


def api(cloud: Cloud, name: str, endpoint: str, authority: str) -> kubernetes.Client:
    """The cluster's Kubernetes API, as the place's caller. authority: base64."""
    token = eks_token.renewed(name, cloud.place.region, lambda: cloud.session()._session)
    return kubernetes.Client(endpoint, kubernetes.trusting(base64.b64decode(authority).decode()), token)
