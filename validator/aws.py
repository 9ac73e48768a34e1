"""AWS's errors, one row each, and answers that are checked as they are read: for the driver and for the checks.

A new error with advice is one row of ERRORS; exit codes, retries, hints of both sides and the table of docs/aws.md
(`python -m validator.aws docs/aws.md`) are derived from it. Codes are those of the EC2 API reference ("Error codes for
the Amazon EC2 API"), of the common errors of CloudWatch, Logs, SSM and STS, and of botocore's list of throttling codes
(botocore.retries.standard); read 2026-11-22 and 2026-11-27.
"""

from __future__ import annotations

import datetime
import re
import sys
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

Row = TypeVar("Row")


class Kind(StrEnum):
    """What a refusal says something about."""

    CAPACITY = "capacity"
    QUOTA = "quota"
    DENIED = "denied"
    EXPIRED = "expired"
    CREDENTIALS = "credentials"
    THROTTLED = "throttled"
    SERVER = "server"
    REQUEST = "request"


@dataclass(frozen=True)
class AwsError:
    """One error of AWS. code: as an API answers it or as EC2's StateReason has it (`Client.…`); "" for any code.

    advice: what to do, with {0} for the first group of `when`. when: pattern that the message must contain.
    """

    code: str
    kind: Kind
    advice: str
    when: str | None = None

    @property
    def retry(self) -> bool:
        """Whether the same call may succeed later."""
        return self.kind in (Kind.THROTTLED, Kind.SERVER)

    @property
    def exit_code(self) -> int:
        return 5 if self.kind in (Kind.CAPACITY, Kind.QUOTA) else 4

    def matches(self, code: str, message: str) -> re.Match[str] | None:
        return re.search(self.when or "", message) if self.code in ("", code) else None


CAPACITY_ADVICE = "try another Availability Zone, a capacity reservation or Capacity Block, or wait"
_QUOTA = "request a higher quota for this instance family (Service Quotas, Amazon EC2), or terminate what runs"
_STORAGE = "request a higher quota of volumes and snapshots (Service Quotas, Amazon EBS), or delete some"
_SPOT = "AWS took the Spot Instance back: add on-demand to its ways (capacity)"
_DENIED = (
    "the caller's policy lacks the action that the message names "
    "(`aws sts decode-authorization-message` decodes an encoded message)"
)
_RENEWAL = (
    "log in again (`aws sso login`, or new temporary keys), then run the same command again; "
    "a CI job needs a session as long as the run"
)
_EXPIRED = f"the credentials have expired: {_RENEWAL}"
_REGION = "; in an opt-in region also: is the region enabled for the account?"
_UNKNOWN_KEY = f"check the credentials: AWS does not know this access key{_REGION}"
_CLOCK = "the clock of this machine is wrong (`timedatectl` shows it): have it set by NTP, such as chrony"
_SIGNATURE = "check the secret access key and the clock of this machine"
_THROTTLED = "AWS limits the rate of this call for the account: wait, or run fewer machines at a time"
_CONCURRENT = "another change of the same resource is under way: try again"
_NOT_SUBSCRIBED = "the account is not subscribed to this service or AMI: accept its terms in AWS Marketplace"
_SERVER = "an error of AWS's own: try again; https://health.aws.amazon.com shows outages"
_KMS = "the KMS key is disabled, pending deletion, or not usable by the caller: kms_key_id of the --where file"
_IN_USE = "something else still uses it, such as a network interface, an instance or an AMI: end that, then sweep again"
_PARAMETER = "AWS names the parameter: compare it with the --where file"

