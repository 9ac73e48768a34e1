"""AWS Systems Manager: the machines in service that it manages, its documents, and one command on many machines.

A managed node has a running SSM Agent and an instance profile with AmazonSSMManagedInstanceCore. A command is sent to
50 machines at a time and followed to its end on each. What became of it is a machine's own (Success, Failed, TimedOut),
or says that it never began (Undeliverable, Cancelled after too many errors, Silent where no command was sent). A call
that AWS refuses is a CloudError and says nothing about a machine; a throttled look is repeated. Sources: Systems
Manager API reference, InstanceInformation (PingStatus: Online, ConnectionLost, Inactive), SendCommand (at most 50
instance ids) and CommandInvocation; user guide, "Understanding command statuses"; read 2026-11-23.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_ami.cloud import aws_errors
from gpu_ami.cloud.client import Cloud, tags_of
from gpu_ami.errors import CloudError, GpuAmiError, UsageError

ONLINE = "Online"
_GROUP_TAG = "aws:autoscaling:groupName"  # EC2 Auto Scaling user guide, "Tag Auto Scaling groups and instances"
_IN_SERVICE = ["pending", "running", "stopping", "stopped"]
_FILTERED_AT_A_TIME = 50  # values of a filter of DescribeInstanceInformation


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
        rows = [row for page in pages for each in page["Reservations"] for row in each.get("Instances", [])]
        return list({str(row["InstanceId"]): row for row in rows}.values())  # pages may repeat one


def _machine(row: Any, pings: Mapping[str, str]) -> FleetMachine:
    addresses = {kind: str(row.get(key) or "") for kind, key in _ADDRESSES.items()}
    name = str(row["InstanceId"])
    of_tag = tags_of(row).get("Name", "")
    return FleetMachine(name, row["InstanceType"], row["State"]["Name"], of_tag, pings.get(name, ""), addresses)


def _pings(cloud: Cloud, instance_ids: Sequence[str]) -> dict[str, str]:
    """PingStatus of the managed nodes among these instances."""
    pages = cloud.client("ssm").get_paginator("describe_instance_information")
    found: dict[str, str] = {}
    for start in range(0, len(instance_ids), _FILTERED_AT_A_TIME):
        named = [{"Key": "InstanceIds", "Values": list(instance_ids[start : start + _FILTERED_AT_A_TIME])}]
        with aws_errors.translated("asking Systems Manager which machines it manages"):
            rows = [row for page in pages.paginate(Filters=named) for row in page["InstanceInformationList"]]
            found |= {row["InstanceId"]: row["PingStatus"] for row in rows}
    return found


_LOOK_BACK_SECONDS = 24 * 3600.0


def newest_event(cloud: Cloud, group: str, stream: str) -> float | None:
    """Seconds since 1970; None where the stream has no event of the last day, or is not there. CloudError."""
    # GetLogEvents, since DescribeLogStreams lags by up to an hour
    since = int((time.time() - _LOOK_BACK_SECONDS) * 1000)
    try:
        with aws_errors.translated(f"reading log group {group}, stream {stream}"):
            asked: dict[str, str] = {}
            while True:  # a page may be empty although an earlier one has events; the last one repeats the token
                answer = cloud.client("logs").get_log_events(
                    logGroupName=group, logStreamName=stream, startTime=since, startFromHead=False, limit=10, **asked
                )
                token = answer.get("nextBackwardToken", "")
                if answer["events"] or not token or token == asked.get("nextToken"):
                    return max((event["timestamp"] / 1000 for event in answer["events"]), default=None)
                asked = {"nextToken": token}
    except GpuAmiError as error:
        if error.code != "ResourceNotFoundException":
            raise
        return None


SUCCESS, FAILED, TIMED_OUT, CANCELLED = "Success", "Failed", "TimedOut", "Cancelled"
UNDELIVERABLE, SILENT = "Undeliverable", "Silent"
STATUSES = (SUCCESS, FAILED, TIMED_OUT, CANCELLED, UNDELIVERABLE, SILENT)
_TARGETS_AT_A_TIME = 50
_OVER = (SUCCESS, FAILED, TIMED_OUT, CANCELLED)
_POLL_SECONDS = 1.0
_LAST_LINES = 5
# Output of a plugin as ListCommandInvocations has it: so many characters at most, errors behind this line.
_LISTED_CHARACTERS, _ERRORS_FOLLOW = 2500, "----------ERROR-------"


@dataclass(frozen=True)
class Limits:
    """max_concurrency, max_errors: a number or a percentage. delivery_seconds: SendCommand's TimeoutSeconds."""

    max_concurrency: str = "50"
    max_errors: str = "0"
    delivery_seconds: int = 120


