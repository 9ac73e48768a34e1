"""Runs a GitHub workflow file of a repository on this machine: its jobs in their order, each in a clone of its own.

Done as a runner does it: events, `needs`, `if`, matrices, contexts, `env`, outputs, `GITHUB_PATH`, artifacts (files of
mode 0644 without hidden ones and empty folders), bash with pipefail. Not done: containers, permissions, parallel jobs.
Actions that are GitHub's or AWS's are in `ACTIONS`; `gh` is a program that keeps its arguments (`Runner.gh_log`). The
repository's own action is not run: gpu-ami is this checkout's.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_TOKEN = re.compile(r"'(?:[^']|'')*'|&&|\|\||!=|==|!|[(),]|[\w.-]+|\s+|.")
_OPERATORS = {"&&": " and ", "||": " or ", "!": " not "}
_SECONDS = 3000


@dataclass(frozen=True)
class Event:
    """What starts a workflow: `github.event_name`, the commit to check out, `github.event`."""

    name: str
    commit: str
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Job:
    """One job, or one of its matrix, that has run. steps: the name and result of each."""

    name: str
    result: str = "success"
    outputs: dict[str, str] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)
    log: str = ""
    seconds: float = 0.0


@dataclass
class Runner:
    """Runs workflows of the repository at `remote`; files of its own under `folder`. variables: the `vars` context."""

    remote: Path
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def gh_log(self) -> Path:
        return self.folder / "gh.log"

    @property
    def summary(self) -> Path:
        return self.folder / "summary.md"

    def artifact(self, name: str) -> Path:
        return self.folder / "artifacts" / name

    def run(
        self, workflow: str, event: Event, without: tuple[str, ...] = (), before: Mapping[str, list[Job]] | None = None
    ) -> dict[str, list[Job]]:
        """Every job of the file, by its name; one that its `if` leaves out has an empty list.

        without: jobs that are not run. before: jobs that count as run, with their results and outputs.
        """
        self._programs()
        text = _git(self.remote, "show", f"{event.commit}:{workflow}")
        document = yaml.safe_load(text)
        done = dict(before or {})
        for name, job in document["jobs"].items():
            if name not in done:
                done[name] = [] if name in without else list(self._jobs(name, job, document, event, done))
        return done

    def _programs(self) -> None:
        programs = self.folder / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        (programs / "gpu-ami").write_text(f'#!/bin/sh\nexec {sys.executable} -m gpu_ami "$@"\n')
        (programs / "gh").write_text(f'#!/bin/sh\necho "$*" >> {self.gh_log}\n')
        for program in programs.iterdir():
            program.chmod(0o755)

    def _jobs(
        self, name: str, job: Mapping[str, Any], document: Mapping[str, Any], event: Event, done: dict[str, list[Job]]
    ) -> Iterator[Job]:
        needs = {other: _needed(done[other]) for other in _listed(job.get("needs", []))}
        context = {
            "github": {"event_name": event.name, "event": event.payload, "token": "x", "sha": event.commit},
            "vars": self.variables,
            "secrets": {},
            "needs": needs,
        }
        successful = all(entry["result"] == "success" for entry in needs.values())
        if not _is_wanted(job.get("if", ""), context, successful):
            return
        matrix = _filled(job.get("strategy", {}).get("matrix", {"include": [{}]}), context)
        for number, values in enumerate(matrix["include"]):
            job_context = {**context, "matrix": values, "steps": {}, "env": {}}
            for variables in (document.get("env", {}), job.get("env", {})):
                job_context["env"] = {**job_context["env"], **_filled(variables, job_context)}
            yield self._job(f"{name}-{number}", job, job_context)

    def _job(self, name: str, job: Mapping[str, Any], context: dict[str, Any]) -> Job:
        made, started = Job(name), time.monotonic()
        work = self.folder / "jobs" / f"{len(list(self.folder.glob('jobs/*')))}-{name}"
        work.mkdir(parents=True)
        for number, step in enumerate(job["steps"]):
            title = str(step.get("name") or step.get("uses") or step["run"]).strip().splitlines()[0]
            if not _is_wanted(step.get("if", ""), context, made.result == "success"):
                made.steps[f"{number} {title}"] = "skipped"
                continue
            succeeded = self._step(work, step, context, made)
            made.steps[f"{number} {title}"] = "success" if succeeded else "failure"
            made.result = made.result if succeeded else "failure"
        made.outputs = {key: str(value) for key, value in _filled(job.get("outputs", {}), context).items()}
        made.seconds = time.monotonic() - started
        return made

    def _step(self, work: Path, step: Mapping[str, Any], context: dict[str, Any], job: Job) -> bool:
        if "uses" in step:
            action = next(entry for like, entry in ACTIONS.items() if fnmatch.fnmatch(step["uses"], like))
            return action(self, work / "repository", _filled(step.get("with", {}), context), context)
        output, summary = work / "output", self.summary
        output.write_text("")
        variables = {key: str(value) for key, value in (context["env"] | _filled(step.get("env", {}), context)).items()}
        environment = {
            **os.environ,
            **self.environment,
            "CI": "true",
            "PYTHONPATH": str(ROOT),
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(summary),
            "RUNNER_TEMP": str(work),
            **variables,
        }
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(
            command, cwd=work / "repository", env=environment, capture_output=True, text=True, timeout=_SECONDS
        )
        job.log += f"$ {step['run'].strip()}\n{done.stdout}{done.stderr}"
        (work / "log").write_text(job.log)
        if "id" in step:
            lines = dict(line.split("=", 1) for line in output.read_text().splitlines())
            context["steps"] = {**context["steps"], step["id"]: {"outputs": lines}}
        return done.returncode == 0


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True, text=True).stdout


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _needed(jobs: list[Job]) -> dict[str, Any]:
    """A job as the `needs` context shows it: its outputs, and the worst result of its matrix."""
    result = "skipped" if not jobs else "success" if all(job.result == "success" for job in jobs) else "failure"
    return {"result": result, "outputs": jobs[-1].outputs if jobs else {}}


def _is_wanted(condition: str, context: Mapping[str, Any], successful: bool) -> bool:
    text = _EXPRESSION.sub(r"\1", str(condition))
    return bool(not text or evaluate(text, context)) and (successful or "always()" in text)


def _filled(value: Any, context: Mapping[str, Any]) -> Any:
    """A value of the file with its expressions evaluated; one that is an expression alone keeps its type."""
    if isinstance(value, Mapping):
        return {key: _filled(entry, context) for key, entry in value.items()}
    if isinstance(value, list):
        return [_filled(entry, context) for entry in value]
    if not isinstance(value, str):
        return value
    alone = _EXPRESSION.fullmatch(value)
    if alone:
        return evaluate(alone[1], context)
    return _EXPRESSION.sub(lambda found: str(evaluate(found[1], context) or ""), value)


def evaluate(expression: str, context: Mapping[str, Any]) -> Any:
    """GitHub's operators, literals and contexts, `always()` and `fromJSON()`; an unknown name is empty."""
    names: list[str] = []
    words = []
    for token in _TOKEN.findall(expression):
        if re.fullmatch(r"[A-Za-z_][\w.-]*", token) and token not in ("always", "fromJSON", "true", "false"):
            names.append(token)
            words.append(f"look({len(names) - 1})")
        else:
            words.append(_OPERATORS.get(token, {"true": "True", "false": "False"}.get(token, token)))
    scope: dict[str, Any] = {
        "look": lambda number: _look(names[number], context),
        "always": lambda: True,
        "fromJSON": json.loads,
        "__builtins__": {},
    }
    return eval("".join(words), scope)


