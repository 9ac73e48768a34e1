"""The actions of Systems Manager that the region answers itself; moto answers those of parameters and documents.

`answer` takes the JSON of a call and returns that of its answer. The agents' own actions have the names of those of
AWS's agent (ssm:UpdateInstanceInformation, ec2messages:GetMessages, ec2messages:SendReply), so that the policy
AmazonSSMManagedInstanceCore allows them; the messages in them are the region's own.

State Manager associations: a document that runs on each managed node that the targets select, once.

AWS runs it when the association is made and on each node that appears later ("About targets and rate controls in State
Manager associations", read 2026-11-23). Schedules are not kept: nothing here runs twice on a node.

Commands and their invocations: at most `max_concurrency` at a time, none further after `max_errors`, deadlines.

States of an invocation and their details, as "Understanding command statuses" of the user guide has them:
Pending → InProgress → Success, Failed, TimedOut (Execution Timed Out); Pending → TimedOut (Delivery Timed Out),
Failed (Undeliverable), Cancelled (Terminated: the command exceeded its MaxErrors).

Managed nodes: instances whose agent has registered with the credentials of an instance profile.

An agent that is stopped is a lost connection after `silent_seconds` (on AWS after minutes); an instance without an
instance profile has no credentials, so its agent never registers, and it is no managed node.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from localregion.backends import REGION, Ec2, Refused, calling_instance
from localregion.backends.systems_manager import documents
from localregion.backends.systems_manager.documents import Step

PENDING, IN_PROGRESS, SUCCESS, FAILED = "Pending", "InProgress", "Success", "Failed"
TIMED_OUT, CANCELLED = "TimedOut", "Cancelled"
_OUTPUT_IN_LIST = 2500  # characters of CommandPlugin.Output; GetCommandInvocation has 24,000 and 8,000
_STDOUT, _STDERR = 24_000, 8_000
_ERRORS = (FAILED, TIMED_OUT)
SILENT_SECONDS = 30.0


@dataclass
class Association:
    """ran_on: the nodes on which it has been run."""

    document: str
    name: str
    targets: Sequence[Mapping[str, Any]]
    parameters: Mapping[str, Sequence[str]]
    created: float
    max_concurrency: str = "100%"  # CreateAssociation's defaults
    max_errors: str = "100%"
    ran_on: set[str] = field(default_factory=set)
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def describe(self) -> dict[str, Any]:
        """The fields that Association and AssociationDescription share."""
        return {
            "AssociationId": self.id, "AssociationName": self.name, "AssociationVersion": "1", "Name": self.document,
            "DocumentVersion": "$DEFAULT", "Targets": [dict(each) for each in self.targets],
            "Overview": {"Status": "Success" if self.ran_on else "Pending"},
        }  # fmt: skip

    def is_selected(self, filters: Sequence[Mapping[str, str]]) -> bool:
        """By the filters of ListAssociations."""
        fields = {"AssociationName": self.name, "Name": self.document, "AssociationId": self.id}
        return all(fields.get(each["key"]) == each["value"] for each in filters)


Body = Mapping[str, Any]
_PAGE = 50
_DELIVERY_SECONDS = 3600  # SendCommand's default TimeoutSeconds
_POLL_SECONDS = 5.0  # how long GetMessages waits for one


class SystemsManager:
    """Nodes, commands and associations of one region.

    packages: addresses of a Distributor package for an architecture, deb and rpm.
    """

    services = ("ssm", "ec2messages")  # names in the signatures of its calls

    def __init__(
        self,
        ec2: Ec2,
        clock: Callable[[], float] = time.time,
        silent_seconds: float = SILENT_SECONDS,
        poll_seconds: float = _POLL_SECONDS,
        packages: Callable[[str, str], Mapping[str, str]] = lambda *_: {},
    ) -> None:
        self._ec2, self._clock, self._poll, self._packages = ec2, clock, poll_seconds, packages
        self.nodes = Nodes(ec2, clock, silent_seconds)
        self.commands: dict[str, Command] = {}
        self.associations: dict[str, Association] = {}
        self._changed = threading.Condition()
        self._actions: Mapping[str, Callable[[Body], dict[str, Any]]] = {
            "ssm:DescribeInstanceInformation": self._describe_instance_information,
            "ssm:SendCommand": self._send_command,
            "ssm:ListCommands": self._list_commands,
            "ssm:ListCommandInvocations": self._list_command_invocations,
            "ssm:GetCommandInvocation": self._get_command_invocation,
            "ssm:CancelCommand": self._cancel_command,
            "ssm:CreateAssociation": self._create_association,
            "ssm:ListAssociations": self._list_associations,
            "ssm:DeleteAssociation": self._delete_association,
        }
        self._of_agents: Mapping[str, Callable[[str, Body], dict[str, Any]]] = {
            "ssm:UpdateInstanceInformation": self._update_instance_information,
            "ec2messages:GetMessages": self._get_messages,
            "ec2messages:SendReply": self._send_reply,
        }

    def answer(self, name: str, body: Body, access_key: str) -> dict[str, Any] | None:
        """The answer to `ssm:ACTION`; None for moto's actions. Refused."""
        if name in ("ssm:CreateDocument", "ssm:UpdateDocument"):
            documents.require_size(str(body.get("Content", "")))
        if of_agent := self._of_agents.get(name):
            return of_agent(calling_instance(name, access_key), body)
        action = self._actions.get(name)
        if action is None:
            return None
        with self._changed:
            self._advance()
            return action(body)

    def _advance(self) -> None:
        for command in self.commands.values():
            command.advance(self._clock(), self.nodes.is_running)

    # The caller's actions

    def _describe_instance_information(self, body: Body) -> dict[str, Any]:
        return _page(self.nodes.describe(body.get("Filters", [])), body, "InstanceInformationList")

    def _send_command(self, body: Body) -> dict[str, Any]:
        named = list(body.get("InstanceIds", []))
        if unknown := [name for name in named if not self.nodes.is_managed(name)]:
            raise Refused("InvalidInstanceId", f"Instances [[{', '.join(unknown)}]] not in a valid state for account")
        if len(named) > _PAGE:
            raise Refused("ValidationException", f"instanceIds: at most {_PAGE} items, got {len(named)}")
        chosen = named or self.nodes.matching(body.get("Targets", []))
        return {"Command": self._start(body, chosen).describe()}

    def _start(self, body: Body, instance_ids: list[str]) -> Command:
        name, parameters = str(body["DocumentName"]), body.get("Parameters", {})
        planned = documents.steps(self._document(name), parameters, self._document)
        invocations = {each: Invocation(each, planned) for each in instance_ids}
        command = Command(
            name, parameters, invocations, self._clock(), float(body.get("TimeoutSeconds", _DELIVERY_SECONDS)),
            str(body.get("MaxConcurrency", "50")), str(body.get("MaxErrors", "0")), str(body.get("Comment", "")),
        )  # fmt: skip
        self.commands[command.id] = command
        self._changed.notify_all()
        return command

    def _document(self, name: str) -> Mapping[str, Any]:
        """The default version of a document. Refused: there is none of that name."""
        from moto.ssm.models import ssm_backends

        if name in documents.AWS_DOCUMENTS:
            return documents.AWS_DOCUMENTS[name]
        kept = ssm_backends[self._ec2.account][REGION]._documents.get(name)
        if kept is None:
            raise Refused("InvalidDocument", f"Document {name} does not exist.")
        content: Mapping[str, Any] = kept.get_default_version().content_json
        return content

    def _list_commands(self, body: Body) -> dict[str, Any]:
        rows = [
            command.describe()
            for command in self.commands.values()
            if body.get("CommandId") in (None, command.id)
            and (not body.get("InstanceId") or body["InstanceId"] in command.invocations)
        ]
        return _page(sorted(rows, key=lambda row: -row["RequestedDateTime"]), body, "Commands")

    def _list_command_invocations(self, body: Body) -> dict[str, Any]:
        rows = [
            command.list_entry(invocation, bool(body.get("Details")))
            for command in self.commands.values()
            if body.get("CommandId") in (None, command.id)
            for name, invocation in command.invocations.items()
            if body.get("InstanceId") in (None, name)
        ]
        return _page(sorted(rows, key=lambda row: -row["RequestedDateTime"]), body, "CommandInvocations")

    def _get_command_invocation(self, body: Body) -> dict[str, Any]:
        command = self.commands.get(str(body["CommandId"]))
        invocation = command.invocations.get(str(body["InstanceId"])) if command else None
        if command is None or invocation is None:
            raise Refused("InvocationDoesNotExist")
        wanted = body.get("PluginName")
        matching = [step for step in invocation.steps if wanted in (None, step.name)]
        if not matching or (wanted is None and len(matching) > 1):
            raise Refused("InvalidPluginName", "the document has several plugins, or none of that name")
        return command.result(invocation, matching[0])

    def _cancel_command(self, body: Body) -> dict[str, Any]:
        command = self.commands.get(str(body["CommandId"]))
        if command is None:
            raise Refused("InvalidCommandId")
        command.cancel(self._clock())
        return {}

    def _create_association(self, body: Body) -> dict[str, Any]:
        self._document(str(body["Name"]))
        self.nodes.matching(body.get("Targets", []))  # refuses targets of another kind
        made = Association(
            str(body["Name"]), str(body.get("AssociationName", "")), body.get("Targets", []),
            body.get("Parameters", {}), self._clock(),
            str(body.get("MaxConcurrency", "100%")), str(body.get("MaxErrors", "100%")),
        )  # fmt: skip
        self.associations[made.id] = made
        self._run_associations()
        return {"AssociationDescription": {**made.describe(), "Date": made.created}}

    def _run_associations(self) -> None:
        for association in self.associations.values():
            fresh = [name for name in self.nodes.matching(association.targets) if name not in association.ran_on]
            if fresh:
                association.ran_on.update(fresh)
                limits = {"MaxConcurrency": association.max_concurrency, "MaxErrors": association.max_errors}
                request = {"DocumentName": association.document, "Parameters": association.parameters}
                self._start({**request, **limits}, fresh)

    def _list_associations(self, body: Body) -> dict[str, Any]:
        filters = body.get("AssociationFilterList", [])
        rows = [each.describe() for each in self.associations.values() if each.is_selected(filters)]
        return _page(rows, body, "Associations")

    def _delete_association(self, body: Body) -> dict[str, Any]:
        if self.associations.pop(str(body.get("AssociationId", "")), None) is None:
            raise Refused("AssociationDoesNotExist")
        return {}

    # The agents' actions

    def _update_instance_information(self, instance_id: str, body: Body) -> dict[str, Any]:
        description = {key: str(body[key]) for key in _DESCRIBED if key in body}
        with self._changed:
            self.nodes.report(instance_id, description)
            self._run_associations()
        return {}

    def _get_messages(self, instance_id: str, _: Body) -> dict[str, Any]:
        """The next invocation of an agent; none after a while of waiting."""
        ends = time.monotonic() + self._poll
        with self._changed:
            while True:
                self.nodes.ping(instance_id)
                self._advance()
                if message := self._next(instance_id):
                    return {"Messages": [message]}
                left = ends - time.monotonic()
                if left <= 0:
                    return {"Messages": []}
                self._changed.wait(min(left, 1.0))

    def _next(self, instance_id: str) -> dict[str, Any] | None:
        for command in self.commands.values():
            if invocation := command.next_for(instance_id, self._clock()):
                steps = [self._message(step, instance_id) for step in invocation.steps]
                return {"MessageId": command.id, "Steps": steps}
        return None

    def _message(self, step: documents.Step, instance_id: str) -> dict[str, Any]:
        inputs = dict(step.inputs)
        if step.action == documents.CONFIGURE_PACKAGE:
            architecture = self._ec2.view(self._ec2.instance(instance_id)).architecture
            inputs["source"] = dict(self._packages(str(inputs["name"]), architecture))
        return {"name": step.name, "action": step.action, "inputs": inputs}

    def _send_reply(self, instance_id: str, body: Body) -> dict[str, Any]:
        command = self.commands.get(str(body.get("MessageId", "")))
        results = [
            PluginResult(row["name"], row["status"], int(row["code"]), row["stdout"], row["stderr"])
            for row in body.get("Results", [])
        ]
        with self._changed:
            if command is not None:
                command.take_reply(instance_id, results, self._clock())
            self._changed.notify_all()
        return {}


