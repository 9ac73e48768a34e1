"""The workflows of the starter and of docs/ci.md: linted, and their cheap stages run on a repository as a runner does.

Of what GitHub provides, `gh` is a program that writes down its arguments.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami import cli
from gpu_ami.cloud import Place
from gpu_ami.plan import cost, make_plan
from localregion.host import TOOLS
from tests.release import examples
from tests.report.examples import a_host
from validator.file_account import merkle_root, read

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
GITHUB = ROOT / "gpu_ami" / "starter" / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
ACTION = GITHUB / "actions" / "gpu-ami" / "action.yml"
DOCS = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
INTERPOLATED = re.compile(r"\$\{\{")


def workflow(name: str = "gpu-ami") -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((GITHUB / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))
    return content


def check_schema(schema: str, *paths: Path) -> None:
    if importlib.util.find_spec("check_jsonschema") is None:
        pytest.skip("check-jsonschema is not installed (make setup installs it)")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_and_action_are_of_github_s_schemas() -> None:
    check_schema("vendor.github-workflows", *WORKFLOWS)
    check_schema("vendor.github-actions", ACTION)


def test_workflows_are_linted() -> None:
    actionlint = shutil.which("actionlint")
    if actionlint is None:
        pytest.skip("actionlint is not installed")
    done = subprocess.run([actionlint, "-no-color", *WORKFLOWS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def test_shellcheck_is_content_with_the_script() -> None:
    done = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("", 0)


def test_no_script_contains_an_expression() -> None:
    """A recipe's file name or a branch would become part of the script; they reach it as variables."""
    documents = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in (*WORKFLOWS, ACTION)]
    steps = [step for document in documents for job in document.get("jobs", {}).values() for step in job["steps"]]
    steps += documents[-1]["runs"]["steps"]
    assert len(steps) > 20
    assert [step["run"] for step in steps if INTERPOLATED.search(step.get("run", ""))] == []


def test_only_the_jobs_on_aws_may_ask_for_a_role() -> None:
    jobs = workflow()["jobs"]
    asking = [name for name, job in jobs.items() if job.get("permissions", {}).get("id-token") == "write"]
    assert asking == ["build", "prove", "certify", "publish"]
    assert [job["if"] for job in workflow("nightly")["jobs"].values()] == ["vars.GPU_AMI_PROVE_ROLE != ''"]
    roles = [
        step["with"]["role-to-assume"] for job in jobs.values() for step in job["steps"] if "configure-aws" in str(step)
    ]
    names = [re.sub(r"\W|vars", "", role) for role in roles]
    assert names == ["GPU_AMI_BUILD_ROLE", "GPU_AMI_PROVE_ROLE", "GPU_AMI_SIGN_ROLE", "GPU_AMI_PUBLISH_ROLE"]
    assert all(f"`{name}`" in DOCS for name in (*names, "GPU_AMI_SIGN_KEY", "GPU_AMI_PR_TOKEN"))


