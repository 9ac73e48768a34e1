"""The subnet, its way out, and the security groups of a place."""

from __future__ import annotations

import ipaddress
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.cloud import SESSION_MANAGER, login
from gpu_ami.cloud import security_groups as ec2_groups
from gpu_ami.cloud.preflight import identity
from gpu_ami.cloud.preflight.findings import Finding, Scope, error, ok, warning
from validator import aws

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef, RouteTableTypeDef, SecurityGroupTypeDef, SubnetTypeDef

# Where a route can lead to (EC2 API reference, "Route").
_TARGETS = (
    "GatewayId",
    "EgressOnlyInternetGatewayId",
    "NatGatewayId",
    "TransitGatewayId",
    "NetworkInterfaceId",
    "InstanceId",
    "VpcPeeringConnectionId",
)
_ANYWHERE = ("0.0.0.0/0", "::/0")
# What an instance without a way out reaches through interface endpoints: the agent's metrics, its logs, ec2tagger.
_ENDPOINT_SERVICES = ("monitoring", "logs", "ec2")
# What the SSM Agent reaches (Systems Manager user guide, "Create VPC endpoints", read 2026-11-27).
_SESSION_SERVICES = ("ssm", "ssmmessages")
# Systems whose AMIs bring no SSM Agent, and whose roles install none.
_WITHOUT_SSM_AGENT = ("debian",)
_AGENT_ACTIONS = {
    "ssm:UpdateInstanceInformation": "the SSM Agent registers the machine",
    "ssmmessages:CreateControlChannel": "sessions begin",
    "ssmmessages:CreateDataChannel": "sessions carry data",
    "ssmmessages:OpenControlChannel": "sessions begin",
    "ssmmessages:OpenDataChannel": "sessions carry data",
}


def subnet(scope: Scope) -> Iterator[Finding]:
    """The subnet exists and has an address for the builder and for each machine's interfaces."""
    subnet_id = scope.place.network.subnet_id
    row = _subnet(scope)
    if not subnet_id:
        vpc = _default_vpc(scope)
        remedy = "set subnet_id in the --where file"
        if vpc:
            yield ok("subnet_id", f"none: a subnet of the default VPC {vpc}")
        else:
            yield error("subnet_id", f"none, and {scope.place.region} has no default VPC", "a subnet", remedy)
        return
    if not row:
        yield error(
            "subnet_id", f"{subnet_id} is not in {scope.place.region}", "a subnet", "correct subnet_id or region"
        )
        return
    free, needed = row["AvailableIpAddressCount"], _addresses(scope)
    text = f"{subnet_id} in {row['AvailabilityZone']}: {free} free addresses"
    if row.get("Ipv6Native"):
        text = f"{subnet_id} in {row['AvailabilityZone']}: IPv6 only"
        if scope.place.login.ssh_interface == SESSION_MANAGER:
            yield ok("subnet_id", text)
        else:
            expected = f"IPv4 addresses, which ssh_interface {scope.place.login.ssh_interface} needs"
            yield error("subnet_id", text, expected, "use a subnet with IPv4, or ssh_interface: session_manager")
    elif free < needed:
        yield error("subnet_id", text, f"at least {needed}", "use a larger subnet, or prove fewer types at a time")
    else:
        yield ok("subnet_id", text)
    yield from _further_subnets(scope, row)


def _further_subnets(scope: Scope, first: SubnetTypeDef) -> Iterator[Finding]:
    """The other subnets of `subnet_ids` exist, in the VPC of the first, and have addresses."""
    rows = {row["SubnetId"]: row for row in _subnets(scope)}
    for subnet_id in scope.place.network.subnets[1:]:
        row = rows.get(subnet_id)
        if row is None:
            text = f"{subnet_id} is not in {scope.place.region}"
            yield error("subnet_ids", text, "a subnet", "correct subnet_ids or region")
        elif row["VpcId"] != first["VpcId"]:
            text = f"{subnet_id} is in {row['VpcId']}"
            remedy = "name subnets of one VPC: the security groups are of one"
            yield error("subnet_ids", text, f"{first['VpcId']}, the VPC of {first['SubnetId']}", remedy)
        elif row["AvailableIpAddressCount"] < 1:
            yield error("subnet_ids", f"{subnet_id}: no free address", "at least 1", "use a larger subnet")
        else:
            yield ok("subnet_ids", f"{subnet_id} in {row['AvailabilityZone']}")


def _addresses(scope: Scope) -> int:
    """IPv4 addresses in use at the same time: the builder's, or one a machine: EFA-only interfaces have none."""
    return max(1, scope.nodes * len(scope.proven))


