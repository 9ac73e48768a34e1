"""Which instances are meant, and which of them Systems Manager manages.

A managed node has a running SSM Agent and an instance profile with AmazonSSMManagedInstanceCore. Source: Systems
Manager API reference, InstanceInformation (PingStatus: Online, ConnectionLost, Inactive), read 2026-11-23.

When the newest log event of a machine was written, by GetLogEvents: DescribeLogStreams lags by up to an hour.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpu_ami.cloud import aws_errors, tags_of
from gpu_ami.errors import GpuAmiError, UsageError

if TYPE_CHECKING:
    from gpu_ami.cloud import Cloud


ONLINE = "Online"
_GROUP_TAG = "aws:autoscaling:groupName"  # EC2 Auto Scaling user guide, "Tag Auto Scaling groups and instances"
_IN_SERVICE = ["pending", "running", "stopping", "stopped"]
_AT_A_TIME = 50  # values of a filter of DescribeInstanceInformation


@dataclass(frozen=True)
class Selection:
    """Instances by their ids, or by every one of these tags (an Auto Scaling group is a tag)."""

    instance_ids: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(instance_ids: Sequence[str], tags: Sequence[str], group: str) -> Selection:
        """Of --instance-id, --tag KEY=VALUE and --auto-scaling-group. UsageError: nothing, both kinds, or no `=`."""
        pairs = [text.partition("=") for text in tags]
        if wrong := [text for text, pair in zip(tags, pairs, strict=True) if not pair[0] or not pair[1]]:
            raise UsageError(f"--tag: expected KEY=VALUE, got {wrong[0]!r}")
        chosen = {key: value for key, _, value in pairs} | ({_GROUP_TAG: group} if group else {})
        if bool(instance_ids) == bool(chosen):
            raise UsageError(
                "name the machines: --instance-id, or --tag and --auto-scaling-group",
                hint="gpu-ami fleet status --tag fleet=training",
            )
        return Selection(tuple(dict.fromkeys(instance_ids)), chosen)

    @property
    def targets(self) -> list[dict[str, Any]]:
        """As an association takes them."""
        return [{"Key": f"tag:{key}", "Values": [value]} for key, value in self.tags.items()]


@dataclass(frozen=True)
class FleetMachine:
    """One instance. ping: its PingStatus, "" where Systems Manager does not manage it. address: by ssh_interface."""

    instance_id: str
    instance_type: str
    state: str
    name: str = ""
    ping: str = ""
    addresses: Mapping[str, str] = field(default_factory=dict)

    @property
    def silence(self) -> str:
        """Why no command can reach it; "" where one can."""
        if self.state != "running":
            return f"the instance is {self.state}"
        if not self.ping:
            return (
                "Systems Manager does not manage it: the SSM Agent does not run or cannot reach its endpoints, or the"
                " instance profile lacks AmazonSSMManagedInstanceCore"
            )
        return "" if self.ping == ONLINE else f"its SSM Agent is silent (PingStatus {self.ping})"


_ADDRESSES = {
    "public_ip": "PublicIpAddress", "private_ip": "PrivateIpAddress", "public_dns": "PublicDnsName",
    "private_dns": "PrivateDnsName", "session_manager": "PrivateIpAddress",
}  # fmt: skip


def find(cloud: Cloud, selection: Selection) -> list[FleetMachine]:
    """The instances that are meant, by id. CloudError: an id is unknown. UsageError: the tags select none."""
    rows = _instances(cloud, selection)
    pings = _pings(cloud, [str(row["InstanceId"]) for row in rows])
    found = [_machine(row, pings) for row in rows]
    if not found:
        chosen = ", ".join(f"{key}={value}" for key, value in selection.tags.items())
        raise UsageError(f"no instance in {cloud.place.region} has {chosen or 'one of these ids'}")
    return sorted(found, key=lambda machine: machine.instance_id)


def _instances(cloud: Cloud, selection: Selection) -> list[Any]:
    filters: list[Any] = [{"Name": f"tag:{key}", "Values": [value]} for key, value in selection.tags.items()]
    filters += [{"Name": "instance-state-name", "Values": _IN_SERVICE}]
    asked: dict[str, Any] = {"InstanceIds": list(selection.instance_ids)} if selection.instance_ids else {}
    with aws_errors.translated("listing the machines"):
        pages = cloud.ec2.get_paginator("describe_instances").paginate(Filters=filters, **asked)
        return [row for page in pages for each in page["Reservations"] for row in each.get("Instances", [])]


def _machine(row: Any, pings: Mapping[str, str]) -> FleetMachine:
    addresses = {kind: str(row.get(key) or "") for kind, key in _ADDRESSES.items()}
    name = str(row["InstanceId"])
    of_tag = tags_of(row).get("Name", "")
    return FleetMachine(name, row["InstanceType"], row["State"]["Name"], of_tag, pings.get(name, ""), addresses)


def _pings(cloud: Cloud, instance_ids: Sequence[str]) -> dict[str, str]:
    """PingStatus of the managed nodes among these instances."""
    pages = cloud.client("ssm").get_paginator("describe_instance_information")
    found: dict[str, str] = {}
    for start in range(0, len(instance_ids), _AT_A_TIME):
        named = [{"Key": "InstanceIds", "Values": list(instance_ids[start : start + _AT_A_TIME])}]
        with aws_errors.translated("asking Systems Manager which machines it manages"):
            rows = [row for page in pages.paginate(Filters=named) for row in page["InstanceInformationList"]]
            found |= {row["InstanceId"]: row["PingStatus"] for row in rows}
    return found


_LOOK_BACK_SECONDS = 24 * 3600.0


def newest_event(cloud: Cloud, group: str, stream: str) -> float | None:
    """Seconds since 1970; None where the stream has no event of the last day, or is not there. CloudError."""
    since = int((time.time() - _LOOK_BACK_SECONDS) * 1000)
    try:
        with aws_errors.translated(f"reading log group {group}, stream {stream}"):
            answer = cloud.client("logs").get_log_events(
                logGroupName=group, logStreamName=stream, startTime=since, startFromHead=False, limit=10
            )
            return max((event["timestamp"] / 1000 for event in answer["events"]), default=None)
    except GpuAmiError as error:
        if error.code != "ResourceNotFoundException":
            raise
        return None
