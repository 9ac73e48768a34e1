"""Who may connect to an instance, and which instances to each other, by the rules of their security groups."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import IpPermissionOutputTypeDef, SecurityGroupTypeDef


def covers(rule: IpPermissionOutputTypeDef, port: int) -> bool:
    """Whether an IpPermission is for TCP and this port; IpProtocol -1 is all protocols and all ports."""
    if rule["IpProtocol"] == "-1":
        return True
    return rule["IpProtocol"] in ("tcp", "6") and rule.get("FromPort", 0) <= port <= rule.get("ToPort", 65535)


@dataclass(frozen=True)
class Ingress:
    """Who may connect to a TCP port of an instance with these groups: networks, prefix lists, members of groups."""

    groups: tuple[str, ...]
    port: int
    ranges: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    members: tuple[str, ...] = ()

    @staticmethod
    def of(groups: Sequence[SecurityGroupTypeDef], port: int) -> Ingress:
        """groups: as DescribeSecurityGroups has them."""
        rules = [rule for group in groups for rule in group["IpPermissions"] if covers(rule, port)]
        ranges = [item["CidrIp"] for rule in rules for item in rule.get("IpRanges", [])]
        ranges += [item["CidrIpv6"] for rule in rules for item in rule.get("Ipv6Ranges", [])]
        lists = [str(item["PrefixListId"]) for rule in rules for item in rule.get("PrefixListIds", [])]
        members = [pair.get("GroupId", "?") for rule in rules for pair in rule.get("UserIdGroupPairs", [])]
        return Ingress(tuple(group["GroupId"] for group in groups), port, *map(_unique, (ranges, lists, members)))

    @property
    def names(self) -> str:
        return ", ".join(self.groups)

    @property
    def is_closed(self) -> bool:
        """Nobody may connect, as far as groups are known."""
        return bool(self.groups) and not (self.ranges or self.lists or self.members)

    @property
    def remedy(self) -> str:
        groups = self.names or "its security groups"
        return f"allow TCP {self.port} from this machine's address in one of {groups}"

    def __str__(self) -> str:
        if not self.groups:
            return "its security groups are not known"
        if self.is_closed:
            return f"security group {self.names}: no rule lets TCP {self.port} in"
        sources = [*self.ranges, *self.lists, *(f"members of {group}" for group in self.members)]
        return f"security group {self.names}: TCP {self.port} is allowed from {', '.join(sources)}"


def may_reach(senders: Sequence[SecurityGroupTypeDef], receivers: Sequence[SecurityGroupTypeDef], port: int) -> bool:
    """Whether rules may let members of some groups reach a TCP port of members of others.

    A network or a prefix list in a rule is taken to be theirs: their addresses are not known.
    """
    outward = [rule for group in senders for rule in group["IpPermissionsEgress"]]
    inward = [rule for group in receivers for rule in group["IpPermissions"]]
    ways = ((outward, {group["GroupId"] for group in receivers}), (inward, {group["GroupId"] for group in senders}))
    return all(any(covers(rule, port) and _may_be_for(rule, ids) for rule in rules) for rules, ids in ways)


def _may_be_for(rule: IpPermissionOutputTypeDef, ids: Container[str]) -> bool:
    members = any(pair.get("GroupId", "") in ids for pair in rule.get("UserIdGroupPairs", []))
    return members or bool(rule.get("IpRanges") or rule.get("Ipv6Ranges") or rule.get("PrefixListIds"))


def own_traffic(groups: Sequence[SecurityGroupTypeDef], *, efa: bool) -> list[str]:
    """The directions in which members of these groups may not send everything to each other: `in`, `out`.

    efa: a rule for all addresses is not enough, as EFA's traffic has none: "a security group that allows all inbound
    and outbound traffic to and from the security group itself" (EC2 user guide, "Get started with EFA", 2026-11-25).
    """
    ids = {group["GroupId"] for group in groups}
    inward = [rule for group in groups for rule in group["IpPermissions"]]
    outward = [rule for group in groups for rule in group["IpPermissionsEgress"]]
    return [
        name
        for name, rules in (("in", inward), ("out", outward))
        if not any(_is_for_members(rule, ids, anywhere=not efa) for rule in rules)
    ]


def _is_for_members(rule: IpPermissionOutputTypeDef, ids: Container[str], *, anywhere: bool) -> bool:
    if rule["IpProtocol"] != "-1":
        return False
    members = any(pair.get("GroupId", "") in ids for pair in rule.get("UserIdGroupPairs", []))
    return members or (anywhere and any(row["CidrIp"] == "0.0.0.0/0" for row in rule.get("IpRanges", [])))


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
