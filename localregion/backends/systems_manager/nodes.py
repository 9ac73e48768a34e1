"""Managed nodes: instances whose agent has registered with the credentials of an instance profile.

An agent that is stopped is a lost connection after `silent_seconds` (on AWS after minutes); an instance without an
instance profile has no credentials, so its agent never registers, and it is no managed node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localregion.backends import Ec2, Refused

SILENT_SECONDS = 30.0
ONLINE, CONNECTION_LOST = "Online", "ConnectionLost"
_FILTERS = ("InstanceIds", "PingStatus")


@dataclass
class Node:
    """One agent: what it said of its machine, and when it asked last (seconds since 1970)."""

    instance_id: str
    description: Mapping[str, str]
    registered: float
    last_ping: float


class Nodes:
    """The managed nodes of the region."""

    def __init__(
        self, ec2: Ec2, clock: Callable[[], float] = time.time, silent_seconds: float = SILENT_SECONDS
    ) -> None:
        self._ec2, self._clock, self._silent = ec2, clock, silent_seconds
        self._nodes: dict[str, Node] = {}

    def report(self, instance_id: str, description: Mapping[str, str]) -> bool:
        """The agent of an instance says that it is there; True the first time. Refused: there is no such instance."""
        if not self.exists(instance_id):
            raise Refused("InvalidInstanceId", f"{instance_id} is not an instance of this account")
        now = self._clock()
        known = self._nodes.get(instance_id)
        self._nodes[instance_id] = Node(instance_id, dict(description), known.registered if known else now, now)
        return known is None

    def ping(self, instance_id: str) -> None:
        """The agent of a registered instance asked for messages. Refused: it has not registered."""
        node = self._nodes.get(instance_id)
        if node is None or not self.exists(instance_id):
            raise Refused("InvalidInstanceId", f"{instance_id} is not registered")
        node.last_ping = self._clock()

    def exists(self, instance_id: str) -> bool:
        instance = self._ec2.instance(instance_id)
        return instance is not None and instance.state not in ("terminated", "shutting-down")

    def is_managed(self, instance_id: str) -> bool:
        """Whether SendCommand takes the instance by its id."""
        return instance_id in self._nodes and self.exists(instance_id)

    def is_running(self, instance_id: str) -> bool:
        instance = self._ec2.instance(instance_id)
        return instance is not None and instance.state in ("pending", "running")

    def is_online(self, instance_id: str) -> bool:
        node = self._nodes.get(instance_id)
        return node is not None and self._clock() - node.last_ping < self._silent

    def matching(self, targets: Iterable[Mapping[str, Any]]) -> list[str]:
        """The managed nodes that all of the targets select. Refused: a target of another kind."""
        chosen = [name for name in sorted(self._nodes) if self.exists(name)]
        for target in targets:
            chosen = [name for name in chosen if self._is_selected(name, target["Key"], target.get("Values", []))]
        return chosen

    def _is_selected(self, instance_id: str, key: str, values: Sequence[str]) -> bool:
        if key == "InstanceIds":
            return instance_id in values
        if key.startswith("tag:"):
            return self._ec2.tags(instance_id).get(key.removeprefix("tag:")) in values
        raise Refused("InvalidTarget", f"the local region selects by InstanceIds and tag:KEY, not by {key}")

    def describe(self, filters: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """As DescribeInstanceInformation lists them."""
        rows = [self._describe(node) for name, node in sorted(self._nodes.items()) if self.exists(name)]
        for each in filters:
            if each["Key"] not in _FILTERS:
                raise Refused("InvalidFilterKey", f"the local region filters by {', '.join(_FILTERS)}")
            field = "InstanceId" if each["Key"] == "InstanceIds" else each["Key"]
            rows = [row for row in rows if row[field] in each["Values"]]
        return rows

    def _describe(self, node: Node) -> dict[str, Any]:
        instance = self._ec2.instance(node.instance_id)
        own = {
            "InstanceId": node.instance_id,
            "PingStatus": ONLINE if self.is_online(node.instance_id) else CONNECTION_LOST,
            "LastPingDateTime": node.last_ping,
            "RegistrationDate": node.registered,
            "ResourceType": "EC2Instance",
            "SourceId": node.instance_id,
            "SourceType": "AWS::EC2::Instance",
            "IPAddress": instance.nics[0].private_ip_address if instance is not None and instance.nics else "",
        }
        return {**node.description, **own}
