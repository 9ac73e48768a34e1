"""tests/workflow_runner.py does what a runner of GitHub does, on small workflows."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami import cli, pipeline
from gpu_ami.report import document, writer
from tests.publish.conftest import HOME, LATEST, Account
from tests.publish.conftest import account as account
from tests.release import examples
from tests.test_workflows import commit, git
from tests.test_workflows import project as project
from tests.workflow_runner import Event, Job, Runner, evaluate

pytestmark = pytest.mark.slow

WORKFLOW = ".github/workflows/gpu-ami.yml"
CONTEXT = {
    "vars": {"KEY": "k", "NONE": ""},
    "github": {"event": {"fork": False}},
    "needs": {"a-b": {"result": "success"}},
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("vars.KEY || 'x'", "k"),
        ("vars.NONE || 'x'", "x"),
        ("vars.unknown.deep || 'x y'", "x y"),
        ("vars.KEY != '' && !github.event.fork", True),
        ("always() && needs.a-b.result == 'success'", True),
        ("fromJSON('[1, 2]')", [1, 2]),
    ],
)
def test_expressions(expression: str, value: Any) -> None:
    assert evaluate(expression, CONTEXT) == value


def runner_of(tmp_path: Path, jobs: dict[str, Any], **variables: str) -> Runner:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "w.yml").write_text(yaml.safe_dump({"jobs": jobs}, sort_keys=False))
    commit(folder)
    return Runner(folder, tmp_path / "runner", variables)


def results(runner: Runner) -> dict[str, list[str]]:
    event = Event("push", git(runner.remote, "rev-parse", "HEAD"))
    return {name: [job.result for job in jobs] for name, jobs in runner.run("w.yml", event).items()}


def steps(*scripts: str, **keys: Any) -> dict[str, Any]:
    return {"steps": [{"uses": "actions/checkout@v4"}, *({"run": script} for script in scripts)], **keys}


def test_a_failure_ends_a_job_and_those_that_need_it(tmp_path: Path) -> None:
    first = steps("false", "touch never")
    first["steps"] += [{"if": "always()", "run": "test ! -e never"}]
    always = steps("true", needs=["first"], **{"if": "always() && needs.first.result == 'failure'"})
    jobs = {"first": first, "second": steps("true", needs="first"), "always": always}
    assert results(runner_of(tmp_path, jobs)) == {"first": ["failure"], "second": [], "always": ["success"]}


def test_pipes_fail_and_steps_share_no_variables(tmp_path: Path) -> None:
    assert results(runner_of(tmp_path, {"a": steps("false | cat"), "b": steps("X=1", 'test -z "${X:-}"')})) == {
        "a": ["failure"],
        "b": ["success"],
    }


def test_outputs_become_a_matrix_and_variables_are_filled(tmp_path: Path) -> None:
    plan = {**steps(), "outputs": {"rows": "${{ steps.x.outputs.value }}"}}
    plan["steps"].append({"id": "x", "run": """echo 'value={"include":[{"n":"1"},{"n":"2"}]}' >> "$GITHUB_OUTPUT\""""})
    proof = steps('test "$N-$K" = 1-k', needs="plan", env={"N": "${{ matrix.n }}", "K": "${{ vars.K || 'x' }}"})
    proof["strategy"] = {"matrix": "${{ fromJSON(needs.plan.outputs.rows) }}"}
    assert results(runner_of(tmp_path, {"plan": plan, "proof": proof}, K="k")) == {
        "plan": ["success"],
        "proof": ["success", "failure"],
    }


def test_artifacts_lose_modes_and_hidden_files(tmp_path: Path) -> None:
    make = steps("mkdir -p out/x && touch out/x/.hidden && touch out/x/run && chmod 755 out/x/run")
    make["steps"].append({"uses": "actions/upload-artifact@v4", "with": {"name": "made-1", "path": "out/x"}})
    take = steps(needs="make")
    take["steps"] += [
        {"uses": "actions/download-artifact@v4", "with": {"name": "made-1", "path": "in"}},
        {"uses": "actions/download-artifact@v4", "with": {"pattern": "made-*", "path": "all"}},
        {"run": "test -f in/run -a ! -x in/run -a ! -e in/.hidden -a -f all/made-1/run"},
    ]
    missing = steps(needs="make")
    missing["steps"].append({"uses": "actions/download-artifact@v4", "with": {"name": "none", "path": "in"}})
    jobs = {"make": make, "take": take, "missing": missing}
    assert results(runner_of(tmp_path, jobs)) == {"make": ["success"], "take": ["success"], "missing": ["failure"]}


