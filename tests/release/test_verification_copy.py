"""An AMI that is not the certified one itself: each link back to it, and the sentence about the one that is missing."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud import Cloud, Place, aws_errors
from gpu_ami.release import keys, verification, verification_place
from gpu_ami.release.verification import Findings
from tests.aws_requests import Checked
from tests.release import examples

NOW = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
PUBLISHER, CONSUMER = "111122223333", "444455556666"
COPY, SECOND = "ami-0000000000000000c", "ami-0000000000000000d"
EU, TOKYO = "eu-central-1", "ap-northeast-1"
Regions = dict[tuple[str, str], dict[str, Any]]


def image(ami: str, source: str = "", region: str = "", **changes: Any) -> dict[str, Any]:
    """What EC2 says of an AMI. source: "" as to an account that does not own the copy."""
    snapshot = ami.replace("ami", "snap")
    devices = [{"DeviceName": "/dev/xvda", "Ebs": {"SnapshotId": snapshot}}]
    said = {"SourceImageId": source, "SourceImageRegion": region} if source else {}
    return {"ImageId": ami, "Name": "demo-1", "OwnerId": PUBLISHER, "BlockDeviceMappings": devices, **said, **changes}


def lineage(ami: str, source: str, snapshot: str) -> str:
    return (
        f"Copied for DestinationAmi {ami} from SourceAmi {source} for SourceSnapshot {snapshot}. Task created on 1,2."
    )


@pytest.fixture
def verified(tmp_path: Path) -> verification.Verified:
    folder = examples.signed_folder(tmp_path / "out", tmp_path)
    trusted = [keys.TrustedKey("release", keys.load_public(str(tmp_path / "release.key.pub")))]
    result = verification.verify(folder, trusted, verification.Requirements(), NOW)[1]
    assert result is not None
    return result


def record(verified: verification.Verified, ami: str = COPY, of: str = examples.AMI) -> None:
    document = {
        "schema": "gpu-ami/publication/1", "image": {"ami": of, "name": "demo-1"},
        "regions": [{"region": examples.REGION, "ami": examples.AMI}, {"region": EU, "ami": ami}],
    }  # fmt: skip
    (verified.folder / "publication.json").write_text(json.dumps(document))


def compare(
    monkeypatch: pytest.MonkeyPatch,
    verified: verification.Verified,
    regions: Regions,
    *,
    ami: str = COPY,
    region: str = EU,
    owner: str = "",
    snapshots: dict[str, str] | str = "InvalidSnapshot.NotFound",
) -> Findings:
    """regions: what this account is shown. snapshots: their descriptions, or the code of a refusal."""

    def describe_snapshots(SnapshotIds: list[str]) -> dict[str, Any]:
        if isinstance(snapshots, str):
            raise aws_errors.from_code("describing", snapshots, "no")
        return {"Snapshots": [{"SnapshotId": name, "Description": snapshots[name]} for name in SnapshotIds]}

    monkeypatch.setattr(Cloud, "image", lambda cloud, name: regions.get((cloud.place.region, name)))
    monkeypatch.setattr(Cloud, "ec2", Checked("ec2", describe_snapshots=describe_snapshots))
    findings = Findings("out")
    given: Any = regions[region, ami]
    verification_place.compare_with_original(verified, given, Cloud(Place("aws", region)), findings, owner)
    return findings


def test_a_copy_of_ones_own_is_accepted_by_what_ec2_says(
    monkeypatch: pytest.MonkeyPatch, verified: verification.Verified
) -> None:
    shown = {(EU, COPY): image(COPY, examples.AMI, examples.REGION)}
    described = {"snap-0000000000000000c": lineage(COPY, examples.AMI, examples.SNAPSHOT)}
    findings = compare(monkeypatch, verified, shown, snapshots=described)
    assert findings.exit_code == 0, findings.text()
    assert [(point.name, point.state) for point in findings.points] == [
        ("copy", "held"), ("snapshot-lineage", "held"), ("snapshots", "not looked at"),
    ]  # fmt: skip
    assert f"{COPY} in {EU} ← {examples.AMI} in us-east-1" in findings.points[0].text


def test_a_copy_of_a_copy_is_followed_through_the_regions(
    monkeypatch: pytest.MonkeyPatch, verified: verification.Verified
) -> None:
    shown = {
        (TOKYO, SECOND): image(SECOND, COPY, EU, OwnerId=CONSUMER),
        (EU, COPY): image(COPY, examples.AMI, examples.REGION),
    }
    findings = compare(monkeypatch, verified, shown, ami=SECOND, region=TOKYO)
    assert findings.exit_code == 0, findings.text()
    assert f"{SECOND} in {TOKYO} ← {COPY} in {EU} ← {examples.AMI}" in findings.points[0].text


@pytest.mark.parametrize("own_copy", [False, True], ids=["the shared copy", "one's own copy of it"])
def test_a_shared_copy_is_accepted_by_the_record_and_its_owner(
    monkeypatch: pytest.MonkeyPatch, verified: verification.Verified, own_copy: bool
) -> None:
    record(verified)
    shown = {(EU, COPY): image(COPY), (TOKYO, SECOND): image(SECOND, COPY, EU, OwnerId=CONSUMER)}
    where = {"ami": SECOND, "region": TOKYO} if own_copy else {}
    findings = compare(monkeypatch, verified, shown, owner=PUBLISHER, **where)
    assert findings.exit_code == 0, findings.text()
    assert f"of account {PUBLISHER}, is the copy that publication.json names there" in findings.points[0].text


MISSING: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "owner": ({}, {"owner": ""}, "the publisher's account was not named (--owner)"),
    "another owner": ({"OwnerId": CONSUMER}, {}, f"it is of account {CONSUMER}, not of {PUBLISHER}"),
    "record": ({}, {"recorded": None}, "there is no publication.json beside the certificate"),
    "another AMI": ({}, {"recorded": {"ami": SECOND}}, f"publication.json names {SECOND} in {EU}, not {COPY}"),
    "another image": ({}, {"recorded": {"of": SECOND}}, f"publication.json is of {SECOND}, not of {examples.AMI}"),
    "another name": ({"Name": "theirs"}, {}, "its name is 'theirs', that of the published AMI 'demo-1'"),
    "another tag": (
        {"Tags": [{"Key": "gpu-ami:source-ami", "Value": SECOND}]}, {}, f"its tag gpu-ami:source-ami names {SECOND}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("link", MISSING)
def test_the_link_that_is_missing_is_named(
    link: str, monkeypatch: pytest.MonkeyPatch, verified: verification.Verified
) -> None:
    changes, asked, said = MISSING[link]
    recorded = asked.get("recorded", {})
    if recorded is not None:
        record(verified, **recorded)
    shown = {(EU, COPY): image(COPY, **changes)}
    findings = compare(monkeypatch, verified, shown, owner=asked.get("owner", PUBLISHER))
    assert [point.name for point in findings.refused] == ["other-ami"]
    text = findings.refused[0].text
    assert f"EC2 names no origin of {COPY} in {EU}" in text and said in text


def test_an_origin_that_is_not_shown_is_named(monkeypatch: pytest.MonkeyPatch, verified: verification.Verified) -> None:
    findings = compare(monkeypatch, verified, {(EU, COPY): image(COPY, SECOND, TOKYO)})
    assert f"{SECOND} in {TOKYO}, its origin, is not shown to this account" in findings.refused[0].text


def test_a_circle_ends(monkeypatch: pytest.MonkeyPatch, verified: verification.Verified) -> None:
    shown = {(EU, COPY): image(COPY, SECOND, EU), (EU, SECOND): image(SECOND, COPY, EU)}
    assert [point.name for point in compare(monkeypatch, verified, shown).refused] == ["other-ami"]


@pytest.mark.parametrize(
    "description",
    [
        lineage(COPY, examples.AMI, "snap-0fffffffffffffff0"),
        lineage(COPY, SECOND, examples.SNAPSHOT),
        lineage(SECOND, examples.AMI, examples.SNAPSHOT),
    ],
    ids=["another snapshot", "another source", "for another AMI"],
)
def test_a_snapshot_of_another_lineage_is_refused(
    description: str, monkeypatch: pytest.MonkeyPatch, verified: verification.Verified
) -> None:
    shown = {(EU, COPY): image(COPY, examples.AMI, examples.REGION)}
    findings = compare(monkeypatch, verified, shown, snapshots={"snap-0000000000000000c": description})
    assert [point.name for point in findings.refused] == ["other-snapshot"]


def test_a_snapshot_that_is_not_shown_is_named(
    monkeypatch: pytest.MonkeyPatch, verified: verification.Verified
) -> None:
    shown = {(EU, COPY): image(COPY, examples.AMI, examples.REGION)}
    findings = compare(monkeypatch, verified, shown, snapshots="UnauthorizedOperation")
    assert findings.exit_code == 0
    assert "UnauthorizedOperation" in findings.points[-1].text and findings.points[-1].state == "not looked at"