@dataclass(frozen=True)
class Outcome:
    """What became of a command on one machine. text: its output; for a failure what it said last, or what AWS says."""

    status: str
    text: str = ""
    code: int = 0

    @property
    def answer(self) -> dict[str, Any]:
        """The last line of output as JSON; empty where there is none."""
        lines = self.text.strip().splitlines()
        try:
            found = json.loads(lines[-1]) if lines and self.status == SUCCESS else {}
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


@dataclass
class Running:
    """A command that was sent, and the machines that are not done."""

    id: str
    pending: set[str]
    ends: float
    outcomes: dict[str, Outcome] = field(default_factory=dict)


def run(
    cloud: Cloud,
    machines: Sequence[FleetMachine],
    document: str,
    parameters: Mapping[str, str],
    limits: Limits = Limits(),
    *,
    on_update: Callable[[int, int], object] = lambda _done, _total: None,
    seconds: float = 1200.0,
) -> dict[str, Outcome]:
    """What became of a document on each machine, by instance id. on_update: how many are done, of how many."""
    outcomes = {each.instance_id: Outcome(SILENT, each.silence) for each in machines if each.silence}
    reachable = [each.instance_id for each in machines if not each.silence]
    for start in range(0, len(reachable), _TARGETS_AT_A_TIME):
        chunk = reachable[start : start + _TARGETS_AT_A_TIME]
        try:
            sent = _send(cloud, chunk, document, parameters, limits)
        except CloudError as error:
            if start:
                ran = f"{document} was carried out on {start} of {len(reachable)} machines before"
                error.details = (*error.details, f"{ran}; the same command again repeats it there")
            raise
        command = Running(sent, set(chunk), time.monotonic() + seconds)
        for done in _follow(cloud, command):
            on_update(len(outcomes) + done, len(machines))
        outcomes |= command.outcomes
    return outcomes


def _send(cloud: Cloud, instance_ids: list[str], document: str, parameters: Mapping[str, str], limits: Limits) -> str:
    with aws_errors.translated(f"sending {document} to {len(instance_ids)} machines"):
        answer = cloud.client("ssm").send_command(
            InstanceIds=instance_ids,
            DocumentName=document,
            Parameters={name: [value] for name, value in parameters.items()},
            TimeoutSeconds=limits.delivery_seconds,
            MaxConcurrency=limits.max_concurrency,
            MaxErrors=limits.max_errors,
        )
        return str(answer["Command"]["CommandId"])


def _follow(cloud: Cloud, command: Running) -> Iterator[int]:
    """Looks until every machine is done, or the time is over; how many are done after each look."""
    while command.pending:
        for row in invocations(cloud, command):
            name = row["InstanceId"]
            if row["Status"] in _OVER and name in command.pending:
                command.outcomes[name] = _outcome(cloud, command.id, row)
                command.pending.discard(name)
        yield len(command.outcomes)
        if command.pending and time.monotonic() > command.ends:
            late = Outcome(TIMED_OUT, "no result before the deadline")
            command.outcomes |= dict.fromkeys(command.pending, late)
            return
        if command.pending:
            time.sleep(_POLL_SECONDS)


