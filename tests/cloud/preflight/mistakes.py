"""Mistakes of a place: each with the change that makes it, and the finding that is expected."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_ami.cloud.preflight.findings import Level
from tests.cloud.preflight.account import AGENT, DEAD_MAN, REGION, TRUST, Account, Wrapped, other_vpc, security_group

ERROR, OK, WARNING = Level.ERROR, Level.OK, Level.WARNING


def _small_subnet(account: Account) -> None:
    made = account.ec2.create_subnet(VpcId=account.vpc, CidrBlock="10.0.1.0/28", AvailabilityZone="us-east-1a")
    subnet = made["Subnet"]["SubnetId"]
    account.ec2.associate_route_table(RouteTableId=account.table, SubnetId=subnet)
    for _ in range(10):
        account.ec2.create_network_interface(SubnetId=subnet)
    account.change(subnet_ids=(subnet,))


def _in_use(account: Account) -> None:
    """A p4d.24xlarge of somebody else's runs already: 96 vCPUs."""
    account.quotas["L-417A185B"] = 150
    cores = {"CoreCount": 48, "ThreadsPerCore": 2}
    running = {"InstanceType": "p4d.24xlarge", "CpuOptions": cores}
    spot = running | {"InstanceLifecycle": "spot"}
    pages = [{"Reservations": [{"Instances": [running, spot]}]}]
    account.cloud.ec2 = Wrapped(account.ec2, describe_instances=pages)


def _no_default_route(account: Account) -> None:
    account.ec2.delete_route(RouteTableId=account.table, DestinationCidrBlock="0.0.0.0/0")


def _nat_route(account: Account) -> None:
    _no_default_route(account)
    nat = account.ec2.create_nat_gateway(SubnetId=account.place.network.subnet_id, ConnectivityType="private")
    account.ec2.create_route(
        RouteTableId=account.table,
        DestinationCidrBlock="0.0.0.0/0",
        NatGatewayId=nat["NatGateway"]["NatGatewayId"],
    )


def _further_subnet(vpc: Callable[[Account], str], zone: str = "us-east-1b") -> Callable[[Account], None]:
    def mutate(account: Account) -> None:
        cidr = "10.9.2.0/24" if vpc is other_vpc else "10.0.2.0/24"
        made = account.ec2.create_subnet(VpcId=vpc(account), CidrBlock=cidr, AvailabilityZone=zone)["Subnet"][
            "SubnetId"
        ]
        account.change(subnet_ids=(str(account.place.network.subnet_id), made))

    return mutate


def _reservation(way: str = "reservation", **changes: Any) -> Callable[[Account], None]:
    """A reservation for the plan's p4d.24xlarge."""

    def mutate(account: Account) -> None:
        row = {
            "CapacityReservationId": "cr-00000001", "InstanceType": "p4d.24xlarge", "State": "active",
            "AvailabilityZone": "us-east-1a", "AvailableInstanceCount": 1, "ReservationType": "default",
            **({"ReservationType": "capacity-block"} if way == "capacity-block" else {}), **changes,
        }  # fmt: skip
        account.reservations.append(row)
        account.change(capacity={"p4d*": (f"{way}:cr-00000001",)})

    return mutate


def _egress_closed(account: Account) -> None:
    group = account.place.network.security_group_ids[0]
    rules = account.ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissionsEgress"]
    account.ec2.revoke_security_group_egress(GroupId=group, IpPermissions=rules)


def _empty_profile(account: Account) -> None:
    account.cloud.client("iam").create_instance_profile(InstanceProfileName="empty")
    account.change(instance_profile="empty")


def _trust_of_lambda(account: Account) -> None:
    document = json.dumps(TRUST).replace("ec2.", "lambda.")
    account.cloud.client("iam").update_assume_role_policy(RoleName="gpu-ami-node", PolicyDocument=document)


def _without(action: str) -> Callable[[Account], None]:
    def mutate(account: Account) -> None:
        deny = {"Effect": "Deny", "Action": action, "Resource": "*"}
        account.policy({"Version": "2012-10-17", "Statement": [*AGENT["Statement"], deny]})

    return mutate


