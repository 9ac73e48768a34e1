"""The account's settings as boto3 sees them: by default, of a new account (localregion.api.account, launch_checks)."""

from __future__ import annotations

from typing import Any

import pytest

from localregion.api import account, launch_checks
from tests.localregion.api.test_layer import LAUNCH, TAGS, client, refused
from tests.localregion.conftest import BASE_ID, Region

IMDS_V2 = {"MetadataOptions": {"HttpTokens": "required"}}
SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}}
TAGGED = {
    "TagSpecifications": [
        {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in TAGS.items()]}
        for kind in ("instance", "volume", "network-interface")
    ]
}


def settings_of(ec2: Any) -> tuple[str, str]:
    return (
        ec2.get_ebs_default_kms_key_id()["KmsKeyId"],
        ec2.get_image_block_public_access_state()["ImageBlockPublicAccessState"],
    )


def test_an_ordinary_account(region: Region) -> None:
    _, endpoint = region("")
    ec2, iam = client(endpoint), client(endpoint, "iam")
    assert settings_of(ec2) == (account.AWS_EBS, "block-new-sharing")
    assert not ec2.get_ebs_encryption_by_default()["EbsEncryptionByDefault"]
    assert iam.get_role(RoleName="AWSServiceRoleForEC2Spot")["Role"]["Path"].startswith("/aws-service-role/spot")
    assert ec2.run_instances(**LAUNCH, **SPOT)["Instances"]
    assert ec2.describe_capacity_reservations()["CapacityReservations"] == []
    share = {"ImageId": BASE_ID, "LaunchPermission": {"Add": [{"Group": "all"}]}}
    assert refused(ec2.modify_image_attribute, **share) == ("OperationNotPermitted", 400)


def test_a_new_account(region: Region) -> None:
    _, endpoint = region("new-account")
    ec2, iam = client(endpoint), client(endpoint, "iam")
    arn = client(endpoint, "sts").get_caller_identity()["Arn"]
    key, public = settings_of(ec2)
    assert key.startswith("arn:aws:kms:") and public == "block-new-sharing"
    assert iam.get_role(RoleName=arn.split("/")[1])["Role"]["Arn"].endswith(f"{account.SSO_PATH}{arn.split('/')[1]}")
    assert refused(iam.get_role, RoleName="AWSServiceRoleForEC2Spot") == ("NoSuchEntity", 404)
    assert refused(ec2.run_instances, **LAUNCH, **TAGGED) == ("UnauthorizedOperation", 403)
    code = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
    assert refused(ec2.run_instances, **LAUNCH, **TAGGED, **IMDS_V2, **SPOT) == (code, 403)
    made = ec2.run_instances(**LAUNCH, **TAGGED, **IMDS_V2)["Instances"][0]
    volumes = [row["Ebs"]["VolumeId"] for row in made["BlockDeviceMappings"]]
    assert [row["KmsKeyId"] for row in ec2.describe_volumes(VolumeIds=volumes)["Volumes"]] == [key]


def test_the_simulator_answers_by_the_policies(region: Region) -> None:
    _, endpoint = region("new-account")
    names = ["ec2:DescribeImages", "ec2:DeleteVpc", "iam:CreateServiceLinkedRole"]
    asked = {"PolicySourceArn": "arn:aws:iam::000000000000:role/x", "ActionNames": names}
    rows = client(endpoint, "iam").simulate_principal_policy(**asked)["EvaluationResults"]
    assert [row["EvalDecision"] for row in rows] == ["allowed", "implicitDeny", "implicitDeny"]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"SubnetId": "subnet-00000000"}, "InvalidSubnetID.NotFound"),
        ({"IamInstanceProfile": {"Name": "gone"}}, "InvalidParameterValue"),
        ({"InstanceType": "g6f.xlarge"}, "Unsupported"),
        (
            {"CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": "cr-1"}}},
            "InvalidCapacityReservationId.NotFound",
        ),
    ],
)
def test_what_ec2_refuses_and_moto_accepts(region: Region, asked: dict[str, Any], code: str) -> None:
    world, endpoint = region("")
    assert refused(client(endpoint).run_instances, **(LAUNCH | asked)) == (code, 400)
    assert list(launch_checks.refusals({"SubnetId": world.ec2.subnet_id}, world.ec2)) == []