ERRORS: tuple[AwsError, ...] = (
    # Of any code, by the message.
    AwsError(
        "",
        Kind.REQUEST,
        "the account or a service control policy demands IMDSv2 (ec2:MetadataHttpTokens): launch with http_tokens"
        " required. Debian's Packer 1.6.6 cannot: install Packer 1.7 or later (gpu-ami finds it on the PATH, or as"
        " $PACKER)",
        when="httpTokensEnforced|IMDSv1|ec2:MetadataHttpTokens",
    ),
    AwsError(
        "",
        Kind.DENIED,
        "a {0} denies it, whatever the caller's own policy allows: ask who administers the organization",
        when=r"explicit deny in (?:an? )?(service control policy|resource control policy|permissions boundary)",
    ),
    AwsError(
        "",
        Kind.CREDENTIALS,
        "the call went to an endpoint of another region: compare region and endpoint of the --where file, AWS_REGION"
        " and AWS_ENDPOINT_URL",
        when="Credential should be scoped to a valid region",
    ),
    AwsError(
        "",
        Kind.CREDENTIALS,
        _CLOCK,
        when="Signature expired|Signature not yet current|difference between the request time and the current time",
    ),
    AwsError("InsufficientInstanceCapacity", Kind.CAPACITY, CAPACITY_ADVICE),
    AwsError("InsufficientHostCapacity", Kind.CAPACITY, CAPACITY_ADVICE),
    AwsError("InsufficientReservedInstanceCapacity", Kind.CAPACITY, CAPACITY_ADVICE),
    AwsError("InsufficientCapacity", Kind.CAPACITY, CAPACITY_ADVICE),
    AwsError("ReservationCapacityExceeded", Kind.CAPACITY, CAPACITY_ADVICE),
    # Cancelled, expired, or a Capacity Block that has not begun.
    AwsError("InvalidCapacityReservationState", Kind.CAPACITY, CAPACITY_ADVICE),
    AwsError("SpotMaxPriceTooLow", Kind.CAPACITY, CAPACITY_ADVICE),
    AwsError("InsufficientVolumeCapacity", Kind.CAPACITY, CAPACITY_ADVICE),
    AwsError("InsufficientCapacityOnHost", Kind.CAPACITY, CAPACITY_ADVICE),
    AwsError("InsufficientAddressCapacity", Kind.CAPACITY, CAPACITY_ADVICE),
    AwsError("UnfulfillableCapacity", Kind.CAPACITY, CAPACITY_ADVICE),
    AwsError("SpotInstanceTermination", Kind.CAPACITY, _SPOT),
    AwsError("SpotInstanceShutdown", Kind.CAPACITY, _SPOT),
    AwsError(
        "InsufficientFreeAddressesInSubnet",
        Kind.CAPACITY,
        "the subnet has no free address: name further subnets in subnet_ids",
    ),
    # Either the zone has no such type, or the request asks for what the type cannot do.
    AwsError(
        "Unsupported",
        Kind.CAPACITY,
        "this zone does not offer the instance type: set subnet_id to a zone that AWS names",
        when="Availability Zone",
    ),
    AwsError("Unsupported", Kind.REQUEST, "the instance type does not support what the request asks for: AWS names it"),
    AwsError("InstanceLimitExceeded", Kind.QUOTA, _QUOTA),
    AwsError("VcpuLimitExceeded", Kind.QUOTA, _QUOTA),
    AwsError("MaxSpotInstanceCountExceeded", Kind.QUOTA, _QUOTA),
    AwsError("ResourceLimitExceeded", Kind.QUOTA, _QUOTA),
    # As a quota, so that the next way of the place is tried: an account that has never used Spot has no such role.
    AwsError(
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
        Kind.QUOTA,
        "the account has no service-linked role for Spot, and the caller may not create it: attach iam/caller-spot.json"
        ", or `aws iam create-service-linked-role --aws-service-name spot.amazonaws.com`",
    ),
    AwsError(
        "NetworkInterfaceLimitExceeded",
        Kind.QUOTA,
        "request a higher quota of network interfaces (Service Quotas, Amazon VPC), or delete unused ones",
    ),
    AwsError(
        "PlacementGroupLimitExceeded",
        Kind.QUOTA,
        "delete placement groups that nothing uses: the account may have 500 in a region",
    ),
    AwsError(
        "ImageLimitExceeded",
        Kind.QUOTA,
        "deregister AMIs (`gpu-ami sweep`, `publish` with keep), or request a higher quota (Service Quotas, EC2)",
    ),
    AwsError("VolumeLimitExceeded", Kind.QUOTA, _STORAGE),
    AwsError("SnapshotLimitExceeded", Kind.QUOTA, _STORAGE),
    AwsError("MaxIOPSLimitExceeded", Kind.QUOTA, _STORAGE),
    AwsError("UnauthorizedOperation", Kind.DENIED, _DENIED),
    AwsError("AccessDenied", Kind.DENIED, _DENIED),
    AwsError("AccessDeniedException", Kind.DENIED, _DENIED),
    AwsError("Client.UnauthorizedOperation", Kind.DENIED, _DENIED),
    AwsError("ExpiredToken", Kind.EXPIRED, _EXPIRED),
    AwsError("ExpiredTokenException", Kind.EXPIRED, _EXPIRED),
    # Of IAM Identity Center, in Packer's SDKs for Go (v1, v2).
    AwsError("SSOProviderInvalidToken", Kind.EXPIRED, _EXPIRED),
    AwsError("InvalidGrantException", Kind.EXPIRED, _EXPIRED),
    AwsError("InvalidIdentityToken", Kind.EXPIRED, _EXPIRED),  # AssumeRoleWithWebIdentity, in CI
    AwsError(
        "RequestExpired",
        Kind.EXPIRED,
        f"the credentials have expired, or the clock of this machine is wrong: {_RENEWAL}",
    ),
    AwsError("UnrecognizedClientException", Kind.CREDENTIALS, _UNKNOWN_KEY),
    AwsError("InvalidClientTokenId", Kind.CREDENTIALS, _UNKNOWN_KEY),
    AwsError("InvalidSignatureException", Kind.CREDENTIALS, _SIGNATURE),
    AwsError("SignatureDoesNotMatch", Kind.CREDENTIALS, _SIGNATURE),
    AwsError("IncompleteSignature", Kind.CREDENTIALS, _SIGNATURE),
    AwsError("MissingAuthenticationToken", Kind.CREDENTIALS, _SIGNATURE),
    AwsError("RequestTimeTooSkewed", Kind.CREDENTIALS, _CLOCK),
    AwsError("AuthFailure", Kind.CREDENTIALS, f"check the credentials and the clock of this machine{_REGION}"),
    AwsError("RequestLimitExceeded", Kind.THROTTLED, _THROTTLED),
    AwsError("RequestThrottled", Kind.THROTTLED, _THROTTLED),
    AwsError("RequestThrottledException", Kind.THROTTLED, _THROTTLED),
    AwsError("Throttling", Kind.THROTTLED, _THROTTLED),
    AwsError("ThrottlingException", Kind.THROTTLED, _THROTTLED),
    AwsError("ThrottledException", Kind.THROTTLED, _THROTTLED),
    AwsError("TooManyRequestsException", Kind.THROTTLED, _THROTTLED),
    AwsError("EC2ThrottledException", Kind.THROTTLED, _THROTTLED),
    AwsError("LimitExceededException", Kind.THROTTLED, _THROTTLED),
    AwsError("LimitExceeded", Kind.THROTTLED, _THROTTLED),
    AwsError("SlowDown", Kind.THROTTLED, _THROTTLED),
    AwsError("BandwidthLimitExceeded", Kind.THROTTLED, _THROTTLED),
    AwsError("ProvisionedThroughputExceededException", Kind.THROTTLED, _THROTTLED),
    AwsError("PriorRequestNotComplete", Kind.THROTTLED, _THROTTLED),
    AwsError("TransactionInProgressException", Kind.THROTTLED, _CONCURRENT),
    AwsError("TooManyUpdates", Kind.THROTTLED, _CONCURRENT),
    AwsError("ConcurrentModificationException", Kind.THROTTLED, _CONCURRENT),
    AwsError("OperationAbortedException", Kind.THROTTLED, _CONCURRENT),
    AwsError("ResourceContention", Kind.THROTTLED, _CONCURRENT),
    AwsError("Blocked", Kind.REQUEST, "AWS has blocked the account: contact AWS Support"),
    AwsError(
        "PendingVerification",
        Kind.REQUEST,
        "AWS still verifies the account for this region (minutes to four hours): wait",
    ),
    AwsError(
        "OptInRequired",
        Kind.REQUEST,
        _NOT_SUBSCRIBED,
    ),
    AwsError("SubscriptionRequiredException", Kind.REQUEST, _NOT_SUBSCRIBED),
    AwsError("NotSignedUp", Kind.REQUEST, _NOT_SUBSCRIBED),
    AwsError("RegionDisabledException", Kind.REQUEST, "enable the region for the account (AWS STS, opt-in regions)"),
    AwsError("InvalidAction", Kind.REQUEST, "this endpoint has no such action: compare region and endpoint"),
    # "Server error codes" of the EC2 API reference, and the common errors of other services.
    AwsError("InternalError", Kind.SERVER, _SERVER),
    AwsError("InternalFailure", Kind.SERVER, _SERVER),
    AwsError("InternalServerError", Kind.SERVER, _SERVER),
    AwsError("InternalServiceError", Kind.SERVER, _SERVER),
    AwsError("ServerInternal", Kind.SERVER, _SERVER),
    AwsError("ServerException", Kind.SERVER, _SERVER),
    AwsError("InternalServerException", Kind.SERVER, _SERVER),
    AwsError("ServiceUnavailable", Kind.SERVER, _SERVER),
    AwsError("ServiceUnavailableException", Kind.SERVER, _SERVER),
    AwsError("Unavailable", Kind.SERVER, _SERVER),
    AwsError("RequestTimeout", Kind.SERVER, _SERVER),
    AwsError("RequestTimeoutException", Kind.SERVER, _SERVER),
    AwsError("InternalServiceFault", Kind.SERVER, _SERVER),
    AwsError("ServiceFailure", Kind.SERVER, _SERVER),
    AwsError("KMSInternalException", Kind.SERVER, _SERVER),
    AwsError("DependencyTimeoutException", Kind.SERVER, _SERVER),
    AwsError("IDPCommunicationError", Kind.SERVER, _SERVER),
    AwsError("InvalidKMSKey.InvalidState", Kind.REQUEST, _KMS),
    AwsError("KMSKeyNotAccessibleFault", Kind.REQUEST, _KMS),
    AwsError(
        "InvalidAMIID.NotFound",
        Kind.REQUEST,
        "the AMI is not in this region, or was deregistered: `gpu-ami build` makes it anew",
    ),
    AwsError("InvalidAMIID.Unavailable", Kind.REQUEST, "the AMI is not available yet, or its creation failed"),
    AwsError(
        "InvalidAMIName.Duplicate",
        Kind.REQUEST,
        "an AMI of this name exists: build again a minute later (the name has the time), or deregister the other",
    ),
    AwsError(
        "InvalidBlockDeviceMapping",
        Kind.REQUEST,
        "the root volume is smaller than the source AMI's snapshot, or names another device: build.root_volume_gib",
    ),
    AwsError("DependencyViolation", Kind.REQUEST, _IN_USE),
    AwsError("InvalidGroup.InUse", Kind.REQUEST, _IN_USE),
    AwsError("VolumeInUse", Kind.REQUEST, _IN_USE),
    AwsError("InvalidSnapshot.InUse", Kind.REQUEST, _IN_USE),
    AwsError("InvalidSubnetID.NotFound", Kind.REQUEST, "subnet_id of the --where file is not in this region"),
    AwsError(
        "InvalidGroup.NotFound", Kind.REQUEST, "a security group of the --where file is not in this region or VPC"
    ),
    AwsError(
        "InvalidKeyPair.NotFound",
        Kind.REQUEST,
        "the temporary key pair is gone: did a `gpu-ami sweep` run at the same time?",
    ),
    AwsError(
        "InvalidSnapshot.NotFound", Kind.REQUEST, "a snapshot of the AMI is gone, or is not shared with this account"
    ),
    AwsError("InvalidParameterValue", Kind.REQUEST, _PARAMETER),
    AwsError(
        "InvalidParameterCombination", Kind.REQUEST, "AWS names the parameters: compare them with the --where file"
    ),
    AwsError(
        "OperationNotPermitted",
        Kind.REQUEST,
        "AWS names what it does not permit, such as sharing a snapshot of the default EBS key",
    ),
    AwsError(
        "ResourceNotReady",
        Kind.REQUEST,
        "EC2 did not finish in time, or failed: the state reason of the AMI or instance in EC2's console says why."
        " A first snapshot takes longest: try again. Where the volume or the source AMI's snapshot is encrypted:"
        f" {_KMS}",
    ),
    AwsError(
        "UnsupportedOperation",
        Kind.REQUEST,
        "EC2 does not do this with the instance, the AMI or the account's settings: AWS names it",
    ),
    # Codes of an instance's StateReason that say something else than the same code of a refused call.
    AwsError(
        "Client.InternalError", Kind.REQUEST, f"EC2 could not use the root volume's key, or lost the instance; {_KMS}"
    ),
    AwsError(
        "Client.InvalidSnapshot.NotFound",
        Kind.REQUEST,
        "a snapshot of the AMI is gone: `gpu-ami build` makes the AMI anew",
    ),
    AwsError(
        "Client.InstanceInitiatedShutdown",
        Kind.REQUEST,
        "the guest shut down by itself: its console, in evidence/, says why",
    ),
    AwsError("Client.UserInitiatedShutdown", Kind.REQUEST, "somebody, or a `gpu-ami sweep` elsewhere, terminated it"),
)
_CODES = frozenset(row.code for row in ERRORS)


