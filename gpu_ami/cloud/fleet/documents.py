"""Command documents, parameters and associations that an attachment makes, and their removal.

CreateDocument answers before a document can be used (status Creating). Making what is there with the same content is no
error, and neither is removing what is not there. Source: Systems Manager API reference, CreateDocument, UpdateDocument
(DuplicateDocumentContent), PutParameter (Standard parameters hold 4 KB, Advanced ones 8 KB), read 2026-11-23.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpu_ami.cloud import aws_errors
from gpu_ami.errors import CloudError, GpuAmiError

if TYPE_CHECKING:
    from gpu_ami.cloud import Cloud

_STANDARD_BYTES, _ADVANCED_BYTES = 4096, 8192
_ACTIVE_SECONDS, _POLL_SECONDS = 60.0, 0.5
_ABSENT = ("InvalidDocument", "ParameterNotFound", "AssociationDoesNotExist")


def ensure_document(cloud: Cloud, name: str, content: Mapping[str, Any]) -> None:
    """Makes a Command document, or makes this content its default version."""
    ssm, text = cloud.client("ssm"), json.dumps(content, indent=1)
    try:
        with aws_errors.translated(f"creating document {name}"):
            ssm.create_document(
                Name=name, Content=text, DocumentType="Command", DocumentFormat="JSON", TargetType="/AWS::EC2::Instance"
            )
    except GpuAmiError as error:
        if error.code != "DocumentAlreadyExists":
            raise
        _update(cloud, name, text)
    _wait_until_active(cloud, name)


def _update(cloud: Cloud, name: str, text: str) -> None:
    ssm = cloud.client("ssm")
    try:
        with aws_errors.translated(f"updating document {name}"):
            answer = ssm.update_document(Name=name, Content=text, DocumentFormat="JSON", DocumentVersion="$LATEST")
            version = answer["DocumentDescription"]["DocumentVersion"]
            ssm.update_document_default_version(Name=name, DocumentVersion=version)
    except GpuAmiError as error:
        if error.code != "DuplicateDocumentContent":  # it is as it should be
            raise


def _wait_until_active(cloud: Cloud, name: str) -> None:
    deadline = time.monotonic() + _ACTIVE_SECONDS
    while True:
        with aws_errors.translated(f"reading document {name}"):
            status = cloud.client("ssm").describe_document(Name=name)["Document"]["Status"]
        if status == "Active":
            return
        if status == "Failed" or time.monotonic() > deadline:
            raise CloudError(f"document {name}: expected Active, got {status}")
        time.sleep(_POLL_SECONDS)


def ensure_parameter(cloud: Cloud, name: str, value: str) -> None:
    """Writes a parameter; an Advanced one (charged) where it is too long for a Standard one. CloudError: for both."""
    size = len(value.encode())
    if size > _ADVANCED_BYTES:
        raise CloudError(f"parameter {name}: {size} bytes, at most {_ADVANCED_BYTES}")
    tier = "Standard" if size <= _STANDARD_BYTES else "Advanced"
    with aws_errors.translated(f"writing parameter {name}"):
        cloud.client("ssm").put_parameter(Name=name, Value=value, Type="String", Overwrite=True, Tier=tier)


def ensure_association(cloud: Cloud, name: str, document: str, targets: Sequence[Mapping[str, Any]]) -> str:
    """The association of this name, made anew with these targets; its id."""
    remove_associations(cloud, name)
    with aws_errors.translated(f"creating association {name}"):
        answer = cloud.client("ssm").create_association(
            Name=document, AssociationName=name, Targets=[dict(each) for each in targets]
        )
        return str(answer["AssociationDescription"]["AssociationId"])


def remove_associations(cloud: Cloud, name: str) -> list[str]:
    """Ids of the associations of this name that were removed."""
    ssm = cloud.client("ssm")
    with aws_errors.translated(f"looking up association {name}"):
        filters = [{"key": "AssociationName", "value": name}]
        pages = ssm.get_paginator("list_associations").paginate(AssociationFilterList=filters)
        ids = [str(row["AssociationId"]) for page in pages for row in page["Associations"]]
    for each in ids:
        _unless_absent(f"deleting association {name}", ssm.delete_association, AssociationId=each)
    return ids


def remove_documents(cloud: Cloud, names: Iterable[str]) -> list[str]:
    """The documents of these names that were there."""
    delete = cloud.client("ssm").delete_document
    return [name for name in names if _unless_absent(f"deleting document {name}", delete, Name=name)]


def remove_parameters(cloud: Cloud, names: Iterable[str]) -> list[str]:
    """The parameters of these names that were there."""
    delete = cloud.client("ssm").delete_parameter
    return [name for name in names if _unless_absent(f"deleting parameter {name}", delete, Name=name)]


def _unless_absent(action: str, call: Callable[..., object], **request: str) -> bool:
    """Whether there was something to be removed."""
    try:
        with aws_errors.translated(action):
            call(**request)
    except GpuAmiError as error:
        if error.code not in _ABSENT:
            raise
        return False
    return True
