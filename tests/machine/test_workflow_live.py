"""The workflow that `gpu-ami init` writes, from pull request to publication, with the local region as its place.

    pytest -m machine tests/machine/test_workflow_live.py

The workflow file itself is followed (tests/workflow_runner.py), in a real repository: what breaks it turns this red.
The pull request's rehearsal is left out: it is the build and the proof of the main branch once more.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpu_ami import cli
from gpu_ami.files import home_dir, read_json
from gpu_ami.progress import Progress
from localregion import region
from tests.workflow_runner import Event, Job, Runner

pytestmark = pytest.mark.machine
WORKFLOW = ".github/workflows/gpu-ami.yml"
IMAGE = "my-gpu-image"
TYPES = ("g5.12xlarge", "g6.xlarge")
RED_CHECK = """
def test_motd_is_ours(host):
    assert host.file("/etc/motd").contains("no image says this"), "observed another text, planned ours"
"""
POLICY = {"regions": [{"region": "us-east-1"}, {"region": "eu-central-1"}], "ssm": {"prefix": f"/images/{IMAGE}"}}


def git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", folder, *names, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path, subject: str) -> str:
    assert cli.main(["plan", "--lock", str(folder / "recipes" / f"{IMAGE}.yml"), "-q"]) == 0
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", subject)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """What `gpu-ami init` writes, with a policy for the local region's names and the public key of the releases."""
    folder = tmp_path / "mine"
    assert cli.main(["init", str(folder), "-q"]) == 0
    assert cli.main(["key", "new", str(tmp_path / "release.key"), "-q"]) == 0
    (tmp_path / "release.key.pub").rename(folder / "release.key.pub")
    (folder / "publish.yml").write_text(yaml.safe_dump(POLICY))
    recipe = folder / "recipes" / f"{IMAGE}.yml"
    text = recipe.read_text()
    assert "[g5.12xlarge]" in text
    recipe.write_text(text.replace("[g5.12xlarge]", f"[{', '.join(TYPES)}]"))
    git(folder, "init", "-q", "-b", "main")
    return folder


@pytest.fixture
def place() -> Iterator[None]:
    """The region is up, as AWS is."""
    region.up(embedded=True, progress=Progress("plain"))
    yield
    region.release()


@pytest.fixture
def runner(repository: Path, tmp_path: Path) -> Runner:
    role = "arn:aws:iam::111122223333:role/gpu-ami"
    variables = {
        **{f"GPU_AMI_{name}_ROLE": role for name in ("BUILD", "PROVE", "SIGN", "PUBLISH")},
        "GPU_AMI_PLACE": "local",
        "GPU_AMI_LEVEL": "rehearsed",
        "GPU_AMI_SIGN_KEY": str(tmp_path / "release.key"),
        "GPU_AMI_VERIFY_KEY": "release.key.pub",
    }
    return Runner(repository, tmp_path / "runner", variables, {"GPU_AMI_HOME": str(home_dir())})


def assert_succeeded(jobs: dict[str, list[Job]], *names: str) -> None:
    for name, made in jobs.items():
        for job in made:
            print(f"{name}: {job.result}, {job.seconds:.0f} s", flush=True)
            assert job.result == "success", f"{job.name}: {job.steps}\n{job.log}"
    assert [name for name, made in jobs.items() if made] == list(names)


def test_from_pull_request_to_publication(repository: Path, runner: Runner, place: None) -> None:
    base = commit(repository, "Add an image")
    git(repository, "switch", "-qc", "faster-metrics")
    recipe = repository / "recipes" / f"{IMAGE}.yml"
    recipe.write_text(recipe.read_text().replace("interval_s: 60", "interval_s: 10"))
    proposed = commit(repository, "Send metrics every 10 seconds")

    payload = {"pull_request": {"number": 7, "base": {"sha": base}, "head": {"repo": {"fork": False}}}}
    jobs = runner.run(WORKFLOW, Event("pull_request", proposed, payload), without=("rehearse",))
    assert_succeeded(jobs, "plan")
    assert "pr comment 7" in runner.gh_log.read_text()
    assert "| telemetry.interval_s | 60 | 10 |" in runner.summary.read_text()

    git(repository, "switch", "-q", "main")
    git(repository, "merge", "-q", "--no-ff", "-m", "Merge", "faster-metrics")
    merged = git(repository, "rev-parse", "HEAD")
    jobs = runner.run(WORKFLOW, Event("push", merged, {"before": base}))
    assert_succeeded(jobs, "plan", "build", "prove", "certify", "publish")
    assert len(jobs["prove"]) == len(TYPES)  # a job each, green although it proves one type alone
    assert_published(runner.artifact(f"publication-{IMAGE}"))

    (repository / "checks" / "test_red.py").write_text(RED_CHECK)
    broken = commit(repository, "Ask for what the image does not have")
    before = {name: jobs[name] for name in ("plan", "build")}
    jobs = runner.run(WORKFLOW, Event("push", broken, {"before": merged}), before=before)
    assert [job.result for job in jobs["prove"]] == ["failure"] * len(TYPES), [job.log for job in jobs["prove"]]
    assert [job.result for job in jobs["certify"]] == ["failure"] and jobs["publish"] == []
    assert "test_motd_is_ours" in runner.summary.read_text()


def assert_published(folder: Path) -> None:
    certificate = read_json(folder / "certificate.json") or {}
    record = read_json(folder / "publication.json") or {}
    assert (certificate["verdict"], certificate["level"]) == ("PASS", "rehearsed")
    assert record["image"]["ami"] == certificate["image"]["ami"]
    assert [entry["region"] for entry in record["regions"]] == ["us-east-1", "eu-central-1"], json.dumps(record)
    assert f"/images/{IMAGE}/latest" in json.dumps(record)
    assert (folder / "notes.md").read_text().startswith(f"# {IMAGE} (out/{IMAGE}): first image\n")
