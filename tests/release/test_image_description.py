"""An image is found by each of its files, its folder and its AMI; what is not at hand is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from moto import mock_aws

from gpu_ami import pipeline
from gpu_ami.cloud import Cloud, Place
from gpu_ami.errors import UsageError
from gpu_ami.release import image_description
from tests.release import examples

PLAN = {"schema": "gpu-ami/plan/1", "image": "demo", "digest": examples.PLAN_DIGEST}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    report = examples.write_folder(tmp_path / "out/demo")
    (tmp_path / "out/demo/plan.json").write_text(json.dumps(PLAN))
    pipeline.certify_stage(report, tmp_path / "out/demo")
    return tmp_path / "out"


@pytest.mark.parametrize("name", ["demo", "demo/report.json", "demo/certificate.json"])
def test_a_run_has_everything(runs: Path, name: str) -> None:
    described = image_description.describe(str(runs / name))
    assert described.report and described.inventory and described.plan["image"] == "demo"
    assert (described.ami, described.missing) == (examples.AMI, [])
    assert described.title == f"demo ({runs / name})"


def test_a_plan_alone(runs: Path) -> None:
    described = image_description.describe(str(runs / "demo/plan.json"))
    assert described.report is None and described.ami == ""
    assert [line.partition(":")[0] for line in described.missing] == ["no report", "no inventory of its files"]


def test_an_ami_is_found_under_out(runs: Path) -> None:
    assert image_description.describe(examples.AMI, runs=runs).report is not None
    with pytest.raises(UsageError, match="nothing is known of ami-0ffff"):
        image_description.describe("ami-0ffff", runs=runs)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    with mock_aws():
        yield Cloud(Place(name="aws", region=examples.REGION))


def image(cloud: Cloud, **tags: str) -> str:
    ami = cloud.ec2.register_image(Name="demo", RootDeviceName="/dev/xvda")["ImageId"]
    cloud.ec2.create_tags(Resources=[ami], Tags=[{"Key": key, "Value": value} for key, value in tags.items()])
    return ami


def test_the_tags_of_an_ami_lead_to_its_plan(runs: Path, cloud: Cloud) -> None:
    ami = image(cloud, **{"gpu-ami:plan": examples.PLAN_DIGEST})
    described = image_description.describe(ami, cloud, runs)
    assert described.plan["image"] == "demo" and described.report is None
    assert f"is of {examples.AMI}: checks and files are not {ami}'s" in described.missing[-1]


def test_without_its_files_an_ami_has_its_tags(runs: Path, cloud: Cloud) -> None:
    ami = image(cloud, **{"gpu-ami:plan": "sha256:other", "gpu-ami:recipe": "demo", "cuda_version": "13.0"})
    described = image_description.describe(ami, cloud, runs)
    assert described.title == f"demo ({ami})" and "its tags alone are compared" in described.missing[0]


def test_an_ami_that_is_not_there(runs: Path, cloud: Cloud) -> None:
    with pytest.raises(UsageError, match="is not in us-east-1"):
        image_description.describe(examples.AMI, cloud, runs)


def test_a_certificate_beside_another_report_is_refused(runs: Path) -> None:
    examples.write_folder(runs / "demo", replace(examples.certified_report(), run="run-2"))
    with pytest.raises(UsageError, match="is another one"):
        image_description.describe(str(runs / "demo/certificate.json"))


@pytest.mark.parametrize("content", ["{}", '{"schema": "gpu-ami/build/1"}', "text"])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UsageError, match="not a plan, observation, report or certificate"):
        image_description.describe(str(tmp_path / "x.json"))
    with pytest.raises(UsageError, match="no such file, folder or AMI id"):
        image_description.describe(str(tmp_path / "none"))
    (tmp_path / "x.json").unlink()
    with pytest.raises(UsageError, match="is in it"):
        image_description.describe(str(tmp_path))
