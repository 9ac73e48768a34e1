"""AWS's error codes as errors of this program: what AWS said, what it means, what to do, and the exit code.

A refusal says something about the account, the place or the moment, never about the image. Codes are those of the EC2
API reference ("Error codes for the Amazon EC2 API") and of the common errors of CloudWatch, Logs, SSM and STS.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpu_ami.errors import CapacityError, CloudError, ForeignAnswer, GpuAmiError, UsageError

ACTION_SECONDS = 300.0
_CAPACITY = {
    "InsufficientFreeAddressesInSubnet",
    "SpotInstanceTermination",
    "SpotInstanceShutdown",
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientReservedInstanceCapacity",
    "InsufficientCapacity",
    "ReservationCapacityExceeded",
    "InvalidCapacityReservationState",  # cancelled, expired, or a Capacity Block that has not begun
    "SpotMaxPriceTooLow",
}
_STORAGE_QUOTA = {"VolumeLimitExceeded", "SnapshotLimitExceeded", "MaxIOPSLimitExceeded"}
_QUOTA = {
    "InstanceLimitExceeded",
    "VcpuLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "ResourceLimitExceeded",
    *_STORAGE_QUOTA,
}
_DENIED = {"UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "Client.UnauthorizedOperation"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
_KMS_HINT = "the KMS key is disabled, pending deletion, or not usable by the caller: kms_key_id of the --where file"
_THROTTLED = {
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "TooManyRequestsException",
    "EC2ThrottledException",
}
_HINTS: Mapping[str, str] = {
    "Blocked": "AWS has blocked the account: contact AWS Support",
    "PendingVerification": "AWS still verifies the account for this region (minutes to four hours): wait",
    "InternalError": "AWS failed to launch it: try again",
    "InvalidKMSKey.InvalidState": _KMS_HINT,
    "KMSKeyNotAccessibleFault": _KMS_HINT,
    "InvalidSignatureException": "check the secret access key and the clock of this machine",
    "UnrecognizedClientException": "check the credentials: AWS does not know this access key",
    "AuthFailure": "check the credentials and the clock of this machine",
    "InvalidClientTokenId": "check the credentials: AWS does not know this access key",
    "SignatureDoesNotMatch": "check the secret access key and the clock of this machine",
    "OptInRequired": "the account is not subscribed to this service or AMI: accept its terms in AWS Marketplace",
    "InvalidAMIID.NotFound": "the AMI is not in this region, or was deregistered: `gpu-ami build` makes it anew",
    "InvalidAMIID.Unavailable": "the AMI is not available yet, or its creation failed",
    "InvalidSubnetID.NotFound": "subnet_id of the --where file is not in this region",
    "InvalidGroup.NotFound": "a security group of the --where file is not in this region or VPC",
    "InvalidKeyPair.NotFound": "the temporary key pair is gone: did a `gpu-ami sweep` run at the same time?",
    "InvalidParameterValue": "AWS names the parameter: compare it with the --where file",
    "InvalidParameterCombination": "AWS names the parameters: compare them with the --where file",
    "InvalidSnapshot.NotFound": "a snapshot of the AMI is gone, or is not shared with this account",
    "OperationNotPermitted": "AWS names what it does not permit, such as sharing a snapshot of the default EBS key",
    "ResourceNotReady": (
        "EC2 did not finish in time, or failed: the state reason of the AMI or instance in EC2's console says why."
        " A first snapshot takes longest: try again. Where the volume or the source AMI's snapshot is encrypted:"
        f" {_KMS_HINT}"
    ),
    "UnsupportedOperation": "EC2 does not do this with the instance, the AMI or the account's settings: AWS names it",
}
# Codes of an instance's StateReason that say something else than the same code of a refused call.
_REASONS: Mapping[str, str] = {
    "Client.InternalError": f"EC2 could not use the root volume's key, or lost the instance; {_KMS_HINT}",
    "Client.InvalidSnapshot.NotFound": "a snapshot of the AMI is gone: `gpu-ami build` makes the AMI anew",
    "Client.InstanceInitiatedShutdown": "the guest shut down by itself: its console, in evidence/, says why",
    "Client.UserInitiatedShutdown": "somebody, or a `gpu-ami sweep` elsewhere, terminated it",
}
_CAPACITY_HINTS: Mapping[str, str] = {
    "InsufficientFreeAddressesInSubnet": "the subnet has no free address: name further subnets in subnet_ids",
    "SpotInstanceTermination": "AWS took the Spot Instance back: add on-demand to its ways (capacity)",
    "SpotInstanceShutdown": "AWS took the Spot Instance back: add on-demand to its ways (capacity)",
}
CAPACITY_HINT = "try another Availability Zone, a capacity reservation or Capacity Block, or wait"
_STORAGE_HINT = "request a higher quota of volumes and snapshots (Service Quotas, Amazon EBS), or delete some"
_QUOTA_HINT = "request a higher quota for this instance family (Service Quotas, Amazon EC2), or terminate what runs"
_NOT_AWS_HINT = "did a proxy or a login page answer? look at HTTPS_PROXY, AWS_ENDPOINT_URL and the place's endpoint"
_EMPTY = "it is empty"
_PROXY_HINT = (
    "HTTPS_PROXY names this proxy: correct it (http://USER:PASSWORD@HOST:PORT where it asks for a login), "
    "or name AWS's endpoints in NO_PROXY"
)
_DENIED_HINT = (
    "the caller's policy lacks the action that the message names "
    "(`aws sts decode-authorization-message` decodes an encoded message)"
)
_THROTTLED_HINT = "AWS limits the rate of this call for the account: wait, or run fewer machines at a time"
_IMDS_V2_HINT = (
    "the account or a service control policy demands IMDSv2 (ec2:MetadataHttpTokens): launch with http_tokens required."
    " Debian's Packer 1.6.6 cannot: install Packer 1.7 or later (gpu-ami finds it on the PATH, or as $PACKER)"
)
_DEMANDS_IMDS_V2 = re.compile(r"httpTokensEnforced|IMDSv1|ec2:MetadataHttpTokens")
# EC2 names the policy that denies, and the action.
_DENIED_BY = re.compile(
    r"explicit deny in (?:an? )?(service control policy|resource control policy|permissions boundary)"
)
_REFUSED_ACTION = re.compile(r"not authorized to perform:? `?(?P<action>[a-z0-9-]+:[A-Za-z]+)")
# "…, api error VcpuLimitExceeded: …" (SDK for Go v2), "VcpuLimitExceeded: …" (v1, and the code alone).
_CODE = re.compile(r"(?<![\w.])(?P<code>[A-Z][A-Za-z]+(?:\.[A-Z][A-Za-z]+)*)(?=:\s)")
# What only an answer of AWS has: SDK for Go v1, and v2, which names the operation.
_ANSWERED = re.compile(r"status code: \d{3}, request id|https response error StatusCode: \d{3}|\bapi error [A-Z]")
_OPERATION = re.compile(r"operation error [\w ]+: (?P<action>[A-Z]\w+)")
_API_ERROR = re.compile(r"api error (?P<code>[A-Z][\w.]+):")
# Packer's waiters, which cite no answer.
_WAITED = re.compile(r"unexpected state 'failed', wanted target|exceeded (?:max )?wait (?:attempts|time)")


def is_throttled(code: str) -> bool:
    """Whether the code is a refusal of the call's rate: the same call may succeed later."""
    return code in _THROTTLED


