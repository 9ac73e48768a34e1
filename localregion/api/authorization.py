"""Judges calls by the IAM policies of who makes them, as AWS does before a service sees the call.

The access key says who calls: an instance's (localregion/machines/metadata.py) or any other, which is the caller's.
moto's own enforcement knows no resources and no conditions, and answers with other codes than AWS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_ami.cloud import policies
from localregion.api import permissions
from localregion.api.conditions import Conditions, access_denied
from localregion.api.protocol import ErrorAnswer, ServiceCall
from localregion.backends import Ec2, instance_of_access_key


@dataclass(frozen=True)
class Identity:
    """Who calls: its ARN, as AWS names it in a refusal, and the statements of its policies."""

    arn: str
    statements: Sequence[policies.Statement]


@dataclass
class Authorization:
    """The policies of a region's identities. caller: whoever calls from outside; instance: by its profile."""

    ec2: Ec2
    caller: Sequence[policies.Statement]
    instance: Sequence[policies.Statement]

    @staticmethod
    def of(conditions: Conditions, ec2: Ec2) -> Authorization | None:
        """What the conditions enforce; None where they enforce no policies."""
        names = conditions.policies
        if names is None:
            return None
        caller = [statement for name in names.caller for statement in policies.read_policy(name)]
        return Authorization(ec2, caller, [row for name in names.instance for row in policies.read_policy(name)])

    def refusal(self, call: ServiceCall) -> ErrorAnswer | None:
        """The answer to a call that its caller may not make; None where it may."""
        identity = self.identity(call)
        for request in permissions.needed(call, self.ec2):
            if not policies.allows(identity.statements, request):
                return access_denied(call.protocol, _sentence(identity, request))
        return None

    def identity(self, call: ServiceCall) -> Identity:
        instance_id = instance_of_access_key(call.access_key)
        if instance_id is None:
            return Identity(f"arn:aws:iam::{self.ec2.account}:user/{permissions.USER}", self.caller)
        role = self.ec2.role_arn(self.ec2.profile).rpartition("/")[2]
        arn = f"arn:aws:sts::{self.ec2.account}:assumed-role/{role}/{instance_id}"
        return Identity(arn, self.instance)


def _sentence(identity: Identity, request: policies.Request) -> str:
    action, resource = request.action, f"on resource: {request.resource}"
    return (
        f"User: {identity.arn} is not authorized to perform: {action} {resource}"
        f" because no identity-based policy allows the {action} action"
    )