def test_actions_are_pinned_by_their_commit() -> None:
    """A tag can be moved: what it then names would run with the role of the job."""
    files = [*WORKFLOWS, *(ROOT / "actions").glob("*/action.yml")]
    used = [
        line.strip() for path in files for line in path.read_text(encoding="utf-8").splitlines() if "uses: " in line
    ]
    others = [line.partition("uses: ")[2] for line in used if "uses: ./" not in line]
    assert len(others) > 10
    assert [line for line in others if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_no_job_has_a_privilege_that_it_does_not_need() -> None:
    """Privileged is the rehearsal alone, which forks do not get; credentials for git are kept where it pushes."""
    for name in ("gpu-ami", "nightly", "bump", "facts"):
        for title, job in workflow(name)["jobs"].items():
            checkouts = [step for step in job["steps"] if "actions/checkout" in step.get("uses", "")]
            kept = [step for step in checkouts if step.get("with", {}).get("persist-credentials") is not False]
            assert bool(kept) == ((name, title) in (("bump", "bump"), ("facts", "facts"))), (name, title)
            if "--privileged" in str(job.get("container", "")):
                assert title == "rehearse" and "!github.event.pull_request.head.repo.fork" in job["if"]
        assert workflow(name)["permissions"] == {"contents": "read"}


def test_the_rehearsal_installs_every_program_of_the_local_region() -> None:
    script = workflow()["jobs"]["rehearse"]["steps"][0]["run"]
    assert set(TOOLS.values()) <= set(re.findall(r"[\w.+-]+", script))


def test_the_shards_of_an_image_are_not_those_of_another_whose_name_is_longer() -> None:
    jobs = workflow()["jobs"]
    upload = next(step["with"]["name"] for step in jobs["prove"]["steps"] if "upload" in step.get("uses", ""))
    pattern = next(step["with"]["pattern"] for step in jobs["certify"]["steps"] if "pattern" in step.get("with", {}))

    def named(text: str, image: str) -> str:
        return text.replace("${{ matrix.image }}", image).replace("${{ matrix.instance_type }}", "g5.12xlarge")

    assert fnmatch.fnmatch(named(upload, "gpu"), named(pattern, "gpu"))
    assert not fnmatch.fnmatch(named(upload, "gpu-eks"), named(pattern, "gpu"))


SCRIPT = GITHUB / "gpu-ami.sh"


def rows(heading: str) -> list[list[str]]:
    """The cells of a table of the page, by its first heading."""
    table = DOCS[DOCS.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def run_script(folder: Path, codes: list[int], *words: str) -> tuple[int, list[str], str]:
    """Runs gpu-ami.sh with a program that ends with these codes: its own code, the calls, and what it printed."""
    program = folder / "gpu-ami"
    calls, left = folder / "calls", folder / "codes"
    left.write_text("".join(f"{code}\n" for code in codes))
    program.write_text(
        f'#!/bin/sh\necho "$*" >> {calls}\n[ "$1" != sweep ] || exit 0\n'
        f"code=$(head -n 1 {left}); sed -i 1d {left}; exit $code\n"
    )
    program.chmod(0o755)
    waits = {"RETRY_SECONDS": "0", "CAPACITY_SECONDS": "0", "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", SCRIPT, *words], env=waits, capture_output=True, text=True, timeout=60)
    return done.returncode, calls.read_text().splitlines(), done.stdout + done.stderr


@pytest.mark.parametrize("row", rows("exit code | what `gpu-ami.sh` does | what you do"), ids=lambda row: row[0])
def test_each_exit_code_is_dealt_with_as_the_page_says(row: list[str], tmp_path: Path) -> None:
    code, does = int(row[0]), row[1]
    words = ["gpu-ami", "validate", "out/x", "--where", "aws.yml"]
    ended, calls, printed = run_script(tmp_path, [code, code], *words)
    once, again = " ".join(words[1:]), ["sweep --where aws.yml", " ".join(words[1:])]
    assert ended == code
    assert calls == [once, *(again if "tries once more" in does else [])]
    assert ("::error title=gpu-ami, exit code" in printed) == ("fails the job" in does)
    minutes = {"a minute": "RETRY_SECONDS:-60", "15 minutes": "CAPACITY_SECONDS:-900"}
    assert all(default in SCRIPT.read_text() for text, default in minutes.items() if text in does)


def test_what_succeeds_the_second_time_has_succeeded(tmp_path: Path) -> None:
    ended, calls, printed = run_script(tmp_path, [4, 0], "gpu-ami", "publish", "out/x", "--where", "aws.yml")
    assert ended == 0 and "::error" not in printed and "::warning" in printed
    assert calls == ["publish out/x --where aws.yml"] * 2  # its role may not sweep, and it launches nothing


def test_a_rehearsal_is_swept_in_the_local_region(tmp_path: Path) -> None:
    assert run_script(tmp_path, [4, 1], "gpu-ami", "prove", "r.yml")[:2] == (1, ["prove r.yml", "sweep", "prove r.yml"])


def test_the_month_is_that_of_the_workflows() -> None:
    """When each runs, and that its commands are those of the page."""
    listed = rows("when | workflow | commands | on AWS | cost")
    of_files: dict[str, list[str]] = {}
    for path in WORKFLOWS:
        of_files[path.name] = [
            row["cron"] for row in yaml.safe_load(path.read_text(encoding="utf-8"))["on"].get("schedule", [])
        ]
    crons = {(row[1].strip("`"), cron) for row in listed for cron in re.findall(r"`([\d*/ ]{9,})`", row[0])}
    assert crons == {(name, cron) for name, found in of_files.items() for cron in found}
    for when, name, commands, *_ in listed:
        text = (GITHUB / "workflows" / name.strip("`")).read_text(encoding="utf-8")
        for command in re.findall(r"`([a-z]+)[^`]*`", commands):
            assert f"gpu-ami {command}" in text, (when, command)
    events = workflow()["on"]
    assert {"pull_request", "push", "schedule"} <= set(events) and events["push"]["branches"] == ["main"]


def test_what_costs_money_is_run_by_the_script_and_swept() -> None:
    """Each job that launches ends with a sweep, whatever has failed; a proof has a limit."""
    for name in ("build", "prove"):
        steps = workflow()["jobs"][name]["steps"]
        launching = [step["run"] for step in steps if re.search(r"gpu-ami (build|validate)", step.get("run", ""))]
        assert len(launching) == 1 and launching[0].startswith("bash .github/gpu-ami.sh gpu-ami ")
        assert ("--max-cost" in launching[0]) == (name == "prove")
        (swept,) = [step for step in steps if "gpu-ami sweep" in step.get("run", "")]
        assert swept["if"] == "always()"


def test_the_costs_are_those_of_the_estimate() -> None:
    recipe = GITHUB.parent / "recipes" / "my-gpu-image.yml"
    plan = make_plan(recipe, Place("aws", "eu-central-1")).document
    cells = [row[4] for row in rows("when | workflow | commands | on AWS | cost") if "USD" in row[4]]
    found = re.findall(r"([a-z0-9.]+): ([\d.]+) USD", cells[0])
    assert len(found) == 3
    assert [(name, usd) for name, usd in found] == [
        (name, f"{cost.estimate(plan, [name], build=True).usd:.2f}") for name, _ in found
    ]
    assert f"12 times {found[0][1]} = {12 * float(found[0][1]):.2f} USD" in DOCS


@pytest.fixture
def project(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `gpu-ami init` writes, as a repository, with gpu-ami and a `gh` on PATH."""
    folder = tmp_path / "mine"
    assert cli.main(["init", str(folder), "-q"]) == 0
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "gpu-ami").write_text(f'#!/bin/sh\nexec {sys.executable} -m gpu_ami "$@"\n')
    (programs / "gh").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/gh.log\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    git(folder, "init", "-q", "-b", "main")
    return folder


def git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", folder, *names, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "x")
    return git(folder, "rev-parse", "HEAD")


def run_step(folder: Path, step: Mapping[str, Any], **variables: str) -> subprocess.CompletedProcess[str]:
    """A step as a runner runs it: `shell: bash`, its variables, and files for outputs and the summary."""
    files = {
        name: str(folder.parent / name.lower()) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_PATH")
    }
    settings = {"PLACE": "aws.yml", "LEVEL": "certified", "RUNNER_TEMP": str(folder.parent), "CI": "true"}
    environment = {**os.environ, **files, **settings, **variables}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def scripts(job: str, name: str = "gpu-ami") -> list[dict[str, Any]]:
    return [step for step in workflow(name)["jobs"][job]["steps"] if "run" in step]


def test_a_pull_request_gets_its_comment_and_its_jobs(project: Path) -> None:
    plan, matrix, comment = scripts("plan")
    refused = run_step(project, plan)
    assert refused.returncode == 2 and "gpu-ami plan --lock my-gpu-image" in refused.stderr
    assert cli.main(["plan", "--lock", str(project / "recipes" / "my-gpu-image.yml")]) == 0
    base = commit(project)
    recipe = project / "recipes" / "my-gpu-image.yml"
    recipe.write_text(recipe.read_text().replace('"13.0"', '"12.9"'))
    assert cli.main(["plan", "--lock", str(recipe)]) == 0
    commit(project)
    for step in (plan, matrix):
        done = run_step(project, step, BASE=base)
        assert done.returncode == 0, done.stderr
    assert run_step(project, comment, NUMBER="7").returncode == 0
    text = (project / "comment.md").read_text()
    assert "| my-gpu-image | build and prove | g5.12xlarge |" in text and "| cuda.version | 13.0 | 12.9 |" in text
    assert (project.parent / "github_step_summary").read_text() == text
    outputs = dict(line.split("=", 1) for line in (project.parent / "github_output").read_text().splitlines())
    assert json.loads(outputs["shards"])["include"][0]["instance_type"] == "g5.12xlarge" and outputs["any"] == "true"
    assert "pr comment 7 --edit-last --create-if-none --body-file comment.md" in (project.parent / "gh.log").read_text()


def test_a_commit_that_the_clone_does_not_have_lists_every_image(project: Path) -> None:
    assert cli.main(["plan", "--lock", str(project / "recipes" / "my-gpu-image.yml")]) == 0
    commit(project)
    done = run_step(project, scripts("plan")[1], BASE="0" * 40)
    assert done.returncode == 0, done.stderr
    assert "all images were asked for" in (project / "comment.md").read_text()


def a_shard(folder: Path, instance_type: str, **verdicts: str) -> None:
    root = merkle_root(read(examples.inventory(examples.SMI)))
    report = examples.certified_report(False, root, instance_types=[{"name": "g5.12xlarge"}, {"name": "p4d.24xlarge"}])
    files = tuple(host for host in report.hosts if host.offline)
    examples.write_folder(folder, replace(report, hosts=(*files, a_host(instance_type, **verdicts))))


def test_shards_become_a_signed_certificate(project: Path) -> None:
    examples.signer(project.parent)
    key = str(project.parent / "release.key")
    for name in ("g5.12xlarge", "p4d.24xlarge"):
        a_shard(project / "shards" / f"proof-demo-{name}", name)
    merge, verify, summary = scripts("certify")
    assert run_step(project, merge, IMAGE="demo", KEY=key).returncode == 0
    verified = run_step(project, verify, IMAGE="demo", KEY=f"{key}.pub")
    assert verified.returncode == 0 and verified.stdout.endswith("VERIFIED: out/demo\n"), verified
    assert run_step(project, summary, IMAGE="demo").returncode == 0
    assert "## demo: PASS, certified" in (project.parent / "github_step_summary").read_text()


def test_a_failed_shard_fails_the_job_and_is_in_its_summary(project: Path) -> None:
    a_shard(project / "shards" / "a", "g5.12xlarge")
    a_shard(project / "shards" / "b", "p4d.24xlarge", xid="FAIL")
    merge, verify, summary = scripts("certify")
    assert run_step(project, merge, IMAGE="demo", KEY="").returncode == 1
    assert run_step(project, verify, IMAGE="demo", KEY="x").returncode != 0
    assert run_step(project, summary, IMAGE="demo").returncode == 0
    text = (project.parent / "github_step_summary").read_text()
    assert "## demo: FAIL, no certificate" in text and "xid: observed 2, planned 1" in text
    assert run_step(project, summary, IMAGE="never-built").returncode == 0


def test_newer_versions_become_a_pull_request(project: Path) -> None:
    remote = project.parent / "remote.git"
    git(project, "init", "-q", "--bare", str(remote))
    git(project, "remote", "add", "origin", str(remote))
    assert cli.main(["plan", "--lock", str(project / "recipes" / "my-gpu-image.yml")]) == 0
    commit(project)
    bump, propose = scripts("bump", "bump")
    assert run_step(project, bump).returncode == 0
    assert "nothing to bump" not in run_step(project, propose, GH_TOKEN="x").stdout
    changed = git(remote, "show", "--name-only", "--format=%an", "gpu-ami-bump").split("\n")
    assert changed == ["gpu-ami bump", "", "locks/my-gpu-image.json", "recipes/my-gpu-image.yml"]
    log = (project.parent / "gh.log").read_text()
    assert "pr create --head gpu-ami-bump" in log and f"--body-file {project.parent}/summary.md" in log
    assert "| nvidia_driver |" in (project.parent / "summary.md").read_text()
    assert "nothing to bump" in run_step(project, propose).stdout


def test_new_rows_become_a_pull_request(project: Path) -> None:
    """What a refresh writes is committed and proposed with its text, also where one source did not answer (4)."""
    remote = project.parent / "remote.git"
    git(project, "init", "-q", "--bare", str(remote))
    git(project, "remote", "add", "origin", str(remote))
    commit(project)
    read_vendors, propose = scripts("facts", "facts")
    program = project.parent / "stub" / "gpu-ami"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\necho \"$@\" >&2\nmkdir -p site/facts\necho 'releases: {}' > site/facts/nccl.yml\n"
        "echo '1 rows proposed'\nexit $CODE\n"
    )
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    assert run_step(project, read_vendors, PATH=path, CODE="2").returncode != 0
    done = run_step(project, read_vendors, PATH=path, CODE="4")
    assert (done.returncode, done.stderr) == (0, "facts refresh recipes/my-gpu-image.yml --write --site site\n")
    assert "no new rows" not in run_step(project, propose, GH_TOKEN="x").stdout
    assert "site/facts/nccl.yml" in git(remote, "show", "--name-only", "--format=%an", "gpu-ami-facts").split("\n")
    assert "pr create --head gpu-ami-facts" in (project.parent / "gh.log").read_text()
    assert "1 rows proposed" in (project.parent / "summary.md").read_text()
    assert "no new rows" in run_step(project, propose).stdout


def test_action_runs_each_line_and_stops_at_the_first_failure(project: Path) -> None:
    environment = project.parent / "gpu-ami" / "bin"
    environment.mkdir(parents=True)
    (environment / "python").symlink_to(sys.executable)
    (environment / "gpu-ami").symlink_to(project.parent / "bin" / "gpu-ami")
    (step,) = [step for step in yaml.safe_load(ACTION.read_text())["runs"]["steps"] if step.get("id") == "run"]
    lines = "recipes my-gpu-image\n# a remark\n\nplan 'no such $HOME'\nrecipes"
    done = run_step(project, step, COMMANDS=lines)
    assert done.returncode == 2
    assert re.findall("::group::(.*)", done.stdout) == ["gpu-ami recipes my-gpu-image", "gpu-ami plan 'no such $HOME'"]
    assert (project.parent / "github_output").read_text() == "exit-code=2\n"
    assert "no such $HOME" in done.stderr


def test_action_installs_what_is_named_and_puts_it_on_the_path(project: Path) -> None:
    python = project.parent / "python"
    python.write_text(
        '#!/bin/sh\nmkdir -p "$3/bin"\nprintf \'#!/bin/sh\\necho "$@" > "$RUNNER_TEMP/pip.log"\\n\' > "$3/bin/pip"\n'
        'chmod +x "$3/bin/pip"\n'
    )
    python.chmod(0o755)
    install = yaml.safe_load(ACTION.read_text())["runs"]["steps"][0]
    done = run_step(project, install, PYTHON=str(python), PACKAGE="gpu-ami==1.2.3", EXTRAS="local")
    assert done.returncode == 0, done.stderr
    assert (project.parent / "pip.log").read_text().split()[-1] == "gpu-ami[local]==1.2.3"
    assert (project.parent / "github_path").read_text() == f"{project.parent}/gpu-ami/bin\n"


@pytest.mark.parametrize(
    ("package", "extras", "installed"),
    [
        ("gpu-ami==1.2.3", "local", "gpu-ami[local]==1.2.3"),
        ("gpu-ami @ git+https://h/p@0123", "local", "gpu-ami[local] @ git+https://h/p@0123"),
        ("./gpu_ami.whl", "local", "./gpu_ami.whl[local]"),
        ("./gpu_ami.whl", "", "./gpu_ami.whl"),
        ("", "", None),
        ("gpu-ami", "local", None),
        ("gpu-ami[local]", "", None),
    ],
)
def test_action_installs_nothing_by_a_bare_name(
    project: Path, package: str, extras: str, installed: str | None
) -> None:
    """No index has the name: whoever registers it would get jobs that hold roles of the cloud."""
    python = project.parent / "python"
    python.write_text(
        "#!/bin/sh\nmkdir -p $3/bin\n"
        'printf \'#!/bin/sh\\nfor w; do :; done; echo "$w" > "$RUNNER_TEMP/pip.log"\\n\' > "$3/bin/pip"\n'
        'chmod +x "$3/bin/pip"\n'
    )
    python.chmod(0o755)
    install = yaml.safe_load(ACTION.read_text())["runs"]["steps"][0]
    done = run_step(project, install, PYTHON=str(python), PACKAGE=package, EXTRAS=extras)
    if installed is None:
        assert done.returncode == 1 and "set GPU_AMI in the workflows to a pinned source" in done.stdout
    else:
        assert (project.parent / "pip.log").read_text() == f"{installed}\n", done.stderr


def test_examples_of_other_systems_are_understood(tmp_path: Path) -> None:
    """GitLab's by its schema; every gpu-ami command of the page by the command's own parser."""
    blocks = re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)
    documents = [yaml.safe_load(block) for block in blocks]
    gitlab = [block for block, content in zip(blocks, documents, strict=True) if "phases" not in content]
    assert len(gitlab) == 2
    commands = re.findall(r"^\s*(?:- )*gpu-ami ([a-z][^|>&\n]*)", "\n".join(blocks), re.MULTILINE)
    values = {"$CI_MERGE_REQUEST_DIFF_BASE_SHA": "HEAD", "$RECIPE": "r.yml", 'shards/"$IMAGE"/*': "shards/a"}
    for line in commands:
        for variable, value in values.items():
            line = line.replace(variable, value)
        cli.make_parser().parse_args(line.replace('"', "").split())
    assert {"matrix", "build", "validate", "merge"} <= {line.split()[0] for line in commands}
    for number, block in enumerate(gitlab):
        (tmp_path / f"{number}.yml").write_text(block)
        check_schema("vendor.gitlab-ci", tmp_path / f"{number}.yml")
