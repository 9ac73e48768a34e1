"""EC2's placement groups, of which moto knows none: created, listed, deleted, and which instance is in which.

The machines of a cluster placement group are on one network with each other (localregion/machines/interconnect.py).
Source: EC2 API reference, CreatePlacementGroup, DescribePlacementGroups, DeletePlacementGroup, RunInstances
(Placement), "Error codes for the Amazon EC2 API" (InvalidPlacementGroup.*), read 2026-11-25.

How a service of the region refuses a call, and who the agent of an instance is.

Which connections an instance's security groups allow. moto keeps groups and rules, and judges nothing.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
import secrets
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape

from localregion.backends.instance import instance_of_access_key


class Refused(Exception):
    """A code of the service's API reference, the sentence that AWS writes beside it, and the HTTP status."""

    def __init__(self, code: str, message: str = "", status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status = code, message, status


def calling_instance(action: str, access_key: str) -> str:
    """The instance whose agent calls. Refused: the key is no instance's, and only agents may call this action."""
    instance_id = instance_of_access_key(access_key)
    if instance_id is None:
        raise Refused("AccessDeniedException", f"{action} is for the agent of an instance")
    return instance_id


STRATEGIES = ("cluster", "spread", "partition")
_UNKNOWN = "InvalidPlacementGroup.Unknown"


@dataclass(frozen=True)
class PlacementGroup:
    """number: of this region, from 1 on; no two groups have the same, also one after the other."""

    name: str
    id: str
    strategy: str
    number: int
    tags: Mapping[str, str] = field(default_factory=dict)


class PlacementGroups:
    """instances: moto's, which have the name of their group in `placement.group_name`."""

    def __init__(self, instances: Callable[[], Iterable[Any]]) -> None:
        self._instances = instances
        self._groups: dict[str, PlacementGroup] = {}
        self._lock = threading.Lock()
        self._made = 0
        self._actions = {
            "CreatePlacementGroup": self._create,
            "DeletePlacementGroup": self._delete,
            "DescribePlacementGroups": self._describe,
        }

    def answer(self, action: str, parameters: Mapping[str, str]) -> bytes | None:
        """The body of EC2's answer; None for an action of something else. Refused."""
        make = self._actions.get(action)
        if make is None:
            return None
        content = make(parameters)
        name = f"{action}Response"
        xmlns = 'xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"'
        return f"<{name} {xmlns}><requestId>local</requestId>{content}</{name}>".encode()

    def of(self, instance: Any) -> PlacementGroup | None:
        """The group that an instance was launched in."""
        with self._lock:
            return self._groups.get(instance.placement.group_name)

    def require(self, name: str) -> None:
        """Refused: a launch names a group that does not exist."""
        if name and name not in self._groups:
            raise Refused(_UNKNOWN, f"The placement group '{name}' is unknown.")

    def _create(self, parameters: Mapping[str, str]) -> str:
        name, strategy = parameters.get("GroupName", ""), parameters.get("Strategy", "cluster")
        if not name:
            raise Refused("MissingParameter", "The request must contain the parameter groupName")
        if strategy not in STRATEGIES:
            raise Refused("InvalidParameterValue", f"Value ({strategy}) for parameter strategy is invalid.")
        with self._lock:
            if name in self._groups:
                raise Refused("InvalidPlacementGroup.Duplicate", f"The placement group '{name}' already exists.")
            self._made += 1
            tags = _tags(parameters)
            group = PlacementGroup(name, f"pg-{secrets.token_hex(8)}0", strategy, self._made, tags)
            self._groups[name] = group
        return f"<return>true</return><placementGroup>{_described(group)}</placementGroup>"

    def _delete(self, parameters: Mapping[str, str]) -> str:
        name = parameters.get("GroupName", "")
        self.require(name or "(none)")
        members = [each for each in self._instances() if each.placement.group_name == name]
        if any(each.state != "terminated" for each in members):
            text = f"The placement group '{name}' is in use and may not be deleted."
            raise Refused("InvalidPlacementGroup.InUse", text)
        with self._lock:
            self._groups.pop(name, None)
        return "<return>true</return>"

    def _describe(self, parameters: Mapping[str, str]) -> str:
        names = [value for key, value in parameters.items() if re.fullmatch(r"GroupName\.\d+", key)]
        for name in names:
            self.require(name)
        with self._lock:
            groups = list(self._groups.values())
        filters = _filters(parameters)
        chosen = [each for each in groups if (not names or each.name in names) and _passes(each, filters)]
        return (
            f"<placementGroupSet>{''.join(f'<item>{_described(each)}</item>' for each in chosen)}</placementGroupSet>"
        )


def _tags(parameters: Mapping[str, str]) -> dict[str, str]:
    keys = [name for name in parameters if re.fullmatch(r"TagSpecification\.\d+\.Tag\.\d+\.Key", name)]
    return {parameters[name]: parameters.get(f"{name.removesuffix('Key')}Value", "") for name in keys}


def _filters(parameters: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    names = {key: value for key, value in parameters.items() if re.fullmatch(r"Filter\.\d+\.Name", key)}
    return [
        (name, [value for other, value in parameters.items() if other.startswith(key.removesuffix("Name") + "Value.")])
        for key, name in names.items()
    ]


def _passes(group: PlacementGroup, filters: Iterable[tuple[str, list[str]]]) -> bool:
    """Source: DescribePlacementGroups, Filters: group-name, state, strategy, tag:KEY, tag-key."""
    shown = {"group-name": [group.name], "state": ["available"], "strategy": [group.strategy]}
    shown["tag-key"] = list(group.tags)
    for name, patterns in filters:
        key = name.removeprefix("tag:")
        values = [group.tags[key]] if name != key and key in group.tags else shown.get(name, [])
        if not any(fnmatch.fnmatchcase(value, pattern) for value in values for pattern in patterns):
            return False
    return True


def _described(group: PlacementGroup) -> str:
    items = "".join(
        f"<item><key>{escape(key)}</key><value>{escape(value)}</value></item>" for key, value in group.tags.items()
    )
    return (
        f"<groupName>{escape(group.name)}</groupName><strategy>{group.strategy}</strategy><state>available</state>"
        f"<groupId>{group.id}</groupId><tagSet>{items}</tagSet>"
    )


SSH = "ssh"  # a rule for the port of the region's sshd, which is chosen when the region comes up
ALL = "all"
MEMBERS = "members"


@dataclass(frozen=True)
class Rule:
    """ports: `ssh`, `all`, a port, or a range as 8000-8080. TCP; `all` is every protocol.

    cidr: of the other end, or `members`: the instances of the same group.
    """

    ports: str
    cidr: str = "0.0.0.0/0"


@dataclass(frozen=True)
class GroupRules:
    """The rules of the region's own security group, which has no others."""

    ingress: tuple[Rule, ...] = ()
    egress: tuple[Rule, ...] = ()


# Where nothing is filtered, the groups say what works: this machine may log in, and instances reach each other.
OPEN = GroupRules((Rule(SSH, "127.0.0.0/8"), Rule(ALL, MEMBERS)), (Rule(ALL), Rule(ALL, MEMBERS)))


def range_of(ports: str, ssh_port: int) -> tuple[int, int] | None:
    """First and last port; None for all protocols. ValueError: neither a port nor a range."""
    if ports == ALL:
        return None
    first, _, last = (str(ssh_port) if ports == SSH else ports).partition("-")
    return int(first), int(last or first)


def set_rules(backend: Any, group_id: str, rules: GroupRules, ssh_port: int) -> None:
    """Replaces a group's rules. backend: moto's of EC2."""
    group = backend.get_security_group_from_id(group_id)
    group.ingress_rules, group.egress_rules = [], []
    for authorize, listed in (
        (backend.authorize_security_group_ingress, rules.ingress),
        (backend.authorize_security_group_egress, rules.egress),
    ):
        for rule in listed:
            ports = range_of(rule.ports, ssh_port)
            first, last = ports or (None, None)
            protocol, members = "tcp" if ports else "-1", [{"GroupId": group_id}]
            if rule.cidr == MEMBERS:
                authorize(group_id, protocol, first, last, [], source_groups=members)
            else:
                authorize(group_id, protocol, first, last, [{"CidrIp": rule.cidr}])


def groups_of(instance: Any, default: Any) -> list[Any]:
    """The groups of an instance's interfaces; `default`, the VPC's default group, where it was launched with none."""
    groups = [*instance.security_groups, *(group for nic in instance.nics.values() for group in nic.group_set)]
    return list({group.id: group for group in groups}.values()) or [default]


def allows_ingress(groups: Iterable[Any], port: int, source: str) -> bool:
    """Whether a rule lets TCP from this address in to the port."""
    return _allows((rule for group in groups for rule in group.ingress_rules), port, source)


def allows_egress(groups: Sequence[Any], port: int, destination: str) -> bool:
    """Whether a rule lets TCP to a port of this address out."""
    return _allows((rule for group in groups for rule in group.egress_rules), port, destination)


def allows_members(groups: Sequence[Any]) -> bool:
    """Whether rules of these groups let all traffic of their own members in, and out to them or to anywhere."""
    ids = {group.id for group in groups}
    inward = any(rule.ip_protocol == "-1" and _is_of(rule, ids) for group in groups for rule in group.ingress_rules)
    outward = [rule for group in groups for rule in group.egress_rules if rule.ip_protocol == "-1"]
    return inward and any(_is_of(rule, ids) or (rule.ip_range or {}).get("CidrIp") == "0.0.0.0/0" for rule in outward)


def _is_of(rule: Any, ids: Container[str]) -> bool:
    """Whether a rule is for the members of one of these groups."""
    return str((rule.source_group or {}).get("GroupId")) in ids


def _allows(rules: Iterable[Any], port: int, address: str) -> bool:
    return any(_covers(rule, port) and _has_address(rule, address) for rule in rules)


def _covers(rule: Any, port: int) -> bool:
    if rule.ip_protocol == "-1":
        return True
    return bool(rule.ip_protocol == "tcp" and rule.from_port <= port <= rule.to_port)


def _has_address(rule: Any, address: str) -> bool:
    """A rule for the members of a group names no address: nobody outside is a member."""
    network = str((rule.ip_range or {}).get("CidrIp") or "")
    return network != "" and ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
