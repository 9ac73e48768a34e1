"""What a publisher calls, answered as AWS answers it: copies, deprecation, protection, sharing, parameters."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.ec2.models import ec2_backends

from localregion.backends import published_amis
from tests.localregion.api.test_application import client
from tests.localregion.conftest import BASE_ID, World

REGION = "eu-central-1"
TAGS = [{"ResourceType": "image", "Tags": [{"Key": "a", "Value": "1"}]},
        {"ResourceType": "snapshot", "Tags": [{"Key": "b", "Value": "2"}]}]  # fmt: skip


@pytest.fixture
def ec2(endpoint: str, world: World) -> Any:
    return client(endpoint, region=REGION)


def copy(ec2: Any, **changes: Any) -> str:
    asked = {"SourceImageId": BASE_ID, "SourceRegion": "us-east-1", "Name": "copy", "TagSpecifications": TAGS}
    return str(ec2.copy_image(**(asked | changes))["ImageId"])


def described(ec2: Any, ami: str) -> dict[str, Any]:
    image: dict[str, Any] = ec2.describe_images(ImageIds=[ami])["Images"][0]
    return image


def snapshot_of(image: dict[str, Any]) -> str:
    return str(image["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"])


def complete(ec2: Any, ami: str) -> dict[str, Any]:
    while (image := described(ec2, ami))["State"] == "pending":
        time.sleep(0.05)
    return image


def refused(code: str, call: Any, **arguments: Any) -> None:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    assert caught.value.response["Error"]["Code"] == code


def test_a_copy_is_pending_and_then_has_source_tags_and_size(
    ec2: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published_amis, "COPY_SECONDS", 600.0)
    made = copy(ec2)
    assert described(ec2, made)["State"] == "pending"
    ec2_backends[world.ec2.backend.account_id][REGION].amis[made].ready_at -= 600
    image = described(ec2, made)
    assert image["State"] == "available" and image["SourceImageId"] == BASE_ID
    assert image["SourceImageRegion"] == "us-east-1" and image["Tags"] == [{"Key": "a", "Value": "1"}]
    snapshot = ec2.describe_snapshots(SnapshotIds=[snapshot_of(image)])["Snapshots"][0]
    assert snapshot["Tags"] == [{"Key": "b", "Value": "2"}] and not snapshot["Encrypted"]
    assert image["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 8


def test_a_client_token_makes_one_copy(ec2: Any) -> None:
    assert copy(ec2, ClientToken="t") == copy(ec2, ClientToken="t") != copy(ec2, ClientToken="u")
    refused("IdempotentParameterMismatch", copy, ec2=ec2, ClientToken="t", Name="other")


def test_copies_of_what_is_not_there_are_refused(ec2: Any, world: World) -> None:
    refused("InvalidAMIID.NotFound", copy, ec2=ec2, SourceImageId="ami-12345678")
    world.ec2.set_image_state(world.ec2.images()[BASE_ID], "pending")
    refused("InvalidAMIID.Unavailable", copy, ec2=ec2)


def test_a_copy_is_encrypted_with_a_key_of_its_region(ec2: Any, endpoint: str) -> None:
    kms = client(endpoint, "kms", REGION)
    arn = kms.create_key()["KeyMetadata"]["Arn"]
    kms.create_alias(AliasName="alias/images", TargetKeyId=arn)
    own = complete(ec2, copy(ec2, Encrypted=True, KmsKeyId="alias/images"))
    assert own["BlockDeviceMappings"][0]["Ebs"]["KmsKeyId"] == arn
    default = complete(ec2, copy(ec2, Encrypted=True))
    snapshot = ec2.describe_snapshots(SnapshotIds=[snapshot_of(default)])["Snapshots"][0]
    assert snapshot["Encrypted"] and kms.describe_key(KeyId=snapshot["KmsKeyId"])["KeyMetadata"]["KeyManager"] == "AWS"
    public = {"Add": [{"Group": "all"}]}
    refused("OperationNotPermitted", ec2.modify_image_attribute, ImageId=own["ImageId"], LaunchPermission=public)
    ec2.disable_image_block_public_access()
    refused("InvalidParameterValue", ec2.modify_image_attribute, ImageId=own["ImageId"], LaunchPermission=public)


def test_deprecation_is_of_the_minute_and_never_in_the_past(ec2: Any) -> None:
    ami = copy(ec2)
    ec2.enable_image_deprecation(ImageId=ami, DeprecateAt=datetime.datetime(2027, 5, 1, 10, 0, 31))
    assert described(ec2, ami)["DeprecationTime"] == "2027-05-01T10:01:00.000Z"
    refused("InvalidParameterValue", ec2.enable_image_deprecation, ImageId=ami, DeprecateAt="2020-01-01T00:00:00Z")
    ec2.disable_image_deprecation(ImageId=ami)
    assert "DeprecationTime" not in described(ec2, ami)


def test_a_protected_ami_is_not_deregistered(ec2: Any) -> None:
    ami = copy(ec2)
    snapshot = snapshot_of(described(ec2, ami))
    ec2.enable_image_deregistration_protection(ImageId=ami)
    assert described(ec2, ami)["DeregistrationProtection"] == "enabled-without-cooldown"
    refused("OperationNotPermitted", ec2.deregister_image, ImageId=ami)
    ec2.disable_image_deregistration_protection(ImageId=ami)
    answer = ec2.deregister_image(ImageId=ami, DeleteAssociatedSnapshots=True)
    assert answer["DeleteSnapshotResults"] == [{"SnapshotId": snapshot, "ReturnCode": "success"}]
    refused("InvalidSnapshot.NotFound", ec2.describe_snapshots, SnapshotIds=[snapshot])


def test_organizations_and_imds_support_are_kept(ec2: Any) -> None:
    ami, arn = copy(ec2), "arn:aws:organizations::111122223333:organization/o-a1b2c3d4e5"
    ec2.modify_image_attribute(ImageId=ami, LaunchPermission={"Add": [{"OrganizationArn": arn}]})
    shared = ec2.describe_image_attribute(ImageId=ami, Attribute="launchPermission")["LaunchPermissions"]
    assert shared == [{"OrganizationArn": arn}]
    ec2.modify_image_attribute(ImageId=ami, ImdsSupport={"Value": "v2.0"})
    assert described(ec2, ami)["ImdsSupport"] == "v2.0"


def test_a_parameter_of_an_ami_that_is_not_there_is_dropped_after_the_answer(ec2: Any, endpoint: str) -> None:
    ssm = client(endpoint, "ssm", REGION)
    image = complete(ec2, copy(ec2))
    typed = {"Name": "/images/latest", "Type": "String", "DataType": "aws:ec2:image", "Overwrite": True}
    for value in (image["ImageId"], "ami-12345678"):
        ssm.put_parameter(Value=value, **typed)
        found = ssm.get_parameters(Names=["/images/latest"])["Parameters"][0]
        assert (found["Value"], found["DataType"]) == (image["ImageId"], "aws:ec2:image")