def invocations(cloud: Cloud, command: Running) -> list[Any]:
    """The command's invocations; none where this look may succeed later and there is time for another."""
    try:
        with aws_errors.translated(f"reading the results of command {command.id}"):
            pages = cloud.client("ssm").get_paginator("list_command_invocations")
            return [
                row for page in pages.paginate(CommandId=command.id, Details=True) for row in page["CommandInvocations"]
            ]
    except CloudError as error:
        is_new = error.code == "InvalidCommandId"  # the server that was asked does not know it yet
        if not (aws_errors.may_pass(error) or is_new) or time.monotonic() > command.ends:
            raise
        return []


def _outcome(cloud: Cloud, command_id: str, row: Any) -> Outcome:
    """Output and errors of the plugin that failed, else of the last."""
    plugins = row.get("CommandPlugins", [])
    failed = next((each for each in plugins if each["Status"] != SUCCESS), plugins[-1] if plugins else None)
    details = str(row["StatusDetails"])
    if details == UNDELIVERABLE or failed is None or int(failed["ResponseCode"]) == -1:
        return Outcome(UNDELIVERABLE if details == UNDELIVERABLE else str(row["Status"]), details, -1)
    listed = str(failed.get("Output", ""))
    if row["Status"] == SUCCESS and len(listed) < _LISTED_CHARACTERS and _ERRORS_FOLLOW not in listed:
        return Outcome(SUCCESS, listed, int(failed["ResponseCode"]))  # all of it: one call a machine less
    code, out, err = cloud.persistent(lambda: _result(cloud, command_id, row["InstanceId"], failed["Name"]))
    if row["Status"] == SUCCESS:
        return Outcome(SUCCESS, out, code)
    said = "\n".join((err or out).strip().splitlines()[-_LAST_LINES:])
    return Outcome(str(row["Status"]), said or details, code)