def is_known(code: str) -> bool:
    """Whether the table has the code."""
    return code in _CODES - {""}


def classify(code: str, message: str = "") -> AwsError:
    """The row of an error, with its advice for this message; one without advice for a code that the table lacks."""
    for row in ERRORS:
        if match := row.matches(code, message):
            return AwsError(code, row.kind, row.advice.format(*match.groups()) if match.groups() else row.advice)
    return AwsError(code, Kind.REQUEST, "")


class NotOfAws(Exception):
    """Something that is not AWS answered: the answer lacks what AWS always sends, or has values of another kind."""


def first(rows: Sequence[Row], name: str) -> Row:
    """The first of the rows of an answer, which AWS sends at least one of."""
    if not rows:
        raise NotOfAws(f"it has no {name}")
    return rows[0]


class Record(dict[str, Any]):
    """A structure of an answer. A key that is read and not there is NotOfAws, never a KeyError of ours."""

    def __missing__(self, key: str) -> Any:
        raise NotOfAws(f"it has no {key!r}")


_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "structure": dict,
    "map": dict,
    "list": list,
    "string": str,
    "character": str,
    "integer": int,
    "long": int,
    "boolean": bool,
    "float": (float, int),
    "double": (float, int),
    "timestamp": datetime.datetime,
}