def routes(scope: Scope) -> Iterator[Finding]:
    """Each subnet's route table has a way out; public addresses need an internet gateway."""
    for row in _subnets(scope):
        yield from _routes(scope, row)


def _routes(scope: Scope, row: SubnetTypeDef) -> Iterator[Finding]:
    table = _route_table(scope, row)
    of_ipv6 = bool(row.get("Ipv6Native"))
    anywhere = "::/0" if of_ipv6 else "0.0.0.0/0"
    key = "DestinationIpv6CidrBlock" if of_ipv6 else "DestinationCidrBlock"
    default = [route for route in table.get("Routes", []) if route.get(key) == anywhere]
    name = f"{table.get('RouteTableId', 'no route table')} of {row['SubnetId']}"
    if not default:
        yield from _no_way_out(scope, row, name)
        return
    route: Mapping[str, object] = default[0]
    target = next((str(route[key]) for key in _TARGETS if route.get(key)), "?")
    if default[0].get("State") == "blackhole":
        yield error("routes", f"{name}: {anywhere} to {target} is a blackhole", "active", "repair the default route")
    elif target.startswith("vpce-"):
        remedy = "the firewall must pass SSH from this machine, and HTTPS to AWS and the package indexes"
        yield warning("routes", f"{name}: {anywhere} to {target}, an endpoint of a firewall", remedy=remedy)
    elif scope.place.login.ssh_interface.startswith("public") and not target.startswith("igw-"):
        remedy = "set ssh_interface: private_ip, or use a subnet with an internet gateway"
        expected = f"an internet gateway (ssh_interface: {scope.place.login.ssh_interface})"
        yield error("routes", f"{name}: {anywhere} to {target}", expected, remedy)
    else:
        yield ok("routes", f"{name}: {anywhere} to {target}")


def public_access(scope: Scope) -> Iterator[Finding]:
    """VPC Block Public Access lets builder and machines out, and SSH in (VPC user guide, read 2026-11-27).

    A subnet with an internet gateway needs an exclusion for both directions; one with a NAT gateway is cut off only
    where both directions are blocked.
    """
    options = scope.ec2.describe_vpc_block_public_access_options()["VpcBlockPublicAccessOptions"]
    mode = options.get("InternetGatewayBlockMode", "off")
    if mode == "off":
        return
    excluded = _exclusions(scope)
    for row in _subnets(scope):
        allowed = {excluded[name] for name in (row["SubnetId"], row["VpcId"]) if name in excluded}
        table = _route_table(scope, row)
        direct = any(str(route.get("GatewayId", "")).startswith("igw-") for route in table.get("Routes", []))
        if "allow-bidirectional" in allowed or (not direct and (allowed or mode == "block-ingress")):
            yield ok(_PUBLIC_ACCESS, f"{mode} in {scope.place.region}, which lets {row['SubnetId']} out")
            continue
        needed = "allow-bidirectional" if direct else "allow-egress"
        remedy = (
            f"aws ec2 create-vpc-block-public-access-exclusion --subnet-id {row['SubnetId']}"
            f" --internet-gateway-exclusion-mode {needed}, or a subnet whose VPC has one"
        )
        text = f"{mode} in {scope.place.region}: {row['SubnetId']} reaches neither AWS nor package indexes"
        yield error(_PUBLIC_ACCESS, text, "off, or an exclusion", remedy)


_PUBLIC_ACCESS = "VPC Block Public Access"


def _exclusions(scope: Scope) -> dict[str, str]:
    """Subnet or VPC → the mode of its exclusion from VPC Block Public Access."""
    modes, asked = dict[str, str](), dict[str, str]()
    while True:  # botocore has no paginator for it
        page = scope.ec2.describe_vpc_block_public_access_exclusions(**asked)  # type: ignore[arg-type]
        for row in page.get("VpcBlockPublicAccessExclusions", []):
            if row["State"] in ("create-complete", "update-complete"):
                modes[row["ResourceArn"].rpartition("/")[2]] = row["InternetGatewayExclusionMode"]
        if not page.get("NextToken"):
            return modes
        if asked.get("NextToken") == page["NextToken"]:
            raise aws.NotOfAws("the same next token twice")
        asked = {"NextToken": page["NextToken"]}


