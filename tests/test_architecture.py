"""The rules of ARCHITECTURE.md: no import circles, packages entered through their __init__, tests mirror packages."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("gpu_ami", "localregion", "onhost", "validator")
# Programs that a role installs as a folder find their modules beside them, as on the image.
# Programs of the local region's replicas run on a machine; the starter is a folder for users, copied by `gpu-ami init`.
_PROGRAMS = ("onhost/event_parser/", "onhost/neuron_monitor/", "onhost/drain_hook/")
_NOT_OURS = ("localregion/replicas/", "gpu_ami/starter/", *_PROGRAMS)


@cache
def tracked() -> tuple[str, ...]:
    """Files of the project, relative to its root, committed or about to be."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(name for name in listed.stdout.splitlines() if (ROOT / name).is_file())


@cache
def modules() -> Mapping[str, ast.Module]:
    """Dotted name → source of every module; a package is its __init__."""
    files = [name for name in tracked() if name.endswith(".py") and name.startswith(PACKAGES)]
    names = [name for name in files if not name.startswith(_NOT_OURS)]
    parsed = {name: ast.parse((ROOT / name).read_text(encoding="utf-8")) for name in names}
    return {name[:-3].replace("/", ".").removesuffix(".__init__"): tree for name, tree in parsed.items()}


# A pipe into what stops reading before its end: under `pipefail` the writer's SIGPIPE fails the pipe, by chance.
_ENDS_EARLY = re.compile(
    r"(?<!\|)\|&?\s*(?:(?:grep|egrep|fgrep|zgrep)\s+(?:\S+\s+)*?-\w*[qlm]|head\b|sed\s[^|]*\bq\b|awk\s[^|]*\bexit\b)"
)


def pipes_that_end_early(text: str) -> list[str]:
    """Lines of a script under `pipefail` with such a pipe, continued lines joined; none without `pipefail`."""
    if not re.search(r"^\s*set\s.*\bpipefail\b", text, re.MULTILINE):
        return []
    joined = re.sub(r"(\\|\|)\n\s*", lambda end: end[1].strip("\\") + " ", text)
    return [line for line in joined.splitlines() if _ENDS_EARLY.search(line) and not line.lstrip().startswith("#")]


@pytest.mark.parametrize(
    ("line", "ends_early"),
    [
        ("apt-cache madison x | grep -q bookworm", True),
        ("apt-cache madison x |\n  grep --color -m 1 bookworm", True),
        ("apt-cache madison x \\\n  | sed -n p | head -n 1", True),
        ("grep -q bookworm /etc/os-release || head -n 1 file", False),
        ("apt-cache madison x | grep -c bookworm", False),
    ],
)
def test_pipes_that_end_early_are_found(line: str, ends_early: bool) -> None:
    assert bool(pipes_that_end_early(f"set -euo pipefail\n{line}\n")) is ends_early
    assert pipes_that_end_early(line) == []


def test_no_script_has_a_pipe_that_fails_by_chance() -> None:
    scripts = {}
    for name in tracked():
        if name.startswith(("tests/", "docs/")) or name.endswith(".md"):
            continue
        content = (ROOT / name).read_bytes()
        if name.endswith((".sh", ".yml", ".j2", "Makefile")) or content[:40].partition(b"\n")[0].endswith(b"sh"):
            scripts[name] = content.decode()
    assert "localregion/packages.sh" in scripts and ".ci/run" in scripts
    assert {name: lines for name, text in scripts.items() if (lines := pipes_that_end_early(text))} == {}


def is_package(module: str) -> bool:
    return (ROOT / module.replace(".", "/") / "__init__.py").is_file()


def package_of(module: str) -> str:
    return module if is_package(module) else module.rpartition(".")[0]


