"""`gpu-ami launch-template`: of an AMI or an image's folder; printed, or made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from gpu_ami import cli
from gpu_ami.build.image import Build
from gpu_ami.cloud import Cloud, Place

AMI = "ami-0123456789abcdef0"


@pytest.fixture(autouse=True)
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Cloud]:
    monkeypatch.chdir(tmp_path)
    Path("aws.yml").write_text("region: us-east-1\nssh_interface: private_ip\n")
    with mock_aws():
        yield Cloud(Place("aws", "us-east-1"))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(["launch-template", *words, "--where", "aws.yml", "-q"])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_an_ami_is_printed_for_the_aws_cli(capsys: pytest.CaptureFixture[str], account: Cloud) -> None:
    code, out, _ = run(capsys, AMI, "--instance-type", "p4d.24xlarge", "--name", "train")
    document: dict[str, Any] = json.loads(out)
    assert code == 0 and document["LaunchTemplateName"] == "train-p4d.24xlarge"
    assert len(document["LaunchTemplateData"]["NetworkInterfaces"]) == 4
    account.ec2.create_launch_template(**document)  # as --cli-input-json does
    assert not json.loads(run(capsys, AMI, "--instance-type", "p4d.24xlarge", "--no-efa")[1])["LaunchTemplateData"].get(
        "NetworkInterfaces"
    )


def test_an_image_s_folder_has_its_instance_types(
    capsys: pytest.CaptureFixture[str], account: Cloud, tmp_path: Path
) -> None:
    recipe = Path(__file__).parents[2] / "variables" / "recipes" / "debian12-gpu.yml"
    assert cli.main(["plan", str(recipe), "-o", "out", "-q"]) == 0
    build = Build(AMI, (), "sha256:1", "sha256:2", "aws", "us-east-1", "r", "now")
    build.write(Path("out"))
    capsys.readouterr()
    code, out, err = run(capsys, "out", "--make")
    made = account.ec2.describe_launch_templates()["LaunchTemplates"]
    assert code == 0, err
    assert [f"{row['LaunchTemplateName']}: {row['LaunchTemplateId']}, version 1" for row in made] == out.splitlines()
    assert all(row["LaunchTemplateName"].startswith("debian12-gpu-") for row in made) and made
    assert run(capsys, "out", "--instance-type", "trn1.32xlarge")[0] == 2
    document = json.loads(run(capsys, "out", "--format", "cloudformation")[1])
    assert {row["Type"] for row in document["Resources"].values()} == {"AWS::EC2::LaunchTemplate"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([AMI], "--instance-type is missing"),
        ([AMI, "--instance-type", "p99.large"], "no such row in variables/facts/instance_types.yml"),
        ([AMI, "--instance-type", "g5.xlarge", "--way", "cheap"], "--way: expected on-demand, spot, reservation:"),
        ([AMI, "--instance-type", "g5.xlarge", "--user-data", "none"], "--user-data: none: "),
        ([AMI, "--instance-type", "g5.xlarge", "--make", "--format", "cloudformation"], "--make makes the templates"),
    ],
)
def test_mistakes_are_exit_2(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    code, _, err = run(capsys, *words)
    assert code == 2 and said in err


def test_without_a_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["launch-template", AMI, "--instance-type", "g5.xlarge", "-q"]) == 2
    assert "the local region is not up" in capsys.readouterr().err


def test_the_page_s_documents_are_those_of_the_api() -> None:
    """The group and the fleet of docs/fleet.md have the members that the services take."""
    from botocore.session import Session
    from botocore.validate import ParamValidator

    page = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()
    documents = [json.loads(block.partition("```")[0]) for block in page.split("```json\n")[1:]]
    operations = (("autoscaling", "CreateAutoScalingGroup"), ("ec2", "CreateFleet"))
    assert len(documents) == len(operations)
    for document, (service, operation) in zip(documents, operations, strict=True):
        shape = Session().get_service_model(service).operation_model(operation).input_shape
        report = ParamValidator().validate(document, shape)
        assert not report.has_errors(), report.generate_report()