def _no_way_out(scope: Scope, subnet: SubnetTypeDef, name: str) -> Iterator[Finding]:
    """Without a default route, packages come from a mirror in the VPC and AWS is reached through endpoints."""
    filters: list[FilterTypeDef] = [{"Name": "vpc-id", "Values": [subnet["VpcId"]]}]
    pages = scope.ec2.get_paginator("describe_vpc_endpoints").paginate(Filters=filters)
    present = {endpoint["ServiceName"].rpartition(".")[2] for page in pages for endpoint in page["VpcEndpoints"]}
    needed = [*_ENDPOINT_SERVICES, *(_SESSION_SERVICES if scope.place.login.ssh_interface == SESSION_MANAGER else ())]
    missing = [service for service in needed if service not in present]
    text = f"{name} has no default route" + (f" and no VPC endpoint for {', '.join(missing)}" if missing else "")
    remedy = "add a route to an internet or NAT gateway, or a mirror (key `mirror`) and the VPC endpoints"
    if missing or not scope.place.mirror:
        yield error("routes", text, "0.0.0.0/0 to an internet or NAT gateway", remedy)
    else:
        yield warning("routes", text, "0.0.0.0/0 to an internet or NAT gateway", "the mirror must be in this network")


def security_groups(scope: Scope) -> Iterator[Finding]:
    """Each group exists in the subnet's VPC; together they let SSH in and traffic out."""
    place = scope.place
    row = _subnet(scope)
    vpc = row["VpcId"] if row else "" if place.network.subnet_id else _default_vpc(scope)
    by_name: FilterTypeDef = {"Name": "group-id", "Values": list(place.network.security_group_ids)}
    if not place.network.security_group_ids:
        if not vpc:
            return
        by_name = {"Name": "group-name", "Values": ["default"]}
    own_vpc: list[FilterTypeDef] = [] if place.network.security_group_ids else [{"Name": "vpc-id", "Values": [vpc]}]
    groups = scope.ec2.describe_security_groups(Filters=[by_name, *own_vpc])["SecurityGroups"]
    if not place.network.security_group_ids and groups:
        text = f"none: builder and machines use the VPC's default group {groups[0]['GroupId']}"
        yield warning("security_group_ids", text, "a group that allows SSH", "set security_group_ids")
    owner = row.get("OwnerId", "") if row else ""
    if owner and not place.network.security_group_ids and owner != identity.account(scope):
        text = f"none, and the VPC belongs to account {owner}, whose default group others cannot use"
        yield error(
            "security_group_ids", text, "groups of this account", "create a group in the shared VPC and name it"
        )
        return
    for missing in sorted(set(place.network.security_group_ids) - {group["GroupId"] for group in groups}):
        yield error("security_group_ids", f"{missing} is not in {place.region}", "a group", "correct the id or region")
    for group in groups:
        if vpc and group["VpcId"] != vpc:
            text = f"{group['GroupId']} is in {group['VpcId']}"
            yield error("security_group_ids", text, f"{vpc}, the subnet's VPC", "use a group of the subnet's VPC")
    if groups:
        yield from ssh_ingress(scope, groups)
        yield from _egress(groups)
    if groups and scope.nodes > 1:
        yield from traffic_of_members(scope, groups)


def traffic_of_members(scope: Scope, groups: Sequence[SecurityGroupTypeDef]) -> Iterator[Finding]:
    """Machines that work together may send everything to each other."""
    names, subject = ", ".join(group["GroupId"] for group in groups), "traffic between nodes"
    closed = ec2_groups.own_traffic(groups, efa=scope.plan is None or "efa" in scope.plan)
    if not closed:
        yield ok(subject, f"{names} allow all traffic of their own members")
    for name in closed:
        remedy = f"add an {name}bound rule for all traffic with the group itself as its other end (docs/nodes.md)"
        yield error(subject, f"{names}: no {name}bound rule for all traffic of its own members", "such a rule", remedy)


def ssh_ingress(scope: Scope, groups: Sequence[SecurityGroupTypeDef]) -> Iterator[Finding]:
    """Judge whether the security groups let SSH in, and from where. Session Manager needs no rule."""
    if scope.place.login.ssh_interface == "session_manager":
        return
    port = scope.place.login.ssh_port
    ingress = ec2_groups.Ingress.of(groups, port)
    names, ranges, remedy = ingress.names, ingress.ranges, ingress.remedy
    subject = "SSH ingress"
    if any(source in _ANYWHERE for source in ranges):
        yield warning(subject, f"{names} allow TCP {port} from anywhere", "the addresses of this machine", remedy)
    elif ranges or ingress.lists:
        text = f"{names} allow TCP {port} from {', '.join(ranges + ingress.lists)}"
        public = scope.place.login.ssh_interface.startswith("public")
        if public and not ingress.lists and all(_network(source).is_private for source in ranges):
            yield error(subject, text, "a public address (ssh_interface is public)", remedy)
        else:
            yield ok(subject, text)
    elif ingress.members:
        text = f"{names} allow TCP {port} from members of {', '.join(ingress.members)} only"
        yield warning(subject, text, "the address of this machine, unless it is a member", remedy)
    else:
        yield error(subject, f"{names} do not allow TCP {port}", "an ingress rule for SSH", remedy)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """A network of a rule. NotOfAws: EC2 has none such."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise aws.NotOfAws(str(error)) from error


def _egress(groups: Sequence[SecurityGroupTypeDef]) -> Iterator[Finding]:
    if not any(ec2_groups.covers(rule, 443) for group in groups for rule in group["IpPermissionsEgress"]):
        names = ", ".join(group["GroupId"] for group in groups)
        remedy = "allow egress: packages, CloudWatch and CloudWatch Logs are reached through it"
        yield error("egress", f"{names} do not allow TCP 443 out", "an egress rule for HTTPS", remedy)


def _subnet(scope: Scope) -> SubnetTypeDef | None:
    """The place's subnet as DescribeSubnets has it; None where the place names none, or there is none."""
    if not scope.place.network.subnet_id:
        return None
    filters: list[FilterTypeDef] = [{"Name": "subnet-id", "Values": [scope.place.network.subnet_id]}]
    subnets = scope.ec2.describe_subnets(Filters=filters)["Subnets"]
    return subnets[0] if subnets else None


