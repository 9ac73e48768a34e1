"""Compares a certificate with its AMI in the region, or with a copy in another: state, origin, snapshots and tags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_ami.cloud import Cloud, amis, tags_of
from gpu_ami.release import verification_copy
from gpu_ami.release.findings import Findings

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import ImageTypeDef

    from gpu_ami.release.verification import Verified


def snapshots_of(image: ImageTypeDef) -> tuple[str, ...]:
    """Ids of the snapshots behind an AMI."""
    devices = image.get("BlockDeviceMappings", [])
    return tuple(sorted(device["Ebs"]["SnapshotId"] for device in devices if "SnapshotId" in device.get("Ebs", {})))


def compare(verified: Verified, cloud: Cloud, findings: Findings, copy: str = "", owner: str = "") -> None:
    """Refuses an AMI that is not there, or whose snapshots or tags are not the certificate's. CloudError.

    copy: an AMI of the place's region that should be a copy of the certified one. owner: the publisher's account.
    """
    certified = verified.certificate.image
    if not certified.ami:
        findings.skip("place", "the certificate is of a host, not of an AMI")
        return
    if copy and copy != certified.ami:
        _compare_copy(verified, copy, cloud, findings, owner)
        return
    if cloud.place.region != certified.region:
        text = f"the certificate is of {certified.ami} in {certified.region}, the place is in {cloud.place.region}"
        findings.refuse("other-region", text, "AMI ids are of one region: name the place of this one with --where")
        return
    image = _image(certified.ami, cloud, findings)
    if image is None:
        return
    _compare_snapshots(verified, image, findings)
    _compare_tags(verified, image, findings)


def _image(ami: str, cloud: Cloud, findings: Findings) -> ImageTypeDef | None:
    """What EC2 says of an AMI; refuses one that is not there, or not available."""
    image = cloud.image(ami)
    if image is None:
        text = f"{ami} is not in {cloud.place.region}, or is not shared with this account"
        findings.refuse("ami-missing", text, "ask the publisher which AMI replaces it")
    elif image.get("State") != "available":
        findings.refuse("ami-state", f"{ami} is {image.get('State')}", "take an AMI that is available")
    if image is not None and (layer := amis.layer_of(tags_of(image))):
        text = f"{ami} is the image of layer {layer}, not a finished image"
        findings.refuse("layer-image", text, "do not launch it: builds alone start from it")
    return image


def _compare_copy(verified: Verified, copy: str, cloud: Cloud, findings: Findings, owner: str) -> None:
    """What leads from a copy back to the certified AMI, and its tags."""
    image = _image(copy, cloud, findings)
    if image is not None:
        verification_copy.compare(verified, image, cloud, findings, owner)
        _compare_tags(verified, image, findings)


def _compare_snapshots(verified: Verified, image: ImageTypeDef, findings: Findings) -> None:
    signed, current = set(verified.statement.snapshots), set(snapshots_of(image))
    if not signed:
        findings.skip("snapshots", "none were signed: sign where the build's record is, or with --where")
    elif signed != current:
        text = f"{image['ImageId']} has {', '.join(sorted(current)) or 'none'}, signed {', '.join(sorted(signed))}"
        findings.refuse("other-snapshot", text, "do not launch it: its content is not what was proven")
    else:
        findings.hold("snapshots", ", ".join(sorted(signed)))


def _compare_tags(verified: Verified, image: ImageTypeDef, findings: Findings) -> None:
    """Refuses another value. Accounts that an AMI is shared with see no tags: then none were looked at."""
    tags = tags_of(image)
    expected = {"gpu-ami:plan": verified.certificate.plan_digest, "gpu-ami:recipe": verified.certificate.image.name}
    wrong = [
        f"{key}: {tags[key]!r}, the certificate has {value!r}"
        for key, value in expected.items()
        if value and key in tags and tags[key] != value
    ]
    if wrong:
        hint = "the AMI was tagged anew, or the certificate is another's: ask the publisher"
        findings.refuse("other-tags", "; ".join(wrong), hint)
    elif not set(expected) & set(tags):
        findings.skip("tags", f"{image['ImageId']} shows no tags of its build (an AMI of another account shows none)")
    else:
        findings.hold("tags", f"plan {verified.certificate.plan_digest[:23]}…")
