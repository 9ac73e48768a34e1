"""A recipe or plan of others runs no program on this machine through templates of Ansible and Packer."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.plan.document import PLAN_FILE, Plan, ansible_variables, packer_variables, with_digest
from gpu_ami.plan.resolution import make_plan
from tests.attacks.conftest import GpuAmi
from tests.plan.conftest import AWS, DEBIAN

Document = dict[str, Any]
_RECIPE = """\
flag: mine
os: debian12
instance_types: [g5.xlarge]
nvidia_driver: {version: "580"}
"""
_RUNS = "{{lookup('pipe','touch${IFS}MARK')}}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        f'telemetry: {{log_stream: "{_RUNS}"}}',
        f'tuning: {{sysctl: {{kernel.panic: "{_RUNS}"}}}}',
        f'source_ami: {{owner: "136693071363", name: "{_RUNS}"}}',
        "telemetry: {log_stream: \"{%if(lookup('pipe','id'))%}{%endif%}\"}",
    ],
    ids=["log-stream", "sysctl", "source-ami", "statement"],
)
def test_a_recipe_with_a_template_is_refused(setting: str, gpu_ami: GpuAmi, tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text(f"{_RECIPE}{setting}\n")
    done = gpu_ami("plan", "mine.yml", "-o", "out")
    assert done.returncode == 2 and b"would evaluate it as a template" in done.stderr, done.stderr
    assert not (tmp_path / "out" / "ansible.json").exists()


def _sets(*path: str, to: object) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        for key in path[:-1]:
            document = document.setdefault(key, {})
        document[path[-1]] = to

    return change


def _connects_here(document: Document) -> None:
    document["roles"] = ["ansible", *document["roles"]]
    document["ansible"] = {"connection": "local"}


@pytest.mark.parametrize(
    "change, message",
    [
        (_sets("cuda", "version", to=_RUNS), r"cuda\.version: expected text without"),
        (_sets("cuda", "packages", to={"x": _RUNS}), r"cuda\.packages\.x: expected text without"),
        (_sets("cuda", _RUNS, to=""), r"cuda \(name of a key\): expected text without"),
        (_sets("flag", to="{{ env `HOME` }}"), "flag: expected text without"),
        (_sets("source_ami", "name", to="{{ env `HOME` }}"), "source_ami_name: expected text without"),
        (_sets("os", "ssh_user", to="x ansible_connection=local"), r"os\.ssh_user: expected the name of an account"),
        (_sets("roles", to=["../../x", "hygiene"]), "roles: expected names of"),
        (_connects_here, "ansible_connection is not a role's variable"),
    ],
)
def test_a_plan_of_others_is_refused_before_it_is_handed_over(
    change: Callable[[Document], None], message: str, tmp_path: Path
) -> None:
    document: Any = copy.deepcopy(dict(make_plan(DEBIAN, AWS).document))
    change(document)
    (tmp_path / PLAN_FILE).write_text(json.dumps(with_digest(document)))
    plan = Plan.load(tmp_path / PLAN_FILE)  # its digest fits
    with pytest.raises(UsageError, match=message):
        plan.write(tmp_path, AWS)
    assert [path.name for path in tmp_path.iterdir()] == [PLAN_FILE]
    with pytest.raises(UsageError, match=message):
        ansible_variables(plan.document)  # what `attach` writes
        packer_variables(plan.document, AWS, tmp_path / "ansible.json")
