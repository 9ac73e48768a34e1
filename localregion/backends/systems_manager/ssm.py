"""The actions of Systems Manager that the region answers itself; moto answers those of parameters and documents.

`answer` takes the JSON of a call and returns that of its answer. The agents' own actions have the names of those of
AWS's agent (ssm:UpdateInstanceInformation, ec2messages:GetMessages, ec2messages:SendReply), so that the policy
AmazonSSMManagedInstanceCore allows them; the messages in them are the region's own.

State Manager associations: a document that runs on each managed node that the targets select, once.

AWS runs it when the association is made and on each node that appears later ("About targets and rate controls in State
Manager associations", read 2026-11-23). Schedules are not kept: nothing here runs twice on a node.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localregion.backends import REGION, Ec2, Refused, calling_instance
from localregion.backends.systems_manager import documents
from localregion.backends.systems_manager.commands import SILENT_SECONDS, Command, Invocation, Nodes, PluginResult


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