def checked(value: Any, shape: Any, name: str = "answer") -> Any:
    """A parsed value with Records for its structures. shape: botocore's. NotOfAws: a value is of another kind."""
    kind = _KINDS.get(shape.type_name)
    if kind is not None and not isinstance(value, kind):
        raise NotOfAws(f"{name}: expected {shape.type_name}, got {value!r:.60}")
    if shape.type_name == "structure" and not getattr(shape, "is_document_type", False):
        members = shape.members
        return Record({key: checked(row, members[key], key) if key in members else row for key, row in value.items()})
    if shape.type_name == "list":
        return [checked(row, shape.member, name) for row in value]
    if shape.type_name == "map":
        return {key: checked(row, shape.value, str(key)) for key, row in value.items()}
    return value


# Ends of the names of AWS's endpoints in every partition (botocore 1.40, data/partitions.json, read 2026-11-28).
_DOMAINS = (
    ".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu", ".c2s.ic.gov", ".sc2s.sgov.gov", ".cloud.adc-e.uk",
    ".csp.hci.ic.gov", ".api.aws", ".api.amazonwebservices.com.cn", ".api.amazonwebservices.eu", ".api.aws.ic.gov",
    ".api.aws.scloud", ".api.cloud-aws.adc-e.uk", ".api.aws.hci.ic.gov",
)  # fmt: skip
ENDPOINT_ADVICE = (
    "AWS_ENDPOINT_URL or an endpoint_url of the profile leads there: unset it, or name the endpoint in the --where file"
)