def is_quota(code: str) -> bool:
    """Whether the account's quota is exhausted: another zone does not help."""
    return code in _QUOTA


def is_not_found(code: str) -> bool:
    """Whether AWS does not know a resource, which may appear some time after its creation."""
    return code.endswith((".NotFound", ".Malformed.NotFound"))


def is_denied(code: str) -> bool:
    """Whether the caller may not make the call."""
    return code in _DENIED


def from_code(action: str, code: str, message: str) -> GpuAmiError:
    """The error for a refused call. action: what this program was doing ("launching p5.48xlarge from ami-…").

    CapacityError: no capacity, quota, or the type is not offered in the zone. CloudError: everything else.
    """
    kind, hint = _classify(code, message)
    return kind(f"{action}: {code}", details=[message] if message else [], hint=hint, code=code)


def from_state_reason(text: str, code: str, message: str) -> GpuAmiError:
    """The error for an instance that has ended, by the code and message of its StateReason ("" where it has none)."""
    # EC2 reports lack of capacity on this path too, in either of them.
    short = "InsufficientInstanceCapacity" in f"{code} {message}"
    bare = "InsufficientInstanceCapacity" if short else code.partition(".")[2]
    kind, hint = (CloudError, _REASONS[code]) if code in _REASONS else _classify(bare, message)
    detail = message if message.startswith(code) else f"{code}: {message}"
    return kind(text, details=[detail] if detail else [], hint=hint, code=code)