def run_time_imports(tree: ast.Module) -> Iterator[ast.ImportFrom]:
    """`from x import y` that is executed; what only a type checker reads is left out."""
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in typing_only:
            yield node


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """Module → the modules of ours that it imports at run time."""
    targets: dict[str, frozenset[str]] = {}
    for module, tree in modules().items():
        names = {
            full if (full := f"{node.module}.{alias.name}") in modules() else str(node.module)
            for node in run_time_imports(tree)
            for alias in node.names
        }
        targets[module] = frozenset(names & set(modules())) - {module}
    return targets


def circle(arrows: Mapping[str, frozenset[str]]) -> list[str]:
    """Nodes of one circle, in order; empty if there is none."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for target in sorted(arrows.get(node, ())):
            if loop := visit(target, [*path, node]):
                return loop
        done.add(node)
        return []

    return next((loop for node in sorted(arrows) if (loop := visit(node, []))), [])


def test_the_scanner_finds_a_circle() -> None:
    assert circle({"a": frozenset({"b"}), "b": frozenset({"c"}), "c": frozenset({"b"})}) == ["b", "c", "b"]
    assert circle({"a": frozenset({"b"}), "b": frozenset()}) == []


def test_modules_import_each_other_in_no_circle() -> None:
    plain = {module for module in modules() if not is_package(module)}
    assert circle({module: targets & plain for module, targets in imports().items() if module in plain}) == []


def test_packages_import_each_other_in_no_circle() -> None:
    roots = set(PACKAGES)  # what lies flat in them stands below or above their packages
    arrows: dict[str, set[str]] = {}
    for module, targets in imports().items():
        for target in targets:
            source, destination = package_of(module), package_of(target)
            if source != destination and not {source, destination} & roots:
                arrows.setdefault(source, set()).add(destination)
    assert circle({source: frozenset(targets) for source, targets in arrows.items()}) == []


def test_packages_are_entered_through_their_init() -> None:
    """From outside: a name that the package exports, or one of its modules; never a name from inside a module."""
    flat = {"gpu_ami", "validator", "localregion", "gpu_ami.commands", "validator.checks", "onhost"}
    inside = [
        f"{module}: from {node.module} import {', '.join(alias.name for alias in node.names)}"
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module in modules()
        and not is_package(node.module)
        and package_of(node.module) not in flat | {package_of(module)}
    ]
    assert inside == []


def reads(tree: ast.Module, names: Iterable[str]) -> set[str]:
    """Which of these attributes a module reads, of whatever it calls the value."""
    loads = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))
    return {node.attr for node in loads} & set(names)


# What differs between a region of AWS and the region of this machine, as values of a place → the modules that may read
# it, for what. `report.` and `hardware.` have fields of the same name, which say what a place said.
_MAY_READ = {
    # a client, a template or a program is given the address; nobody compares it
    "endpoint": {
        "gpu_ami.cloud.client", "gpu_ami.cloud.login", "gpu_ami.cloud.place", "gpu_ami.commands.dashboard",
        "gpu_ami.plan.document", "gpu_ami.plan.resolution", "gpu_ami.validate.node_services",
        "gpu_ami.validate.validator_process",
    },
    "guest_endpoint": {"gpu_ami.plan.document", "gpu_ami.plan.resolution", "gpu_ami.validate.node_services"},
    # a preflight, a survey of sources and the look-up of unknown instance types are of an endpoint that answers them
    "answers_preflight": {"gpu_ami.build.builder", "gpu_ami.pipeline", "gpu_ami.plan.resolution", "gpu_ami.region"},
    # reports say it, and results of simulated hardware are compared with their like alone
    "simulated": {
        "gpu_ami.commands.publish", "gpu_ami.report.certificate", "gpu_ami.report.merge", "gpu_ami.validate.golden",
        "gpu_ami.validate.proof",
    },
    "hypervisor": {"gpu_ami.report.page", "gpu_ami.validate.proof"},
    # a cost is shown where there is one
    "billed": {"gpu_ami.pipeline"},
    # how Ansible connects
    "slow_python": {"gpu_ami.build.ansible", "gpu_ami.build.packer"},
    # a tag of the builder, a part of a layer's digest, a field of build.json
    "sandbox_builder": {"gpu_ami.build.builder", "gpu_ami.build.image", "gpu_ami.build.layering"},
}  # fmt: skip


def test_nothing_past_the_door_asks_which_region_it_is_in() -> None:
    """What differs is a value of the place, or a method of the region (gpu_ami/region.py)."""
    found: dict[str, set[str]] = {name: set() for name in _MAY_READ}
    for module, tree in modules().items():
        if module.startswith("gpu_ami"):
            for name in reads(tree, _MAY_READ):
                found[name].add(module)
    assert found == _MAY_READ
    sample = ast.parse("if session.place.simulated: pass\nplace.endpoint = 1")
    assert reads(sample, _MAY_READ) == {"simulated"}


def test_gpu_ami_knows_the_local_region_by_its_entry_point_alone() -> None:
    named = []
    for module, tree in modules().items():
        if module.startswith("gpu_ami"):
            for node in ast.walk(tree):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
                named += [f"{module}:{node.lineno}" for name in names if re.match(r"localregion(\.|:|$)", name)]  # type: ignore[attr-defined]
    assert named == []
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert declared == {"gpu_ami.regions": {"local": "localregion.entry:LOCAL"}}


def imports_after_code(tree: ast.Module) -> list[int]:
    """Lines of the module's imports below other code; `if TYPE_CHECKING` ends the imports, `try: import …` does not."""
    found, ended = [], False
    for number, node in enumerate(tree.body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += [node.lineno] if ended else []
        elif not isinstance(node, ast.Try) and not (number == 0 and isinstance(node, ast.Expr)):
            ended = True
    return found


def test_imports_of_a_module_stand_together() -> None:
    """Two modules that become one leave a second block, which ruff accepts below `if TYPE_CHECKING`."""
    assert imports_after_code(ast.parse('"""A."""\nif TYPE_CHECKING:\n    import a\nimport b\n')) == [4]
    wrong = [f"{name}:{line}" for name, tree in modules().items() for line in imports_after_code(tree)]
    assert wrong == ["gpu_ami.__main__:8"]  # it orders the search path before


def packages() -> list[str]:
    """Dotted names of packages, found without parsing a module: this is asked when tests are collected.

    Not gpu_ami itself, whose modules and packages ARCHITECTURE.md describes.
    """
    files = [name for name in tracked() if name.endswith("/__init__.py") and name.startswith(PACKAGES)]
    names = [name for name in files if name != "gpu_ami/__init__.py" and not name.startswith(_NOT_OURS)]
    return sorted(name.removesuffix("/__init__.py").replace("/", ".") for name in names)


@pytest.mark.parametrize("package", packages())
def test_a_package_says_what_is_inside(package: str) -> None:
    """One line a module in the docstring of __init__, and none of what is not there."""
    if package in ("gpu_ami.commands", "gpu_ami.recipes.components", "validator.checks"):
        return  # one file a command, a component, a role: their names are the list
    text = ast.get_docstring(modules()[package]) or ""
    members = {
        name.rpartition(".")[2] for name in modules() if name.rpartition(".")[0] == package and not is_package(name)
    }
    listed = {line.split()[0] for line in text.splitlines() if line.strip()}
    assert sorted(members - listed - {"__main__", "conftest"}) == []
    there = {path.stem for path in (ROOT / package.replace(".", "/")).iterdir()}
    rows = {row[1] for line in text.splitlines() if (row := re.match(r"(\w+)/? {2,}", line))}
    assert sorted(rows - there) == []


# Modules that are tested through their package's door alone, and the file that does it.
_THROUGH_THE_DOOR = {
    "gpu_ami.cloud.launches": "tests/validate/machines/test_user_data.py",
    "gpu_ami.cloud.systems_manager": "tests/fleet/test_systems_manager.py",
    "gpu_ami.commands.json_types": "tests/test_json_schemas.py",
    "gpu_ami.validate.node_services": "tests/validate/test_cluster.py",
    "gpu_ami.cloud.image_parameters": "tests/publish/test_observation.py",
    "localregion.backends.systems_manager.documents": (
        "tests/localregion/backends/systems_manager/test_systems_manager.py"
    ),
    "validator.file_account.inventory": "tests/validator/file_account/test_inventory.py",
}


def untested(names: Iterable[str], tests: Mapping[str, str]) -> list[str]:
    """The modules that no test of their package's folder names. tests: text by path."""
    missing = []
    for module in names:
        *folder, leaf = module.split(".")
        mirrored = "/".join(["tests", *(folder[1:] if folder[0] == "gpu_ami" else folder)])
        word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(leaf)}(?![A-Za-z0-9])")
        beside = [text for path, text in tests.items() if path.startswith(f"{mirrored}/test_")]
        if f"{mirrored}/test_{leaf}.py" not in tests and not any(word.search(text) for text in beside):
            missing.append(f"{module}: no test in {mirrored}/ names it")
    return missing


