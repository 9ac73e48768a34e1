"""A release published in two regions: what is there afterwards, again, and when a region fails."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import cli
from tests.json_documents import valid
from tests.publish.conftest import CONSUMER, HOME, LATEST, ORGANIZATION, OTHER, Account

PINNED = "/images/demo/gpu-ami-20261122000001"


def tags(row: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in row["Tags"]}


def test_the_image_is_in_both_regions_as_the_policy_says(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    out = account.build()
    assert account.publish(out) == 0
    assert "published: gpu-ami-20261122000001 in us-east-1, eu-central-1" in capsys.readouterr().out
    for region in (HOME, OTHER):
        (image,) = account.images(region)
        assert account.parameters(region) == {LATEST: image["ImageId"], PINNED: image["ImageId"]}
        assert account.shared(region, image["ImageId"]) == [{"UserId": CONSUMER}]
        assert image["DeregistrationProtection"].startswith("enabled") and image["ImdsSupport"] == "v2.0"
        left = datetime.datetime.fromisoformat(image["DeprecationTime"]) - datetime.datetime.now(datetime.UTC)
        assert 179 < left.days + left.seconds / 86400 <= 180.01
        assert tags(image)["gpu-ami:expires"] == "never" and tags(image)["gpu-ami:version"] == "gpu-ami-20261122000001"
        assert tags(image)["gpu-ami:recipe"] == "demo" and "gpu-ami:published" in tags(image)
        snapshot = tags(account.snapshot(region, image))
        assert (snapshot["of"], snapshot["gpu-ami:expires"]) == ("snapshot", "never")
    assert tags(account.images(OTHER)[0])["gpu-ami:source-ami"] == account.images(HOME)[0]["ImageId"]
    record = account.record(out)
    valid(record, "publish")
    assert record["state"] == "published" and [row["region"] for row in record["regions"]] == [HOME, OTHER]
    assert record["regions"][1]["parameters"][LATEST] == account.images(OTHER)[0]["ImageId"]


def test_a_second_run_has_nothing_to_do(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    out = account.build()
    account.publish(out)
    before = (out / "publication.json").read_bytes()
    capsys.readouterr()
    assert account.publish(out) == 0
    assert capsys.readouterr().out.count("nothing to do") == 2
    assert (out / "publication.json").read_bytes() == before
    assert len(account.images(OTHER)) == 1


def test_a_dry_run_prints_the_steps_and_changes_nothing(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    out = account.build()
    assert account.publish(out, "--dry-run", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    valid(data, "publish")
    names = [step["name"] for step in data["regions"][1]["steps"]]
    assert names == ["copy", "wait", "imds", "protect", "deprecate", "share", "mark", "pin", "latest"]
    assert {step["outcome"] for row in data["regions"] for step in row["steps"]} == {"to do"}
    assert data["state"] == "planned" and not (out / "publication.json").exists()
    assert account.images(OTHER) == [] and account.parameters(HOME) == {}
    assert account.publish(out, "--dry-run") == 0
    assert "18 steps to do" in capsys.readouterr().out


def test_a_region_that_fails_leaves_latest_everywhere(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    account.policy(regions=[{"region": HOME}, {"region": "eu-west-1", "kms_key": "alias/none"}, {"region": OTHER}])
    out = account.build()
    assert account.publish(out) == 4
    printed = capsys.readouterr().out
    assert "INCOMPLETE: gpu-ami-20261122000001: eu-west-1 failed" in printed
    assert "describing KMS key alias/none in eu-west-1: NotFoundException" in printed
    assert list(account.parameters(OTHER)) == [PINNED] and list(account.parameters(HOME)) == [PINNED]
    record = account.record(out)
    valid(record, "publish")
    assert record["state"] == "incomplete" and record["regions"][1]["error"]["exit_code"] == 4
    account.policy(regions=[{"region": HOME}, {"region": "eu-west-1"}, {"region": OTHER}])
    assert account.publish(out) == 0
    assert all(LATEST in account.parameters(region) for region in (HOME, "eu-west-1", OTHER))
    outcomes = {step["outcome"] for row in account.record(out)["regions"] for step in row["steps"]}
    assert outcomes == {"done"}, "the record keeps the steps of the run before"


def test_latest_moves_after_every_region_has_its_pinned_parameter(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_ami.cloud import image_parameters

    written: list[tuple[str, str]] = []
    write = image_parameters.write

    def recorded(cloud: Any, name: str, ami: str, *, overwrite: bool) -> None:
        written.append((cloud.place.region, name))
        write(cloud, name, ami, overwrite=overwrite)

    monkeypatch.setattr(image_parameters, "write", recorded)
    account.publish(account.build())
    assert written == [(HOME, PINNED), (OTHER, PINNED), (HOME, LATEST), (OTHER, LATEST)]


def test_a_second_image_of_the_name_is_noticed(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    out = account.build()
    ec2 = account.client("ec2", OTHER)
    name = "gpu-ami-20261122000001"
    other = ec2.copy_image(SourceImageId="ami-0000000000000000b", SourceRegion=HOME, Name=name)["ImageId"]
    assert account.publish(out) == 4
    assert f"eu-central-1 has more than one image named {name}: {other}" in capsys.readouterr().out
    assert LATEST not in account.parameters(HOME)


def test_a_copy_without_our_tag_is_found_by_its_source(account: Account) -> None:
    out = account.build()
    image = account.images(HOME)[0]
    ec2 = account.client("ec2", OTHER)
    copied = ec2.copy_image(SourceImageId=image["ImageId"], SourceRegion=HOME, Name=image["Name"])["ImageId"]
    assert account.publish(out) == 0
    assert [row["ImageId"] for row in account.images(OTHER)] == [copied]
    snapshot = tags(account.snapshot(OTHER, account.images(OTHER)[0]))
    assert (snapshot["of"], snapshot["gpu-ami:expires"]) == ("snapshot", "never")


def test_copies_are_encrypted_with_the_key_of_their_region(account: Account, capsys: Any) -> None:
    kms = account.client("kms", OTHER)
    key = kms.create_key()["KeyMetadata"]["Arn"]
    kms.create_alias(AliasName="alias/images", TargetKeyId=key)
    account.policy(regions=[{"region": HOME}, {"region": OTHER, "kms_key": "alias/images"}], share=None)
    out = account.build()
    assert account.publish(out) == 0
    assert account.snapshot(OTHER, account.images(OTHER)[0])["KmsKeyId"] == key
    account.policy(regions=[{"region": HOME}, {"region": OTHER, "kms_key": kms.create_key()["KeyMetadata"]["KeyId"]}])
    capsys.readouterr()
    assert account.publish(out) == 4
    assert f"is encrypted with {key}, the policy names" in capsys.readouterr().out


def test_an_organization_is_shared_with(account: Account) -> None:
    account.policy(share={"organizations": [ORGANIZATION]})
    account.publish(account.build())
    assert account.shared(OTHER, account.images(OTHER)[0]["ImageId"]) == [{"OrganizationArn": ORGANIZATION}]


def test_a_public_image_is_named_in_the_policy(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    out = account.build()
    account.policy(share={"public": True})
    assert account.publish(out) == 4
    assert "block public access for AMIs is on (block-new-sharing)" in capsys.readouterr().out
    account.client("ec2").disable_image_block_public_access()
    assert account.publish(out) == 0
    assert account.shared(HOME, account.images(HOME)[0]["ImageId"]) == [{"Group": "all"}]
    account.policy(share={"accounts": [CONSUMER]})
    assert account.publish(out) == 0
    assert "is also shared with all, whom the policy does not name" in capsys.readouterr().out


def test_a_pinned_parameter_is_never_moved(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    out = account.build()
    account.client("ssm").put_parameter(Name=PINNED, Value="ami-0fff", Type="String", DataType="text")
    assert account.publish(out) == 4
    printed = capsys.readouterr().out
    assert f"{PINNED} names ami-0fff, not ami-00000000000000001: it is never moved" in printed
    assert f"{PINNED} has the data type text" in printed


def test_ctrl_c_leaves_a_record_and_says_how_to_go_on(
    account: Account, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpu_ami.publish.publication import Execution

    out = account.build()
    with monkeypatch.context() as patch:
        patch.setattr(Execution, "share", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert account.publish(out) == 130
    assert "what was done stays, and is on record" in (printed := capsys.readouterr().err)
    assert "run the same command again" in printed
    record = account.record(out)
    valid(record, "publish")
    assert record["state"] == "interrupted"
    assert account.publish(out) == 0 and account.record(out)["state"] == "published"


def test_a_later_image_supersedes_and_an_earlier_certificate_still_says_what_it_was(account: Account) -> None:
    first, second = account.build(1), account.build(2)
    account.publish(first)
    assert account.publish(second) == 0
    assert account.parameters(OTHER)[LATEST] == account.images(OTHER)[1]["ImageId"]
    assert len(account.parameters(OTHER)) == 3
    assert Path(first / "publication.json").exists()


def test_an_image_is_published_as_its_own_keys_say(account: Account) -> None:
    """The certificate names the recipe; the keys of another image do not hold."""
    own = {"demo": {"regions": [{"region": OTHER}], "ssm": {"prefix": "/images/own"}, "share": {}}}
    account.policy(images=own | {"another": {"ssm": {"prefix": "/images/another"}}})
    out = account.build()
    assert account.publish(out) == 0
    (image,) = account.images(OTHER)
    assert account.parameters(OTHER)["/images/own/latest"] == image["ImageId"]
    assert account.shared(OTHER, image["ImageId"]) == [] and account.parameters(HOME) == {}
    assert account.publish(out, "--to", "previous") == 2  # of these regions and parameters too: there is no other


def test_the_copy_is_verified_by_its_origin(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    """And that of another region's copy, which the certificate's folder is not of, is not."""
    out = account.build()
    assert account.publish(out) == 0
    (copy,) = account.images(OTHER)
    Path("other.yml").write_text(f"region: {OTHER}\nendpoint: {account.endpoint}\n")
    words = ["--copy", "--key", "release.key.pub", "--where", "other.yml"]
    capsys.readouterr()
    assert cli.main(["verify", copy["ImageId"], *words, "--certificate", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "held           copy:" in printed and "held           snapshot-lineage:" in printed
    another = account.build(2)
    assert cli.main(["verify", copy["ImageId"], *words, "--certificate", str(another)]) == 6
