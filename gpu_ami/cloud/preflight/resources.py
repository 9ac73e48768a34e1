"""The KMS key and the source AMI of a run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from gpu_ami.cloud.preflight.findings import Finding, Scope, error, ok, warning
from gpu_ami.errors import UsageError

_OLD = timedelta(days=730)  # AWS deprecates public AMIs after two years (EC2, "Deprecate an AMI")


def kms_key(scope: Scope) -> Iterator[Finding]:
    """The key exists, is enabled, and can encrypt a volume (symmetric)."""
    name = scope.place.kms_key_id
    if not name:
        yield ok("kms_key_id", "none: the account's default key for EBS")
        return
    kms = scope.cloud.client("kms")
    try:
        key = kms.describe_key(KeyId=name)["KeyMetadata"]
    except kms.exceptions.NotFoundException:
        remedy = "correct kms_key_id (id, alias/NAME or ARN) or region"
        yield error("kms_key_id", f"{name} is not in {scope.place.region}", "a key", remedy)
        return
    if key["KeyState"] != "Enabled":
        yield error("kms_key_id", f"{name} is {key['KeyState']}", "Enabled", "enable the key, or name another")
    elif key.get("KeySpec", "SYMMETRIC_DEFAULT") != "SYMMETRIC_DEFAULT" or key.get("KeyUsage") != "ENCRYPT_DECRYPT":
        text = f"{name} is {key.get('KeySpec')} for {key.get('KeyUsage')}"
        yield error("kms_key_id", text, "SYMMETRIC_DEFAULT for ENCRYPT_DECRYPT", "name a symmetric key")
    elif key.get("KeyManager") == "AWS":
        text = f"{name} is managed by AWS: images encrypted with it cannot be shared"
        yield warning("kms_key_id", text, "a customer managed key, if the image is for other accounts")
    else:
        yield ok("kms_key_id", f"{name} is enabled")


def source_ami(scope: Scope) -> Iterator[Finding]:
    """The source AMI is there, of the image's architecture, backed by EBS, and neither deprecated nor old."""
    if not scope.plan or not scope.source_ami:
        return
    try:
        resolved = scope.source_ami(scope.cloud, scope.plan)
    except UsageError as wrong:
        yield error("source_ami", wrong.message, f"an AMI in {scope.place.region}", wrong.hint)
        return
    image = scope.cloud.image(resolved["id"]) or {}
    text = f"{resolved['id']} ({resolved['name']}), created {resolved['created'][:10] or 'at an unknown time'}"
    if image.get("Architecture") != scope.plan["architecture"]:
        expected = str(scope.plan["architecture"])
        yield error("source_ami", f"{text}: {image.get('Architecture')}", expected, "name an AMI of this architecture")
    if image.get("RootDeviceType", "ebs") != "ebs":
        yield error("source_ami", f"{text}: root device {image.get('RootDeviceType')}", "ebs", "name an EBS-backed AMI")
    deprecated = _time(image.get("DeprecationTime", ""))
    if deprecated and deprecated < datetime.now(UTC):
        text_deprecated = f"{text}, deprecated since {deprecated:%Y-%m-%d}"
        yield warning("source_ami", text_deprecated, "an AMI that is maintained", "name a newer release")
        return
    created = _time(resolved["created"])
    if created and datetime.now(UTC) - created > _OLD:
        yield warning("source_ami", text, "an AMI of the last two years", "name a newer release")
    else:
        yield ok("source_ami", text)


def _time(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
