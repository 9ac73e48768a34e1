"""What a publisher calls on AMIs and parameters, where moto answers otherwise than AWS or not at all.

Copies to other regions (encryption, tags of the AMI and its snapshots, client token, `pending` at first), deprecation,
deregistration protection, deletion of snapshots with their AMI, sharing with organizations, IMDS support, and SSM
parameters of the type aws:ec2:image. Copies have no disk: machines run in the local region's own region alone.

Sources, read 2026-11-22: EC2 API reference, CopyImage, EnableImageDeprecation, EnableImageDeregistrationProtection,
DeregisterImage, ModifyImageAttribute, "Ensuring idempotency in Amazon EC2 API requests"; SSM user guide, "Using native
parameter support for Amazon Machine Image IDs" (PutParameter answers before the AMI is looked up, and a parameter
whose AMI is not available is not written). The code OperationNotPermitted of a protected AMI is unverified.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.ec2.responses.amis import AmisResponse
from moto.kms.models import kms_backends
from moto.ssm.models import SimpleSystemManagerBackend

from localregion.backends.ec2 import REGION, RegionAmi
from localregion.state import ImageRecord

COPY_SECONDS = 0.3
_MOST = timedelta(days=3650)
_plain_copy, _plain_modify = AmisResponse.copy_image, AmisResponse.modify_image_attribute
_plain_put = SimpleSystemManagerBackend.put_parameter


class CopiedAmi(RegionAmi):
    """A copy in another region: `pending` for a moment."""

    ready_at: float
    state_when_ready: str = "available"

    @property
    def state(self) -> str:
        return "pending" if time.monotonic() < self.ready_at else self.state_when_ready

    @state.setter
    def state(self, value: str) -> None:
        self.state_when_ready = value


def install() -> None:
    """Makes moto answer so. Idempotent."""
    response: Any = AmisResponse
    response.copy_image, response.deregister_image = _copy_image, _deregister_image
    response.modify_image_attribute = _modify_image_attribute
    response.enable_image_deprecation, response.disable_image_deprecation = _deprecate, _undeprecate
    response.enable_image_deregistration_protection = _protect
    response.disable_image_deregistration_protection = _unprotect
    SimpleSystemManagerBackend.put_parameter = _put_parameter  # type: ignore[method-assign]


def _refusal(code: str, message: str) -> EC2ClientError:
    return EC2ClientError(code, message)


def _image(self: Any, backend: Any = None, image_id: str = "") -> Any:
    """The image that a call names. EC2ClientError: it is not in the region."""
    image_id = image_id or self._get_param("ImageId")
    image = (backend or self.ec2_backend).amis.get(image_id)
    if image is None:
        raise _refusal("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")
    return image


def _copy_image(self: Any) -> ActionResult:
    backend = self.ec2_backend
    if backend.region_name == REGION:
        return _plain_copy(self)  # localregion.images copies its disk
    names = ("ClientToken", "SourceImageId", "SourceRegion", "Name", "Encrypted", "KmsKeyId", "TagSpecifications")
    token, *parameters = (self._get_param(name) for name in names)
    tokens: dict[str, tuple[list[Any], str]] = backend.__dict__.setdefault("copy_tokens", {})
    if token and token in tokens:
        before, copied = tokens[token]
        if before != parameters:
            text = "The request uses the same client token as a previous, but non-identical request"
            raise _refusal("IdempotentParameterMismatch", text)
        return ActionResult({"ImageId": copied})
    source = _image(self, ec2_backends[backend.account_id][parameters[1]], parameters[0])
    if source.state != "available":
        raise _refusal("InvalidAMIID.Unavailable", f"The image id '[{source.id}]' is {source.state}")
    image = _make_copy(backend, source, parameters[1], parameters[2] or source.name)
    _encrypt(image, backend, bool(parameters[3]), parameters[4] or "")
    for specification in parameters[5] or ():
        resource = {"image": image.id, "snapshot": image.ebs_snapshot.id}[specification["ResourceType"]]
        backend.create_tags([resource], {tag["Key"]: tag["Value"] for tag in specification["Tags"]})
    if token:
        tokens[token] = (parameters, image.id)
    return ActionResult({"ImageId": image.id})


def _make_copy(backend: Any, source: Ami, region: str, name: str) -> CopiedAmi:
    image: Any = backend.copy_image(source.id, region, name, source.description)
    record = source.record if isinstance(source, RegionAmi) else _record(source)
    image.__class__ = CopiedAmi
    image.record = replace(record, id=image.id, name=name, snapshot_id=image.ebs_snapshot.id, tags={}, snapshot_tags={})
    image.ready_at = time.monotonic() + COPY_SECONDS
    image.state_when_ready = "available"
    image.source_image_id, image.source_image_region = source.id, region
    lineage = f"from SourceAmi {source.id} for SourceSnapshot {source.ebs_snapshot.id}"
    moment = f"Task created on {int(time.time() * 1000):,}."
    image.ebs_snapshot.description = f"Copied for DestinationAmi {image.id} {lineage}. {moment}"
    image.imds_support = getattr(source, "imds_support", None)
    image.root_device_name, image.root_device_type = source.root_device_name, "ebs"
    image.hypervisor, image.boot_mode = "xen", source.boot_mode
    image.ebs_snapshot.volume.size = image.record.size_gib
    return image  # type: ignore[no-any-return]


def _record(source: Ami) -> ImageRecord:
    return ImageRecord(
        source.id, source.name or source.id, source.description or "", source.owner_id, source.architecture or "x86_64",
        source.root_device_name, source.ebs_snapshot.id, 8, "",
    )  # fmt: skip


def _encrypt(image: CopiedAmi, backend: Any, encrypted: bool, key: str) -> None:
    """A copy of an encrypted AMI is encrypted; the key does not leave its region."""
    encrypted = encrypted or image.record.encrypted
    arn = ""
    if encrypted:
        kms = kms_backends[backend.account_id][backend.region_name]
        arn = kms.describe_key(key).arn if key else _managed_key(backend, kms)
    image.record = replace(image.record, encrypted=encrypted, kms_key_id=arn or None)
    image.ebs_snapshot.encrypted, image.ebs_snapshot.kms_key_id = encrypted, arn or None


def _managed_key(backend: Any, kms: Any) -> str:
    """alias/aws/ebs, which AWS makes when a region's first volume is encrypted without another key."""
    arn = str(backend._create_default_encryption_key())
    kms.describe_key(arn).key_manager = "AWS"
    return arn


