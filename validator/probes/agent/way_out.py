"""Whether a machine can connect to CloudWatch at all: a security group or a route may drop what it sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from validator.cloudwatch import ApiRefused

if TYPE_CHECKING:
    from validator.plan_document import PlanDocument

_SECONDS = 15
# Prints the security groups of a machine whose connection timed out; nothing where it is refused or gets through.
_PROBE = f"""
import socket, sys, urllib.request as u
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), {_SECONDS}).close()
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
    text = f"timed out after {_SECONDS} s (security group {groups})"
    raise ApiRefused(f"connecting from this machine to {name} port {port}", "", text, hint)
