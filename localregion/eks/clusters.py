"""EKS in the local region: clusters with a real control plane, access entries, add-ons, and who a token is of.

moto's clusters have no API server, and it has no access entries. Source: EKS API reference (CreateCluster,
DescribeCluster, CreateAccessEntry, ListAddons and their errors), user guide ("Grant IAM users and roles access to
Kubernetes APIs with EKS access entries"), read 2026-11-25. Every account may call it; signatures are not verified,
except those of tokens.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from gpu_ami.errors import CloudError
from gpu_ami.files import write_text
from localregion.backends import INSTANCE_SECRET, Ec2, Refused, instance_of_access_key
from localregion.eks import credentials
from localregion.eks.control_plane import SERVICE_CIDR, CloudController, ControlPlane, Instance
from localregion.kubernetes import RELEASES, find

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_PATH = re.compile(r"/clusters(?:/(?P<name>[^/]+)(?:/(?P<kind>access-entries|addons)(?:/(?P<item>.+))?)?)?")
EC2_LINUX, STANDARD = "EC2_LINUX", "STANDARD"
_NODE_GROUPS = ["system:bootstrappers", "system:nodes"]


@dataclass
class _Cluster:
    name: str
    version: str
    document: dict[str, Any]
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    status: str = "CREATING"
    control_plane: ControlPlane | None = None
    controller: CloudController | None = None

    def described(self) -> dict[str, Any]:
        plane = self.control_plane if self.status == "ACTIVE" else None
        reached = {}
        if plane:
            authority = base64.b64encode(plane.authority).decode()
            reached = {"endpoint": plane.endpoint, "certificateAuthority": {"data": authority}}
        return {**self.document, **reached, "status": self.status}


@dataclass(frozen=True)
class Identities:
    """What the region knows of who calls. secret_of: an access key's secret; role_of: the role's ARN of an instance's
    key, "" for another key; instance_of: the instance of a key; instances: those that exist."""

    account: str
    secret_of: Callable[[str], str | None]
    instance_of: Callable[[str], str | None]
    role_of: Callable[[str], str]
    instances: Callable[[], dict[str, Instance]]


@dataclass(frozen=True)
class Reach:
    """How a cluster is reached. base_url: of the region's API, which reviews tokens; guest_address: at which guests
    reach the API server; port_file: has its port on loopback while it runs, for the guests' relays."""

    base_url: str
    guest_address: str
    port_file: Path


def identities(ec2: Ec2, secrets_of_callers: Mapping[str, str]) -> Identities:
    """Of a region's EC2 state. secrets_of_callers: access key → secret key of who calls from outside."""

    def secret_of(key: str) -> str | None:
        return INSTANCE_SECRET if instance_of_access_key(key) else secrets_of_callers.get(key)

    def role_of(instance_id: str) -> str:
        instance = ec2.instance(instance_id)
        profile = ec2.view(instance).profile_arn if instance is not None else None
        return ec2.role_arn(profile) if profile else ""

    def instances() -> dict[str, Instance]:
        views = [ec2.view(each) for each in ec2.instances() if each.state != "terminated"]
        keys = ("instance_type", "zone", "region", "address", "hostname")
        return {view.instance_id: Instance(view.instance_id, *(getattr(view, key) for key in keys)) for view in views}

    return Identities(ec2.account, secret_of, instance_of_access_key, role_of, instances)