def _result(cloud: Cloud, command_id: str, instance_id: str, plugin: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a plugin."""
    with aws_errors.translated(f"reading the result of command {command_id}"):
        result = cloud.client("ssm").get_command_invocation(
            CommandId=command_id, InstanceId=instance_id, PluginName=plugin
        )
        return int(result["ResponseCode"]), result["StandardOutputContent"], result["StandardErrorContent"]


_STANDARD_BYTES, _ADVANCED_BYTES = 4096, 8192
_ACTIVE_SECONDS, _DOCUMENTS_POLL_SECONDS = 60.0, 0.5
_ABSENT = ("InvalidDocument", "ParameterNotFound", "AssociationDoesNotExist")


def ensure_document(cloud: Cloud, name: str, content: Mapping[str, Any]) -> None:
    """Makes a Command document, or makes this content its default version."""
    ssm, text = cloud.client("ssm"), json.dumps(content, indent=1)
    try:
        with aws_errors.translated(f"creating document {name}"):
            ssm.create_document(
                Name=name, Content=text, DocumentType="Command", DocumentFormat="JSON", TargetType="/AWS::EC2::Instance"
            )
    except GpuAmiError as error:
        if error.code != "DocumentAlreadyExists":
            raise
        _update(cloud, name, text)
    _wait_until_active(cloud, name)


def has_document(cloud: Cloud, name: str) -> bool:
    """Whether there is a document of this name; nothing is made or changed."""
    try:
        with aws_errors.translated(f"reading document {name}"):
            cloud.client("ssm").describe_document(Name=name)
    except GpuAmiError as error:
        if error.code not in _ABSENT:
            raise
        return False
    return True


def _update(cloud: Cloud, name: str, text: str) -> None:
    ssm = cloud.client("ssm")
    try:
        with aws_errors.translated(f"updating document {name}"):
            answer = ssm.update_document(Name=name, Content=text, DocumentFormat="JSON", DocumentVersion="$LATEST")
            version = answer["DocumentDescription"]["DocumentVersion"]
            ssm.update_document_default_version(Name=name, DocumentVersion=version)
    except GpuAmiError as error:
        if error.code != "DuplicateDocumentContent":  # it is as it should be
            raise


def _wait_until_active(cloud: Cloud, name: str) -> None:
    deadline = time.monotonic() + _ACTIVE_SECONDS
    while True:
        status = _document_status(cloud, name)
        if status == "Active":
            return
        if status == "Failed" or time.monotonic() > deadline:
            raise CloudError(f"document {name}: expected Active, got {status}")
        time.sleep(_DOCUMENTS_POLL_SECONDS)


def _document_status(cloud: Cloud, name: str) -> str:
    """Status of a document that was made; `Creating` where the server that was asked does not know it yet."""
    try:
        with aws_errors.translated(f"reading document {name}"):
            return str(cloud.client("ssm").describe_document(Name=name)["Document"]["Status"])
    except GpuAmiError as error:
        if error.code not in _ABSENT:
            raise
        return "Creating"


def ensure_parameter(cloud: Cloud, name: str, value: str) -> None:
    """Writes a parameter; an Advanced one (charged) where it is too long for a Standard one. CloudError: for both."""
    size = len(value.encode())
    if size > _ADVANCED_BYTES:
        raise CloudError(f"parameter {name}: {size} bytes, at most {_ADVANCED_BYTES}")
    tier = "Standard" if size <= _STANDARD_BYTES else "Advanced"

    def write() -> None:
        with aws_errors.translated(f"writing parameter {name}"):
            cloud.client("ssm").put_parameter(Name=name, Value=value, Type="String", Overwrite=True, Tier=tier)

    cloud.persistent(write)


def ensure_association(
    cloud: Cloud, name: str, document: str, targets: Sequence[Mapping[str, Any]], limits: Limits
) -> str:
    """The association of this name, made anew with these targets; its id.

    State Manager runs it at once on every machine that has the tags already, and without limits on all of them at the
    same time (CreateAssociation: MaxConcurrency defaults to 100 %).
    """
    remove_associations(cloud, name)
    try:
        with aws_errors.translated(f"creating association {name}"):
            answer = cloud.client("ssm").create_association(
                Name=document, AssociationName=name, Targets=[dict(each) for each in targets],
                MaxConcurrency=limits.max_concurrency, MaxErrors=limits.max_errors,
            )  # fmt: skip
            return str(answer["AssociationDescription"]["AssociationId"])
    except CloudError as error:
        made = _associations(cloud, name) if error.code == "AssociationAlreadyExists" else []
        if not made or not aws_errors.was_repeated(error):
            raise
        return made[0]  # of the first call, whose answer was lost


def remove_associations(cloud: Cloud, name: str) -> list[str]:
    """Ids of the associations of this name that were removed."""
    ids = _associations(cloud, name)
    for each in ids:
        delete = cloud.client("ssm").delete_association
        _unless_absent(f"deleting association {name}", delete, AssociationId=each)
    return ids


def _associations(cloud: Cloud, name: str) -> list[str]:
    """Ids of the associations of this name."""
    with aws_errors.translated(f"looking up association {name}"):
        filters = [{"key": "AssociationName", "value": name}]
        pages = cloud.client("ssm").get_paginator("list_associations").paginate(AssociationFilterList=filters)
        return [str(row["AssociationId"]) for page in pages for row in page["Associations"]]


def remove_documents(cloud: Cloud, names: Iterable[str]) -> list[str]:
    """The documents of these names that were there."""
    delete = cloud.client("ssm").delete_document
    return [name for name in names if _unless_absent(f"deleting document {name}", delete, Name=name)]


def remove_parameters(cloud: Cloud, names: Iterable[str]) -> list[str]:
    """The parameters of these names that were there."""
    delete = cloud.client("ssm").delete_parameter
    return [name for name in names if _unless_absent(f"deleting parameter {name}", delete, Name=name)]


def _unless_absent(action: str, call: Callable[..., object], **request: str) -> bool:
    """Whether there was something to be removed."""
    try:
        with aws_errors.translated(action):
            call(**request)
    except GpuAmiError as error:
        if error.code not in _ABSENT:
            raise
        return False
    return True
