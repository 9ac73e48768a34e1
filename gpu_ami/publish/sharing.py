"""Whom an AMI can be shared with: the accounts, organizations and keys of a release policy.

Whoever launches an encrypted AMI of another account uses its KMS key: the key's policy must allow that, and the AWS
managed key of EBS allows nobody else. Sources, read 2026-11-22: EC2 user guide, "Share an AMI with specific AWS
accounts"; EBS user guide, "Share the KMS key used to encrypt a shared Amazon EBS snapshot".
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_ami.cloud import Cloud, Place, aws_errors, policies, preflight
from gpu_ami.errors import UsageError
from gpu_ami.publish.policy import DEFAULT_FILE, RegionPolicy, ReleasePolicy, load_policy

PUBLIC = "all"
_NEEDED = (
    "kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncryptFrom",
)  # fmt: skip
_OWN_KEY = "make a customer managed key and name it as kms_key of the region"


@dataclass(frozen=True)
class Key:
    """A KMS key. statements: of its policy; none of an AWS managed key, whose policy is fixed."""

    arn: str
    is_managed_by_aws: bool = False
    is_enabled: bool = True
    statements: tuple[policies.Statement, ...] = ()


def read_key(cloud: Cloud, name: str) -> Key:
    """A key by its id, alias or ARN, with its policy. CloudError."""
    kms = cloud.client("kms")
    with aws_errors.translated(f"describing KMS key {name} in {cloud.place.region}"):
        row = kms.describe_key(KeyId=name)["KeyMetadata"]
        key = Key(row["Arn"], row.get("KeyManager") == "AWS", bool(row.get("Enabled", True)))
    if key.is_managed_by_aws:
        return key
    with aws_errors.translated(f"reading the policy of KMS key {name} in {cloud.place.region}"):
        text = kms.get_key_policy(KeyId=row["Arn"], PolicyName="default")["Policy"]
        statements = policies.parse(text) if text else []
    return Key(key.arn, False, key.is_enabled, tuple(statements))


def examine_default(place: Place, image: str) -> list[preflight.Finding]:
    """As `examine`, with the release policy of the current folder; nothing where it has none."""
    path = Path(DEFAULT_FILE)
    if not path.exists():
        return []
    try:
        policy = load_policy(path, image)
    except UsageError as wrong:
        return [preflight.error(DEFAULT_FILE, ": ".join([wrong.message, *wrong.details]), remedy=wrong.hint)]
    return examine(place, policy)


def examine(place: Place, policy: ReleasePolicy) -> list[preflight.Finding]:
    """Whether an image that is built at the place could be published as the policy says: builds encrypt each volume."""
    findings: list[preflight.Finding] = []
    for where in policy.regions:
        cloud = Cloud(place.in_region(where.region))
        name = f"publish in {where.region}"
        findings += preflight.examined(name, functools.partial(_examine, name, cloud, policy, where, place.region))
    return findings


def _examine(
    name: str, cloud: Cloud, policy: ReleasePolicy, where: RegionPolicy, home: str
) -> Iterator[preflight.Finding]:
    named = read_key(cloud, where.kms_key) if where.kms_key else None
    used = named
    if where.region == home:
        used = _known(cloud, preflight.volume_key(cloud))
        if named is not None and used.arn != named.arn:
            text = f"the image will be encrypted with {used.arn}, the policy names {named.arn}"
            yield preflight.error(name, text, "one key", f"set kms_key_id: {where.kms_key} in the --where file")
            return
    if named is not None and not named.is_enabled:
        yield preflight.error(name, f"{named.arn} is disabled", "enabled", "enable it, or name another kms_key")
        return
    if policy.public and (blocked := public_access(cloud)):
        yield preflight.error(name, blocked, "public sharing allowed", NOT_PUBLIC)
        return
    reasons = list(refusals(policy, where.region, [used or Key(preflight.AWS_EBS, is_managed_by_aws=True)]))
    for reason in reasons:
        yield preflight.error(name, reason, "a key that those in share may use", "docs/release.md, Encrypted images")
    if not reasons:
        yield preflight.ok(name, f"encrypted with {used.arn if used else preflight.AWS_EBS}")


def _known(cloud: Cloud, name: str) -> Key:
    """As `read_key`. An account has no aws/ebs before its first encrypted volume."""
    return Key(name, is_managed_by_aws=True) if name == preflight.AWS_EBS else read_key(cloud, name)


def grantees(policy: ReleasePolicy) -> list[str]:
    """Accounts, ARNs of organizations and units, and `all` where the policy says public."""
    return [*policy.accounts, *policy.organizations, *([PUBLIC] if policy.public else [])]


def permission(grantee: str) -> dict[str, str]:
    """A launch permission as ModifyImageAttribute takes it."""
    if grantee == PUBLIC:
        return {"Group": PUBLIC}
    kind = "OrganizationalUnitArn" if ":ou/" in grantee else "OrganizationArn"
    return {kind: grantee} if grantee.startswith("arn:") else {"UserId": grantee}


def grantee_of(row: Mapping[str, str]) -> str:
    """The account, ARN or `all` of a launch permission."""
    return next(iter(row.values()), "")


NOT_PUBLIC = "aws ec2 disable-image-block-public-access (10 minutes; AWS advises against it), or share it by account"


def public_access(cloud: Cloud) -> str:
    """Why no AMI of a region can be made public; "" where one can (EC2 user guide, "Block public access for AMIs")."""
    with aws_errors.translated(f"reading block public access for AMIs in {cloud.place.region}"):
        state = cloud.ec2.get_image_block_public_access_state()["ImageBlockPublicAccessState"]
    return "" if state == "unblocked" else f"{cloud.place.region}: block public access for AMIs is on ({state})"


def refusals(policy: ReleasePolicy, region: str, keys: Sequence[Key]) -> Iterator[str]:
    """Why an AMI whose snapshots are encrypted with these keys cannot be shared as the policy says."""
    if not policy.is_shared:
        return
    for key in keys:
        if policy.public:
            yield f"{region}: an encrypted AMI cannot be public ({key.arn}): leave kms_key out, or share it by account"
        elif key.is_managed_by_aws:
            yield (
                f"{region}: encrypted with the AWS managed key aws/ebs, which no other account can use: {_OWN_KEY}, "
                "or do not share it"
            )
        else:
            for grantee in grantees(policy):
                if missing := _missing(key, grantee):
                    text = f"the policy of {key.arn} does not let {grantee} use it ({', '.join(missing)})"
                    yield f"{region}: {text}: add them to the key's policy, or take {grantee} out of share"


def _missing(key: Key, grantee: str) -> list[str]:
    """The actions that the key's policy does not allow."""
    return [action for action in _NEEDED if not any(_allows(row, action, grantee) for row in key.statements)]


