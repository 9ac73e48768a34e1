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

from gpu_ami.errors import CapacityError, CloudError, GpuAmiError, UsageError

ACTION_SECONDS = 300.0
_CAPACITY = {
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientReservedInstanceCapacity",
    "InsufficientCapacity",
    "ReservationCapacityExceeded",
    "InvalidCapacityReservationState",  # cancelled, expired, or a Capacity Block that has not begun
    "SpotMaxPriceTooLow",
}
_QUOTA = {"InstanceLimitExceeded", "VcpuLimitExceeded", "MaxSpotInstanceCountExceeded"}
_DENIED = {"UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "Client.UnauthorizedOperation"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
_THROTTLED = {
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "TooManyRequestsException",
    "EC2ThrottledException",
}
_HINTS: Mapping[str, str] = {
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
}
CAPACITY_HINT = "try another Availability Zone, a capacity reservation or Capacity Block, or wait"
_QUOTA_HINT = "request a higher quota for this instance family (Service Quotas, Amazon EC2), or terminate what runs"
_NOT_AWS_HINT = "did a proxy or a login page answer? look at HTTPS_PROXY, AWS_ENDPOINT_URL and the place's endpoint"
_DENIED_HINT = (
    "the caller's policy lacks the action that the message names "
    "(`aws sts decode-authorization-message` decodes an encoded message)"
)
_THROTTLED_HINT = "AWS limits the rate of this call for the account: wait, or run fewer machines at a time"
# "…, api error VcpuLimitExceeded: …" (SDK for Go v2), "VcpuLimitExceeded: …" (v1, and the code alone).
_CODE = re.compile(r"(?<![\w.])(?P<code>[A-Z][A-Za-z]+(?:\.[A-Z][A-Za-z]+)*)(?=:\s)")


def is_throttled(code: str) -> bool:
    """Whether the code is a refusal of the call's rate: the same call may succeed later."""
    return code in _THROTTLED


def is_quota(code: str) -> bool:
    """Whether the account's quota is exhausted: another zone does not help."""
    return code in _QUOTA


def is_not_found(code: str) -> bool:
    """Whether AWS does not know a resource, which may appear some time after its creation."""
    return code.endswith((".NotFound", ".Malformed.NotFound"))


def from_code(action: str, code: str, message: str) -> GpuAmiError:
    """The error for a refused call. action: what this program was doing ("launching p5.48xlarge from ami-…").

    CapacityError: no capacity, quota, or the type is not offered in the zone. CloudError: everything else.
    """
    kind, hint = _classify(code, message)
    return kind(f"{action}: {code}", details=[message] if message else [], hint=hint, code=code)


def from_text(action: str, text: str) -> GpuAmiError | None:
    """The same for a sentence in which another program cites AWS; None where it cites no refusal of the place."""
    for match in _CODE.finditer(text):
        code = match["code"]
        kind, hint = _classify(code, text)
        if kind is CapacityError or hint in (_DENIED_HINT, _THROTTLED_HINT) or code in _EXPIRED:
            return kind(f"{action}: {code}", details=[text], hint=hint, code=code)
    return None


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


@contextmanager
def translated(action: str) -> Iterator[None]:
    """Botocore's errors as this program's: the action that failed, what AWS said, what to do.

    What the block does with an answer belongs into it: an answer without the keys that AWS always sends (KeyError) did
    not come from AWS.
    """
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    try:
        with _limited(action):
            yield
    except exceptions.ClientError as error:
        answer = error.response.get("Error", {})
        raise from_code(action, answer.get("Code", "?"), answer.get("Message", str(error))) from error
    except (exceptions.NoCredentialsError, exceptions.ProfileNotFound, exceptions.PartialCredentialsError) as error:
        raise UsageError(f"{action}: {error}", hint="set profile in the --where file, or AWS_PROFILE") from error
    except exceptions.NoRegionError as error:
        raise UsageError(f"{action}: no region", hint="set region in the --where file") from error
    except exceptions.PaginationError as error:
        raise CloudError(f"{action}: the answer is not one of AWS: {error}", hint=_NOT_AWS_HINT) from error
    except exceptions.BotoCoreError as error:
        raise CloudError(f"{action}: {error}", hint="is the endpoint reachable from this machine?") from error
    except ResponseParserError as error:
        reason = str(error).partition(", invalid XML received")[0].partition(":\n")[0]
        raise CloudError(f"{action}: the answer is not one of AWS: {reason}", hint=_NOT_AWS_HINT) from error
    except KeyError as error:
        raise CloudError(f"{action}: the answer is not one of AWS: it has no {error}", hint=_NOT_AWS_HINT) from error


def _classify(code: str, message: str) -> tuple[type[GpuAmiError], str]:
    if code in _CAPACITY:
        return CapacityError, CAPACITY_HINT
    if code in _QUOTA:
        return CapacityError, _QUOTA_HINT
    if code == "Unsupported":  # either the zone has no such type, or the request asks for what the type cannot do
        if "Availability Zone" in message:
            return CapacityError, "this zone does not offer the instance type: set subnet_id to a zone that AWS names"
        return CloudError, "the instance type does not support what the request asks for: AWS names it"
    if code in _DENIED:
        return CloudError, _DENIED_HINT
    if code in _EXPIRED:
        return CloudError, "the credentials have expired: log in again; a CI job needs a session as long as the run"
    if code in _THROTTLED:
        return CloudError, _THROTTLED_HINT
    return CloudError, _HINTS.get(code, "")
