"""AWS's error codes: which exit code, which hint, and whether another program's sentence cites one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from botocore import exceptions

from gpu_ami.cloud import Cloud, aws_errors
from gpu_ami.cloud.place import ApiAccess, Credentials, Place
from gpu_ami.errors import CapacityError, CloudError, ForeignAnswer, GpuAmiError, Unreachable, UsageError

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
            # amazon 1.8.2, StepCreateAMI: the waiter of the SDK for Go v2.
            "Error waiting for AMI: failed with ResourceNotReady error, which can have a variety of causes. original"
            " error: waiter state transitioned to Failure. DescribeImages returned the state reason: &{Code:0xc00012}",
            CloudError,
            "Packer: ResourceNotReady",
            "state reason",
        ),
        (
            "Error waiting for AMI: exceeded max wait time for ImageAvailable waiter",
            CloudError,
            "Packer: ResourceNotReady",
            "try again",
        ),
        (
            # The SDK for Go v2 writes `api error` before generic errors alone, not before those of an API's model.
            "Error loading credentials for AWS Provider: operation error SSO OIDC: CreateToken, https response error"
            " StatusCode: 400, RequestID: 0a1b, InvalidGrantException: ",
            CloudError,
            "Packer: CreateToken: InvalidGrantException",
            "aws sso login",
        ),
        (
            "Error loading credentials for AWS Provider: SSOProviderInvalidToken: the SSO session has expired or is"
            " invalid caused by: open /root/.aws/sso/cache/1.json: no such file or directory",
            CloudError,
            "Packer: SSOProviderInvalidToken",
            "aws sso login",
        ),
        ("Error creating AMI: NewCode: no status code: 400, request id: 1", CloudError, "Packer: NewCode", ""),
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


STATE_CHANGE = (
    "Error waiting for instance (i-0bcf60266d982b001) to become ready: ResourceNotReady: failed waiting for successful"
    " resource state; Instance state change details: {0}"
)


@pytest.mark.parametrize(
    ("details", "kind", "code", "hint"),
    [
        (
            "Server.InsufficientInstanceCapacity: Server.InsufficientInstanceCapacity: Insufficient capacity",
            CapacityError,
            "Server.InsufficientInstanceCapacity",
            "another Availability Zone",
        ),
        (
            # hashicorp/packer#10200
            "Server.InternalError: Client.InvalidParameterCombination: Could not create volume with iops 99999",
            CloudError,
            "Client.InvalidParameterCombination",
            "compare them with the --where file",
        ),
        (
            "Client.InternalError: Client.InternalError: Client error on launch",
            CloudError,
            "Client.InternalError",
            "root volume's key",
        ),
    ],
)
def test_state_reason_of_the_builder_counts_more_than_the_waiter(
    details: str, kind: type[GpuAmiError], code: str, hint: str
) -> None:
    """`ResourceNotReady` says nothing; no capacity is exit code 5, as in our own launches."""
    error = aws_errors.from_text("Packer", STATE_CHANGE.format(details))
    assert error is not None and type(error) is kind and error.code == code and hint in error.hint


POST = 'Post "https://ec2.us-east-1.amazonaws.com/"'


@pytest.mark.parametrize(
    ("text", "kind", "hint"),
    [
        (
            f"Error querying AMI: RequestError: send request failed caused by: {POST}: dial tcp: lookup"
            " ec2.us-east-1.amazonaws.com on 127.0.0.53:53: no such host",
            Unreachable,
            "reachable",
        ),
        (
            "Error creating AMI: operation error EC2: CreateImage, exceeded maximum number of attempts, 10, https"
            f" response error StatusCode: 0, RequestID: , request send failed, {POST}: dial tcp: i/o timeout",
            Unreachable,
            "reachable",
        ),
        (
            "Error querying AMI: SerializationError: failed to unmarshal error message status code: 403, request id:"
            " caused by: UnmarshalError: failed to unmarshal error message",
            ForeignAnswer,
            "proxy",
        ),
        (
            "Error creating AMI: operation error EC2: CreateImage, https response error StatusCode: 403, RequestID: ,"
            " deserialization failed, failed to decode response error: EOF",
            ForeignAnswer,
            "proxy",
        ),
        (
            "Error creating AMI: operation error EC2: CreateImage, https response error StatusCode: 407, RequestID: ,"
            " api error UnknownError: UnknownError",
            ForeignAnswer,
            "proxy",
        ),
        (
            "Error: No valid credential sources found for AWS Builder. Please see"
            " https://www.packer.io/docs/builders/amazon#authentication for more information on providing credentials"
            " for the AWS Builder. Error: NoCredentialProviders: no valid providers in chain. Deprecated.",
            UsageError,
            "AWS_PROFILE",
        ),
        (
            "Error loading credentials for AWS Provider: failed to refresh cached credentials, no EC2 IMDS role found,"
            ' operation error ec2imds: GetMetadata, request send failed, Get "http://169.254.169.254/": dial tcp',
            UsageError,
            "AWS_PROFILE",
        ),
    ],
)
def test_a_connection_of_packer_s_that_failed_is_as_one_of_our_own(
    text: str, kind: type[GpuAmiError], hint: str
) -> None:
    """Both SDKs for Go: no connection, an answer that is not AWS's, no credentials. None of them is a failed build."""
    error = aws_errors.from_text("Packer", text)
    assert type(error) is kind and hint in error.hint and error.details == (text,)


def test_an_sso_session_that_has_expired_asks_for_a_login() -> None:
    """botocore counts it as an error of its own, not of a call."""
    from botocore.exceptions import SSOTokenLoadError, TokenRetrievalError, UnauthorizedSSOTokenError

    for error in (
        UnauthorizedSSOTokenError(),
        SSOTokenLoadError(error_msg="Token for default does not exist"),
        TokenRetrievalError(provider="sso", error_msg="Token has expired and refresh failed"),
    ):
        with (
            pytest.raises(CloudError, match="looking up the AMI") as caught,
            aws_errors.translated("looking up the AMI"),
        ):
            raise error
        assert "aws sso login" in caught.value.hint


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


@pytest.mark.parametrize(
    ("text", "hint", "passes"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate", "AWS_CA_BUNDLE", False),
        ("[Errno 2] No such file or directory", "names no file with certificates", False),
        ("[X509: NO_CERTIFICATE_OR_CRL_FOUND] no certificate or crl found", "names no file with certificates", False),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "does not speak TLS", False),
        ("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol", "reachable", True),
    ],
)
def test_an_error_of_tls_says_what_to_correct(text: str, hint: str, passes: bool) -> None:
    """As OpenSSL 3 says it. A handshake that ends is the connection's: it is waited for."""
    with pytest.raises(GpuAmiError) as caught, aws_errors.translated("describing i-1"):
        raise exceptions.SSLError(endpoint_url="https://ec2.us-east-1.amazonaws.com/", error=text)
    assert caught.value.exit_code == 4 and text in caught.value.message and hint in caught.value.hint
    assert aws_errors.may_pass(caught.value) is passes


def test_a_certificate_that_packer_does_not_trust_is_said() -> None:
    text = (
        "RequestError: send request failed\ncaused by: Post https://ec2/: x509: certificate signed by unknown authority"
    )
    error = aws_errors.from_text("Packer", text)
    assert error and error.exit_code == 4 and "AWS_CA_BUNDLE" in error.hint