def from_text(action: str, text: str) -> GpuAmiError | None:
    """The same for a sentence in which another program cites AWS; None where it cites no refusal of AWS."""
    code = _cited(text)
    if not code:
        return None
    operation = _REFUSED_ACTION.search(text) or _OPERATION.search(text)
    during = f"{action}: {operation['action']}" if operation else action
    kind, hint = _classify(code, text)
    return kind(f"{during}: {code}", details=[text], hint=hint, code=code)


def _cited(text: str) -> str:
    """The code of AWS's that a sentence cites: one that is known here, or any in what only AWS answers."""
    codes = [match["code"] for match in _CODE.finditer(text)]
    known = next((code for code in codes if _is_known(code)), "")
    if known or not _ANSWERED.search(text):
        return known or ("ResourceNotReady" if _WAITED.search(text) else "")
    api_error = _API_ERROR.search(text)
    return api_error["code"] if api_error else next(iter(codes), "")


def _is_known(code: str) -> bool:
    named = (_CAPACITY, _QUOTA, _DENIED, _EXPIRED, _THROTTLED, _HINTS, _REASONS)
    return any(code in codes for codes in named) or code == "Unsupported" or code.endswith(".NotFound")


class _Limit(threading.local):
    """Of this thread's action: what it is, and the time at which no further request is sent for it."""

    action, ends = "", 0.0


_limit = _Limit()


@contextmanager
def _limited(action: str) -> Iterator[None]:
    """Limits the time of an action, whose pages and retries are requests of their own; an inner one has no other."""
    outer = _limit.action
    if not outer:
        _limit.action, _limit.ends = action, time.monotonic() + ACTION_SECONDS
    try:
        yield
    finally:
        _limit.action = outer


def check_limit(**_: object) -> None:
    """Handler of botocore's event `before-send`. CloudError: the action has taken too long, as when pages never end."""
    if _limit.action and time.monotonic() > _limit.ends:
        text = f"{_limit.action}: no end of answers after {ACTION_SECONDS:.0f} s"
        raise CloudError(text, hint=_NOT_AWS_HINT)


def check_origin(http_response: Any, parsed: Mapping[str, Any], **_: object) -> None:
    """Handler of botocore's event `after-call`. ForeignAnswer: a success without a request id, which AWS always sends.

    A proxy's login page would else be taken for an answer: for the termination of an instance, for one.
    """
    empty = parsed.get("Error", {}).get("Message") == _EMPTY
    if http_response.status_code < 300 and (empty or not parsed.get("ResponseMetadata", {}).get("RequestId")):
        raise _not_aws(_limit.action or "calling AWS", _EMPTY if empty else "it has no request id")


def retry_empty(operation_model: Any, response_dict: dict[str, Any], **_: object) -> None:
    """Handler of botocore's event `before-parse.ec2`: EC2 never answers without a body, so it is asked again.

    As botocore does it for S3's errors with status 200. A call that changes something is not repeated: it may have done
    so.
    """
    reads = operation_model.name.startswith("Describe")
    if reads and response_dict["status_code"] == 200 and not response_dict["body"]:
        error = f"<Error><Code>RequestTimeout</Code><Message>{_EMPTY}</Message></Error>"  # a code that botocore retries
        text = f"<Response><Errors>{error}</Errors><RequestID>none</RequestID></Response>"
        response_dict.update(status_code=503, body=text.encode())


