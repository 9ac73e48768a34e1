"""What an account has: published images, policies, keys."""

from __future__ import annotations

import datetime
import hashlib
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from gpu_ami.cloud import Cloud, Place, amis, kms
from gpu_ami.cloud.policies import Request, allows, read_policy
from gpu_ami.errors import CloudError, UsageError
from tests.cloud.moto_kms import sign_digests

# The image before another: the same recipe, this account, available, and the newest of those that are older.


def register(cloud: Cloud, name: str, day: int, recipe: str = "demo") -> str:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.ec2 import ec2_backends

    ami = cloud.ec2.register_image(Name=name, RootDeviceName="/dev/xvda")["ImageId"]
    if recipe:
        cloud.ec2.create_tags(Resources=[ami], Tags=[{"Key": "gpu-ami:recipe", "Value": recipe}])
    region = cloud.place.region
    ec2_backends[DEFAULT_ACCOUNT_ID][region].amis[ami].creation_date = datetime.datetime(2026, 11, day)
    return ami


def test_the_newest_older_one(cloud: Cloud) -> None:
    first, second, third = (register(cloud, f"demo-{day}", day) for day in (1, 5, 9))
    register(cloud, "other-6", 6, recipe="other")
    assert amis.previous(cloud, third) == second
    assert amis.previous(cloud, second) == first


def test_the_first_one_has_none_before_it(cloud: Cloud) -> None:
    first, _second = (register(cloud, f"demo-{day}", day) for day in (1, 5))
    assert amis.previous(cloud, first) == ""


def test_without_the_recipe_s_tag_it_must_be_named(cloud: Cloud) -> None:
    ami = register(cloud, "demo", 1, recipe="")
    with pytest.raises(UsageError, match="has no tag gpu-ami:recipe") as error:
        amis.previous(cloud, ami)
    assert "gpu-ami diff --notes BEFORE AFTER" in error.value.hint


def test_an_unknown_ami(cloud: Cloud) -> None:
    with pytest.raises(UsageError, match="is not in us-east-1"):
        amis.previous(cloud, "ami-0fff")


# Which requests a policy allows, by IAM's rules.


TERMINATE = "ec2:TerminateInstances"
INSTANCE = "arn:aws:ec2:us-east-1:123456789012:instance/i-1"
TAG = "aws:ResourceTag/gpu-ami:run"


def statement(**changes: Any) -> Any:
    return {"Effect": "Allow", "Action": [TERMINATE], "Resource": "*", **changes}


@pytest.mark.parametrize(
    ("statements", "request_", "allowed"),
    [
        ([statement()], Request(TERMINATE, INSTANCE), True),
        ([], Request(TERMINATE, INSTANCE), False),
        ([statement(Action="ec2:terminate*")], Request(TERMINATE, INSTANCE), True),
        ([statement(Action="ec2:Terminate?nstances")], Request(TERMINATE, INSTANCE), True),
        ([statement(Action="ec2:[T]erminateInstances")], Request(TERMINATE, INSTANCE), False),
        ([statement(), statement(Effect="Deny")], Request(TERMINATE, INSTANCE), False),
        ([statement(Resource="arn:aws:ec2:*:*:instance/*")], Request(TERMINATE, INSTANCE), True),
        ([statement(Resource="arn:aws:ec2:*:*:volume/*")], Request(TERMINATE, INSTANCE), False),
        ([statement(Resource="arn:aws:ec2:*::*")], Request(TERMINATE, INSTANCE), False),  # an empty account is no `*`
        ([statement(Resource="arn:aws:ec2:*:instance/*")], Request(TERMINATE, INSTANCE), False),
        ([statement(Condition={"StringLike": {TAG: "*"}})], Request(TERMINATE, INSTANCE), False),
        ([statement(Condition={"StringLike": {TAG: "*"}})], Request(TERMINATE, INSTANCE, {TAG: "r"}), True),
        ([statement(Condition={"StringEquals": {TAG: ["a", "r"]}})], Request(TERMINATE, INSTANCE, {TAG: "r"}), True),
        ([statement(Condition={"StringEquals": {TAG: "*"}})], Request(TERMINATE, INSTANCE, {TAG: "r"}), False),
        ([statement(Condition={"Bool": {"kms:X": "true"}})], Request(TERMINATE, INSTANCE, {"kms:x": "True"}), True),
        ([{"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"}], Request(TERMINATE, INSTANCE), True),
        ([{"Effect": "Allow", "NotAction": "ec2:*", "Resource": "*"}], Request(TERMINATE, INSTANCE), False),
    ],
)
def test_a_request_is_judged_as_iam_does(statements: list[Any], request_: Request, allowed: bool) -> None:
    assert allows(statements, request_) is allowed


def test_an_operator_that_is_not_evaluated_is_an_error() -> None:
    with pytest.raises(ValueError, match="IpAddress is not evaluated"):
        allows([statement(Condition={"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}})], Request(TERMINATE, INSTANCE))


def test_a_policy_of_the_project_is_read() -> None:
    assert [row["Sid"] for row in read_policy("instance")] == ["PublishMetrics", "WriteLogs", "ReadOwnTags"]


# A KMS key through moto: its public key, a signature that verifies, and what is refused.


def make_key(cloud: Cloud, usage: str = "SIGN_VERIFY", spec: str = "ECC_NIST_P256") -> str:
    return str(cloud.client("kms").create_key(KeyUsage=usage, KeySpec=spec)["KeyMetadata"]["Arn"])


def test_a_digest_is_signed(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_digests(monkeypatch)
    arn = make_key(cloud)
    key = kms.Key(arn, None)  # the ARN says the region
    der, algorithms = key.public_key()
    assert algorithms == ["ECDSA_SHA_256"]
    public = serialization.load_der_public_key(der)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    digest = hashlib.sha256(b"payload").digest()
    signature = key.sign(digest, "ECDSA_SHA_256")
    public.verify(signature, digest, ec.ECDSA(utils.Prehashed(hashes.SHA256())))


def test_an_alias_needs_a_place(cloud: Cloud) -> None:
    cloud.client("kms").create_alias(AliasName="alias/release", TargetKeyId=make_key(cloud).rpartition("/")[2])
    assert kms.Key("alias/release", cloud.place).public_key()[1] == ["ECDSA_SHA_256"]
    with pytest.raises(UsageError, match="the region is not known"):
        kms.Key("alias/release", None)


def test_the_region_of_an_arn_wins(cloud: Cloud) -> None:
    arn = make_key(cloud)
    assert kms.Key(arn, Place(name="x", region="eu-central-1")).public_key()[0]


@pytest.mark.parametrize("usage", ["ENCRYPT_DECRYPT"])
def test_a_key_for_something_else_is_refused(cloud: Cloud, usage: str) -> None:
    arn = make_key(cloud, usage, "RSA_2048")
    with pytest.raises(UsageError, match="expected key usage SIGN_VERIFY, got ENCRYPT_DECRYPT"):
        kms.Key(arn, None).public_key()


def test_an_unknown_key_is_an_error_of_the_cloud(cloud: Cloud) -> None:
    with pytest.raises(CloudError, match="reading the public key of alias/none"):
        kms.Key("alias/none", cloud.place).public_key()
    with pytest.raises(UsageError, match="names no key"):
        kms.Key("", cloud.place)
