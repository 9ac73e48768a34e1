"""The steps of a document with its parameters."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.local.backends.systems_manager import Refused
from gpu_ami.local.backends.systems_manager.documents import AWS_DOCUMENTS, require_size, steps


def look_up(name: str) -> Any:
    return AWS_DOCUMENTS[name]


def document(**parts: Any) -> dict[str, Any]:
    step = {"action": "aws:runShellScript", "name": "one", "inputs": {"runCommand": ["echo {{ word }}", "{{word}}"]}}
    return {"schemaVersion": "2.2", "parameters": {"word": {"type": "String"}}, "mainSteps": [step], **parts}


def test_parameters_are_put_in_place() -> None:
    (step,) = steps(document(), {"word": ["hello"]}, look_up)
    assert step.inputs["runCommand"] == ["echo hello", "hello"]


def test_a_list_replaces_a_whole_value() -> None:
    (step,) = steps(AWS_DOCUMENTS["AWS-RunShellScript"], {"commands": ["a", "b"]}, look_up)
    assert (step.inputs["runCommand"], step.timeout_seconds) == (["a", "b"], 3600.0)


@pytest.mark.parametrize(
    ("made", "given", "message"),
    [
        (document(), {}, "Parameter word is required"),
        (document(), {"word": ["x"], "other": ["y"]}, "not defined in the document: other"),
        (document(parameters={}), {}, "InvalidDocumentContent: Parameter word is not defined"),
        (document(mainSteps=[{"action": "aws:refreshAssociation", "name": "r"}]), {"word": ["x"]}, "InvalidDocument"),
        (AWS_DOCUMENTS["AWS-ConfigureAWSPackage"], {"action": ["Remove"], "name": ["x"]}, "'Remove' is not one of"),
    ],
)
def test_a_mistake_is_refused(made: Any, given: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        steps(made, given, look_up)


def test_documents_run_documents_to_a_depth() -> None:
    inputs = {
        "documentType": "SSMDocument",
        "documentPath": "AWS-RunShellScript",
        "documentParameters": '{"commands": "ls"}',
    }
    outer = {"mainSteps": [{"action": "aws:runDocument", "name": "list", "inputs": inputs}]}
    assert [(step.name, step.inputs["runCommand"]) for step in steps(outer, {}, look_up)] == [("list", ["ls"])]
    endless: dict[str, Any] = {
        "mainSteps": [{"action": "aws:runDocument", "name": "again", "inputs": {"documentPath": "itself"}}]
    }
    with pytest.raises(Refused, match="more than 3 deep"):
        steps(endless, {}, lambda _: endless)


def test_a_document_has_64_kb() -> None:
    require_size("x" * 65536)
    with pytest.raises(Refused, match="64 KB"):
        require_size("x" * 65537)