def test_the_search_finds_a_module_without_a_test() -> None:
    tests = {"tests/cloud/test_a.py": "from gpu_ami.cloud import kms\n", "tests/cloud/deep/test_b.py": "sweep\n"}
    assert untested(["gpu_ami.cloud.a", "gpu_ami.cloud.kms"], tests) == []
    assert untested(["gpu_ami.cloud.sweep"], tests) == ["gpu_ami.cloud.sweep: no test in tests/cloud/ names it"]


def test_a_program_begins_when_its_module_is_complete() -> None:
    """`python -m MODULE` stops at `if __name__ == "__main__"`: what is defined below it is not there yet."""
    early = []
    for name in tracked():
        if name.endswith(".py"):
            body = ast.parse((ROOT / name).read_text()).body
            programs = [index for index, item in enumerate(body) if isinstance(item, ast.If) and _asks_name(item.test)]
            early += [name for index in programs if index != len(body) - 1]
    assert early == [], "move the statement to the end of the module"
    assert _asks_name(ast.parse('if __name__ == "__main__": pass').body[0].test)  # type: ignore[attr-defined]


def _asks_name(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def test_tests_mirror_packages() -> None:
    """A module has a test file of its name, or a test in its package's folder that uses it by its name."""
    tests = {name: (ROOT / name).read_text() for name in tracked() if re.fullmatch(r"tests/.*test_\w+\.py", name)}
    ours = [
        name
        for name in modules()
        if not is_package(name)
        and name.rpartition(".")[2] not in ("__main__", "conftest")
        and not name.startswith("gpu_ami.recipes.components.")  # the registry's tests and recipes' cases read them
    ]
    assert set(_THROUGH_THE_DOOR) <= set(ours) and set(_THROUGH_THE_DOOR.values()) <= set(tests)
    assert untested([name for name in ours if name not in _THROUGH_THE_DOOR], tests) == []


def private_reads(tree: ast.Module) -> list[str]:
    """Private names of other modules that a test reads, imports or replaces.

    Its own are those that it defines, or sets on itself; `os._exit` and `_replace` of a named tuple are documented by
    Python. botocore and moto have no public way to the two of FOREIGN.
    """
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_of_itself(node)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls", "os"):
            found.append(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and called_name(node.func) in ("setattr", "delattr"):
            words = [argument.value for argument in node.args[:2] if isinstance(argument, ast.Constant)]
            found += [word.rpartition(".")[2] for word in words if isinstance(word, str)]
    private = [name for name in found if re.match(r"_[^_]", name)]
    return sorted(name for name in private if name not in own | FOREIGN | {"_replace"})


FOREIGN = {"_create_client_class", "_available_ip_addresses"}


def is_of_itself(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def called_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_tests_read_no_private_names_of_other_modules() -> None:
    """A test goes through the public function; a helper that is a unit of its own has a public name."""
    sample = (
        "from a import _b\nx._y = 1; self._z; os._exit; d._replace(e=1); patch.setattr('m.n._o', 1)\ndef _f(): a._f"
    )
    assert private_reads(ast.parse(sample)) == ["_b", "_o", "_y"]
    tests = [name for name in tracked() if name.startswith("tests/") and name.endswith(".py")]
    found = {name: tuple(read) for name in tests if (read := private_reads(ast.parse((ROOT / name).read_text())))}
    assert found == {}, "test through the public function, or make the helper public"


def arguments_read(tree: ast.Module) -> dict[str, int]:
    """How often a function of a command reads its parsed arguments, but those that make the request of them."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.endswith("_request"):
            names = [one.arg for one in node.args.args if ast.unparse(one.annotation or node) == "argparse.Namespace"]
            if names:
                found[node.name] = sum(isinstance(one, ast.Name) and one.id in names for one in ast.walk(node))
    return found


@pytest.mark.parametrize("command", ["gpu_ami.commands.prove", "gpu_ami.commands.validate"])
def test_a_proof_turns_its_arguments_into_one_request(command: str) -> None:
    """What is decided late, from arguments, is neither checked before the first launch nor seen by a dry run."""
    sample = "def a(args: argparse.Namespace): args.b; args.c\ndef d_request(args: argparse.Namespace): args.e"
    assert arguments_read(ast.parse(sample)) == {"a": 2}
    assert arguments_read(modules()[command]) == {"execute": 1}


# What a text cites as a file of the project: begins with a folder of it and ends as a file does.
_CITED = re.compile(
    r"(?<![\w/.{}<>$@~-])((?:gpu_ami|localregion|onhost|validator|tests|roles|variables|packer|playbooks|docs|bench|iam)/"
    r"[\w./-]*\.(?:py|yml|md|sh|json|hcl|j2|csv|c|toml))(?![\w*{<])"
)


def texts() -> Iterator[tuple[str, str]]:
    for name in tracked():
        is_text = name.endswith((".py", ".md", ".yml", ".hcl", "Makefile")) and name != "CHANGELOG.md"
        if is_text and not name.startswith((*_NOT_OURS, "tests/")):
            yield name, (ROOT / name).read_text(encoding="utf-8")


# Examples in documents: files of the reader's own, and placeholders.
_EXAMPLES = re.compile(r"/(?:X|NAME|training|p5\.48xlarge|(?:test_)?hugepages)\.\w+$|^roles/hugepages/")


def test_cited_files_exist() -> None:
    cited = [(name, path) for name, text in texts() for path in _CITED.findall(text) if not _EXAMPLES.search(path)]
    assert len(cited) > 50
    assert sorted({f"{name}: {path}" for name, path in cited if not (ROOT / path).exists()}) == []


def test_documents_link_to_what_exists() -> None:
    broken = []
    for name in tracked():
        if not name.endswith(".md"):
            continue
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]*)?\)", (ROOT / name).read_text(encoding="utf-8")):
            if "://" not in target and not (ROOT / name).parent.joinpath(target).exists():
                broken.append(f"{name}: {target}")
    assert broken == []


def test_readme_and_map_stay_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 130


# Import name of a distribution where it differs, or the program that it is used as.
_USED_AS = {
    "ansible-core": "ansible-playbook", "pytest-testinfra": "testinfra", "pyyaml": "yaml", "mitogen": "ansible_mitogen",
    "python-debian": "debian.debian_support", "cyclonedx-python-lib": "cyclonedx",
}  # fmt: skip


def test_no_dependency_that_nothing_uses() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [*project["dependencies"], *project["optional-dependencies"]["local"]]
    names = [re.split(r"[\[<>=~! ]", requirement)[0] for requirement in required]
    files = [name for name in tracked() if name.startswith(PACKAGES) and name.endswith(".py")]
    source = "\n".join((ROOT / name).read_text() for name in files)
    unused = [name for name in names if not re.search(rf"\b{re.escape(_USED_AS.get(name, name))}\b", source)]
    assert unused == []