def _subnets(scope: Scope) -> list[SubnetTypeDef]:
    """The place's subnets as DescribeSubnets has them; those that there are."""
    names = [name for name in scope.place.network.subnets if name]
    if not names:
        return []
    filters: list[FilterTypeDef] = [{"Name": "subnet-id", "Values": names}]
    return scope.ec2.describe_subnets(Filters=filters)["Subnets"]


def zones(scope: Scope) -> set[str]:
    """Availability Zones of the place's subnets; none without subnets."""
    return {row["AvailabilityZone"] for row in _subnets(scope)}


def _default_vpc(scope: Scope) -> str:
    vpcs = scope.ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    return str(vpcs[0]["VpcId"]) if vpcs else ""


def _route_table(scope: Scope, subnet: SubnetTypeDef) -> RouteTableTypeDef:
    """The subnet's own route table, else the main one of its VPC."""
    ec2 = scope.ec2
    own: list[FilterTypeDef] = [{"Name": "association.subnet-id", "Values": [subnet["SubnetId"]]}]
    main: list[FilterTypeDef] = [
        {"Name": "association.main", "Values": ["true"]},
        {"Name": "vpc-id", "Values": [subnet["VpcId"]]},
    ]
    for filters in (own, main):
        tables = ec2.describe_route_tables(Filters=filters)["RouteTables"]
        if tables:
            return tables[0]
    return {}


JUMP_SECONDS = 5.0
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
    if place.login.jump_key and not Path(place.login.jump_key).is_file():
        yield error("jump_key", f"{place.login.jump_key} does not exist", "a private key", "correct jump_key")
    if place.login.jump_host:
        yield jump_host(place.login.jump_host)
    if place.login.ssh_interface == SESSION_MANAGER:
        yield from _session_manager(scope)
    if place.login.instance_connect_endpoint:
        yield from _endpoint(scope)
    if scope.plan and (place.login.proxy_command or place.login.instance_connect_endpoint):
        key = "proxy_command" if place.login.proxy_command else "instance_connect_endpoint"
        remedy = "build elsewhere, or use jump_host or ssh_interface: session_manager"
        yield warning(key, "Packer cannot log in to a builder through it", "for a build: jump_host", remedy)


def jump_host(name: str) -> Finding:
    """It answers as an SSH server. Names of OpenSSH's own configuration (Host …) are not known to this look-up."""
    host, _, port = name.partition("@")[2].partition(":")
    where, remedy = f"{host} port {port or 22}", "correct jump_host, start sshd there, or allow SSH from this machine"
    try:
        with socket.create_connection((host, int(port or 22)), timeout=JUMP_SECONDS) as connection:
            connection.settimeout(JUMP_SECONDS)
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
    else:
        remedy = "attach AmazonSSMManagedInstanceCore to the role"
        yield from identity.role_allows(scope, _AGENT_ACTIONS, remedy, "what the SSM Agent calls")
    system = str(scope.plan["os"].get("id", "")) if scope.plan and "os" in scope.plan else ""
    if system in _WITHOUT_SSM_AGENT:
        text = f"session_manager, but AMIs of {system} have no SSM Agent"
        remedy = "use jump_host or private_ip, or a site role and user data that install the agent"
        yield error("ssh_interface", text, "an AMI with the SSM Agent", remedy)


def _endpoint(scope: Scope) -> Iterator[Finding]:
    """The endpoint is there, complete, and in the VPC of the subnet."""
    name = scope.place.login.instance_connect_endpoint
    filters: list[FilterTypeDef] = []
    if scope.place.network.subnet_id:
        of_subnet: list[FilterTypeDef] = [{"Name": "subnet-id", "Values": [scope.place.network.subnet_id]}]
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