def _namespace(name: str) -> Callable[[Account], None]:
    """The role may publish in this namespace alone."""

    def mutate(account: Account) -> None:
        rest = {"Effect": "Allow", "Action": ["logs:*", "ec2:DescribeTags"], "Resource": "*"}
        condition = {"StringEquals": {"cloudwatch:namespace": name}}
        metrics = {"Effect": "Allow", "Action": "cloudwatch:PutMetricData", "Resource": "*", "Condition": condition}
        account.policy({"Version": "2012-10-17", "Statement": [rest, metrics]})

    return mutate


def _namespace_of_production(account: Account) -> None:
    _namespace("CWAgent")(account)
    account.change(log_groups="production")


def _disabled_key(account: Account) -> None:
    account.cloud.client("kms").disable_key(KeyId=account.place.kms_key_id)


def _signing_key(account: Account) -> None:
    made = account.cloud.client("kms").create_key(KeySpec="RSA_2048", KeyUsage="SIGN_VERIFY")
    account.change(kms_key_id=made["KeyMetadata"]["KeyId"])


def _image(**changes: str) -> Callable[[Account], None]:
    return lambda account: account.image.update(changes)


def _set(key: str, value: Any) -> Callable[[Account], None]:
    return lambda account: account.plan.update({key: value})


def _place(**changes: Any) -> Callable[[Account], None]:
    return lambda account: account.change(**changes)


def _own_group(source: str, port: int = 22) -> Callable[[Account], None]:
    return lambda account: account.change(security_group_ids=(security_group(account, account.vpc, source, port),))


def _foreign_group(account: Account) -> None:
    account.change(security_group_ids=(security_group(account, other_vpc(account), "52.94.76.7/32"),))


def _no_default_vpc(account: Account) -> None:
    account.change(subnet_ids=())
    for vpc in account.ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]:
        for subnet in account.ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc["VpcId"]]}])["Subnets"]:
            account.ec2.delete_subnet(SubnetId=subnet["SubnetId"])
        account.ec2.delete_vpc(VpcId=vpc["VpcId"])


BUILDER = {"root_volume_gib": 64, "instance_type": "m6g.2xlarge"}


MISSING_TYPE = [{"name": "p9.48xlarge", "efa_interfaces": 1}]


# (name, mutation, level, subject, part of what was found)
def _answered(**changes: Any) -> Callable[[Account], None]:
    """The first subnet as DescribeSubnets has it, but for these fields (moto has no such subnets)."""

    def mutate(account: Account) -> None:
        real = account.ec2

        def describe_subnets(**request: Any) -> Any:
            rows = real.describe_subnets(**request)["Subnets"]
            return {
                "Subnets": [
                    row | changes if row["SubnetId"] == account.place.network.subnet_id else row for row in rows
                ]
            }

        account.cloud.ec2 = Wrapped(real, describe_subnets=describe_subnets)

    return mutate


def _shared_vpc(account: Account) -> None:
    account.change(security_group_ids=())
    _answered(OwnerId="999999999999")(account)


def _second_subnet_without_a_route(account: Account) -> None:
    _further_subnet(lambda account: account.vpc)(account)  # its table is the main one, which has local routes alone


