"""The CloudWatch agent's own log: separates errors of the image from API calls that AWS refused.

The agent logs an error when AWS throttles a call past its SDK's own attempts, when its role may not call, and when it
finds no credentials. None of these is a property of the image.
Sources: plugins/outputs/cloudwatch and cloudwatchlogs of https://github.com/aws/amazon-cloudwatch-agent v1.300060.0;
the credential errors of aws-sdk-go and aws-sdk-go-v2, read 2026-11.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from validator.cloudwatch import ApiRefused

LOG_FILE = "/opt/aws/amazon-cloudwatch-agent/logs/amazon-cloudwatch-agent.log"
_ERROR = re.compile(r"\bE!")
# Temporary: the agent retries the same batch.
_TEMPORARY = re.compile(
    r"\b(Throttling|ThrottlingException|ThrottledException|RequestLimitExceeded|TooManyRequestsException|"
    r"ServiceUnavailable|ServiceUnavailableException|InternalFailure|InternalServerError)\b"
    # A request that was sent and got no answer in time. An endpoint that is never reached fails the checks of arrival.
    r"|(?<=: )timed out$|\bi/o timeout\b|Client\.Timeout exceeded|TLS handshake timeout|context deadline exceeded"
    r"|connection reset by peer"
)
# Permanent: the instance lacks permissions or credentials.
_REFUSED = re.compile(
    r"\b(AccessDenied|AccessDeniedException|UnauthorizedOperation|ExpiredToken|ExpiredTokenException|"
    r"UnrecognizedClientException|InvalidClientTokenId|NoCredentialProviders|no EC2 IMDS role found|"
    r"iam/security-credentials/: HTTP 404)"
)
HINT = "give the instances an instance profile with the policy iam/instance.json (instance_profile of the --where file)"


def errors(log: str) -> list[str]:
    """The errors in the log that are not failed API calls."""
    return [line for line in _errors(log) if not (_TEMPORARY.search(line) or _REFUSED.search(line))]


def temporary(log: str) -> list[str]:
    """Errors of API calls that AWS throttled or that failed in the service; the agent retries them."""
    return [line for line in _errors(log) if _TEMPORARY.search(line)]


def refusals(log: str) -> list[str]:
    """Errors of API calls that AWS refused: no permission or no credentials."""
    return [line for line in _errors(log) if _REFUSED.search(line)]


def _errors(log: str) -> list[str]:
    return [line for line in log.splitlines() if _ERROR.search(line)]


def raise_if_refused(host: Any) -> None:
    """ApiRefused if AWS refused API calls of the agent: missing data is then not a fault of the image."""
    shown = host.run(f"cat {LOG_FILE}")
    if shown.rc == 0:
        raise_refusals(refusals(shown.stdout))


def raise_refusals(lines: Sequence[str]) -> None:
    """ApiRefused with the last line; does nothing without lines."""
    if lines:
        raise ApiRefused("an API call of the agent on this machine was refused", "", lines[-1].strip(), HINT)
