"""AWS's error codes: which exit code, which hint, and whether another program's sentence cites one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from gpu_ami.cloud import Cloud, aws_errors
from gpu_ami.cloud.place import ApiAccess, Credentials, Place
from gpu_ami.errors import CapacityError, CloudError, GpuAmiError

ZONE = (
    "Your requested instance type (p5.48xlarge) is not supported in your requested Availability Zone (us-east-1e). "
    "Please retry your request by not specifying an Availability Zone or choosing us-east-1a."
)
SHAPE = "The requested configuration is currently not supported. Please check the documentation."


@pytest.mark.parametrize(
    ("code", "message", "kind", "hint"),
    [
        ("InsufficientInstanceCapacity", "", CapacityError, "another Availability Zone"),
        ("VcpuLimitExceeded", "", CapacityError, "Service Quotas"),
        ("MaxSpotInstanceCountExceeded", "", CapacityError, "Service Quotas"),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", "", CapacityError, "iam/caller-spot.json"),
        ("NetworkInterfaceLimitExceeded", "", CapacityError, "quota of network interfaces"),
        ("ImageLimitExceeded", "", CapacityError, "deregister AMIs"),
        ("PlacementGroupLimitExceeded", "", CapacityError, "delete placement groups"),
        ("InvalidAMIName.Duplicate", "", CloudError, "an AMI of this name exists"),
        ("InvalidBlockDeviceMapping", "", CloudError, "root_volume_gib"),
        ("Unsupported", ZONE, CapacityError, "subnet_id"),
        ("Unsupported", SHAPE, CloudError, "does not support"),
        ("UnauthorizedOperation", "", CloudError, "policy lacks the action"),
        ("AccessDeniedException", "", CloudError, "policy lacks the action"),
        ("ExpiredToken", "", CloudError, "expired"),
        ("RequestLimitExceeded", "", CloudError, "limits the rate"),
        ("InvalidSubnetID.NotFound", "", CloudError, "subnet_id"),
        ("SomethingNew", "", CloudError, ""),
    ],
)
def test_code_decides_exit_code_and_hint(code: str, message: str, kind: type[GpuAmiError], hint: str) -> None:
    error = aws_errors.from_code("launching p5.48xlarge", code, message)
    assert type(error) is kind and error.code == code
    assert error.message == f"launching p5.48xlarge: {code}" and hint in error.hint
    assert error.details == ((message,) if message else ())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "Error launching source instance: operation error EC2: RunInstances, https response error StatusCode: 500, "
            "RequestID: 0a1b, api error InsufficientInstanceCapacity: We currently do not have sufficient capacity",
            CapacityError,
        ),
        ("Error launching source instance: VcpuLimitExceeded: You have requested more vCPU capacity", CapacityError),
        ("Error creating AMI: UnauthorizedOperation: You are not authorized to perform ec2:CreateImage", CloudError),
        ("Error querying AMI: RequestLimitExceeded: Request limit exceeded.", CloudError),
        ("ExpiredToken: The security token included in the request is expired", CloudError),
        (f"Error launching source instance: api error Unsupported: {ZONE}", CapacityError),
    ],
)
def test_a_refusal_is_recognised_in_packer_s_sentence(text: str, kind: type[GpuAmiError]) -> None:
    error = aws_errors.from_text("Packer", text)
    assert type(error) is kind and error.details == (text,)


@pytest.mark.parametrize(
    "text",
    [
        "Timeout waiting for SSH.",
        "Error: Something: it did not work",
        "Script exited with non-zero exit status: 1",
    ],
)
def test_other_failures_are_the_build_s(text: str) -> None:
    assert aws_errors.from_text("Packer", text) is None


ENFORCED = (
    "Error launching source instance: UnsupportedOperation: You can't launch instances with IMDSv1 because"
    " httpTokensEnforced is enabled for this account. status code: 400, request id: 9ffa9434"
)
DENIED_BY_SCP = (
    "Error launching source instance: UnauthorizedOperation: You are not authorized to perform this operation. User:"
    " arn:aws:sts::111122223333:assumed-role/x/y is not authorized to perform: ec2:RunInstances on resource:"
    " arn:aws:ec2:us-east-1:111122223333:instance/* with an explicit deny in a service control policy"
)
V2 = (
    "Error launching source instance: operation error EC2: RunInstances, https response error StatusCode: 400,"
    " RequestID: 1, api error NewCodeOfAws: it says no"
)


@pytest.mark.parametrize(
    ("text", "kind", "message", "hint"),
    [
        (ENFORCED, CloudError, "Packer: UnsupportedOperation", "Debian's Packer 1.6.6 cannot"),
        (
            DENIED_BY_SCP,
            CloudError,
            "Packer: ec2:RunInstances: UnauthorizedOperation",
            "a service control policy denies",
        ),
        (V2, CloudError, "Packer: RunInstances: NewCodeOfAws", ""),
        (
            "Error waiting for AMI: ResourceNotReady: exceeded wait attempts",
            CloudError,
            "Packer: ResourceNotReady",
            "try",
        ),
        (
            "Error waiting for AMI: unexpected state 'failed', wanted target 'available'",
            CloudError,
            "Packer: ResourceNotReady",
            "state reason",
        ),
        (
            "Error copying AMI: InvalidKMSKey.InvalidState: The KMS key is pending deletion",
            CloudError,
            "Packer: InvalidKMSKey.InvalidState",
            "kms_key_id",
        ),
        (
            "Error registering AMI: ResourceLimitExceeded: You have reached your quota of 50000 AMIs",
            CapacityError,
            "Packer: ResourceLimitExceeded",
            "quota",
        ),
        (
            "Error querying AMI: InvalidAMIID.NotFound: The image id '[ami-1]' does not exist",
            CloudError,
            "Packer: InvalidAMIID.NotFound",
            "not in this region",
        ),
        (
            "Error stopping instance: Odd.Code: no status code: 403, request id: 1",
            CloudError,
            "Packer: Odd.Code",
            "",
        ),
    ],
)
def test_refusal_through_packer_is_as_one_of_our_own_calls(
    text: str, kind: type[GpuAmiError], message: str, hint: str
) -> None:
    error = aws_errors.from_text("Packer", text)
    assert error is not None and type(error) is kind and error.exit_code in (4, 5)
    assert error.message == message and hint in error.hint


def test_policy_that_denies_is_named_in_our_own_calls() -> None:
    error = aws_errors.from_code("launching g5.xlarge", "UnauthorizedOperation", DENIED_BY_SCP)
    assert "a service control policy denies it" in error.hint
    assert "Packer 1.6.6" in aws_errors.from_code("launching g5.xlarge", "UnsupportedOperation", ENFORCED).hint


def test_kinds_of_codes() -> None:
    assert aws_errors.may_pass(CloudError("x", code="Throttling"))
    assert not aws_errors.may_pass(CloudError("x", code="AccessDenied"))
    assert aws_errors.is_not_found("InvalidAMIID.NotFound") and not aws_errors.is_not_found("AuthFailure")


@pytest.mark.parametrize("kind", [KeyError, TypeError, AttributeError, ValueError, IndexError])
def test_a_mistake_of_ours_stays_what_it_is(kind: type[Exception]) -> None:
    """ "The answer is not one of AWS" would send the reader to a proxy, and hide the line."""
    with pytest.raises(kind), aws_errors.translated("listing images"):
        raise kind("ours")


HTML = b"<html><body>Please log in</body></html>"


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        ("200 OK", HTML, "it has no request id"),
        ("200 OK", b"<DescribeImagesResponse><ima", "Unable to parse response (unclosed token"),
        ("200 OK", b"", "it is empty"),
        ("200 OK", b'{"message": null}', "Unable to parse response (not well-formed"),
        ("301 Moved Permanently", b"", "Unable to parse response (no element found"),
    ],
    ids=["login page", "cut off", "empty", "JSON", "redirect"],
)
def test_an_answer_that_is_not_one_of_aws_is_said(
    endpoint: Callable[[str, bytes], str], status: str, body: bytes, message: str
) -> None:
    place = Place("x", "us-east-1", api=ApiAccess(endpoint=endpoint(status, body), credentials=Credentials("x", "y")))
    with pytest.raises(CloudError) as refused:
        Cloud(place).image("ami-1")
    assert refused.value.message.startswith("describing ami-1: the answer is not one of AWS: ")
    assert message in refused.value.message and "did a proxy" in refused.value.hint
    assert refused.value.exit_code == 4


@pytest.fixture
def endpoint() -> Iterator[Callable[[str, bytes], str]]:
    """Starts an HTTP server on loopback that answers everything alike; returns its URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    answer: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(answer[0])

    def start(status: str, body: bytes) -> str:
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        answer.append(head.encode() + body)
        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield start
    listening.close()
