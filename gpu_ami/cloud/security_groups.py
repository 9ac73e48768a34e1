"""Who may connect to an instance, by the rules of its security groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
