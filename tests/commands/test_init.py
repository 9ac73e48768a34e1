"""`gpu-ami init`: the folder that it writes is one in which the other commands run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from gpu_ami import cli
from gpu_ami.cloud.place import load_place
from validator import waivers


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    assert cli.main(["init", str(tmp_path / "mine"), "-q"]) == 0
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "mine"


def test_recipe_is_found_by_name_and_plans(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.main(["plan", "my-gpu-image", "--where", "aws.yml", "-q"]) == 0
    assert capsys.readouterr().out.startswith("out/my-gpu-image/plan.json  sha256:")
    assert cli.main(["recipes", "my-gpu-image"]) == 0
    assert "1 of " in capsys.readouterr().out


def test_place_waivers_and_workflow_are_read(folder: Path) -> None:
    assert load_place(folder / "aws.yml").region == "eu-central-1"
    assert waivers.load(folder / "waivers.yml") == []
    workflow = yaml.safe_load((folder / ".github" / "workflows" / "gpu-ami.yml").read_text())
    assert list(workflow["jobs"]) == ["plan", "rehearse", "build", "prove", "certify", "publish"]


def test_commented_keys_of_the_place_are_known(folder: Path, tmp_path: Path) -> None:
    text = (folder / "aws.yml").read_text().replace("\n# ", "\n")
    everything = tmp_path / "everything.yml"
    everything.write_text(text.partition("\n")[2].partition("\n")[2])
    assert load_place(everything).login.ssh_interface == "private_ip"


def test_release_policy_and_its_commented_keys_are_known(folder: Path, tmp_path: Path) -> None:
    from gpu_ami.publish.policy import load_policy

    policy = load_policy(folder / "publish.yml")
    assert [row.region for row in policy.regions] == ["eu-central-1"] and not policy.is_shared and policy.keep == 0
    text = (folder / "publish.yml").read_text().partition("regions:")
    everything = tmp_path / "everything.yml"
    everything.write_text(text[1] + text[2].replace("\n# ", "\n").replace("\n  # ", "\n  "))
    policy = load_policy(everything)
    assert len(policy.regions) == 2 and policy.keep == 3 and policy.latest == "/images/my-gpu-image/latest"


def test_commented_waiver_is_one(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "waivers.yml").read_text().splitlines()[1:-1]
    example = tmp_path / "waivers.yml"
    example.write_text("\n".join(line.removeprefix("# ") for line in lines) + "\n")
    assert waivers.load(example)[0].check == "hygiene::test_no_shell_history"


@pytest.mark.slow
def test_checks_can_be_collected(folder: Path) -> None:
    from tests.commands.test_options import options

    assert options("--checks", "checks", "--waivers", "waivers.yml") == ["--waivers=waivers.yml"]


def test_files_of_the_readme_exist(folder: Path) -> None:
    for name in ("recipes/my-gpu-image.yml", "aws.yml", "checks", "waivers.yml", "site", ".gitignore"):
        assert (folder / name).exists(), name


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "aws.yml").write_text("mine")
    assert cli.main(["init", str(tmp_path)]) == 2
    assert f"not overwritten: {tmp_path}/aws.yml" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["aws.yml"]
    assert (tmp_path / "aws.yml").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("gpu-ami", ["build", "diff", "matrix", "merge", "plan", "prove", "publish", "sweep", "validate", "verify"]),
        ("bump", ["bump"]),
        ("facts", ["facts"]),
        ("nightly", ["doctor", "sources", "sweep"]),
    ],
)
def test_commands_of_the_workflows_are_understood(folder: Path, name: str, commands: list[str]) -> None:
    """Each gpu-ami command line has options that its command knows, and files that `init` wrote."""
    workflow = yaml.safe_load((folder / ".github" / "workflows" / f"{name}.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    text = "\n".join(step["run"] for step in steps if "run" in step)
    values = {
        '"${since[@]}"': "--since HEAD", "shards/*": "shards/a shards/b", "recipes/*.yml": "recipes/my-gpu-image.yml",
        '"$recipe"': "recipes/my-gpu-image.yml", "$RECIPE": "recipes/my-gpu-image.yml", "${KEY:+": "", "}": "",
            "${PROOF_KEY:+": "",
        '"$LEVEL"': "certified", '"$MAX_COST"': "100", "bash .github/gpu-ami.sh ": "",
    }  # fmt: skip
    for variable, value in values.items():
        text = text.replace(variable, value)
    lines = re.findall(r"^(?:.*; do )?gpu-ami (?=[a-z])([^|;>\n]*)", text, re.MULTILINE)
    parsed = [cli.make_parser().parse_args(shlex.split(line)).command for line in lines]
    assert sorted(set(parsed)) == commands
    named = [word for line in lines for word in shlex.split(line) if word in ("aws.yml", "checks", "waivers.yml")]
    assert all((folder / name).exists() for name in named)


def test_jobs_of_the_workflow_read_what_others_write(folder: Path) -> None:
    jobs = yaml.safe_load((folder / ".github" / "workflows" / "gpu-ami.yml").read_text())["jobs"]
    for name, job in jobs.items():
        needed = [job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", [])
        used = set(re.findall(r"needs\.(\w+)\.", json.dumps(job)))
        assert used <= set(needed) <= set(jobs), name
    outputs = re.findall(r"needs\.plan\.outputs\.(\w+)", json.dumps(jobs))
    assert set(outputs) == {"any", "images", "shards"} == set(jobs["plan"]["outputs"])
    uploads = [
        step["with"]["name"] for job in jobs.values() for step in job["steps"] if "upload" in step.get("uses", "")
    ]
    downloads = [step["with"] for job in jobs.values() for step in job["steps"] if "download" in step.get("uses", "")]
    assert [step.get("name") or step["pattern"] for step in downloads] == [
        uploads[1], uploads[2].replace("${{ matrix.instance_type }}", "*"), uploads[3],
    ]  # fmt: skip