def _not_aws(action: str, why: str) -> ForeignAnswer:
    return ForeignAnswer(f"{action}: the answer is not one of AWS: {why}", hint=_NOT_AWS_HINT)


def _from_client_error(action: str, response: Mapping[str, Any], text: str) -> GpuAmiError:
    answer = response.get("Error", {})
    code = answer.get("Code", "")
    if not code or code.isdigit():  # botocore found no error of AWS in it
        return _not_aws(action, f"HTTP status {response.get('ResponseMetadata', {}).get('HTTPStatusCode', '?')}")
    return from_code(action, code, answer.get("Message", text))


@contextmanager
def translated(action: str) -> Iterator[None]:
    """Botocore's errors as this program's: the action that failed, what AWS said, what to do.

    What the block does with an answer belongs into it: an answer without the keys that AWS always sends (KeyError), or
    with values of another kind (ValueError, TypeError, AttributeError), did not come from AWS.
    """
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    try:
        with _limited(action):
            yield
    except exceptions.ClientError as error:
        raise _from_client_error(action, error.response, str(error)) from error
    except (exceptions.NoCredentialsError, exceptions.ProfileNotFound, exceptions.PartialCredentialsError) as error:
        raise UsageError(f"{action}: {error}", hint="set profile in the --where file, or AWS_PROFILE") from error
    except exceptions.NoRegionError as error:
        raise UsageError(f"{action}: no region", hint="set region in the --where file") from error
    except exceptions.PaginationError as error:
        raise _not_aws(action, str(error)) from error
    except exceptions.ProxyConnectionError as error:
        raise CloudError(f"{action}: {error}{_reason(error)}", hint=_PROXY_HINT) from error
    except exceptions.BotoCoreError as error:
        raise CloudError(f"{action}: {error}", hint="is the endpoint reachable from this machine?") from error
    except ResponseParserError as error:
        reason = str(error).partition(", invalid XML received")[0].partition(":\n")[0]
        raise _not_aws(action, reason) from error
    except KeyError as error:
        raise _not_aws(action, f"it has no {error}") from error
    except (IndexError, ValueError, TypeError, AttributeError) as error:
        raise _not_aws(action, str(error)) from error


def _reason(error: Any) -> str:
    """What a proxy answered to CONNECT, which botocore keeps and does not say; "" where it did not answer."""
    cause = getattr(error.kwargs.get("error"), "original_error", None)
    return f": {cause}" if cause else ""


def _classify(code: str, message: str) -> tuple[type[GpuAmiError], str]:
    if code in _CAPACITY:
        return CapacityError, _CAPACITY_HINTS.get(code, CAPACITY_HINT)
    if code in _QUOTA:
        return CapacityError, _STORAGE_HINT if code in _STORAGE_QUOTA else _QUOTA_HINT
    if code == "RequestExpired":
        return CloudError, "the credentials have expired, or the clock of this machine is wrong: log in again"
    if code == "Unsupported":  # either the zone has no such type, or the request asks for what the type cannot do
        if "Availability Zone" in message:
            return CapacityError, "this zone does not offer the instance type: set subnet_id to a zone that AWS names"
        return CloudError, "the instance type does not support what the request asks for: AWS names it"
    if _DEMANDS_IMDS_V2.search(message):
        return CloudError, _IMDS_V2_HINT
    if code in _DENIED:
        return CloudError, _denied_hint(message)
    if code in _EXPIRED:
        return CloudError, "the credentials have expired: log in again; a CI job needs a session as long as the run"
    if code in _THROTTLED:
        return CloudError, _THROTTLED_HINT
    return CloudError, _HINTS.get(code, "")


def _denied_hint(message: str) -> str:
    by = _DENIED_BY.search(message)
    if by is None:
        return _DENIED_HINT
    return f"a {by[1]} denies it, whatever the caller's own policy allows: ask who administers the organization"
