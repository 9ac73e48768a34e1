"""What AWS's cloud controller does in the control plane of EKS: describes a new node, and forgets one that has ended.

A kubelet registers with the taint `uninitialized` and without addresses. The controller finds the instance by the
node's providerID, adds addresses, instance type and zone, and removes the taint; pods are scheduled from then on.
Source: github.com/kubernetes/cloud-provider-aws and k8s.io/cloud-provider (node controller, node lifecycle controller).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from validator.probes.cluster import kubernetes

UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Instance:
    """An instance that exists, also while it is stopped."""

    id: str
    instance_type: str
    zone: str
    region: str
    address: str
    hostname: str

    @property
    def provider_id(self) -> str:
        return f"aws:///{self.zone}/{self.id}"


class CloudController:
    """One cluster's. instances: those that exist now. note: gets the text of a call that failed."""

    def __init__(
        self, client: kubernetes.Client, instances: Callable[[], dict[str, Instance]], note: Callable[[str], object]
    ) -> None:
        self._client, self._instances, self._note = client, instances, note
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cloud controller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            try:
                self.step()
            except kubernetes.ApiError as error:
                self._note(f"cloud controller: {error}")

    def step(self) -> None:
        """Looks at every node once. ApiError."""
        instances = {instance.provider_id: instance for instance in self._instances().values()}
        for node in self._client.get("/api/v1/nodes")["items"]:
            provider_id = node["spec"].get("providerID", "")
            instance = instances.get(provider_id)
            if instance is None:
                if provider_id:
                    self._client.delete(f"/api/v1/nodes/{node['metadata']['name']}")
            elif any(taint["key"] == UNINITIALIZED for taint in node["spec"].get("taints") or []):
                self._initialize(node, instance)

    def _initialize(self, node: dict[str, Any], instance: Instance) -> None:
        path = f"/api/v1/nodes/{node['metadata']['name']}"
        addresses = [
            {"type": "InternalIP", "address": instance.address},
            {"type": "InternalDNS", "address": instance.hostname},
            {"type": "Hostname", "address": instance.hostname},
        ]
        self._client.patch(f"{path}/status", {"status": {"addresses": addresses}})
        labels = {
            "node.kubernetes.io/instance-type": instance.instance_type,
            "topology.kubernetes.io/zone": instance.zone,
            "topology.kubernetes.io/region": instance.region,
        }
        kept = [taint for taint in node["spec"]["taints"] if taint["key"] != UNINITIALIZED]
        version = {"resourceVersion": self._client.get(path)["metadata"]["resourceVersion"]}
        self._client.patch(path, {"metadata": {"labels": labels, **version}, "spec": {"taints": kept}})