_DESCRIBED = ("AgentVersion", "PlatformType", "PlatformName", "PlatformVersion", "ComputerName")


def _page(rows: list[dict[str, Any]], body: Body, name: str) -> dict[str, Any]:
    """One page of a list; NextToken is where the next begins."""
    first = int(body.get("NextToken") or 0)
    end = first + int(body.get("MaxResults") or _PAGE)
    return {name: rows[first:end], **({"NextToken": str(end)} if end < len(rows) else {})}


@dataclass(frozen=True)
class PluginResult:
    """What became of one step: exit status, output, and Success, Failed or TimedOut."""

    name: str
    status: str
    code: int
    stdout: str = ""
    stderr: str = ""


@dataclass
class Invocation:
    """A command's copy for one node. Times are seconds since 1970; 0: not yet."""

    instance_id: str
    steps: Sequence[Step]
    status: str = PENDING
    details: str = PENDING
    started: float = 0.0
    ended: float = 0.0
    results: list[PluginResult] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.status not in (PENDING, IN_PROGRESS)

    @property
    def counts_as_error(self) -> bool:
        """Delivery timeouts and undeliverable invocations do not count."""
        return self.status in _ERRORS and self.details in ("Failed", "ExecutionTimedOut")

    def end(self, status: str, details: str, now: float) -> None:
        self.status, self.details, self.ended = status, details, now


