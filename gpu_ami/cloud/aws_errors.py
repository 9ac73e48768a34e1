"""AWS's error codes as errors of this program: what AWS said, what it means, what to do, and the exit code.

A refusal says something about the account, the place or the moment, never about the image. What each code means and
what to do is one row of validator/aws.py.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpu_ami.errors import CapacityError, CloudError, ForeignAnswer, GpuAmiError, Unreachable, UsageError
from validator.aws import CUT_OFF, AwsError, Kind, NotOfAws, classify, is_known

ACTION_SECONDS = 300.0
_NOT_AWS_HINT = "did a proxy or a login page answer? look at HTTPS_PROXY, AWS_ENDPOINT_URL and the place's endpoint"
_EMPTY = "it is empty"
_OF_THE_PLACE = ("InvalidCapacityReservationId.", "InvalidSubnetID.", "InvalidSecurityGroupID.", "InvalidGroup.")
_PROXY_HINT = (
    "HTTPS_PROXY names this proxy: correct it (http://USER:PASSWORD@HOST:PORT where it asks for a login), "
    "or name AWS's endpoints in NO_PROXY"
)
# What went wrong in TLS, by OpenSSL's and Go's words, and what to do about it.
_TLS_HINTS = (
    (
        re.compile("CERTIFICATE_VERIFY_FAILED|x509: "),
        "this machine does not trust the certificate: where a proxy inspects TLS, name its CA (AWS_CA_BUNDLE, or"
        " ca_bundle of the profile); else compare endpoint and clock",
    ),
    (
        re.compile("No such file or directory|NO_CERTIFICATE_OR_CRL_FOUND|NO_START_LINE"),
        "AWS_CA_BUNDLE, REQUESTS_CA_BUNDLE or ca_bundle of the profile names no file with certificates: correct it",
    ),
    (
        re.compile("WRONG_VERSION_NUMBER|HTTP_REQUEST|does not look like a TLS handshake"),
        "what answers does not speak TLS: compare the place's endpoint (http or https) and HTTPS_PROXY",
    ),
)
_REFUSED_ACTION = re.compile(r"not authorized to perform:? `?(?P<action>[a-z0-9-]+:[A-Za-z]+)")
# "…, api error VcpuLimitExceeded: …" (SDK for Go v2), "VcpuLimitExceeded: …" (v1, and the code alone).
_CODE = re.compile(r"(?<![\w.])(?P<code>[A-Z][A-Za-z]+(?:\.[A-Z][A-Za-z]+)*)(?=:\s)")
# What only an answer of AWS has: SDK for Go v1, and v2, which names the operation.
_ANSWERED = re.compile(r"status code: \d{3}, request id|https response error StatusCode: \d{3}|\bapi error [A-Z]")
_OPERATION = re.compile(r"operation error [\w ]+: (?P<action>[A-Z]\w+)")
_NAME = r"(?P<code>[A-Z]\w*(?:\.[A-Z]\w*)*)"
# v2 writes no "api error" before an error of the API's model; v1 has the code after Packer's own words.
_API_ERROR = re.compile(rf"(?:\bapi error |RequestID: [\w-]*, ){_NAME}: ?")
_CODE_OF_V1 = re.compile(rf"(?:^|: ){_NAME}(?=:\s)")
# Packer's waiters, which cite no answer.
_WAITED = re.compile(
    r"unexpected state 'failed', wanted target|exceeded (?:max )?wait (?:attempts|time)"
    r"|waiter state transitioned to Failure"
)
# Why EC2 terminated the builder: StateTransitionReason, and the message of StateReason, which may begin with a code.
_STATE_CHANGE = re.compile(r"Instance state change details: (?P<details>.+)")
_STATE_CODE = re.compile(r"(?P<code>(?:Client|Server)\.[A-Z]\w*(?:\.\w+)*): ")
# No answer of AWS's, in the words of SDK v1 and v2.
_NO_CREDENTIALS = re.compile(r"No valid credential sources found|NoCredentialProviders: |no EC2 IMDS role found")
_NOT_SENT = re.compile(r"RequestError: send request failed|\brequest send failed, ")
_NOT_PARSED = re.compile(r"SerializationError: |\bdeserialization failed, |\bapi error UnknownError: ")
_REACHABLE_HINT = "is the endpoint reachable from this machine?"
_NO_REASON = "EC2 gives no reason: its console, in evidence/, and CloudTrail may say who or what ended it"
_NOT_OBTAINED = (
    "the credentials could not be obtained: `aws sts get-caller-identity` with the same profile shows why"
    " (credential_process, IMDS, the container's or web identity's role)"
)


def is_gone(code: str) -> bool:
    """Whether what is to be removed is not there: EC2 says of a deregistered AMI that it is unavailable."""
    return is_not_found(code) or code == "InvalidAMIID.Unavailable"


def may_pass(error: GpuAmiError) -> bool:
    """Whether the same call may succeed later: AWS throttled it or failed itself, or could not be reached."""
    return isinstance(error, Unreachable) or (not isinstance(error, ForeignAnswer) and classify(error.code).retry)


def may_have_happened(error: GpuAmiError) -> bool:
    """Whether AWS may have done what it was asked for: its answer was lost, is not one, or is an error of its own."""
    return isinstance(error, Unreachable | ForeignAnswer) or classify(error.code).kind is Kind.SERVER


def settles(error: GpuAmiError) -> bool:
    """Whether this answer to a repeated call says that the earlier ones did nothing: AWS judged the request itself."""
    kinds = (Kind.SERVER, Kind.THROTTLED, Kind.DENIED, Kind.EXPIRED, Kind.CREDENTIALS)
    return not isinstance(error, Unreachable | ForeignAnswer) and classify(error.code).kind not in kinds


def is_quota(code: str) -> bool:
    """Whether the account's quota is exhausted: another zone does not help. code: also of a StateReason."""
    return classify(_of_state(code)).kind is Kind.QUOTA


