"""The AMI in its region, through moto: state, snapshots and tags must be those of the certificate."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from gpu_ami import pipeline
from gpu_ami.cloud import Cloud, Place
from gpu_ami.release import keys, verification, verification_place
from gpu_ami.release.verification import Findings
from gpu_ami.report import document, writer
from tests.release import examples

NOW = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    with mock_aws():
        yield Cloud(Place(name="aws", region=examples.REGION))


def publish(cloud: Cloud) -> str:
    """An AMI with a snapshot and the tags of its build."""
    volume = cloud.ec2.create_volume(AvailabilityZone="us-east-1a", Size=1)["VolumeId"]
    snapshot = cloud.ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
    devices = [{"DeviceName": "/dev/xvda", "Ebs": {"SnapshotId": snapshot}}]
    image = cloud.ec2.register_image(Name="demo", RootDeviceName="/dev/xvda", BlockDeviceMappings=devices)  # type: ignore[arg-type]
    tags = {"gpu-ami:plan": examples.PLAN_DIGEST, "gpu-ami:recipe": "demo"}
    cloud.ec2.create_tags(
        Resources=[image["ImageId"]], Tags=[{"Key": key, "Value": value} for key, value in tags.items()]
    )
    return image["ImageId"]


@pytest.fixture
def folder(tmp_path: Path, cloud: Cloud) -> Path:
    """Signed with the snapshots that the region knows, since there is no build.json."""
    ami = publish(cloud)
    folder = tmp_path / "out"
    report = replace(examples.write_folder(folder), image=ami)
    (folder / "build.json").unlink()
    writer.write(report, folder)
    pipeline.certify_stage(report, folder, [examples.signer(tmp_path)], cloud)
    return folder


def compare(folder: Path, cloud: Cloud) -> Findings:
    trusted = [keys.TrustedKey("release", keys.load_public(str(folder.parent / "release.key.pub")))]
    findings, verified = verification.verify(folder, trusted, verification.Requirements(), NOW)
    assert verified is not None and not findings.refused
    verification_place.compare(verified, cloud, findings)
    return findings


def ami_of(folder: Path) -> str:
    return document.load(folder / "report.json").image


def test_the_certified_ami_is_accepted(folder: Path, cloud: Cloud) -> None:
    findings = compare(folder, cloud)
    assert findings.exit_code == 0
    assert [point.name for point in findings.points[-2:]] == ["snapshots", "tags"]


def other_snapshot(cloud: Cloud, ami: str) -> None:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.ec2 import ec2_backends

    ec2_backends[DEFAULT_ACCOUNT_ID]["us-east-1"].amis[ami].ebs_snapshot.id = "snap-0ffffffffffffffff"


def tag(key: str, value: str) -> Callable[[Cloud, str], object]:
    return lambda cloud, ami: cloud.ec2.create_tags(Resources=[ami], Tags=[{"Key": key, "Value": value}])


@pytest.mark.parametrize(
    ("forge", "refusal"),
    [
        (tag("gpu-ami:plan", f"sha256:{'2' * 64}"), "other-tags"),
        (tag("gpu-ami:recipe", "another"), "other-tags"),
        (lambda cloud, ami: cloud.ec2.deregister_image(ImageId=ami), "ami-missing"),
        (other_snapshot, "other-snapshot"),
        (tag("gpu-ami:layer", "driver"), "layer-image"),
    ],
    ids=["plan tag", "recipe tag", "deregistered", "snapshot", "layer"],
)
def test_another_ami_is_refused(
    folder: Path, cloud: Cloud, forge: Callable[[Cloud, str], object], refusal: str
) -> None:
    forge(cloud, ami_of(folder))
    findings = compare(folder, cloud)
    assert [point.name for point in findings.refused] == [refusal]


def test_an_ami_of_another_region_is_refused(folder: Path) -> None:
    findings = compare(folder, Cloud(Place(name="aws", region="eu-central-1")))
    assert [point.name for point in findings.refused] == ["other-region"]


def test_a_shared_ami_shows_no_tags(folder: Path, cloud: Cloud) -> None:
    cloud.ec2.delete_tags(Resources=[ami_of(folder)], Tags=[{"Key": "gpu-ami:plan"}, {"Key": "gpu-ami:recipe"}])
    findings = compare(folder, cloud)
    assert findings.exit_code == 0
    assert [point.name for point in findings.points if point.state == "not looked at"] == ["tags"]


def compare_with_original(
    folder: Path, cloud: Cloud, monkeypatch: pytest.MonkeyPatch, origin: str, tagged: str
) -> Findings:
    """An image in another region. origin: what EC2 says of it, which moto does not; tagged: what its tag says."""
    other = Cloud(replace(cloud.place, region="eu-central-1"))
    ami = publish(other)
    if tagged:
        other.ec2.create_tags(Resources=[ami], Tags=[{"Key": "gpu-ami:source-ami", "Value": tagged}])
    source, _, region = origin.partition(" in ")
    said = {"SourceImageId": source, "SourceImageRegion": region} if origin else {}
    answer: Any = {**(other.image(ami) or {}), **said}
    monkeypatch.setattr(other, "image", lambda _: answer)
    trusted = [keys.TrustedKey("release", keys.load_public(str(folder.parent / "release.key.pub")))]
    findings, verified = verification.verify(folder, trusted, verification.Requirements(), NOW)
    assert verified is not None
    verification_place.compare(verified, other, findings, ami)
    return findings


def test_a_copy_is_accepted_by_the_origin_that_ec2_names(
    folder: Path, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = compare_with_original(folder, cloud, monkeypatch, f"{ami_of(folder)} in us-east-1", "")
    assert findings.exit_code == 0, findings.text()
    assert [point.name for point in findings.points[-3:]] == ["copy", "snapshots", "tags"]


@pytest.mark.parametrize(
    ("origin", "tagged"),
    [("ami-0fff in us-east-1", ""), ("", "CERTIFIED"), ("", ""), ("CERTIFIED in us-west-2", "CERTIFIED")],
    ids=["another origin", "a tag alone", "no origin", "another region"],
)
def test_another_copy_is_refused(
    folder: Path, cloud: Cloud, monkeypatch: pytest.MonkeyPatch, origin: str, tagged: str
) -> None:
    certified = ami_of(folder)
    words = [text.replace("CERTIFIED", certified) for text in (origin, tagged)]
    findings = compare_with_original(folder, cloud, monkeypatch, *words)
    assert [point.name for point in findings.refused] == ["other-ami"], findings.text()