@dataclass
class Command:
    """One SendCommand, or one run of an association."""

    document: str
    parameters: Mapping[str, Sequence[str]]
    invocations: dict[str, Invocation]
    requested: float
    timeout_seconds: float
    max_concurrency: str = "50"
    max_errors: str = "0"
    comment: str = ""
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def advance(self, now: float, is_running: Any) -> None:
        """Ends what has waited too long, or can be delivered to nobody, or comes after too many errors."""
        for invocation in self.invocations.values():
            if invocation.status == PENDING:
                if not is_running(invocation.instance_id):
                    invocation.end(FAILED, "Undeliverable", now)
                elif now - self.requested > self.timeout_seconds:
                    invocation.end(TIMED_OUT, "DeliveryTimedOut", now)
            elif invocation.status == IN_PROGRESS:
                allowed = sum(step.timeout_seconds for step in invocation.steps) + self.timeout_seconds
                if now - invocation.started > allowed:
                    invocation.end(TIMED_OUT, "ExecutionTimedOut", now)
        if self._errors() > limit(self.max_errors, len(self.invocations)):
            for invocation in self.invocations.values():
                if invocation.status == PENDING:
                    invocation.end(CANCELLED, "Terminated", now)

    def _errors(self) -> int:
        return sum(invocation.counts_as_error for invocation in self.invocations.values())

    def next_for(self, instance_id: str, now: float) -> Invocation | None:
        """The invocation that a node may begin now."""
        invocation = self.invocations.get(instance_id)
        if invocation is None or invocation.status != PENDING:
            return None
        running = sum(each.status == IN_PROGRESS for each in self.invocations.values())
        if running >= max(1, limit(self.max_concurrency, len(self.invocations))):
            return None
        invocation.status = invocation.details = IN_PROGRESS
        invocation.started = now
        return invocation

    def take_reply(self, instance_id: str, results: Iterable[PluginResult], now: float) -> None:
        """What the agent says of an invocation; one that has ended meanwhile stays as it is."""
        invocation = self.invocations.get(instance_id)
        if invocation is None or invocation.status != IN_PROGRESS:
            return
        invocation.results = list(results)
        worst = next((each.status for each in invocation.results if each.status != SUCCESS), SUCCESS)
        invocation.end(worst, "ExecutionTimedOut" if worst == TIMED_OUT else worst, now)

    def cancel(self, now: float) -> None:
        for invocation in self.invocations.values():
            if not invocation.is_over:
                invocation.end(CANCELLED, CANCELLED, now)

    @property
    def status(self) -> tuple[str, str]:
        """Status and details of the whole command."""
        states = {invocation.status for invocation in self.invocations.values()}
        if states & {PENDING, IN_PROGRESS}:
            return IN_PROGRESS, IN_PROGRESS
        if states <= {SUCCESS}:
            return SUCCESS, SUCCESS
        if states == {CANCELLED}:
            return CANCELLED, CANCELLED
        failed = self._errors() > limit(self.max_errors, len(self.invocations))
        return FAILED, FAILED if failed else "Incomplete"

    def describe(self) -> dict[str, Any]:
        """As SendCommand and ListCommands return it."""
        status, details = self.status
        over = [each for each in self.invocations.values() if each.is_over]
        return {
            "CommandId": self.id, "DocumentName": self.document, "Comment": self.comment,
            "ExpiresAfter": self.requested + self.timeout_seconds, "Parameters": dict(self.parameters),
            "InstanceIds": sorted(self.invocations), "RequestedDateTime": self.requested,
            "Status": status, "StatusDetails": details, "MaxConcurrency": self.max_concurrency,
            "MaxErrors": self.max_errors, "TargetCount": len(self.invocations), "CompletedCount": len(over),
            "ErrorCount": sum(each.status in _ERRORS for each in over),
            "DeliveryTimedOutCount": sum(each.details == "DeliveryTimedOut" for each in over),
            "TimeoutSeconds": int(self.timeout_seconds),
        }  # fmt: skip

    def list_entry(self, invocation: Invocation, details: bool) -> dict[str, Any]:
        """As ListCommandInvocations lists it."""
        row = {
            "CommandId": self.id, "InstanceId": invocation.instance_id, "Comment": self.comment,
            "DocumentName": self.document, "DocumentVersion": "$DEFAULT", "RequestedDateTime": self.requested,
            "Status": invocation.status, "StatusDetails": invocation.details,
        }  # fmt: skip
        return row | {"CommandPlugins": [_plugin(invocation, step) for step in invocation.steps] if details else []}

    def result(self, invocation: Invocation, step: Step) -> dict[str, Any]:
        """As GetCommandInvocation returns it."""
        found = _result(invocation, step)
        times = {
            "ExecutionStartDateTime": _iso(invocation.started),
            "ExecutionEndDateTime": _iso(invocation.ended),
            "ExecutionElapsedTime": f"PT{invocation.ended - invocation.started:.3f}S" if invocation.ended else "",
        }
        return {
            "CommandId": self.id, "InstanceId": invocation.instance_id, "Comment": self.comment,
            "DocumentName": self.document, "DocumentVersion": "$DEFAULT", "PluginName": step.name,
            "ResponseCode": found.code, "Status": found.status, "StatusDetails": invocation.details,
            "StandardOutputContent": found.stdout[:_STDOUT], "StandardErrorContent": found.stderr[:_STDERR],
            **times,
        }  # fmt: skip


def limit(text: str, targets: int) -> int:
    """A number, or a percentage of the targets: `10`, `25%`."""
    return math.floor(targets * int(text[:-1]) / 100) if text.endswith("%") else int(text)


def _result(invocation: Invocation, step: Step) -> PluginResult:
    """Of a step without a result, as it is before it ends and where it was never delivered: code -1."""
    for result in invocation.results:
        if result.name == step.name:
            return result
    return PluginResult(step.name, invocation.status, -1)


def _plugin(invocation: Invocation, step: Step) -> dict[str, Any]:
    found = _result(invocation, step)
    output = found.stdout + (f"\n----------ERROR-------\n{found.stderr}" if found.stderr else "")
    row = {"Name": step.name, "Status": found.status, "StatusDetails": found.status, "ResponseCode": found.code}
    row |= {"Output": output[:_OUTPUT_IN_LIST]}
    times = {"ResponseStartDateTime": invocation.started, "ResponseFinishDateTime": invocation.ended}
    return row | {name: value for name, value in times.items() if value}


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") if seconds else ""


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
