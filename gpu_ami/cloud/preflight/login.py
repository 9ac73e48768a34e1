"""What a login to an instance needs on this machine and at the place."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.cloud import login
from gpu_ami.cloud.preflight.findings import Finding, Scope, error, ok, warning

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef

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
    if place.ssh_interface == login.SESSION_MANAGER:
        yield from _session_manager(scope)
    if place.instance_connect_endpoint:
        yield from _endpoint(scope)
    if scope.plan and (place.proxy_command or place.instance_connect_endpoint):
        key = "proxy_command" if place.proxy_command else "instance_connect_endpoint"
        remedy = "build elsewhere, or use jump_host or ssh_interface: session_manager"
        yield warning(key, "Packer cannot log in to a builder through it", "for a build: jump_host", remedy)


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
