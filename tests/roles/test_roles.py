"""The roles: what they say of themselves, what they are given, and how they are written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami import process
from gpu_ami.build.layering import load_definition
from gpu_ami.cloud.place import Place
from gpu_ami.plan import Plan, ansible_variables, make_plan

ROOT = Path(__file__).parents[2]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if (path / "tasks" / "main.yml").exists())
RECIPES = sorted((ROOT / "variables" / "recipes").glob("*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text()) if path.exists() else None


def options_of(role: str) -> dict[str, Any]:
    return dict(read(ROOT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]["main"]["options"])


def tasks_of(role: str) -> list[tuple[Path, dict[str, Any]]]:
    """Every task and handler of a role, those in blocks too."""

    def flat(path: Path, tasks: list[dict[str, Any]]) -> list[tuple[Path, dict[str, Any]]]:
        found = []
        for task in tasks:
            inner = [one for part in ("block", "rescue", "always") for one in task.get(part, [])]
            found += flat(path, inner) if inner else [(path, task)]
        return found

    files = [*(ROOT / "roles" / role / "tasks").glob("*.yml"), *(ROOT / "roles" / role / "handlers").glob("*.yml")]
    return [one for path in sorted(files) for one in flat(path, read(path) or [])]


@pytest.fixture(scope="module", params=RECIPES, ids=lambda path: path.stem)
def plan(request: pytest.FixtureRequest) -> Plan:
    return make_plan(request.param, Place(name="aws", region="us-east-1"))


@pytest.mark.parametrize("role", ROLES)
def test_specification_and_defaults_are_equal(role: str) -> None:
    """What is not required has a default, and it is the same in both places."""
    specified = {name: spec.get("default") for name, spec in options_of(role).items() if not spec.get("required")}
    assert (read(ROOT / "roles" / role / "defaults" / "main.yml") or {}) == specified


@pytest.mark.parametrize("role", ROLES)
def test_required_inputs_are_named_where_people_look(role: str) -> None:
    """defaults/main.yml is the manual, also for what has no default."""
    manual = (ROOT / "roles" / role / "defaults" / "main.yml").read_text()
    required = [name for name, spec in options_of(role).items() if spec.get("required")]
    assert [name for name in required if not re.search(rf"^#   {name} ", manual, re.MULTILINE)] == []


@pytest.mark.parametrize("role", ROLES)
def test_every_input_bears_the_role_s_name(role: str) -> None:
    names = {*options_of(role), *(read(ROOT / "roles" / role / "vars" / "main.yml") or {})}
    assert [name for name in names if not re.match(rf"(__)?{role}_", name)] == []


@pytest.mark.parametrize("role", ROLES)
def test_internal_variables_are_defined(role: str) -> None:
    """Every __role_… that is read is set somewhere in the role."""
    texts = [
        path.read_text()
        for path in (ROOT / "roles" / role).rglob("*")
        if path.is_file() and path.suffix in (".yml", ".j2") and "files" not in path.parts
    ]
    whole = "\n".join(texts)
    used = set(re.findall(rf"__{role}_\w+", whole))
    defined = set(re.findall(rf"^\s*(__{role}_\w+):", whole, re.MULTILINE))
    defined |= set(re.findall(rf"register: (__{role}_\w+)", whole))
    assert used - defined == set()


def test_the_plan_gives_every_role_what_it_requires(plan: Plan) -> None:
    given = ansible_variables(plan.document)
    for role in plan["roles"]:
        required = [name for name, spec in options_of(role).items() if spec.get("required")]
        assert [name for name in required if name not in given] == [], role


def test_the_roles_take_what_the_plan_gives(plan: Plan) -> None:
    """Types, choices and nested keys, as Ansible itself judges them when a role begins."""
    from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

    given = ansible_variables(plan.document)
    for role in plan["roles"]:
        options = options_of(role)
        judged = ArgumentSpecValidator(options).validate({name: given[name] for name in options if name in given})
        assert judged.error_messages == [], role


def test_the_plan_gives_no_role_what_it_does_not_know(plan: Plan) -> None:
    known = {name for role in plan["roles"] for name in options_of(role)} | {"gpu_ami_roles"}
    assert sorted(set(ansible_variables(plan.document)) - known) == []


def test_hygiene_is_last_and_needs_no_task_after_it(plan: Plan) -> None:
    assert plan["roles"][-1] == "hygiene"
    last = tasks_of("hygiene")[-1][1]
    assert "hygiene_removed" in last["ansible.builtin.shell"]["cmd"]


@pytest.mark.parametrize("role", ROLES)
def test_what_is_downloaded_is_verified_before_it_is_used(role: str) -> None:
    """A download is verified by its signature or by its fingerprint before apt or the keyring uses it.

    One with a digest is verified by get_url itself, which leaves no file that has another.
    """
    files: dict[Path, list[str]] = {}
    for path, task in tasks_of(role):
        files.setdefault(path, []).append(str(task))
    for path, tasks in files.items():
        downloads = [(index, text) for index, text in enumerate(tasks) if "ansible.builtin.get_url" in text]
        fetched = [index for index, text in downloads if "'checksum': 'sha256:" not in text or "omit" in text]
        if fetched:
            refused = [index for index, text in enumerate(tasks) if "Refuse" in text and index > fetched[-1]]
            uses = re.compile("--import |_install.yml|unarchive|--extract-only")
            used = [index for index, text in enumerate(tasks) if uses.search(text)]
            assert refused and used and max(refused) < min(used), path


@pytest.mark.parametrize("role", ["fabric_manager", "imex", "nvidia_driver", "tuning"])
def test_enabling_a_unit_reads_all_units_once(role: str) -> None:
    """systemctl enable makes systemd read its units again; before it, too, that is seconds on an emulated builder.

    Where nothing was to be enabled, a changed unit still has to be read.
    """
    words = [
        task["ansible.builtin.systemd_service"]
        for _, task in tasks_of(role)
        if "ansible.builtin.systemd_service" in task
    ]
    assert [word for word in words if "enabled" in word and "state" not in word and "daemon_reload" in word] == []
    reloads = [
        task for _, task in tasks_of(role) if task.get("ansible.builtin.systemd_service") == {"daemon_reload": True}
    ]
    assert reloads and all("is changed and" in task["when"] and "is not changed" in task["when"] for task in reloads)


@pytest.mark.parametrize("role", ["cloudwatch_agent", "drain_hook", "event_parser", "neuron_monitor"])
def test_the_last_layer_enables_its_units_without_reading_all_units(role: str) -> None:
    """On a builder nothing is started, and the image's next boot reads the units."""
    services = [
        task["ansible.builtin.systemd_service"]
        for _, task in tasks_of(role)
        if "ansible.builtin.systemd_service" in task
    ]
    assert [service for service in services if "enabled" in service] == []
    at_once = [service for service in services if service["state"] != "restarted"]
    assert [service["daemon_reload"] for service in at_once] == [f"{{{{ {role}_started | bool }}}}"]
    enabling = [task for _, task in tasks_of(role) if "--no-reload" in str(task.get("ansible.builtin.command"))]
    assert len(enabling) == 1 and "Created symlink" in enabling[0]["changed_when"]