def is_not_found(code: str) -> bool:
    """Whether AWS does not know a resource, which may appear some time after its creation."""
    return code.endswith((".NotFound", ".Malformed.NotFound"))


def may_appear(code: str) -> bool:
    """Whether what AWS does not know may be what gpu-ami has just created; subnets and reservations are the place's."""
    return is_not_found(code) and not code.startswith(_OF_THE_PLACE)


def is_denied(code: str) -> bool:
    """Whether the caller may not make the call."""
    return classify(code).kind is Kind.DENIED


def from_code(action: str, code: str, message: str) -> GpuAmiError:
    """The error for a refused call. action: what this program was doing ("launching p5.48xlarge from ami-…").

    CapacityError: no capacity, quota, or the type is not offered in the zone. CloudError: everything else.
    """
    row = classify(code, message)
    return _kind(row)(f"{action}: {code}", details=[message] if message else [], hint=row.advice, code=code)


def from_state_reason(text: str, code: str, message: str) -> GpuAmiError:
    """The error for an instance that has ended, by the code and message of its StateReason ("" where it has none)."""
    # EC2 reports lack of capacity on this path too, in either of them.
    short = "InsufficientInstanceCapacity" in f"{code} {message}"
    row = classify("InsufficientInstanceCapacity" if short else _of_state(code), message)
    detail = message if message.startswith(code) else f"{code}: {message}"
    hint = row.advice if detail else _NO_REASON
    return _kind(row)(text, details=[detail] if detail else [], hint=hint, code=code)


def from_ended_instance(text: str, instance: Mapping[str, Any]) -> GpuAmiError:
    """The same for an instance as DescribeInstances has it: its StateReason, else its StateTransitionReason."""
    why = instance.get("StateReason", {})
    code, message = why.get("Code", ""), why.get("Message", "")
    if not code and not message:
        code, message = _state_reason(instance.get("StateTransitionReason", ""))
    return from_state_reason(text, code, message)


def _of_state(code: str) -> str:
    """The code of ERRORS for that of a StateReason, which has `Client.` or `Server.` before an API's code."""
    return code.partition(".")[2] if code.startswith(("Client.", "Server.")) and not is_known(code) else code


