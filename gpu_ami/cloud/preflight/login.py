"""What a login to an instance needs on this machine and at the place."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.cloud import SESSION_MANAGER, login
from gpu_ami.cloud.preflight.findings import Finding, Scope, error, ok, warning

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef

_JUMP_SECONDS = 5.0
_REMEDIES = {
    "aws": "install the AWS CLI, version 2 (https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html)",
    "session-manager-plugin": "install the Session Manager plugin (package session-manager-plugin of AWS)",
    "ssh": "apt-get install openssh-client",
}


def ways_in(scope: Scope) -> Iterator[Finding]:
    """The programs of the place's way to log in are installed, and what it names exists."""
    place = scope.place
    for program in login.programs(place):
        found = shutil.which(program)
        if found:
            yield ok("login", f"{program}: {found}")
        else:
            remedy = _REMEDIES.get(program, "install it, or correct proxy_command")
            yield error("login", f"{program} is not installed", f"{program} on the PATH", remedy)
    if place.jump_key and not Path(place.jump_key).is_file():
        yield error("jump_key", f"{place.jump_key} does not exist", "a private key", "correct jump_key")
    if place.jump_host:
        yield _jump_host(place.jump_host)
    if place.ssh_interface == SESSION_MANAGER:
        yield from _session_manager(scope)
    if place.instance_connect_endpoint:
        yield from _endpoint(scope)
    if scope.plan and (place.proxy_command or place.instance_connect_endpoint):
        key = "proxy_command" if place.proxy_command else "instance_connect_endpoint"
        remedy = "build elsewhere, or use jump_host or ssh_interface: session_manager"
        yield warning(key, "Packer cannot log in to a builder through it", "for a build: jump_host", remedy)


def _jump_host(name: str) -> Finding:
    """It answers as an SSH server. Names of OpenSSH's own configuration (Host …) are not known to this look-up."""
    host, _, port = name.partition("@")[2].partition(":")
    where, remedy = f"{host} port {port or 22}", "correct jump_host, start sshd there, or allow SSH from this machine"
    try:
        with socket.create_connection((host, int(port or 22)), timeout=_JUMP_SECONDS) as connection:
            connection.settimeout(_JUMP_SECONDS)
            banner = connection.recv(64)
    except socket.gaierror:
        text = f"{host} is not in DNS; ssh's own configuration may know it"
        return warning("jump_host", text, "a host that answers", remedy)
    except OSError as fault:
        reason = "does not answer" if isinstance(fault, TimeoutError) else fault.strerror or str(fault)
        return error("jump_host", f"{where}: {reason}", "an SSH server", remedy)
    if not banner.startswith(b"SSH-"):
        return error("jump_host", f"{where} is not an SSH server: it sent {banner[:20]!r}", "an SSH server", remedy)
    return ok("jump_host", f"{where}: {banner.decode(errors='replace').strip()}")


def _session_manager(scope: Scope) -> Iterator[Finding]:
    """An instance registers with Session Manager by its profile: without one no session can begin."""
    if not scope.place.instance_profile:
        remedy = "set instance_profile to one with AmazonSSMManagedInstanceCore"
        yield error("ssh_interface", "session_manager without instance_profile", "an instance profile", remedy)


def _endpoint(scope: Scope) -> Iterator[Finding]:
    """The endpoint is there, complete, and in the VPC of the subnet."""
    name = scope.place.instance_connect_endpoint
    filters: list[FilterTypeDef] = []
    if scope.place.subnet_id:
        of_subnet: list[FilterTypeDef] = [{"Name": "subnet-id", "Values": [scope.place.subnet_id]}]
        vpcs = [row["VpcId"] for row in scope.ec2.describe_subnets(Filters=of_subnet)["Subnets"]]
        filters = [{"Name": "vpc-id", "Values": vpcs}] if vpcs else []
    rows = scope.ec2.describe_instance_connect_endpoints(Filters=filters)["InstanceConnectEndpoints"]
    usable = [row["InstanceConnectEndpointId"] for row in rows if row["State"] == "create-complete"]
    if name in usable or (name == "any" and usable):
        yield ok("instance_connect_endpoint", ", ".join(usable))
    else:
        shown = ", ".join(usable) or "none"
        remedy = "create an EC2 Instance Connect Endpoint in the VPC, or correct instance_connect_endpoint"
        text = f"{name} is not among the VPC's complete endpoints: {shown}"
        yield error("instance_connect_endpoint", text, "an endpoint in the subnet's VPC", remedy)
