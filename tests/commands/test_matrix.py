"""`gpu-ami matrix`: the same jobs in the form of each CI system."""

from __future__ import annotations

import json

import pytest
import yaml

from gpu_ami import cli
from gpu_ami.commands import matrix
from gpu_ami.plan import AffectedImage
from gpu_ami.plan.lock import Change
from tests.json_documents import valid

CHANGES = (Change("cuda.version", "12.9", "13.0", ""), Change("cuda.note", None, "a | b", ""))
IMAGES = (
    AffectedImage("gpu", "recipes/gpu.yml", "sha256:1", ("g5.12xlarge", "p4d.24xlarge"), True, ("plan: x",), CHANGES),
    AffectedImage("eks-1.33", "recipes/eks-1.33.yml", "sha256:2", ("p5.48xlarge",), False, ("changed: checks/a.py",)),
)


@pytest.fixture(autouse=True)
def _affected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_ami.plan.affected", lambda _recipes, since: () if since == "HEAD" else IMAGES)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["matrix", *words]) == 0
    return capsys.readouterr().out


def test_text_names_each_image_with_its_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys).splitlines() == [
        "gpu: build and prove on g5.12xlarge, p4d.24xlarge",
        "    plan: x",
        "eks-1.33: prove on p5.48xlarge",
        "    changed: checks/a.py",
        "2 images, 3 shards",
    ]
    assert printed(capsys, "--since", "HEAD") == "0 images, 0 shards\n"


def test_json_is_the_same_with_the_option_and_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(printed(capsys, "--json"))
    valid(data, "matrix")
    assert data == json.loads(printed(capsys, "--format", "json"))
    assert data["shards"][2] == {"image": "eks-1.33", "recipe": "recipes/eks-1.33.yml", "instance_type": "p5.48xlarge"}


def test_github_gets_lines_of_its_output_file(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = dict(line.split("=", 1) for line in printed(capsys, "--format", "github").splitlines())
    assert [row["build"] for row in json.loads(outputs["images"])["include"]] == [True, False]
    assert len(json.loads(outputs["shards"])["include"]) == 3
    assert outputs["any"] == "true"
    empty = printed(capsys, "--format", "github", "--since", "HEAD")
    assert empty.splitlines() == ['images={"include":[]}', 'shards={"include":[]}', "any=false"]


def test_markdown_has_a_table_and_what_changes_in_each_plan(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--format", "markdown")
    assert text.startswith("### gpu-ami: 2 images affected, 3 proofs\n")
    assert "| gpu | build and prove | g5.12xlarge, p4d.24xlarge | plan: x |" in text
    assert "<summary>gpu: 2 values of the plan would change</summary>" in text
    assert "| cuda.version | 12.9 | 13.0 |" in text and "| cuda.note | - | a \\| b |" in text
    assert "eks-1.33: " not in text
    assert printed(capsys, "--format", "markdown", "--since", "HEAD") == "### gpu-ami: 0 images affected, 0 proofs\n"


def test_gitlab_gets_jobs_to_extend(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = yaml.safe_load(printed(capsys, "--format", "gitlab"))
    assert jobs[".gpu-ami-images"]["parallel"]["matrix"][0]["BUILD"] == "true"
    assert jobs[".gpu-ami-shards"]["parallel"]["matrix"][0]["INSTANCE_TYPE"] == ["g5.12xlarge", "p4d.24xlarge"]
    empty = yaml.safe_load(printed(capsys, "--format", "gitlab", "--since", "HEAD"))
    assert list(empty) == ["no-image-affected"]  # GitLab refuses a pipeline without a job


def test_codebuild_gets_a_build_for_each_shard(capsys: pytest.CaptureFixture[str]) -> None:
    builds = yaml.safe_load(printed(capsys, "--format", "codebuild"))["batch"]["build-list"]
    assert [build["identifier"] for build in builds] == ["gpu_g5_12xlarge", "gpu_p4d_24xlarge", "eks_1_33_p5_48xlarge"]
    assert builds[0]["env"]["variables"] == {
        "IMAGE": "gpu", "RECIPE": "recipes/gpu.yml", "INSTANCE_TYPE": "g5.12xlarge",
    }  # fmt: skip


def test_shards_are_rows_of_strings() -> None:
    assert [row["instance_type"] for row in matrix.shards(IMAGES)] == ["g5.12xlarge", "p4d.24xlarge", "p5.48xlarge"]
