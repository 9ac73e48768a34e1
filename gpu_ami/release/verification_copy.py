"""Follows an AMI that should be a copy of the certified one back to it, link by link.

EC2 tells the origin of a copy to the copy's owner alone. A copy of a copy is followed through the regions. Where the
chain ends at an AMI of another account, the publication record says which copy it is, and EC2 whose it is: the record
is not signed, so that it counts only with the publisher's account, which the verifier names (`--owner`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpu_ami.cloud import Cloud, aws_errors, tags_of
from gpu_ami.errors import CloudError
from gpu_ami.files import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_ec2.type_defs import ImageTypeDef

    from gpu_ami.release.findings import Findings
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


def compare(verified: Verified, image: ImageTypeDef, cloud: Cloud, findings: Findings, owner: str = "") -> None:
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
            _by_record(verified, last, links, missing, findings, owner)
            break
        links.append(origin)
        last = following
    else:
        findings.hold("copy", f"{_chain([*links, goal])}, as EC2 says")
    _compare_snapshots(verified, image, cloud, findings)


def _origin(image: ImageTypeDef) -> tuple[str, str]:
    return image.get("SourceImageId", ""), image.get("SourceImageRegion", "")


def _chain(links: list[tuple[str, str]]) -> str:
    return " ← ".join(" in ".join(link) for link in links)


def _why_no_further(image: ImageTypeDef, links: list[tuple[str, str]], origin: tuple[str, str]) -> str:
    if not all(origin):
        return f"EC2 names no origin of {image['ImageId']} in {links[-1][1]} (it does to its owner alone)"
    return f"more than {_LONGEST} copies of copies" if origin in links or len(links) > _LONGEST else ""


def _by_record(
    verified: Verified, image: ImageTypeDef, links: list[tuple[str, str]], missing: str, findings: Findings, owner: str
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


def _compare_snapshots(verified: Verified, image: ImageTypeDef, cloud: Cloud, findings: Findings) -> None:
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
