"""Calls to Amazon EKS: a cluster, who may join it, and its Kubernetes API with the caller's token.

A run makes a cluster only in a place that has them at once (Place.cluster_versions); it is removed with the run.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_ami.cloud import aws_errors
from gpu_ami.cloud.client import Cloud
from gpu_ami.errors import CloudError
from validator.probes.cluster import kubernetes

ACTIVE = "ACTIVE"
# Authentication modes: without access entries, and without the ConfigMap aws-auth. In the third one,
# API_AND_CONFIG_MAP, the ConfigMap counts for a role that has no access entry (EKS user guide, "Migrating existing
# aws-auth ConfigMap entries to access entries").
CONFIG_MAP, API = "CONFIG_MAP", "API"
NODES = "EC2_LINUX"  # type of the access entries with which nodes join
# Kubernetes, "Version Skew Policy".
_OLDER = 3
SKEW = f"a kubelet is never newer than the API server, and at most {_OLDER} minor versions older"
_NOT_FOUND, _NO_PROFILE = "ResourceNotFoundException", "NoSuchEntity"
_ACTIVE_SECONDS, _POLL_SECONDS = 300.0, 0.5


@dataclass(frozen=True)
class Described:
    """A cluster. authority: its certificate, in base64; cidr: of its services; mode: of authentication.

    vpc: "" where it is not told. security_groups: of its API server's interfaces, the one that EKS made first. public,
    private: its API can be reached from outside, and has an address in the VPC.
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
    security_groups: tuple[str, ...] = ()
    public: bool = True
    private: bool = False


def describe(cloud: Cloud, name: str) -> Described | None:
    """The cluster of a name; None where the region has none. CloudError."""
    try:
        with aws_errors.translated(f"describing EKS cluster {name}"):
            found = cloud.client("eks").describe_cluster(name=name)["cluster"]
    except CloudError as error:
        if error.code == _NOT_FOUND:
            return None
        raise
    network = found.get("resourcesVpcConfig") or {}
    groups = [network.get("clusterSecurityGroupId"), *(network.get("securityGroupIds") or [])]
    return Described(
        name,
        str(found["status"]),
        str(found["version"]),
        str(found.get("endpoint", "")),
        str((found.get("certificateAuthority") or {}).get("data", "")),
        _service_cidr(found.get("kubernetesNetworkConfig") or {}),
        str((found.get("accessConfig") or {}).get("authenticationMode", CONFIG_MAP)),
        _issues(found),
        str(network.get("vpcId", "")),
        tuple(str(group) for group in groups if group),
        bool(network.get("endpointPublicAccess", True)),
        bool(network.get("endpointPrivateAccess", False)),
    )


def _service_cidr(network: Mapping[str, Any]) -> str:
    """The network of a cluster's services: EKS answers with that of its IP family alone (API reference)."""
    return str(network.get("serviceIpv4Cidr") or network.get("serviceIpv6Cidr") or "")


def _issues(found: Mapping[str, Any]) -> tuple[str, ...]:
    """What EKS reports of a cluster's or an add-on's health."""
    issues = (found.get("health") or {}).get("issues") or []
    return tuple(f"{issue.get('code')}: {issue.get('message')}" for issue in issues)


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
            resourcesVpcConfig={"subnetIds": list(cloud.place.network.subnets)},
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
    try:
        with aws_errors.translated(f"reading instance profile {profile}"):
            found = cloud.client("iam").get_instance_profile(InstanceProfileName=profile)["InstanceProfile"]
    except CloudError as error:
        if error.code == _NO_PROFILE:
            return ""
        raise
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


def refusal_of(cluster: Described, role: str, kind: str | None) -> str:
    """Why no node with a role can join; "" where it can, or where its ConfigMap decides. kind: as of access_type."""
    if cluster.mode == CONFIG_MAP or kind == NODES:
        return ""
    if kind is not None:  # it counts before the ConfigMap
        return f"the access entry of {role} has type {kind}"
    return f"no access entry for {role}" if cluster.mode == API else ""


def how_to_admit(name: str, role: str, kind: str | None = None) -> str:
    """The command with which an administrator lets instances with a role join. kind: of the entry that it has."""
    entry = f"--cluster-name {name} --principal-arn {role}"
    made = f"aws eks create-access-entry {entry} --type {NODES}"
    return made if kind is None else f"aws eks delete-access-entry {entry} && {made}"


def addons(cloud: Cloud, name: str) -> list[str]:
    """Names of the cluster's add-ons; what was installed in another way is not among them. CloudError."""
    with aws_errors.translated(f"listing the add-ons of EKS cluster {name}"):
        pages = cloud.client("eks").get_paginator("list_addons").paginate(clusterName=name)
        return [str(addon) for page in pages for addon in page["addons"]]


@dataclass(frozen=True)
class Addon:
    """status: ACTIVE, DEGRADED, CREATE_FAILED, …; issues: why."""

    status: str
    issues: tuple[str, ...] = ()


def addon(cloud: Cloud, name: str, addon: str) -> Addon:
    """An add-on of a cluster. CloudError."""
    with aws_errors.translated(f"describing add-on {addon} of EKS cluster {name}"):
        found = cloud.client("eks").describe_addon(clusterName=name, addonName=addon)["addon"]
        return Addon(str(found["status"]), _issues(found))


def admit_nodes(cloud: Cloud, name: str, role: str, tags: Mapping[str, str]) -> None:
    """Lets instances with a role join the cluster. CloudError."""
    with aws_errors.translated(f"adding an access entry for {role} to EKS cluster {name}"):
        cloud.client("eks").create_access_entry(clusterName=name, principalArn=role, type=NODES, tags=dict(tags))


def api(cloud: Cloud, name: str, endpoint: str, authority: str) -> kubernetes.Client:
    """The cluster's Kubernetes API, as the place's caller. authority: base64."""
    token = kubernetes.renewed_token(name, cloud.place.region, lambda: cloud.session()._session)
    return kubernetes.Client(endpoint, kubernetes.trusting(base64.b64decode(authority).decode()), token)