def _firewall(account: Account) -> None:
    _no_default_route(account)
    real = account.ec2

    def describe_route_tables(**request: Any) -> Any:
        tables = real.describe_route_tables(**request)["RouteTables"]
        route = {"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "vpce-00000001", "State": "active"}
        return {"RouteTables": [{**table, "Routes": [*table["Routes"], route]} for table in tables]}

    account.cloud.ec2 = Wrapped(real, describe_route_tables=describe_route_tables)


def _dead_man_trusts(service: str) -> Callable[[Account], None]:
    def mutate(account: Account) -> None:
        document = json.dumps(TRUST).replace("ec2.", f"{service}.")
        account.cloud.client("iam").update_assume_role_policy(RoleName="gpu-ami-dead-man", PolicyDocument=document)

    return mutate


def _dead_man_without_rights(account: Account) -> None:
    account.cloud.client("iam").delete_role_policy(RoleName="gpu-ami-dead-man", PolicyName="end")


def _logs_of(*groups: str) -> Callable[[Account], None]:
    """The role may write to these log groups alone."""

    def mutate(account: Account) -> None:
        arns = [f"arn:aws:logs:*:*:log-group:{group}" for group in groups]
        rest = {"Effect": "Allow", "Action": ["cloudwatch:PutMetricData", "ec2:DescribeTags"], "Resource": "*"}
        account.policy(
            {"Version": "2012-10-17", "Statement": [rest, {"Effect": "Allow", "Action": "logs:*", "Resource": arns}]}
        )

    return mutate


def _session_manager(account: Account) -> None:
    account.change(ssh_interface="session_manager")


def _session_manager_on_debian(account: Account) -> None:
    _session_manager(account)
    account.plan["os"] = {"id": "debian"}


def _setting(call: str, **answer: Any) -> Callable[[Account], None]:
    return lambda account: account.settings.update({call: answer})


def _public_access(mode: str, *exclusions: tuple[str, str]) -> Callable[[Account], None]:
    """VPC Block Public Access with exclusions: of `subnet` or `vpc`, and their modes."""

    def mutate(account: Account) -> None:
        ids = {"subnet": account.place.network.subnet_id, "vpc": account.vpc}
        rows = [
            {"ResourceArn": f"arn:aws:ec2:{REGION}:123456789012:{kind}/{ids[kind]}",
             "InternetGatewayExclusionMode": excluded, "State": "create-complete"}
            for kind, excluded in exclusions
        ]  # fmt: skip
        _setting("DescribeVpcBlockPublicAccessOptions", VpcBlockPublicAccessOptions={"InternetGatewayBlockMode": mode})(
            account
        )
        _setting("DescribeVpcBlockPublicAccessExclusions", VpcBlockPublicAccessExclusions=rows)(account)

    return mutate


def _behind_nat(change: Callable[[Account], None]) -> Callable[[Account], None]:
    def mutate(account: Account) -> None:
        _nat_route(account)
        account.change(ssh_interface="private_ip")
        change(account)

    return mutate


def _default_key(state: str) -> Callable[[Account], None]:
    """The account's default key for EBS is a customer's own."""

    def mutate(account: Account) -> None:
        key = account.place.kms_key_id
        account.change(kms_key_id=None)
        _setting("GetEbsDefaultKmsKeyId", KmsKeyId=key)(account)
        if state == "Disabled":
            account.cloud.client("kms").disable_key(KeyId=key)

    return mutate


def _allowed_images(state: str, listed: str = "amazon") -> Callable[[Account], None]:
    """Allowed AMIs of Amazon's alone; where they are enabled, EC2 does not list the source AMI."""

    def mutate(account: Account) -> None:
        _setting("GetAllowedImagesSettings", State=state, ImageCriteria=[{"ImageProviders": [listed]}])(account)
        account.image["ImageAllowed"] = False
        if state == "enabled":
            account.image["ImageId"] = "ami-00000000000000000"

    return mutate


OF_THE_ACCOUNT: list[tuple[str, Callable[[Account], None], Level, str, str]] = [
    ("default key disabled", _default_key("Disabled"), ERROR, "kms_key_id", "is Disabled"),
    ("default key of the customer", _default_key("Enabled"), OK, "kms_key_id", "the account's default key for EBS, "),
    (
        "no public access",
        _public_access("block-bidirectional"),
        ERROR,
        "VPC Block Public Access",
        "reaches neither AWS nor package indexes",
    ),
    ("no public ingress", _public_access("block-ingress"), ERROR, "VPC Block Public Access", "block-ingress"),
    (
        "subnet excluded for egress alone",
        _public_access("block-ingress", ("subnet", "allow-egress")),
        ERROR,
        "VPC Block Public Access",
        "block-ingress",
    ),
    (
        "VPC excluded",
        _public_access("block-bidirectional", ("vpc", "allow-bidirectional")),
        OK,
        "VPC Block Public Access",
        "lets subnet-",
    ),
    (
        "NAT without ingress",
        _behind_nat(_public_access("block-ingress")),
        OK,
        "VPC Block Public Access",
        "lets subnet-",
    ),
    (
        "NAT cut off",
        _behind_nat(_public_access("block-bidirectional")),
        ERROR,
        "VPC Block Public Access",
        "block-bidirectional",
    ),
    ("hidden by Allowed AMIs", _allowed_images("enabled"), ERROR, "source_ami", "ami-0123456789abcdef0 (id) is not"),
    ("Allowed AMIs in audit mode", _allowed_images("audit-mode"), WARNING, "source_ami", "outside the account's"),
]


MISTAKES: list[tuple[str, Callable[[Account], None], Level, str, str]] = [
    (
        "subnet unknown",
        _place(subnet_ids=("subnet-00000000",)),
        ERROR,
        "subnet_id",
        "subnet-00000000 is not in us-east-1",
    ),
    ("subnet full", _small_subnet, ERROR, "subnet_id", "1 free addresses"),
    ("subnet of IPv6 alone", _answered(Ipv6Native=True, AvailableIpAddressCount=0), ERROR, "subnet_id", "IPv6 only"),
    ("shared VPC without groups", _shared_vpc, ERROR, "security_group_ids", "the VPC belongs to account 999999999999"),
    ("second subnet without a route", _second_subnet_without_a_route, ERROR, "routes", "no default route"),
    ("a firewall before the gateway", _firewall, WARNING, "routes", "0.0.0.0/0 to vpce-00000001"),
    ("no dead man", _place(dead_man_role=None), WARNING, "dead_man_role", "none"),
    ("dead man unknown", _place(dead_man_role=f"{DEAD_MAN}x"), ERROR, "dead_man_role", "does not exist"),
    ("trust of the dead man", _dead_man_trusts("ec2"), ERROR, "dead_man_role", "scheduler.amazonaws.com"),
    ("dead man without rights", _dead_man_without_rights, ERROR, "dead_man_role", "ec2:TerminateInstances"),
    (
        "log groups of the proof not covered",
        _logs_of("/ec2/accelerated/accel-event-log", "/ec2/accelerated/accel-event-json"),
        ERROR,
        "role gpu-ami-node of gpu-node",
        "logs:CreateLogStream is not allowed for /ec2/accelerated/accel-event-json-proof/",
    ),
    ("session manager without rights", _session_manager, ERROR, "role of gpu-node", "ssm:UpdateInstanceInformation"),
    ("session manager on Debian", _session_manager_on_debian, ERROR, "ssh_interface", "no SSM Agent"),
    ("no default VPC", _no_default_vpc, ERROR, "subnet_id", "no default VPC"),
    (
        "no way out",
        _no_default_route,
        ERROR,
        "routes",
        "no default route and no VPC endpoint for monitoring, logs, ec2",
    ),
    ("NAT for public addresses", _nat_route, ERROR, "routes", "0.0.0.0/0 to nat-"),
    ("group unknown", _place(security_group_ids=("sg-00000000",)), ERROR, "security_group_ids", "sg-00000000 is not"),
    ("group of another VPC", _foreign_group, ERROR, "security_group_ids", "is in vpc-"),
    ("group without ingress", _own_group(""), ERROR, "SSH ingress", "do not allow TCP 22"),
    ("group for another port", _own_group("52.94.76.7/32", 2222), ERROR, "SSH ingress", "do not allow TCP 22"),
    ("sshd on another port", _place(ssh_port=2022), ERROR, "SSH ingress", "do not allow TCP 2022"),
    ("group open to all", _own_group("0.0.0.0/0"), WARNING, "SSH ingress", "from anywhere"),
    ("private source for a public login", _own_group("10.1.0.0/16"), ERROR, "SSH ingress", "from 10.1.0.0/16"),
    ("no group", _place(security_group_ids=()), WARNING, "security_group_ids", "the VPC's default group sg-"),
    ("default group closed", _place(security_group_ids=()), ERROR, "SSH ingress", "do not allow TCP 22"),
    ("no egress", _egress_closed, ERROR, "egress", "do not allow TCP 443 out"),
    (
        "Session Manager without a profile",
        _place(ssh_interface="session_manager", instance_profile=None),
        ERROR,
        "ssh_interface",
        "session_manager without instance_profile",
    ),
    (
        "Session Manager without its plugin",
        _place(ssh_interface="session_manager"),
        ERROR,
        "login",
        "session-manager-plugin is not installed",
    ),
    ("program not installed", _place(proxy_command="no-such-tunnel %h %p"), ERROR, "login", "no-such-tunnel is not"),
    (
        "jump host without sshd",
        _place(jump_host="admin@127.0.0.1:9"),
        ERROR,
        "jump_host",
        "127.0.0.1 port 9: Connection refused",
    ),
    (
        "key of the jump host missing",
        _place(jump_host="admin@127.0.0.1:9", jump_key="/no/such/key"),
        ERROR,
        "jump_key",
        "/no/such/key does not exist",
    ),
    (
        "endpoint unknown",
        _place(instance_connect_endpoint="eice-00000009"),
        ERROR,
        "instance_connect_endpoint",
        "eice-00000009 is not among the VPC's complete endpoints: eice-00000001",
    ),
    (
        "a builder that Packer cannot reach",
        _place(instance_connect_endpoint="any"),
        WARNING,
        "instance_connect_endpoint",
        "Packer cannot log in",
    ),
    ("no profile", _place(instance_profile=None), ERROR, "instance_profile", "can publish nothing"),
    ("profile unknown", _place(instance_profile="nobody"), ERROR, "instance_profile", "nobody does not exist"),
    ("profile without role", _empty_profile, ERROR, "instance_profile", "empty has no role"),
    ("trust policy", _trust_of_lambda, ERROR, "role gpu-ami-node of gpu-node", "does not name ec2.amazonaws.com"),
    (
        "no PutMetricData",
        _without("cloudwatch:Put*"),
        ERROR,
        "role gpu-ami-node of gpu-node",
        "cloudwatch:PutMetricData is not allowed",
    ),
    (
        "no PutLogEvents",
        _without("logs:PutLogEvents"),
        ERROR,
        "role gpu-ami-node of gpu-node",
        "logs:PutLogEvents is not allowed",
    ),
    ("no DescribeTags", _without("ec2:*"), ERROR, "role gpu-ami-node of gpu-node", "ec2:DescribeTags is not allowed"),
    ("namespace of production", _namespace_of_production, OK, "role gpu-ami-node of gpu-node", "allows what the"),
    (
        "namespace",
        _namespace("Other"),
        ERROR,
        "role gpu-ami-node of gpu-node",
        "not allowed for namespace CWAgent-proof",
    ),
    (
        "namespace of the fleet alone",
        _namespace("CWAgent"),
        ERROR,
        "role gpu-ami-node of gpu-node",
        "not allowed for namespace CWAgent-proof",
    ),
    ("key unknown", _place(kms_key_id="alias/nothing"), ERROR, "kms_key_id", "alias/nothing is not in us-east-1"),
    ("key disabled", _disabled_key, ERROR, "kms_key_id", "is Disabled"),
    ("key for signatures", _signing_key, ERROR, "kms_key_id", "RSA_2048 for SIGN_VERIFY"),
    ("source AMI unknown", _set("source_ami", {"id": "ami-00000000"}), ERROR, "source_ami", "ami-00000000 (id) is not"),
    ("source AMI of another architecture", _image(Architecture="arm64"), ERROR, "source_ami", ": arm64"),
    (
        "kernel of the source AMI",
        _image(Description="AMI x86_64 HVM kernel-5.10"),
        WARNING,
        "kernel",
        "boots kernel 5.10",
    ),
    ("source AMI not on EBS", _image(RootDeviceType="instance-store"), ERROR, "source_ami", "instance-store"),
    ("source AMI old", _image(CreationDate="2020-01-01T00:00:00.000Z"), WARNING, "source_ami", "created 2020-01-01"),
    (
        "source AMI deprecated",
        _image(DeprecationTime="2024-06-30T00:00:00.000Z"),
        WARNING,
        "source_ami",
        "deprecated since 2024-06-30",
    ),
    ("builder of another architecture", _set("build", BUILDER), ERROR, "architecture", "builder m6g.2xlarge is arm64"),
    ("type unknown", _set("instance_types", MISSING_TYPE), ERROR, "offerings", "does not offer p9.48xlarge"),
    (
        "further subnet unknown",
        lambda account: account.change(subnet_ids=(str(account.place.network.subnet_id), "subnet-00000000")),
        ERROR,
        "subnet_ids",
        "subnet-00000000 is not in us-east-1",
    ),
    ("subnet of another VPC", _further_subnet(other_vpc), ERROR, "subnet_ids", "is in vpc-"),
    (
        "reservation unknown",
        _place(capacity={"*": ("reservation:cr-00000009",)}),
        ERROR,
        "capacity",
        "cr-00000009 is not in us-east-1",
    ),
    ("reservation of another type", _reservation(InstanceType="p5.48xlarge"), ERROR, "capacity", "is for p5.48xlarge"),
    ("reservation in another zone", _reservation(AvailabilityZone="us-east-1f"), ERROR, "capacity", "is in us-east-1f"),
    ("reservation cancelled", _reservation(State="cancelled"), ERROR, "capacity", "is cancelled"),
    ("reservation full", _reservation(AvailableInstanceCount=0), WARNING, "capacity", "no free instance"),
    ("Capacity Block expired", _reservation("capacity-block", State="expired"), ERROR, "capacity", "is expired"),
    ("Capacity Block not begun", _reservation("capacity-block", State="scheduled"), ERROR, "capacity", "is scheduled"),
    (
        "Capacity Block taken for a reservation",
        _reservation(ReservationType="capacity-block"),
        ERROR,
        "capacity",
        "cr-00000001 is a Capacity Block",
    ),
    (
        "Capacity Block ends soon",
        _reservation("capacity-block", EndDate=datetime.now(UTC) + timedelta(hours=1)),
        WARNING,
        "capacity",
        "ends in ",
    ),
    (
        "quota too small",
        lambda account: account.quotas.update({"L-417A185B": 64}),
        ERROR,
        "quota L-417A185B",
        "Running On-Demand P instances: 64 vCPUs",
    ),
    ("quota in use", _in_use, ERROR, "quota L-417A185B", "150 vCPUs, 96 in use"),
    (
        "CreateImage not allowed",
        lambda account: account.simulated.update({"ec2:CreateImage": "implicitDeny"}),
        WARNING,
        "permissions",
        "not allowed on every resource: ec2:CreateImage",
    ),
    (
        "quota unreadable",
        lambda account: account.quotas.update({"L-DB2E81BA": -1}),
        WARNING,
        "quota L-DB2E81BA",
        "not examined: AccessDeniedException",
    ),
    (
        "RunInstances refused",
        lambda account: account.dry_run_refusals.update({"RunInstances": "UnauthorizedOperation"}),
        ERROR,
        "dry run of RunInstances p4d.24xlarge",
        "UnauthorizedOperation",
    ),
    (
        "CreateKeyPair throttled",
        lambda account: account.dry_run_refusals.update({"CreateKeyPair": "RequestLimitExceeded"}),
        WARNING,
        "dry run of CreateKeyPair",
        "not examined: RequestLimitExceeded",
    ),
    (
        "action denied explicitly",
        lambda account: account.simulated.update({"ec2:DescribeImages": "explicitDeny"}),
        ERROR,
        "permissions",
        "ec2:DescribeImages is denied explicitly",
    ),
    (
        "action not allowed",
        lambda account: account.simulated.update({"ec2:DescribeVolumes": "implicitDeny"}),
        WARNING,
        "permissions",
        "not allowed on every resource: ec2:DescribeVolumes",
    ),
]