class Eks:
    """The clusters of a region. home: of the builds; folder: of running clusters."""

    def __init__(
        self,
        home: Path,
        folder: Path,
        region: str,
        reach: Reach,
        identities: Identities,
        *,
        note: Callable[[str], object],
    ) -> None:
        self._home, self._folder, self._region = home, folder, region
        self._reach, self._identities, self._note = reach, identities, note
        self._clusters: dict[str, _Cluster] = {}
        self._lock = threading.Lock()

    # What the API answers

    def answer(self, method: str, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer to a call; None for one that is not of clusters, access entries or add-ons. Refused."""
        match = _PATH.fullmatch(path)
        if match is None:
            return None
        name, kind, item = match["name"], match["kind"], match["item"]
        if name is None:
            return self._create(body) if method == "POST" else {"clusters": sorted(self._clusters)}
        cluster = self._named(unquote(name))
        if kind == "addons":
            return _addons(item, cluster.name)
        if kind == "access-entries":
            return self._entries(method, cluster, unquote(item or ""), body)
        return self._delete(cluster) if method == "DELETE" else {"cluster": cluster.described()}

    def _named(self, name: str) -> _Cluster:
        with self._lock:
            cluster = self._clusters.get(name)
        if cluster is None:
            raise Refused("ResourceNotFoundException", f"No cluster found for name: {name}.", 404)
        return cluster

    def _create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        name, version = str(body.get("name", "")), str(body.get("version") or max(RELEASES))
        if not _NAME.fullmatch(name):
            raise Refused("InvalidParameterException", f"The cluster name '{name}' is not valid.", 400)
        build = find(self._home, version)
        if build is None:
            made = "make nodes builds it" if version in RELEASES else f"it has {', '.join(RELEASES)}"
            text = f"unsupported Kubernetes version {version}: the local region has no build of it; {made}"
            raise Refused("InvalidParameterException", text, 400)
        with self._lock:
            if name in self._clusters:
                raise Refused("ResourceInUseException", f"Cluster already exists with name: {name}", 409)
            if self._clusters:  # guests reach one address
                other = next(iter(self._clusters))
                text = f"the local region runs one cluster at a time, and {other} runs"
                raise Refused("ResourceLimitExceededException", text, 400)
            cluster = self._clusters[name] = _Cluster(name, version, self._document(name, version, body))
        review = f"{self._reach.base_url}/gpu-ami/eks/{name}/token-review"
        folder = self._folder / f"cluster-{secrets.token_hex(4)}"
        cluster.control_plane = ControlPlane(build, folder, [self._reach.guest_address], review)
        threading.Thread(target=self._start, args=(cluster,), name=f"cluster {name}", daemon=True).start()
        return {"cluster": cluster.described()}

    def _document(self, name: str, version: str, body: Mapping[str, Any]) -> dict[str, Any]:
        access = {"authenticationMode": "CONFIG_MAP"} | dict(body.get("accessConfig") or {})
        return {
            "name": name,
            "arn": f"arn:aws:eks:{self._region}:{self._identities.account}:cluster/{name}",
            "createdAt": time.time(),
            "version": version,
            "roleArn": body.get("roleArn", ""),
            "resourcesVpcConfig": body.get("resourcesVpcConfig", {}),
            "kubernetesNetworkConfig": {"serviceIpv4Cidr": SERVICE_CIDR, "ipFamily": "ipv4"},
            "accessConfig": access,
            "platformVersion": "eks.local",
            "tags": dict(body.get("tags") or {}),
            "health": {"issues": []},
        }

    def _start(self, cluster: _Cluster) -> None:
        plane = cluster.control_plane
        assert plane
        try:
            plane.start()
        except CloudError as error:
            self._note(f"cluster {cluster.name}: {error.message}")
            cluster.document["health"] = {"issues": [{"code": "InternalFailure", "message": error.message}]}
            cluster.status = "FAILED"
            return
        cluster.controller = CloudController(plane.admin(), self._identities.instances, self._note)
        cluster.controller.start()
        write_text(self._reach.port_file, str(plane.port))
        cluster.status = "ACTIVE"

    def _delete(self, cluster: _Cluster) -> dict[str, Any]:
        cluster.status = "DELETING"
        answer = {"cluster": cluster.described()}
        self._end(cluster)
        return answer

    def _end(self, cluster: _Cluster) -> None:
        self._reach.port_file.unlink(missing_ok=True)
        if cluster.controller:
            cluster.controller.stop()
        if cluster.control_plane:
            cluster.control_plane.stop()
        with self._lock:
            self._clusters.pop(cluster.name, None)

    def stop(self) -> None:
        """Ends every cluster."""
        with self._lock:
            clusters = list(self._clusters.values())
        for cluster in clusters:
            self._end(cluster)

    # Access entries

    def _entries(self, method: str, cluster: _Cluster, principal: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if cluster.document["accessConfig"]["authenticationMode"] == "CONFIG_MAP":
            mode = "The cluster's authentication mode must be set to one of [API, API_AND_CONFIG_MAP]"
            raise Refused("InvalidRequestException", f"{mode} to perform this operation.", 400)
        if method == "POST":
            return {"accessEntry": self._create_entry(cluster, body)}
        if not principal:
            return {"accessEntries": sorted(cluster.entries)}
        if principal not in cluster.entries:
            text = f"The specified principalArn could not be found: {principal}"
            raise Refused("ResourceNotFoundException", text, 404)
        if method == "DELETE":
            del cluster.entries[principal]
            return {}
        return {"accessEntry": cluster.entries[principal]}

    def _create_entry(self, cluster: _Cluster, body: Mapping[str, Any]) -> dict[str, Any]:
        principal, kind = str(body.get("principalArn", "")), str(body.get("type") or STANDARD)
        if not re.fullmatch(r"arn:aws[a-z-]*:iam::\d{12}:(role|user)/.+", principal):
            raise Refused("InvalidParameterException", "The principalArn parameter format is not valid", 400)
        if kind not in (STANDARD, EC2_LINUX):
            raise Refused("InvalidParameterException", f"the local region has no access entry of type {kind}", 400)
        if principal in cluster.entries:
            text = f"The specified access entry resource is already in use on this cluster: {principal}"
            raise Refused("ResourceInUseException", text, 409)
        groups = _NODE_GROUPS[1:] if kind == EC2_LINUX else list(body.get("kubernetesGroups") or [])
        username = "system:node:{{EC2PrivateDNSName}}" if kind == EC2_LINUX else str(body.get("username") or principal)
        cluster.entries[principal] = {
            "clusterName": cluster.name,
            "principalArn": principal,
            "kubernetesGroups": groups,
            "accessEntryArn": f"{cluster.document['arn'].replace(':cluster/', ':access-entry/')}/{principal}",
            "createdAt": time.time(),
            "modifiedAt": time.time(),
            "tags": dict(body.get("tags") or {}),
            "username": username,
            "type": kind,
        }
        return cluster.entries[principal]

    # Tokens

    def review(self, name: str, body: bytes) -> dict[str, Any]:
        """The answer to a TokenReview (authentication.k8s.io/v1) of a cluster's API server."""
        answer: dict[str, Any] = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
        try:
            token = str(json.loads(body)["spec"]["token"])
            user = self._user(self._named(name), token)
        except (credentials.Rejected, Refused, ValueError, LookupError, TypeError) as error:
            self._note(f"cluster {name} rejects a token: {error}")
            return answer | {"status": {"authenticated": False, "error": "Unauthorized"}}
        return answer | {"status": {"authenticated": True, "user": user}}

    def _user(self, cluster: _Cluster, token: str) -> dict[str, Any]:
        """The Kubernetes user of an AWS identity: the creator is an administrator, others need an access entry."""
        known = self._identities
        key = credentials.access_key(token, cluster.name, known.secret_of)
        instance_id = known.instance_of(key)
        if instance_id is None:
            arn = f"arn:aws:iam::{known.account}:user/{key}"
            return {"username": arn, "uid": arn, "groups": ["system:masters"]}
        role = known.role_of(instance_id)
        entry = cluster.entries.get(role)
        instance = known.instances().get(instance_id)
        if entry is None or instance is None:
            raise credentials.Rejected(f"no access entry for {role or 'an instance without a role'} ({instance_id})")
        username = entry["username"].replace("{{EC2PrivateDNSName}}", instance.hostname)
        groups = _NODE_GROUPS if entry["type"] == EC2_LINUX else entry["kubernetesGroups"]
        return {"username": username, "uid": role, "groups": groups}


def _addons(item: str | None, cluster: str) -> dict[str, Any]:
    """No add-on is installed: what EKS's add-ons do on a node, the region's nodes do by a unit of their own."""
    if item is None:
        return {"addons": []}
    raise Refused("ResourceNotFoundException", f"No addon: {item} found in cluster: {cluster}", 404)