def foreign_endpoint(client: Any) -> str:
    """Where the calls of a boto3 client go, if that is not AWS; "" if it is.

    Whoever answers there says what an AMI is, which metrics arrived and, as KMS, which key signed.
    """
    url = str(client.meta.endpoint_url)
    parts = urllib.parse.urlsplit(url)
    is_aws = parts.scheme == "https" and (parts.hostname or "").lower().endswith(_DOMAINS)
    return "" if is_aws else url


def session() -> Any:
    """A botocore session whose clients answer with checked Records."""
    import botocore.session
    from botocore.parsers import ResponseParserFactory

    class Parsers(ResponseParserFactory):
        def create_parser(self, protocol_name: str) -> Any:
            parser = super().create_parser(protocol_name)
            setattr(parser, "parse", _checking(parser.parse))  # noqa: B010  (a method, for the type checker)
            return parser

    made = botocore.session.Session()
    made.register_component("response_parser_factory", Parsers())
    return made


# An error's message, in place of an answer whose end is missing.
CUT_OFF = "the connection ended within the answer"


def _is_cut_off(response: Mapping[str, Any]) -> bool:
    """Whether less came than was announced; urllib3 takes the end of the connection for that of the answer."""
    announced = str(response["headers"].get("content-length", ""))
    return announced.isdecimal() and isinstance(response["body"], bytes) and len(response["body"]) < int(announced)