def from_text(action: str, text: str) -> GpuAmiError | None:
    """The same for a sentence in which another program cites AWS; None where it cites no refusal of AWS."""
    if state := _STATE_CHANGE.search(text):
        code, message = _state_reason(state["details"])
        error = from_state_reason(f"{action}: the builder did not start", code, message)
        error.details = (text,)
        return error
    code = _known(text)
    if not code and (unanswered := _without_answer(action, text)):
        unanswered.details = (text,)
        return unanswered
    code = code or _other(text)
    if not code:
        return None
    operation = _REFUSED_ACTION.search(text) or _OPERATION.search(text)
    during = f"{action}: {operation['action']}" if operation else action
    row = classify(code, text)
    return _kind(row)(f"{during}: {code}", details=[text], hint=row.advice, code=code)


def _state_reason(details: str) -> tuple[str, str]:
    """(code, message); the code of the message is the more exact one: `Server.InternalError: Client.…: …`."""
    codes = list(_STATE_CODE.finditer(details))
    return (codes[-1]["code"], details[codes[-1].end() :]) if codes else ("", details)


def _without_answer(action: str, text: str) -> GpuAmiError | None:
    """The error where AWS has answered nothing, as `translated` has it for our own calls."""
    if _NO_CREDENTIALS.search(text):
        return UsageError(f"{action}: no credentials for AWS", hint=_profiles())
    if _NOT_SENT.search(text):
        return Unreachable(f"{action}: no connection to AWS", hint=_tls_hint(text) or _REACHABLE_HINT)
    return _not_aws(action, "it cannot be parsed") if _NOT_PARSED.search(text) else None


def _kind(row: AwsError) -> type[GpuAmiError]:
    return CapacityError if row.exit_code == CapacityError.exit_code else CloudError


def _known(text: str) -> str:
    """The first code of AWS's in a sentence that has advice here; "" where there is none."""
    codes = (match["code"] for match in _CODE.finditer(text))
    return next((code for code in codes if is_known(code) or is_not_found(code)), "")


def _other(text: str) -> str:
    """Any code in what only AWS answers, or that of a waiter; "" where a sentence has neither."""
    if not _ANSWERED.search(text):
        return "ResourceNotReady" if _WAITED.search(text) else ""
    code = _API_ERROR.search(text) or _CODE_OF_V1.search(text)
    return code["code"] if code else ""


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
    """Handler of botocore's event `before-send`. Unreachable: the action has taken too long, as when pages never end,
    or answers do not arrive; what it asked for may have happened.
    """
    if _limit.action and time.monotonic() > _limit.ends:
        text = f"{_limit.action}: no end of answers after {ACTION_SECONDS:.0f} s"
        raise Unreachable(text, hint=_NOT_AWS_HINT)


def check_origin(http_response: Any, parsed: Mapping[str, Any], **_: object) -> None:
    """Handler of botocore's event `after-call`. ForeignAnswer: a success without a request id, which AWS always sends.
    Unreachable: the connection ended within each answer.

    A proxy's login page would else be taken for an answer: for the termination of an instance, for one.
    """
    empty = parsed.get("Error", {}).get("Message") == _EMPTY
    if parsed.get("Error", {}).get("Message") == CUT_OFF:
        raise Unreachable(f"{_limit.action or 'calling AWS'}: {CUT_OFF}", hint=_REACHABLE_HINT)
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


def was_repeated(error: GpuAmiError) -> bool:
    """Whether botocore had sent the refused call more than once: `….Duplicate` may then mean that an earlier one was
    carried out, and its answer lost.
    """
    response = getattr(error.__cause__, "response", None) or {}
    return bool(response.get("ResponseMetadata", {}).get("RetryAttempts"))


def _not_aws(action: str, why: str) -> ForeignAnswer:
    return ForeignAnswer(f"{action}: the answer is not one of AWS: {why}", hint=_NOT_AWS_HINT)


def _from_client_error(action: str, response: Mapping[str, Any], text: str) -> GpuAmiError:
    answer = response.get("Error", {})
    code = answer.get("Code", "")
    if not code or code.isdigit():  # botocore found no error of AWS in it
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if status >= 500 or code.startswith("5"):  # of a gateway, or of AWS's own load balancer
            return Unreachable(f"{action}: HTTP status {status or code} without an error of AWS", hint=_NOT_AWS_HINT)
        return _not_aws(action, f"HTTP status {status or '?'}")
    status, message = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0), answer.get("Message", text)
    if (status >= 500 or status == 429) and not is_known(code) and not is_not_found(code):
        hint = classify("InternalError" if status >= 500 else "Throttling").advice
        return Unreachable(f"{action}: {code}", details=[message] if message else [], hint=hint, code=code)
    return from_code(action, code, message)


