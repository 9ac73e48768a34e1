"""One command on many machines: sent to 50 at a time, and followed to its end on each.

What became of it is a machine's own (Success, Failed, TimedOut), or says that it never began (Undeliverable, Cancelled
after too many errors, Silent where no command was sent). A call that AWS refuses is a CloudError and says nothing about
a machine; a throttled look is repeated. Sources: Systems Manager API reference, SendCommand (at most 50 instance ids)
and CommandInvocation; user guide, "Understanding command statuses"; read 2026-11-23.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpu_ami.cloud import aws_errors
from gpu_ami.errors import CloudError, GpuAmiError

if TYPE_CHECKING:
    from gpu_ami.cloud import Cloud
    from gpu_ami.cloud.fleet.machines import FleetMachine

SUCCESS, FAILED, TIMED_OUT, CANCELLED = "Success", "Failed", "TimedOut", "Cancelled"
UNDELIVERABLE, SILENT = "Undeliverable", "Silent"
STATUSES = (SUCCESS, FAILED, TIMED_OUT, CANCELLED, UNDELIVERABLE, SILENT)
_AT_A_TIME = 50
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
    for start in range(0, len(reachable), _AT_A_TIME):
        chunk = reachable[start : start + _AT_A_TIME]
        command = Running(_send(cloud, chunk, document, parameters, limits), set(chunk), time.monotonic() + seconds)
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
        for row in _invocations(cloud, command):
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


def _invocations(cloud: Cloud, command: Running) -> list[Any]:
    """The command's invocations; none where this look may succeed later and there is time for another."""
    try:
        with aws_errors.translated(f"reading the results of command {command.id}"):
            pages = cloud.client("ssm").get_paginator("list_command_invocations")
            return [
                row for page in pages.paginate(CommandId=command.id, Details=True) for row in page["CommandInvocations"]
            ]
    except CloudError as error:
        if not aws_errors.may_pass(error) or time.monotonic() > command.ends:
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
    with aws_errors.translated(f"reading the result of command {command_id}"):
        result = cloud.client("ssm").get_command_invocation(
            CommandId=command_id, InstanceId=row["InstanceId"], PluginName=failed["Name"]
        )
        code, out, err = int(result["ResponseCode"]), result["StandardOutputContent"], result["StandardErrorContent"]
    if row["Status"] == SUCCESS:
        return Outcome(SUCCESS, out, code)
    said = "\n".join((err or out).strip().splitlines()[-_LAST_LINES:])
    return Outcome(str(row["Status"]), said or details, code)


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
        with aws_errors.translated(f"reading document {name}"):
            status = cloud.client("ssm").describe_document(Name=name)["Document"]["Status"]
        if status == "Active":
            return
        if status == "Failed" or time.monotonic() > deadline:
            raise CloudError(f"document {name}: expected Active, got {status}")
        time.sleep(_DOCUMENTS_POLL_SECONDS)


def ensure_parameter(cloud: Cloud, name: str, value: str) -> None:
    """Writes a parameter; an Advanced one (charged) where it is too long for a Standard one. CloudError: for both."""
    size = len(value.encode())
    if size > _ADVANCED_BYTES:
        raise CloudError(f"parameter {name}: {size} bytes, at most {_ADVANCED_BYTES}")
    tier = "Standard" if size <= _STANDARD_BYTES else "Advanced"
    with aws_errors.translated(f"writing parameter {name}"):
        cloud.client("ssm").put_parameter(Name=name, Value=value, Type="String", Overwrite=True, Tier=tier)


def ensure_association(
    cloud: Cloud, name: str, document: str, targets: Sequence[Mapping[str, Any]], limits: Limits
) -> str:
    """The association of this name, made anew with these targets; its id.

    State Manager runs it at once on every machine that has the tags already, and without limits on all of them at the
    same time (CreateAssociation: MaxConcurrency defaults to 100 %).
    """
    remove_associations(cloud, name)
    with aws_errors.translated(f"creating association {name}"):
        answer = cloud.client("ssm").create_association(
            Name=document, AssociationName=name, Targets=[dict(each) for each in targets],
            MaxConcurrency=limits.max_concurrency, MaxErrors=limits.max_errors,
        )  # fmt: skip
        return str(answer["AssociationDescription"]["AssociationId"])


def remove_associations(cloud: Cloud, name: str) -> list[str]:
    """Ids of the associations of this name that were removed."""
    ssm = cloud.client("ssm")
    with aws_errors.translated(f"looking up association {name}"):
        filters = [{"key": "AssociationName", "value": name}]
        pages = ssm.get_paginator("list_associations").paginate(AssociationFilterList=filters)
        ids = [str(row["AssociationId"]) for page in pages for row in page["Associations"]]
    for each in ids:
        _unless_absent(f"deleting association {name}", ssm.delete_association, AssociationId=each)
    return ids


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