def _allows(statement: policies.Statement, action: str, grantee: str) -> bool:
    if statement.get("Effect") != "Allow" or not policies.names_action(statement, action):
        return False
    return _names(statement.get("Principal", {}), grantee) and _conditions_may_hold(statement, grantee)


def _names(principal: Any, grantee: str) -> bool:
    """Whether the Principal element names an account; an organization has `*` alone, with a condition."""
    named = policies.listed(principal.get("AWS")) if isinstance(principal, Mapping) else policies.listed(principal)
    if "*" in named:
        return True
    return not grantee.startswith("arn:") and any(grantee in (text, *text.split(":")[4:5]) for text in named)


def _conditions_may_hold(statement: policies.Statement, grantee: str) -> bool:
    """Compares what is known of the grantee; a condition on anything else may hold."""
    known = {"aws:principalorgid": grantee.split("/")[1]} if grantee.startswith("arn:") else {}
    if not grantee.startswith("arn:"):
        known = {"kms:calleraccount": grantee, "aws:principalaccount": grantee}
    for operator, entries in statement.get("Condition", {}).items():
        for key, values in entries.items():
            value = known.get(key.lower())
            if value and operator in ("StringEquals", "StringLike"):
                probe: policies.Statement = {"Condition": {operator: {key: values}}}
                if not policies.conditions_hold(probe, {key: value}):
                    return False
    return True
