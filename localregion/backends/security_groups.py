"""Which connections an instance's security groups allow. moto keeps groups and rules, and judges nothing."""

from __future__ import annotations

import ipaddress
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

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
