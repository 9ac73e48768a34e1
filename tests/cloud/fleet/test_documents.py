"""Documents and parameters are made once, renewed when they differ, and removed without a trace."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.cloud import Cloud, Place
from gpu_ami.cloud.fleet import documents
from gpu_ami.cloud.place import Credentials
from gpu_ami.errors import CloudError


def content(line: str) -> dict[str, Any]:
    step = {"action": "aws:runShellScript", "name": "x", "inputs": {"runCommand": [line]}}
    return {"schemaVersion": "2.2", "mainSteps": [step]}


@pytest.fixture
def cloud(endpoint: str) -> Cloud:
    return Cloud(Place("local", "us-east-1", endpoint=endpoint, credentials=Credentials("local", "local")))


def test_a_document_is_made_once_and_renewed_when_it_differs(cloud: Cloud) -> None:
    for line in ("one", "one", "two"):
        documents.ensure_document(cloud, "mine", content(line))
    described = cloud.client("ssm").describe_document(Name="mine")["Document"]
    assert (described["DocumentVersion"], described["DefaultVersion"]) == ("2", "2")
    assert documents.remove_documents(cloud, ["mine", "never-made"]) == ["mine"]


def test_a_parameter_has_the_tier_that_it_needs(cloud: Cloud) -> None:
    documents.ensure_parameter(cloud, "AmazonCloudWatch-a", "x" * 4096)
    documents.ensure_parameter(cloud, "AmazonCloudWatch-b", "x" * 4097)
    ssm = cloud.client("ssm")
    tiers = {row["Name"]: row.get("Tier") for row in ssm.describe_parameters()["Parameters"]}
    assert tiers == {"AmazonCloudWatch-a": "Standard", "AmazonCloudWatch-b": "Advanced"}
    with pytest.raises(CloudError, match="8193 bytes, at most 8192"):
        documents.ensure_parameter(cloud, "AmazonCloudWatch-c", "x" * 8193)
    assert documents.remove_parameters(cloud, ["AmazonCloudWatch-a", "AmazonCloudWatch-z"]) == ["AmazonCloudWatch-a"]


def test_an_association_is_made_anew_with_its_targets(cloud: Cloud) -> None:
    documents.ensure_document(cloud, "mine", content("true"))
    first = documents.ensure_association(cloud, "all", "mine", [{"Key": "tag:a", "Values": ["b"]}])
    second = documents.ensure_association(cloud, "all", "mine", [{"Key": "tag:a", "Values": ["c"]}])
    assert first != second
    assert documents.remove_associations(cloud, "all") == [second] and documents.remove_associations(cloud, "all") == []