def test_the_starter_s_workflow_ends_where_its_lock_is_not_current(project: Path, tmp_path: Path) -> None:
    runner = Runner(project, tmp_path / "runner", {"GPU_AMI_PLACE": "local"})
    jobs = runner.run(WORKFLOW, Event("push", commit(project)))
    assert [job.result for job in jobs["plan"]] == ["failure"] and "gpu-ami plan --lock" in jobs["plan"][0].log
    assert all(jobs[name] == [] for name in ("rehearse", "build", "prove", "certify", "publish"))


def test_proven_shards_are_certified_published_and_noted(account: Account, project: Path, tmp_path: Path) -> None:
    """The second half of the starter's workflow, with its real commands and an account's API."""
    built = account.build()
    for name in ("aws.yml", "publish.yml", "release.key.pub"):
        shutil.copy(name, project / name)
    variables = {
        "GPU_AMI_PROOF_KEY": str(tmp_path / "proof.key"),
        "GPU_AMI_PROOF_VERIFY_KEY": str(tmp_path / "proof.key.pub"),
        "GPU_AMI_SIGN_KEY": str(tmp_path / "release.key"),
        "GPU_AMI_VERIFY_KEY": "release.key.pub",
        "GPU_AMI_PUBLISH_ROLE": "arn:aws:iam::111122223333:role/gpu-ami-publish",
    }
    runner = Runner(project, tmp_path / "runner", variables)
    for name in ("certificate.json", "certificate.md", "certificate.dsse.json"):
        (built / name).unlink()
    report = document.load(built / "report.json")
    plan = dict(report.plan, instance_types=[{"name": "g5.12xlarge"}])
    report = replace(report, plan=plan)
    writer.write(report, built)
    pipeline.sign_report(report, built, [examples.signer(tmp_path, "proof.key")])
    shutil.copytree(built, runner.artifact("proof-demo@g5.12xlarge"))
    image = json.dumps({"include": [{"image": "demo"}]})
    before = {"plan": [Job("plan", outputs={"images": image})], "build": [Job("build")], "prove": [Job("prove")]}
    jobs = runner.run(WORKFLOW, Event("push", commit(project)), ("rehearse",), before)
    for name in ("certify", "publish"):
        assert [job.result for job in jobs[name]] == ["success"], jobs[name][0].log
    published = runner.artifact("publication-demo")
    assert account.parameters(HOME)[LATEST] == json.loads((published / "publication.json").read_text())["image"]["ami"]
    assert (published / "notes.md").read_text().startswith("# demo (out/demo): first image\n")


def test_nothing_is_published_that_another_key_signed(account: Account, project: Path, tmp_path: Path) -> None:
    built = account.build()
    for name in ("aws.yml", "publish.yml"):
        shutil.copy(name, project / name)
    assert cli.main(["key", "new", str(tmp_path / "other.key"), "-q"]) == 0
    shutil.copy(tmp_path / "other.key.pub", project / "release.key.pub")
    variables = {"GPU_AMI_VERIFY_KEY": "release.key.pub", "GPU_AMI_PUBLISH_ROLE": "arn:aws:iam::111122223333:role/x"}
    runner = Runner(project, tmp_path / "runner", variables)
    shutil.copytree(built, runner.artifact("certificate-demo"))
    image = json.dumps({"include": [{"image": "demo"}]})
    before = {name: [Job(name, outputs={"images": image})] for name in ("plan", "build", "prove", "certify")}
    (job,) = runner.run(WORKFLOW, Event("push", commit(project)), ("rehearse",), before)["publish"]
    assert job.result == "failure" and "unknown-key" in job.log and account.parameters(HOME) == {}