def _look(name: str, context: Mapping[str, Any]) -> Any:
    value: Any = context
    for part in name.split("."):
        value = value.get(part, "") if isinstance(value, Mapping) else ""
    return value


def _checkout(runner: Runner, work: Path, _inputs: Mapping[str, Any], context: Mapping[str, Any]) -> bool:
    subprocess.run(["git", "clone", "-q", runner.remote, work], check=True)
    _git(work, "checkout", "-q", "--detach", context["github"]["sha"])
    return True


def _upload(runner: Runner, work: Path, inputs: Mapping[str, Any], _context: Mapping[str, Any]) -> bool:
    source, target = work / inputs["path"], runner.artifact(inputs["name"])
    for path in sorted(source.rglob("*")) if source.is_dir() else []:
        relative = path.relative_to(source)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / relative)
            (target / relative).chmod(0o644)
    return True


def _download(runner: Runner, work: Path, inputs: Mapping[str, Any], _context: Mapping[str, Any]) -> bool:
    """By name into the folder itself; by pattern each into a folder of its name."""
    if "name" in inputs:
        found = {inputs["name"]: work / inputs["path"]}
    else:
        names = sorted(path.name for path in (runner.folder / "artifacts").glob("*"))
        found = {name: work / inputs["path"] / name for name in names if fnmatch.fnmatch(name, inputs["pattern"])}
    for name, target in found.items():
        if not runner.artifact(name).is_dir():
            return False
        shutil.copytree(runner.artifact(name), target, dirs_exist_ok=True)
    return True


def _provided(_runner: Runner, _work: Path, _inputs: Mapping[str, Any], _context: Mapping[str, Any]) -> bool:
    """What this machine has already: gpu-ami, Packer, the local region's credentials."""
    return True


ACTIONS: dict[str, Callable[[Runner, Path, Mapping[str, Any], Mapping[str, Any]], bool]] = {
    "actions/checkout@*": _checkout,
    "actions/upload-artifact@*": _upload,
    "actions/download-artifact@*": _download,
    "./.github/actions/gpu-ami": _provided,
    "hashicorp/setup-packer@*": _provided,
    "aws-actions/configure-aws-credentials@*": _provided,
}
