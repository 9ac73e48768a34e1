"""The statement: its form by the specifications of in-toto, what it is over, and which payloads are none."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.release import bom
from gpu_ami.release import statement as statements
from gpu_ami.report import certificate as certificates
from tests.release import examples
from tests.report.examples import a_host
from validator.file_account import merkle_root, read


def statement(folder: Path) -> statements.Statement:
    report = examples.write_folder(folder)
    certificate = certificates.certify(report)
    certificate.write(folder)
    bom.write(report, folder, [])
    return statements.of_folder(folder, certificate, report, (examples.SNAPSHOT,))


def test_its_form_is_that_of_the_specifications(tmp_path: Path) -> None:
    document = json.loads(statement(tmp_path).to_bytes())
    assert (document["_type"], document["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://in-toto.io/attestation/test-result/v0.1",
    )
    sha256 = {
        name: {"sha256": hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()}
        for name in (
            "bom.cdx.json",
            "certificate.json",
            "certificate.md",
            "ctrf.json",
            "junit.xml",
            "report.json",
            examples.INVENTORY,
            "evidence/image-files/materials.json",
        )
    }
    root = merkle_root(read((tmp_path / examples.INVENTORY).read_bytes()))
    assert {subject["name"]: subject["digest"] for subject in document["subject"]} == {
        "arn:aws:ec2:us-east-1::image/ami-0123456789abcdef0": {"awsImage": "0123456789abcdef0"},
        "arn:aws:ec2:us-east-1::snapshot/snap-0123456789abcdef0": {"awsSnapshot": "0123456789abcdef0"},
        **sha256,
        "inventory-root": {"sha256": root},
    }
    predicate = document["predicate"]
    assert predicate["result"] == "PASSED" and predicate["failedTests"] == predicate["warnedTests"] == []
    assert "xid::test_it" in predicate["passedTests"]
    assert predicate["configuration"] == [
        {"name": "plan", "digest": {"sha256": "1" * 64}, "annotations": {"recipe": "demo"}}
    ]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    made = statement(tmp_path)
    assert statements.parse(made.to_bytes()) == made
    assert statements.inventory_of(examples.certified_report(inventory_root="r"), made.files)[0] == examples.INVENTORY


@pytest.mark.parametrize(
    ("region", "partition"), [("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov"), ("eu-central-1", "aws")]
)
def test_the_partition_follows_the_region(tmp_path: Path, region: str, partition: str) -> None:
    made = replace(statement(tmp_path), region=region)
    assert json.loads(made.to_bytes())["subject"][0]["name"] == f"arn:{partition}:ec2:{region}::image/{made.ami}"
    assert statements.parse(made.to_bytes()) == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_type": "https://in-toto.io/Statement/v0.1"}, "_type: expected"),
        ({"predicateType": "https://slsa.dev/provenance/v1"}, "predicateType: expected"),
        ({"subject": [{"name": "/etc/passwd", "digest": {"sha256": "0"}}]}, "subject '/etc/passwd'"),
        ({"subject": [{"name": "evidence/../inventory.jsonl.gz", "digest": {"sha256": "0"}}]}, "subject 'evidence/.."),
        ({"subject": "x"}, "not as"),
        ({"further": 1}, "further or reordered content"),
    ],
)
def test_another_payload_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    document = json.loads(statement(tmp_path).to_bytes()) | change
    with pytest.raises(statements.InvalidStatement) as error:
        statements.parse(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
    assert message in str(error.value)


def test_without_a_certificate_nothing_is_signed(tmp_path: Path) -> None:
    report = replace(examples.write_folder(tmp_path), hosts=(a_host(xid="FAIL"),))
    with pytest.raises(UsageError, match="no certificate to sign"):
        statements.of_folder(tmp_path, certificates.certify(report), report)
    report = examples.certified_report()
    with pytest.raises(UsageError, match="No such file"):
        statements.of_folder(tmp_path / "empty", certificates.certify(report), report)
