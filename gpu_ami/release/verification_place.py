"""Compares a certificate with its AMI in the region, or with a copy in another: state, origin, snapshots and tags."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpu_ami.cloud import Cloud, amis, aws_errors, tags_of
from gpu_ami.errors import CloudError
from gpu_ami.files import read_json
from gpu_ami.release.verification import Findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_ec2.type_defs import ImageTypeDef

    from gpu_ami.release.verification import Verified

TAG_SOURCE = "gpu-ami:source-ami"  # of a copy; gpu_ami.publish writes it
PUBLICATION_FILE, _PUBLICATION_SCHEMA = "publication.json", "gpu-ami/publication/1"  # gpu_ami.publish
_LONGEST = 8  # copies of copies that are followed
# EC2's description of a snapshot that CopyImage made.
_LINEAGE = re.compile(
    r"Copied for DestinationAmi (?P<copy>ami-[0-9a-f]+) from SourceAmi (?P<source>ami-[0-9a-f]+)"
    r"(?: for SourceSnapshot (?P<snapshot>snap-[0-9a-f]+))?"
)
_HINT = "do not launch it: ask the publisher for the copy of this region"


def compare_with_original(
    verified: Verified, image: ImageTypeDef, cloud: Cloud, findings: Findings, owner: str = ""
) -> None:
    """Refuses an AMI that is not shown to come from the certified one; the refusal names the link that is missing.

    owner: the publisher's account, or "".
    """
    certified = verified.certificate.image
    goal = (certified.ami, certified.region)
    links = [(image["ImageId"], cloud.place.region)]
    last = image
    while (origin := _origin(last)) != goal:
        missing = _why_no_further(last, links, origin)
        following = None if missing else Cloud(replace(cloud.place, region=origin[1])).image(origin[0])
        if following is None:
            missing = missing or f"{' in '.join(origin)}, its origin, is not shown to this account"
            _by_record(verified, last, links, missing, findings, owner=owner)
            break
        links.append(origin)
        last = following
    else:
        findings.hold("copy", f"{_chain([*links, goal])}, as EC2 says")
    _compare_copied_snapshots(verified, image, cloud, findings)


def _origin(image: ImageTypeDef) -> tuple[str, str]:
    return image.get("SourceImageId", ""), image.get("SourceImageRegion", "")


def _chain(links: list[tuple[str, str]]) -> str:
    return " ← ".join(" in ".join(link) for link in links)


def _why_no_further(image: ImageTypeDef, links: list[tuple[str, str]], origin: tuple[str, str]) -> str:
    if not all(origin):
        return f"EC2 names no origin of {image['ImageId']} in {links[-1][1]} (it does to its owner alone)"
    return f"more than {_LONGEST} copies of copies" if origin in links or len(links) > _LONGEST else ""


def _by_record(
    verified: Verified,
    image: ImageTypeDef,
    links: list[tuple[str, str]],
    missing: str,
    findings: Findings,
    *,
    owner: str,
) -> None:
    """The chain ends at `image` without EC2: the publication record must name it, and its owner be the publisher."""
    certified, (ami, region) = verified.certificate.image, links[-1]
    problems = [missing, *_record_problems(verified, image, region, owner)]
    if len(problems) > 1:
        text = (
            f"{_chain(links)}: not shown to be a copy of {certified.ami} in {certified.region}: {'; '.join(problems)}"
        )
        findings.refuse("other-ami", text, _HINT)
        return
    named = f"{ami} in {region}, of account {owner}, is the copy that {PUBLICATION_FILE} names there"
    findings.hold("copy", f"{_chain([*links, (certified.ami, certified.region)])}: {named}")


def _record_problems(verified: Verified, image: ImageTypeDef, region: str, owner: str) -> Iterator[str]:
    ami, certified = image["ImageId"], verified.certificate.image.ami
    if tags_of(image).get(TAG_SOURCE, certified) != certified:
        yield f"its tag {TAG_SOURCE} names {tags_of(image)[TAG_SOURCE]}"
    record = read_json(verified.folder / PUBLICATION_FILE)
    if record is None or record.get("schema") != _PUBLICATION_SCHEMA:
        yield f"there is no {PUBLICATION_FILE} beside the certificate"
    else:
        published = record.get("image")
        source: dict[str, Any] = published if isinstance(published, dict) else {}
        if source.get("ami") != certified:
            yield f"{PUBLICATION_FILE} is of {source.get('ami')}, not of {certified}"
        named = [
            row.get("ami") for row in record.get("regions", []) if isinstance(row, dict) and row.get("region") == region
        ]
        if named != [ami]:
            yield f"{PUBLICATION_FILE} names {', '.join(map(str, named)) or 'no AMI'} in {region}, not {ami}"
        if source.get("name") and image.get("Name") != source["name"]:
            yield f"its name is {image.get('Name')!r}, that of the published AMI {source['name']!r}"
    if not owner:
        yield "the publisher's account was not named (--owner)"
    elif image.get("OwnerId") != owner:
        yield f"it is of account {image.get('OwnerId') or 'unknown'}, not of {owner}"


def _compare_copied_snapshots(verified: Verified, image: ImageTypeDef, cloud: Cloud, findings: Findings) -> None:
    """What EC2 wrote on the copy's snapshots when it made them. It gives no digests: content is not compared."""
    content = "EC2 gives no digest: the content of its snapshots cannot be verified"
    devices = image.get("BlockDeviceMappings", [])
    names = [device["Ebs"]["SnapshotId"] for device in devices if "SnapshotId" in device.get("Ebs", {})]
    described: list[Any] = []
    if names:
        try:
            with aws_errors.translated(f"describing {', '.join(names)}"):
                described = list(cloud.ec2.describe_snapshots(SnapshotIds=names)["Snapshots"])
        except CloudError as error:
            if not (aws_errors.is_not_found(error.code) or aws_errors.is_denied(error.code)):
                raise
            findings.skip("snapshots", f"copied AMI: {error.code}; {content}")
            return
    lineage = {row["SnapshotId"]: _LINEAGE.match(row.get("Description", "")) for row in described}
    wrong = [
        f"{name} was copied from {said['snapshot'] or 'an unnamed snapshot'} of {said['source']} for {said['copy']}"
        for name, said in lineage.items()
        if said and not _fits(verified, image, said)
    ]
    if wrong:
        text = f"{'; '.join(wrong)}: not a lineage of {verified.certificate.image.ami}"
        findings.refuse("other-snapshot", text, _HINT)
        return
    known = [f"{name} of {said['snapshot']}" for name, said in lineage.items() if said and said["snapshot"]]
    if known and len(known) == len(names):
        findings.hold("snapshot-lineage", ", ".join(known))
    findings.skip("snapshots", f"copied AMI: {content}")


def _fits(verified: Verified, image: ImageTypeDef, said: re.Match[str]) -> bool:
    """Whether a snapshot's description fits the AMI that has it, and what EC2 and the certificate say of its origin."""
    if said["copy"] != image["ImageId"]:
        return False
    if (origin := image.get("SourceImageId", "")) and said["source"] != origin:
        return False
    is_direct = said["source"] == verified.certificate.image.ami
    signed = verified.statement.snapshots
    return not (is_direct and signed and said["snapshot"]) or said["snapshot"] in signed


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
        compare_with_original(verified, image, cloud, findings, owner)
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
