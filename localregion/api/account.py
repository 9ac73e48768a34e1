"""The account's settings, which moto has not: answers the calls that read them, and refuses what they forbid.

Sources, read 2026-11-28: EC2 API reference (GetEbsDefaultKmsKeyId, GetImageBlockPublicAccessState,
GetInstanceMetadataDefaults); EC2 user guide, "Service-linked role for EC2 Spot Instances" and "Block public access to
your AMIs"; wording of the refused sharing: hortonworks/cloudbreak-images#926, of a service control policy: IAM user
guide, "Troubleshoot access denied error messages".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment
from xml.sax.saxutils import escape

from gpu_ami.cloud import policies
from localregion.api.protocol import ErrorAnswer, ServiceCall, read_service_call, send, unpack

if TYPE_CHECKING:
    from localregion.api.permissions import Authorization
    from localregion.backends import Ec2

AWS_EBS = "alias/aws/ebs"
_XML = [("Content-Type", "text/xml")]
_SPOT_PATH, _SPOT_ROLE = "/aws-service-role/spot.amazonaws.com/", "AWSServiceRoleForEC2Spot"
SSO_PATH = "/aws-reserved/sso.amazonaws.com/us-east-1/"
_ASSUMED = re.compile(r"arn:aws:sts::\d{12}:assumed-role/(?P<role>[^/]+)/.+")
_NO_SPOT_ROLE = ErrorAnswer(
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
    "The provided credentials do not have permission to create the service-linked role for EC2 Spot Instances.",
    403,
)
_NOT_PUBLIC = ErrorAnswer(
    "OperationNotPermitted",
    "You can\u2019t publicly share this image because block public access for AMIs is enabled for this account."
    " To publicly share the image, you must call the DisableImageBlockPublicAccess API.",
    400,
)


@dataclass(frozen=True)
class AccountSettings:
    """What a conditions file says of the account; without one, what most accounts have.

    caller: ARN of GetCallerIdentity; "" for moto's. ebs_key: of a customer, as the default for EBS, with encryption by
    default: `enabled`, `disabled` (the key); "" for aws/ebs without. demands_imds_v2: a service control policy refuses
    launches without. has_spot_role: else a caller without iam:CreateServiceLinkedRole launches no Spot Instance.
    images_may_be_public: block public access for AMIs is off.
    """

    caller: str = ""
    ebs_key: str = ""
    demands_imds_v2: bool = False
    has_spot_role: bool = True
    images_may_be_public: bool = False


class AccountLayer:
    """WSGI application: answers and refuses by the settings, else passes the call on to `app`.

    judge: what the policy simulator answers by; None: everything is allowed.
    """

    def __init__(
        self, app: WSGIApplication, settings: AccountSettings, ec2: Ec2, judge: Authorization | None = None
    ) -> None:
        self._app, self._settings, self._ec2, self._judge = app, settings, ec2, judge
        self._images_may_be_public = settings.images_may_be_public
        ec2.ebs_default_key = ec2.make_key(settings.ebs_key) if settings.ebs_key else ""
        if settings.has_spot_role:
            ec2.make_role(_SPOT_ROLE, _SPOT_PATH, _trust("spot"))
        if caller := _ASSUMED.fullmatch(settings.caller):
            ec2.make_role(caller["role"], SSO_PATH, _trust("sso"))

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        unpack(environ)
        call = read_service_call(environ)
        if call is None:
            return self._app(environ, start_response)
        if refusal := self.refusal(call):
            status, headers, refused = refusal.encode(call.protocol)
            return send(start_response, status, headers, refused)
        answer = self.answer(call)
        if answer is None:
            return self._app(environ, start_response)
        return send(start_response, "200 OK", [*_XML], answer.encode())

    def refusal(self, call: ServiceCall) -> ErrorAnswer | None:
        """What the settings forbid. A dry run is refused as the call itself."""
        settings, parameters = self._settings, call.parameters
        if call.name == "ec2:RunInstances":
            if settings.demands_imds_v2 and parameters.get("MetadataOptions.HttpTokens") != "required":
                return ErrorAnswer("UnauthorizedOperation", _demanded(settings.caller, call.name), 403)
            is_spot = parameters.get("InstanceMarketOptions.MarketType") == "spot"
            if is_spot and not settings.has_spot_role:
                return _NO_SPOT_ROLE
        if call.name == "ec2:ModifyImageAttribute" and not self._images_may_be_public:
            added = [
                value for key, value in parameters.items() if re.fullmatch(r"LaunchPermission\.Add\.\d+\.Group", key)
            ]
            return _NOT_PUBLIC if "all" in added else None
        return None

    def answer(self, call: ServiceCall) -> str | None:
        """The XML of a call that reads the settings; None: another call."""
        if call.name == "sts:GetCallerIdentity" and self._settings.caller:
            return _identity(self._settings.caller, self._ec2.account)
        if call.name == "iam:SimulatePrincipalPolicy":
            return _query_answer(call.action, f"<EvaluationResults>{self._simulated(call)}</EvaluationResults>")
        settings = self._settings
        if call.action in ("DisableImageBlockPublicAccess", "EnableImageBlockPublicAccess"):
            self._images_may_be_public = call.action.startswith("Disable")
        public = {"imageBlockPublicAccessState": "unblocked" if self._images_may_be_public else "block-new-sharing"}
        answers: dict[str, Mapping[str, Any]] = {
            "GetEbsDefaultKmsKeyId": {"kmsKeyId": self._ec2.ebs_default_key or AWS_EBS},
            "GetEbsEncryptionByDefault": {"ebsEncryptionByDefault": str(bool(settings.ebs_key)).lower()},
            "GetImageBlockPublicAccessState": public,
            "DisableImageBlockPublicAccess": public,
            "EnableImageBlockPublicAccess": public,
            "DescribeCapacityReservations": {"capacityReservationSet": ""},  # of no names: the region has none
            "GetAllowedImagesSettings": {"state": "disabled"},
            "DescribeVpcBlockPublicAccessOptions": {"vpcBlockPublicAccessOptions": {"internetGatewayBlockMode": "off"}},
            "DescribeVpcBlockPublicAccessExclusions": {"vpcBlockPublicAccessExclusionSet": ""},
        }
        content = answers.get(call.action) if call.service == "ec2" else None
        if call.action == "DescribeCapacityReservations" and "CapacityReservationId.1" in call.parameters:
            return None  # the API refuses names of reservations
        if content is None:
            return None
        return f"<{call.action}Response><requestId>local</requestId>{_elements(content)}</{call.action}Response>"

    def _simulated(self, call: ServiceCall) -> str:
        """What the policy simulator answers for each action, on the first resource."""
        resource = next(iter(_members(call.parameters, "ResourceArns")), "*")
        keys = [match[1] for key in call.parameters if (match := _CONTEXT.fullmatch(key))]
        context = dict(_entry(call.parameters, prefix) for prefix in keys)
        rows = []
        for action in _members(call.parameters, "ActionNames"):
            request = policies.Request(action, resource, context)
            allowed = self._judge is None or policies.allows(self._judge.caller, request)
            if action == "iam:CreateServiceLinkedRole":
                allowed = self._settings.has_spot_role
            decision = "allowed" if allowed else "implicitDeny"
            rows.append(
                f"<member><EvalActionName>{action}</EvalActionName><EvalResourceName>{escape(resource)}"
                f"</EvalResourceName><EvalDecision>{decision}</EvalDecision></member>"
            )
        return "".join(rows)


_CONTEXT = re.compile(r"(ContextEntries\.member\.\d+)\.ContextKeyName")


def _entry(parameters: Mapping[str, str], prefix: str) -> tuple[str, str]:
    return parameters[f"{prefix}.ContextKeyName"], parameters.get(f"{prefix}.ContextKeyValues.member.1", "")


def _demanded(caller: str, action: str) -> str:
    user = caller or "arn:aws:iam::000000000000:user/gpu-ami-local"
    return (
        f"You are not authorized to perform this operation. User: {user} is not authorized to perform: {action} on "
        "resource: arn:aws:ec2:us-east-1:000000000000:instance/* with an explicit deny in a service control policy"
    )


def _elements(content: Mapping[str, Any]) -> str:
    return "".join(
        f"<{name}>{_elements(value) if isinstance(value, Mapping) else escape(str(value))}</{name}>"
        for name, value in content.items()
    )


def _identity(arn: str, account: str) -> str:
    row = f"<Arn>{escape(arn)}</Arn><UserId>AROAEXAMPLE:session</UserId><Account>{account}</Account>"
    return _query_answer("GetCallerIdentity", row)


def _query_answer(action: str, result: str) -> str:
    """An answer of the query protocol (STS, IAM)."""
    metadata = "<ResponseMetadata><RequestId>local</RequestId></ResponseMetadata>"
    return f"<{action}Response><{action}Result>{result}</{action}Result>{metadata}</{action}Response>"


def _members(parameters: Mapping[str, str], name: str) -> list[str]:
    """The texts of a list of the query protocol."""
    return [value for key, value in parameters.items() if re.fullmatch(rf"{name}\.member\.\d+", key)]


def _trust(service: str) -> str:
    """A role's trust policy for a service of AWS."""
    principal = {"Service": f"{service}.amazonaws.com"}
    statement = {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})