def _checking(parse: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    from botocore.parsers import ResponseParserError

    def parse_and_check(response: Any, shape: Any) -> Any:
        if _is_cut_off(response):  # with a code that botocore repeats the call for
            return {"Error": {"Code": "RequestTimeout", "Message": CUT_OFF}, "ResponseMetadata": {}}
        try:
            answer = parse(response, shape)
        except (ResponseParserError, ValueError, TypeError, AttributeError, LookupError) as error:
            status = response["status_code"]
            if status >= 500:  # of a gateway: an error that botocore repeats the call for, as it does for HTML
                message = f"HTTP status {status}: {response['body'][:60]!r}"
                return {"Error": {"Code": str(status), "Message": message}, "ResponseMetadata": {}}
            if isinstance(error, ResponseParserError):
                raise
            raise NotOfAws(str(error)) from error  # bytes or values that AWS never sends
        return answer if shape is None else checked(answer, shape)

    return parse_and_check


BEGIN = "<!-- generated from validator/aws.py: python -m validator.aws docs/aws.md -->"
END = "<!-- end of the generated table -->"


def reference() -> str:
    """The table of docs/aws.md: codes with the same advice in one row."""
    lines = ["| AWS error | exit code | what to do |", "|---|---|---|"]
    for (exit_code, advice), rows in groupby(ERRORS, key=lambda row: (row.exit_code, row.advice)):
        shown = [f"`{row.code}`" if row.code else "any" for row in rows]
        shown[-1] += _condition(exit_code, advice)
        lines.append(f"| {', '.join(shown)} | {exit_code} | {advice.replace('{0}', '…')} |")
    return "\n".join(lines)


def _condition(exit_code: int, advice: str) -> str:
    when = next(row.when for row in ERRORS if (row.exit_code, row.advice) == (exit_code, advice))
    return f", message like `{when}`".replace("|", r"\|") if when else ""


def with_reference(text: str) -> str:
    """A document with the table between its two markers."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{reference()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(with_reference(document.read_text(encoding="utf-8")), encoding="utf-8")
