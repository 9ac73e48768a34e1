"""What keeps the CloudWatch agent from delivering: its own log, and whether the machine can connect to CloudWatch.

The log separates errors of the image from API calls that AWS refused. The agent logs an error when AWS throttles a call
past its SDK's own attempts, when its role may not call, and when it finds no credentials. None of these is a property
of the image. Nor is a security group or a route that drops what the machine sends.
Sources: plugins/outputs/cloudwatch and cloudwatchlogs of https://github.com/aws/amazon-cloudwatch-agent v1.300060.0;
the credential errors of aws-sdk-go and aws-sdk-go-v2, read 2026-11.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from validator.cloudwatch import ApiRefused

if TYPE_CHECKING:
    from validator.plan_document import PlanDocument


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


SECONDS = 15
# Prints the security groups of a machine whose connection timed out; nothing where it is refused or gets through.
_PROBE = f"""
import socket, sys, urllib.request as u
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), {SECONDS}).close()
except socket.timeout:
    base, opener = "http://169.254.169.254/latest/", u.build_opener(u.ProxyHandler({{}}))
    try:
        asked = u.Request(base + "api/token", method="PUT", headers={{"X-aws-ec2-metadata-token-ttl-seconds": "60"}})
        token = opener.open(asked, timeout=5).read().decode()
        asked = u.Request(base + "meta-data/security-groups", headers={{"X-aws-ec2-metadata-token": token}})
        print("dropped", *opener.open(asked, timeout=5).read().decode().split("\\n"), sep="\\t")
    except OSError:
        print("dropped")
except OSError:
    pass
"""


def endpoint(service: str, region: str, plan: PlanDocument | None) -> tuple[str, int]:
    """Host and port of the service as the plan's agent reaches it. service: `logs` or `monitoring`."""
    logs = plan["cloudwatch_agent"]["config"]["logs"] if plan and "cloudwatch_agent" in plan else None
    override = str(logs.get("endpoint_override") or "") if logs else ""
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    url = urlsplit(override or f"https://{service}.{region}.{domain}")
    return url.hostname or "", url.port or (80 if url.scheme == "http" else 443)


def raise_if_dropped(host: Any, service: str, region: str, plan: PlanDocument | None) -> None:
    """ApiRefused if connections of the machine to the service time out: that nothing arrived is not the image's fault.

    A connection that is refused, or a name that is not found, decides nothing: the image may be the cause.
    """
    name, port = endpoint(service, region, plan)
    shown = host.run("python3 -c %s %s %s", _PROBE, name, str(port)).stdout.strip()
    if not shown.startswith("dropped"):
        return
    groups = ", ".join(shown.split("\t")[1:]) or "of the instance"
    hint = f"allow TCP {port} out in security group {groups}; look at routes and network ACLs of its subnet"
    text = f"timed out after {SECONDS} s (security group {groups})"
    raise ApiRefused(f"connecting from this machine to {name} port {port}", "", text, hint)