@pytest.mark.parametrize(
    ("role", "tasks"), [row for parts in load_definition().early.values() for row in parts.items()]
)
def test_early_tasks_begin_their_role_and_specify_what_they_read(role: str, tasks: str) -> None:
    """A layer's digest is over these options: another one that they read would go unseen."""
    specs = read(ROOT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]
    options = specs["main"]["options"]
    assert {name: options[name] for name in specs[tasks]["options"]} == specs[tasks]["options"]
    text = "\n".join(path.read_text() for path in (ROOT / "roles" / role / "tasks").glob(f"{tasks}*.yml"))
    assert {name for name in options if re.search(rf"\b{name}\b", text)} <= set(specs[tasks]["options"])
    main = (ROOT / "roles" / role / "tasks" / "main.yml").read_text()
    assert f"include_tasks: {tasks}.yml" in main


@pytest.mark.parametrize("role", ROLES)
def test_no_role_asks_where_it_is(role: str) -> None:
    """The plan may hold other addresses; nothing in a role knows of the local region."""
    for path in (ROOT / "roles" / role).rglob("*.yml"):
        assert not re.search(r"169\.254|replica|simulated|moto|\blocal region\b", path.read_text()), path


@pytest.mark.slow
@pytest.mark.parametrize("playbook", ["image.yml", "attach.yml"])
def test_playbook_is_sound(playbook: str) -> None:
    done = _ansible("ansible-playbook", "--syntax-check", "-i", "nobody,", f"playbooks/{playbook}")
    assert done.returncode == 0, process.describe(done)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("roles", "playbook"),
    [
        (None, "image.yml"),
        (["nvidia_driver"], "image.yml"),
        (["hygiene", "event_parser"], "image.yml"),
        (None, "attach.yml"),
    ],
)
def test_playbook_refuses_to_run_without_the_plan(roles: list[str] | None, playbook: str) -> None:
    """An image without hygiene, or one of no role at all, is never made by mistake."""
    # --check: were the refusal ever to fail, this machine must not be taken for the builder.
    given = [] if roles is None else ["--extra-vars", json.dumps({"gpu_ami_roles": roles})]
    done = _ansible(
        "ansible-playbook",
        "--check",
        "--connection=local",
        "--inventory=nobody,",
        "--become-method=su",
        *given,
        f"playbooks/{playbook}",
    )
    assert done.returncode == 2
    assert "gpu_ami_roles must list the plan's roles" in done.stdout + done.stderr


@pytest.mark.slow
def test_all_roles_are_sound(tmp_path: Path) -> None:
    """As ansible-lint checks the syntax of each role by itself, which would start Ansible 31 times."""
    tasks = [{"ansible.builtin.import_role": {"name": role}} for role in ROLES]
    playbook = tmp_path / "roles.yml"
    playbook.write_text(json.dumps([{"hosts": "localhost", "tasks": tasks}]))
    done = _ansible("ansible-playbook", "--syntax-check", "-i", "nobody,", str(playbook))
    assert done.returncode == 0, process.describe(done)


# Without its syntax check of roles, where this version has one to leave out: test_all_roles_are_sound.
_LINT = """
from ansiblelint import __main__, runner
if collect := getattr(runner.Runner, "_collect_syntax_check_files", None):
    runner.Runner._collect_syntax_check_files = lambda self: [file for file in collect(self) if file.kind != "role"]
__main__._run_cli_entrypoint()
"""


@pytest.mark.slow
def test_ansible_lint_is_content() -> None:
    done = _ansible("python", "-c", _LINT, "--offline", "--nocolor", "-q")
    assert done.returncode == 0, process.describe(done)


def test_yamllint_is_content() -> None:
    done = _ansible("yamllint", "--strict", ".")
    assert done.returncode == 0, process.describe(done)


def _ansible(program: str, *words: str) -> process.Completed:
    import sys

    beside = Path(sys.executable).parent
    environment = {"PATH": f"{beside}:/usr/bin:/bin:/usr/sbin:/sbin", "ANSIBLE_NOCOLOR": "1"}
    return process.run([beside / program, *words], timeout=600, cwd=ROOT, env=environment, check=False)
