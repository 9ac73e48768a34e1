"""Which keys let whom launch an encrypted image, and why one cannot be shared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import cli
from gpu_ami.cloud import Cloud, preflight
from gpu_ami.publish import sharing
from gpu_ami.publish.policy import RegionPolicy, ReleasePolicy
from gpu_ami.publish.sharing import Key
from tests.publish.conftest import CONSUMER, HOME, LATEST, ORGANIZATION, OTHER, Account

ACTIONS = ["kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKey*", "kms:ReEncrypt*"]


def statement(principal: Any, condition: Any = None, actions: Any = "kms:*", effect: str = "Allow") -> Any:
    row = {"Effect": effect, "Principal": principal, "Action": actions, "Resource": "*"}
    return row | ({"Condition": condition} if condition else {})


def policy(*accounts: str, organizations: tuple[str, ...] = (), public: bool = False) -> ReleasePolicy:
    return ReleasePolicy((RegionPolicy(OTHER),), accounts, organizations, public)


ROOT = {"AWS": f"arn:aws:iam::{CONSUMER}:root"}
IN_ORGANIZATION = {"StringEquals": {"aws:PrincipalOrgID": "o-a1b2c3d4e5"}}
CASES: dict[str, tuple[Any, str, bool]] = {
    "root of the account": (statement(ROOT), CONSUMER, True),
    "its number": (statement({"AWS": [CONSUMER]}, actions=ACTIONS), CONSUMER, True),
    "a role of it": (statement({"AWS": f"arn:aws:iam::{CONSUMER}:role/x"}), CONSUMER, True),
    "everybody who calls from it": (
        statement({"AWS": "*"}, {"StringEquals": {"kms:CallerAccount": CONSUMER}}), CONSUMER, True),
    "everybody who calls from another": (
        statement("*", {"StringEquals": {"kms:CallerAccount": "444455556666"}}), CONSUMER, False),
    "another account": (statement({"AWS": "arn:aws:iam::444455556666:root"}), CONSUMER, False),
    "a denial": (statement(ROOT, effect="Deny"), CONSUMER, False),
    "encryption alone": (statement(ROOT, actions=["kms:Encrypt"]), CONSUMER, False),
    "the organization": (statement({"AWS": "*"}, IN_ORGANIZATION), ORGANIZATION, True),
    "another organization": (
        statement({"AWS": "*"}, {"StringEquals": {"aws:PrincipalOrgID": "o-zzzzzzzzzz"}}), ORGANIZATION, False),
    "an account is no organization": (statement(ROOT), ORGANIZATION, False),
    "grants for AWS services": (
        statement(ROOT, {"Bool": {"kms:GrantIsForAWSResource": "true"}}), CONSUMER, True),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_key_policy_lets_a_grantee_use_the_key_or_not(name: str) -> None:
    row, grantee, allowed = CASES[name]
    asked = policy(organizations=(grantee,)) if grantee == ORGANIZATION else policy(grantee)
    found = list(sharing.refusals(asked, OTHER, [Key("arn:key", statements=(row,))]))
    assert (found == []) is allowed
    if not allowed:
        assert f"the policy of arn:key does not let {grantee} use it (kms:CreateGrant, kms:Decrypt" in found[0]


def test_reasons_name_the_managed_key_and_public_images() -> None:
    (managed,) = sharing.refusals(policy(CONSUMER), OTHER, [Key("arn:key", is_managed_by_aws=True)])
    assert "encrypted with the AWS managed key aws/ebs, which no other account can use" in managed
    (public,) = sharing.refusals(policy(public=True), OTHER, [Key("arn:key")])
    assert "an encrypted AMI cannot be public (arn:key)" in public
    assert list(sharing.refusals(policy(), OTHER, [Key("arn:key", is_managed_by_aws=True)])) == []


def test_permissions_are_those_of_the_api() -> None:
    unit = "arn:aws:organizations::111122223333:ou/o-a1b2c3d4e5/ou-a1b2-c3d4e5f6"
    rows = [sharing.permission(one) for one in (CONSUMER, ORGANIZATION, unit, "all")]
    assert [next(iter(row)) for row in rows] == ["UserId", "OrganizationArn", "OrganizationalUnitArn", "Group"]
    assert [sharing.grantee_of(row) for row in rows] == [CONSUMER, ORGANIZATION, unit, "all"]


def test_a_copy_is_shared_when_its_key_lets_the_account(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    kms = account.client("kms", OTHER)
    key = kms.create_key()["KeyMetadata"]["Arn"]
    account.policy(regions=[{"region": HOME}, {"region": OTHER, "kms_key": key}])
    out = account.build()
    assert account.publish(out) == 4
    printed = capsys.readouterr().out
    assert f"the policy of {key} does not let {CONSUMER} use it" in printed and "the key's policy, or take" in printed
    assert account.images(OTHER) == [] and LATEST not in account.parameters(HOME)
    kms.put_key_policy(KeyId=key, PolicyName="default", Policy=json.dumps({"Statement": [statement(ROOT)]}))
    assert account.publish(out) == 0
    assert sharing.read_key(Cloud(account.place(region=OTHER)), key).arn == key


def test_a_copy_that_aws_encrypts_by_default_is_not_shared(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    out = account.build(1, encrypted=True, kms_key_id=account.client("kms").create_key()["KeyMetadata"]["Arn"])
    account.policy(regions=[{"region": OTHER}])
    assert account.publish(out) == 4
    assert "gets the key aws/ebs, which cannot be shared: set kms_key" in capsys.readouterr().out
    account.policy(regions=[{"region": OTHER}], share=None)
    assert account.publish(out) == 0
    account.policy(regions=[{"region": OTHER}])
    assert account.publish(out) == 4
    assert "encrypted with the AWS managed key aws/ebs" in capsys.readouterr().out


DEFAULT = "alias/aws/ebs"


@pytest.mark.parametrize(
    ("built", "copied", "found"),
    [
        ("", "own", {HOME: "encrypted with the AWS managed key aws/ebs"}),
        ("own", "", {OTHER: "encrypted with the AWS managed key aws/ebs"}),
        ("closed", "own", {HOME: f"does not let {CONSUMER} use it"}),
        ("own", "disabled", {OTHER: "is disabled"}),
        ("own", "own", {}),
    ],
    ids=["default key", "copy without a key", "key of nobody else", "key disabled", "all well"],
)
def test_what_sharing_lacks_is_found_before_the_build(
    account: Account, monkeypatch: pytest.MonkeyPatch, built: str, copied: str, found: dict[str, str]
) -> None:
    def key(region: str, kind: str) -> str:
        if not kind:
            return ""
        rows = [statement(ROOT)] if kind != "closed" else []
        text = json.dumps({"Version": "2012-10-17", "Statement": rows})
        kms = account.client("kms", region)
        made: str = kms.create_key(Policy=text)["KeyMetadata"]["Arn"]
        if kind == "disabled":
            kms.disable_key(KeyId=made.rpartition("/")[2])
        return made

    # moto has no GetEbsDefaultKmsKeyId.
    monkeypatch.setattr(preflight, "volume_key", lambda cloud: cloud.place.kms_key_id or DEFAULT)
    regions = (RegionPolicy(HOME), RegionPolicy(OTHER, key(OTHER, copied)))
    findings = sharing.examine(account.place(kms_key_id=key(HOME, built)), ReleasePolicy(regions, (CONSUMER,)))
    assert [row.subject for row in findings] == [f"publish in {HOME}", f"publish in {OTHER}"]
    errors = {row.subject.split()[-1]: row.found for row in findings if row.level is preflight.Level.ERROR}
    assert set(errors) == set(found)
    assert all(text in errors[region] for region, text in found.items())


def test_a_policy_with_another_key_than_the_place_is_found_before_the_build(account: Account) -> None:
    kms = account.client("kms", HOME)
    one, other = (kms.create_key()["KeyMetadata"]["Arn"] for _ in range(2))
    (finding,) = sharing.examine(account.place(kms_key_id=one), ReleasePolicy((RegionPolicy(HOME, other),)))
    assert f"will be encrypted with {one}, the policy names {other}" in finding.found
    assert finding.remedy == f"set kms_key_id: {other} in the --where file"


def test_doctor_reads_the_release_policy(
    account: Account, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "examine", lambda *_, **__: [])
    monkeypatch.setattr(preflight, "volume_key", lambda _: DEFAULT)
    account.policy()
    assert cli.main(["doctor", "--where", "aws.yml"]) == 2
    assert f"error   publish in {HOME}: " in capsys.readouterr().out
    Path("other.yml").write_text(f"regions: [{{region: {HOME}}}]\n")
    assert cli.main(["doctor", "--where", "aws.yml", "--policy", "other.yml"]) == 0
    assert cli.main(["doctor", "--policy", "other.yml"]) == 2
    Path("publish.yml").write_text("regions: 3\n")
    assert cli.main(["doctor", "--where", "aws.yml"]) == 2
    assert "publish.yml: 1 mistake" in capsys.readouterr().out