def _deregister_image(self: Any) -> ActionResult:
    image, backend = _image(self), self.ec2_backend
    if getattr(image, "deregistration_protection", "disabled") != "disabled":
        raise _refusal("OperationNotPermitted", f"Deregistration protection is enabled for '{image.id}'")
    backend.deregister_image(image.id)
    result: dict[str, Any] = {"Return": True}
    if str(self._get_param("DeleteAssociatedSnapshots")).lower() == "true":
        backend.snapshots.pop(image.ebs_snapshot.id, None)
        result["DeleteSnapshotResults"] = [{"SnapshotId": image.ebs_snapshot.id, "ReturnCode": "success"}]
    return ActionResult(result)


def _modify_image_attribute(self: Any) -> ActionResult:
    image = _image(self)
    permissions = self._get_param("LaunchPermission") or {}
    if {"Group": "all"} in permissions.get("Add", []) and image.ebs_snapshot.encrypted:
        raise _refusal("InvalidParameterValue", "AMIs with encrypted snapshots cannot be made public")
    support = self._get_param("ImdsSupport")
    if support:
        image.imds_support = support["Value"] if isinstance(support, dict) else support
        return EmptyResult()
    return _plain_modify(self)


def _deprecate(self: Any) -> ActionResult:
    image, moment = _image(self), self._get_param("DeprecateAt")
    if not isinstance(moment, datetime):
        moment = datetime.fromisoformat(str(moment))
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    now = datetime.now(UTC)
    if not now <= moment <= now + _MOST:
        raise _refusal("InvalidParameterValue", f"The date {moment} is in the past or more than 10 years from now")
    image.deprecation_time = f"{moment + timedelta(seconds=30):%Y-%m-%dT%H:%M}:00.000Z"
    return ActionResult({"Return": True})


def _undeprecate(self: Any) -> ActionResult:
    _image(self).deprecation_time = None
    return ActionResult({"Return": True})


def _protect(self: Any) -> ActionResult:
    cooldown = "with" if str(self._get_param("WithCooldown")).lower() == "true" else "without"
    _image(self).deregistration_protection = f"enabled-{cooldown}-cooldown"
    return ActionResult({"Return": "true"})


def _unprotect(self: Any) -> ActionResult:
    _image(self).deregistration_protection = "disabled"
    return ActionResult({"Return": "true"})


def _put_parameter(self: Any, name: str, description: str, value: str, *arguments: Any, **options: Any) -> Any:
    data_type = arguments[5] if len(arguments) > 5 else options.get("data_type")
    image = ec2_backends[self.account_id][self.region_name].amis.get(value)
    before = list(self._parameters[name])
    parameter = _plain_put(self, name, description, value, *arguments, **options)
    if data_type == "aws:ec2:image" and (image is None or image.state != "available"):
        self._parameters[name] = before
    return parameter
