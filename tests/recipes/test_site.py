"""A site's own parts: found beside the recipe, checked by argument_specs, carried by the plan, found by Ansible."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_ami.cloud.place import Place
from gpu_ami.errors import UsageError
from gpu_ami.faults import catalogue, trials
from gpu_ami.plan import ANSIBLE_FILE, PACKER_FILE, PLAN_FILE, Plan, make_plan, site_files
from gpu_ami.recipes import load_facts, site
from gpu_ami.validate import site_checks
from validator.plan_document import package_system, root_device

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "site"
AWS = Place("aws", "eu-central-1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the example."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "site"))


@pytest.fixture
def recipe(folder: Path) -> Path:
    return folder / "recipes" / "monitored.yml"


@pytest.mark.parametrize("place", ["site/recipes/x.yml", "recipes/x.yml", "x.yml"])
def test_site_is_found_beside_the_recipe(folder: Path, place: str) -> None:
    found = site.site_folder(folder.parent / place)
    assert found is not None and found.resolve() == folder
    assert site.site_folder(folder.parent / "elsewhere" / "x.yml") is None
    assert site.site_folder(ROOT / "variables" / "recipes" / "debian12-gpu.yml") is None


def test_plan_carries_the_role_and_its_defaults(recipe: Path) -> None:
    plan = make_plan(recipe, AWS)
    assert plan["company_monitor"] == {"endpoint": "https://monitoring.example.com", "interval_s": 60}
    assert plan["roles"][-2:] == ["company_monitor", "hygiene"]


def test_recipe_without_the_key_has_no_role(recipe: Path) -> None:
    recipe.write_text(recipe.read_text().partition("company_monitor:\n")[0])
    plan = make_plan(recipe, AWS)
    assert "company_monitor" not in plan["roles"] and "company_monitor" not in plan.document


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{endpoint: 3}", "company_monitor.endpoint: expected text"),
        ("{endpiont: x}", "company_monitor.endpiont: unknown key; did you mean endpoint?"),
        ("{interval_s: 5}", "company_monitor.endpoint: missing"),
    ],
)
def test_mistakes_are_those_of_the_argument_specs(recipe: Path, text: str, told: str) -> None:
    recipe.write_text(recipe.read_text().partition("company_monitor:\n")[0] + f"company_monitor: {text}\n")
    with pytest.raises(UsageError) as caught:
        make_plan(recipe, AWS)
    assert told in str(caught.value)


ROLE = "roles/company_monitor"
SPECS, FOOTPRINT = f"{ROLE}/meta/argument_specs.yml", f"{ROLE}/meta/footprint.yml"


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        (SPECS, None, f"{SPECS}: no such file: it declares the role's options"),
        (SPECS, "", f"{SPECS}: expected argument_specs.main.options, a mapping"),
        (SPECS, "- a\n", f"{SPECS}: expected argument_specs.main.options, a mapping"),
        (SPECS, "a: [", f"{SPECS}: not YAML"),
        (SPECS,
         "argument_specs: {main: {options: {company_monitor_x: 3}}}", "expected keys and values, such as type: str"),
        (SPECS, "argument_specs: {main: {options: {company_monitor_x: {type: string}}}}", "did you mean str?"),
        (SPECS, "argument_specs: {main: {options: {x: {}}}}", "x: expected a name that begins with company_monitor_"),
        (FOOTPRINT, None, f"{FOOTPRINT}: no such file: it declares what the role leaves"),
        (FOOTPRINT, "file: []", f"{FOOTPRINT}: file: unknown key; did you mean files?"),
        (FOOTPRINT, "files: [{path: etc/x}]", "files[0].path: etc/x: expected an absolute path"),
        (FOOTPRINT, "", f"{FOOTPRINT}: (whole file): expected keys and values, got nothing"),
        (f"{ROLE}/tasks/main.yml", None, "no such file: it has the role's tasks"),
        (f"{ROLE}/tasks/main.yml", "a: b", "expected a list of tasks"),
        (f"{ROLE}/tasks/main.yml", "- a: [", "not YAML"),
        ("roles/company-agent/x", "", "roles/company-agent: a role's name has lower-case letters"),
        ("roles/company_monitor/meta/systems.yml", "al2023", "expected a list with at least one item, got 'al2023'"),
        ("roles/company_monitor/meta/systems.yml", "[RHEL 9]", "expected an operating system of a recipe"),
        ("alarms.yml", "[]", "alarms.yml: (whole file): expected keys and values, such as company-monitor-lost"),
        ("alarms.yml", "a: [", "alarms.yml: not YAML"),
        ("alarms.yml", "a:\n  titel: x\n", "alarms.yml:2: a.titel: unknown key; did you mean title?"),
        ("alarms.yml", "a: {title: x}", "alarms.yml:1: a.urgency: missing: expected one of page, ticket"),
        ("alarms.yml", "A b: {}", "expected a key like company-monitor-lost"),
        ("alarms.yml", "gpu-reset: {}", "alarms.yml:1: gpu-reset: gpu-ami has an alarm of this name: rename it"),
        ("alarms.yml", "a: {title: x}", "a: expected either logs (group, pattern) or metric"),
        ("alarms.yml", "a: {metric: {name: b, above: 1, below: 2}}", "a.metric: expected either above or below"),
        ("alarms.yml", "a: {metric: {name: b}}", "a.metric.statistic: missing: expected one of AVG"),
        ("alarm.yml", "", "alarm.yml: no part of a site; alarms and their runbooks are in alarms.yml"),
        ("role/x", "", "role: no part of a site; did you mean roles?"),
        ("facts/cuda.yaml", "{}", "facts/cuda.yaml: expected the ending .yml"),
        ("checks/company_monitor.py", "def test_x(host): ...", "would not run; expected the name test_company"),
        ("checks/test_company_monitr.py", "", "no role company_monitr; did you mean test_company_monitor.py?"),
        ("checks/test_x.py", "import x\ndef test_x(host) ...", "checks/test_x.py:2: expected ':'"),
        ("faults/company_monitor.yml", "a: b", "faults/company_monitor.yml: expected a list of faults"),
        ("faults/company_monitr.yml", "[]", "so its faults are never injected; did you mean company_monitor?"),
    ],
)  # fmt: skip
def test_mistakes_of_a_site_are_found_by_the_plan(
    recipe: Path, folder: Path, file: str, text: str | None, told: str
) -> None:
    """What a build, a proof or a trial of faults would leave out or fail by, hours later."""
    (folder / file).unlink(missing_ok=True)
    if text is not None:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    with pytest.raises(UsageError) as caught:
        make_plan(recipe, AWS)
    assert told in str(caught.value) and str(folder) in str(caught.value)


@pytest.mark.parametrize("system", ["al2023", "ubuntu2404", "debian12"])
def test_role_of_other_systems_is_refused_with_the_reason(recipe: Path, folder: Path, system: str) -> None:
    """A role that uses apt was accepted for Amazon Linux, and failed in the build."""
    (folder / "roles/company_monitor/meta/systems.yml").write_text("[debian12, 'ubuntu*']\n")
    recipe.write_text(recipe.read_text().replace("os: debian12", f"os: {system}"))
    if system != "al2023":
        make_plan(recipe, AWS)
        return
    with pytest.raises(UsageError) as caught:
        make_plan(recipe, AWS)
    assert (
        "monitored.yml:10: company_monitor: role company_monitor is for debian12, ubuntu*, the image is al2023"
        " [roles/company_monitor, systems]; nearest: leave out company_monitor"
    ) in str(caught.value)
    recipe.write_text(recipe.read_text().partition("company_monitor:")[0])
    make_plan(recipe, AWS)


def test_row_of_a_site_has_its_source(recipe: Path, folder: Path) -> None:
    (folder / "facts").mkdir(exist_ok=True)
    rows = "# ours\nreleases:\n  9.99.9:\n    date: 2026-11-20\n"
    file = folder / "facts" / "nccl.yml"
    file.write_text(rows)
    with pytest.raises(UsageError, match="1 row without source or date") as caught:
        make_plan(recipe, AWS)
    assert caught.value.details == (f"{file}:3: releases.'9.99.9': missing: source",)
    known = next(iter(load_facts().nccl["releases"]))
    file.write_text(f"releases:\n  {known}: {{regression: ours}}\n")
    make_plan(recipe, AWS)


@pytest.mark.parametrize("day", ["2026-13-45", "{}", "yesterday", "null"])
def test_date_of_a_site_s_row_is_a_day(day: str, recipe: Path, folder: Path) -> None:
    (folder / "facts").mkdir(exist_ok=True)
    file, known = folder / "facts" / "nccl.yml", next(iter(load_facts().nccl["releases"]))
    file.write_text(f"releases:\n  {known}:\n    source: ours\n    date: {day}\n")
    with pytest.raises(UsageError, match="1 row whose date is not a day") as caught:
        make_plan(recipe, AWS)
    (detail,) = caught.value.details
    assert detail.startswith(f"{file}:4: releases.'{known}'.date: ")


def test_other_files_of_a_site_are_no_mistake(recipe: Path, folder: Path) -> None:
    for file in ("README.md", "index.html", "docs/x.md", "checks/conftest.py", "checks/helpers.py", "roles/.git/config",
                 "checks/test_every_image.py", "checks/nvidia_ours_test.py"):  # fmt: skip
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("def helper(): ...\n")
    make_plan(recipe, AWS)


def test_recipe_elsewhere_is_told_where_its_role_is(recipe: Path, folder: Path) -> None:
    other = folder.parent / "team" / "monitored.yml"
    other.parent.mkdir()
    other.write_text(recipe.read_text())
    with pytest.raises(UsageError) as caught:
        make_plan(other, AWS)
    assert f"company_monitor: unknown key; {folder / 'roles' / 'company_monitor'} is not of this recipe" in str(
        caught.value
    )


def test_role_must_not_have_a_name_of_ours(recipe: Path, folder: Path) -> None:
    (folder / "roles" / "company_monitor").rename(folder / "roles" / "efa")
    with pytest.raises(UsageError, match="gpu-ami has a role of this name"):
        make_plan(recipe, AWS)


def test_changed_role_is_a_changed_plan(recipe: Path, folder: Path) -> None:
    before = make_plan(recipe, AWS).digest
    assert make_plan(recipe, AWS).digest == before
    tasks = folder / "roles" / "company_monitor" / "tasks" / "main.yml"
    tasks.write_text(tasks.read_text() + "# changed\n")
    assert make_plan(recipe, AWS).digest != before


def test_rows_of_a_site_join_the_tables(recipe: Path, folder: Path) -> None:
    (folder / "facts").mkdir()
    row = {"g5.12xlarge": {"vcpus": 99}}
    (folder / "facts" / "instance_types.yml").write_text(json.dumps({"instance_types": row}))
    planned = make_plan(recipe, AWS)["instance_types"][0]
    assert (planned["vcpus"], planned["gpu_count"]) == (99, 4)
    (folder / "facts" / "instance_typs.yml").write_text("{}")
    other = Path(shutil.copytree(folder, folder.parent / "other" / "site"))
    with pytest.raises(UsageError, match="no such table; did you mean instance_types"):
        make_plan(other / "recipes" / "monitored.yml", AWS)


def test_plans_folder_is_all_that_later_stages_need(recipe: Path, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_plan(recipe, AWS).write(out, AWS)
    shutil.rmtree(folder)
    plan = Plan.load(out / PLAN_FILE)
    plan.write(out, AWS)  # as a build does once more
    assert (out / "site" / "roles" / "company_monitor" / "tasks" / "main.yml").is_file()
    (setting,) = json.loads((out / PACKER_FILE).read_text())["ansible_env_vars"]
    assert setting == f"ANSIBLE_ROLES_PATH={out}/site/roles:{ROOT}/roles"
    assert json.loads((out / ANSIBLE_FILE).read_text())["company_monitor_endpoint"] == "https://monitoring.example.com"


@pytest.mark.slow
def test_ansible_finds_the_role_and_its_result_is_what_the_check_wants(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_plan(recipe, AWS).write(out, AWS)
    tasks = (out / "site" / "roles" / "company_monitor" / "tasks" / "main.yml").read_text()
    assert "/etc/company-monitor.conf" in tasks
    play = tmp_path / "play.yml"
    play.write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        "    - {ansible.builtin.include_role: {name: company_monitor}, when: false}\n"
        "    - {ansible.builtin.import_role: {name: company_monitor}}\n"
    )
    settings = json.loads((out / PACKER_FILE).read_text())["ansible_env_vars"]
    environment = dict(setting.split("=", 1) for setting in settings)
    command = [
        Path(sys.executable).with_name("ansible-playbook"),
        "-i",
        "localhost,",
        "-c",
        "local",
        "--check",
        "--diff",
    ]
    command += ["-e", f"@{out / ANSIBLE_FILE}", "-e", f"ansible_python_interpreter={sys.executable}", str(play)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "+endpoint = https://monitoring.example.com" in done.stdout and "+interval = 60" in done.stdout


def test_checks_and_faults_are_those_of_the_plans_roles(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    plan = make_plan(recipe, AWS)
    plan.write(out, AWS)
    (out / "site" / "checks" / "test_every_image.py").write_text("def test_x(host): pass\n")
    names = ["test_company_monitor.py", "test_every_image.py"]
    assert [path.name for path in site_files(out, "checks", "test_{}.py", plan["roles"])] == names
    assert [path.name for path in site_files(out, "checks", "test_{}.py", ["hygiene"])] == names[1:]
    more = site_files(out, "faults", "{}.yml", plan["roles"])
    faults = catalogue.load(trials.folder(), ["company-monitor-other-endpoint"], more=more)
    assert [fault.caught_by for fault in faults] == ["test_company_monitor::test_endpoint_is_the_planned_one"]


def test_proof_runs_the_checks_of_the_site(recipe: Path, tmp_path: Path) -> None:

    out = tmp_path / "out"
    plan = make_plan(recipe, AWS)
    plan.write(out, AWS)
    assert site_checks(plan.document, out / PLAN_FILE) == [out / "site" / "checks" / "test_company_monitor.py"]


ROCKY = """
rocky9:
  id: rocky
  version: "9"
  codename: rocky9
  family: redhat
  packages: redhat
  ssh_user: rocky
  root_device: /dev/sda1
  python: ["3.9"]
  kernels: ["5.14"]
  kernel_packages: {default: {package: kernel, headers: "kernel-devel-{release}", hold: [kernel, kernel-devel]}}
  end_of_life: 2032-05-31
  architectures: [x86_64]
  source_ami: {x86_64: {owner: "792107900819", name: "Rocky-9-EC2-Base-9.*.x86_64"}}
  nvidia_repository: {name: rhel9, cuda: {first: "12.0"}, driver: {first: "525"}, architectures: [x86_64]}
  cloudwatch_agent: redhat
  source: a table of this test
  date: 2026-11-27
"""


def test_a_row_is_enough_to_plan_another_system(folder: Path) -> None:
    (folder / "facts").mkdir()
    (folder / "facts" / "operating_systems.yml").write_text(ROCKY)
    recipe = folder / "recipes" / "rocky9-gpu.yml"
    recipe.write_text("flag: r\nos: rocky9\ninstance_types: [g5.12xlarge]\nnvidia_driver: {version: newest}\n")
    plan = make_plan(recipe, AWS)
    assert root_device(plan["os"]) == "/dev/sda1" and package_system(plan["os"]) == "rpm"
    assert plan["cloudwatch_agent"]["url"].endswith(".rpm")
    assert plan["source_ami"]["owner"] == "792107900819"