def _from_botocore(action: str, error: Exception) -> GpuAmiError:
    """The error for one of botocore's own: of settings, of where credentials come from, of the transport."""
    from botocore import exceptions as botocore

    text = f"{action}: {error}"
    settings = (botocore.ConfigNotFound, botocore.ConfigParseError, botocore.InvalidConfigError)
    if isinstance(error, (*settings, botocore.InfiniteLoopConfigError)):
        return UsageError(text, hint="correct ~/.aws/config, or the file that AWS_CONFIG_FILE names")
    if isinstance(error, (botocore.CredentialRetrievalError, botocore.MetadataRetrievalError)):
        return CloudError(text, hint=_NOT_OBTAINED)
    broken = (botocore.HTTPClientError, botocore.EndpointConnectionError, botocore.ConnectTimeoutError)
    kind = Unreachable if isinstance(error, (*broken, botocore.IncompleteReadError)) else CloudError
    return kind(text, hint=_REACHABLE_HINT)


@contextmanager
def translated(action: str) -> Iterator[None]:
    """Botocore's errors as this program's: the action that failed, what AWS said, what to do.

    The answers are checked where they are parsed (validator/aws.py): what AWS always sends and is not there, or is of
    another kind, is NotOfAws. Every other error of the block is a bug of ours and stays what it is.
    """
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    try:
        with _limited(action):
            yield
    except exceptions.ClientError as error:
        raise _from_client_error(action, error.response, str(error)) from error
    except (exceptions.NoCredentialsError, exceptions.ProfileNotFound, exceptions.PartialCredentialsError) as error:
        raise UsageError(f"{action}: {error}", hint=_profiles()) from error
    except exceptions.NoRegionError as error:
        raise UsageError(f"{action}: no region", hint="set region in the --where file") from error
    except exceptions.PaginationError as error:
        raise _not_aws(action, str(error)) from error
    except (exceptions.SSOError, exceptions.TokenRetrievalError) as error:
        raise CloudError(f"{action}: {error}", hint=classify("ExpiredToken").advice) from error
    except exceptions.ParamValidationError as error:
        hint = "the SDK refuses the request before it is sent: correct this value of the --where file, plan or policy"
        raise CloudError(f"{action}: {error}", hint=hint) from error
    except exceptions.ProxyConnectionError as error:
        raise CloudError(f"{action}: {error}{_reason(error)}", hint=_PROXY_HINT) from error
    except exceptions.SSLError as error:
        if hint := _tls_hint(str(error)):
            raise CloudError(f"{action}: {error}", hint=hint) from error
        raise Unreachable(f"{action}: {error}", hint=_REACHABLE_HINT) from error  # such as its end in the handshake
    except exceptions.BotoCoreError as error:
        raise _from_botocore(action, error) from error
    except ResponseParserError as error:
        reason = str(error).partition(", invalid XML received")[0].partition(":\n")[0]
        raise _not_aws(action, reason) from error
    except NotOfAws as error:
        raise _not_aws(action, str(error)) from error


def _tls_hint(text: str) -> str:
    """What to do about an error of TLS; "" for one that may pass."""
    return next((hint for pattern, hint in _TLS_HINTS if pattern.search(text)), "")


def _reason(error: Any) -> str:
    """What a proxy answered to CONNECT, which botocore keeps and does not say; "" where it did not answer."""
    cause = getattr(error.kwargs.get("error"), "original_error", None)
    return f": {cause}" if cause else ""


def _profiles() -> str:
    """Where a profile is named, and those that there are."""
    import botocore.session

    try:
        known = botocore.session.get_session().available_profiles
    except Exception:  # the files of profiles are broken, which the error says
        known = []
    there = f"; profiles in ~/.aws: {', '.join(sorted(known))}" if known else "; ~/.aws has no profile"
    return f"set profile in the --where file, or AWS_PROFILE{there}"
