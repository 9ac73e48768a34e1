"""The third rule of ARCHITECTURE.md: which modules may start processes, talk to AWS, open SSH, print."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Programs that run on an instance, not here.
_ON_THE_IMAGE = ("localregion/replicas/",)

IMPORTS = {
    "subprocess": {
        "gpu_ami/process.py",
        "validator/transport/ssh.py",  # the program through which SSH reaches a host
        "validator/transport/image_files.py",  # enters an image, as ssh.py does a host
        "validator/transport/transcript.py",  # runs what a check asks over a tree of files
        "validator/transport/cage.py",  # runs as a program beside us, and mounts the image's disk
    },
    "boto3": {"gpu_ami/cloud/client.py", "validator/cloudwatch.py"},
    "paramiko": {"validator/transport/ssh.py", "validator/transport/target.py"},
}
CALLS = {
    "print": {"gpu_ami/cli.py"},
    "sys.exit": {"gpu_ami/cli.py"},
    "os.system": set(),
    "os.fork": {"validator/transport/cage.py"},  # between namespaces
    # validator/plugin.py: Python waits for a thread that a user's check left
    "os._exit": {"localregion/server.py", "validator/transport/cage.py", "validator/plugin.py"},
}


@cache
def sources() -> tuple[tuple[str, ast.Module], ...]:
    """Path and syntax tree of each module, parsed once."""
    paths = [
        path for folder in ("gpu_ami", "localregion", "validator") for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    named = [(path.relative_to(ROOT).as_posix(), path) for path in paths]
    ours = [(name, path) for name, path in named if not name.startswith(_ON_THE_IMAGE)]
    return tuple((name, ast.parse(path.read_text(encoding="utf-8"))) for name, path in ours)


def imported(tree: ast.Module) -> set[str]:
    """Modules imported at run time; what only a type checker reads opens no door."""
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_scanner_sees_what_it_is_for() -> None:
    tree = ast.parse("import subprocess.x\nfrom boto3 import y\nif TYPE_CHECKING:\n    import paramiko\nprint(1)")
    assert imported(tree) == {"subprocess", "boto3"}
    assert list(calls(tree)) == [("print", 5, "")]


def called(function: ast.expr) -> str:
    """The name of a called function, as `print` or `sys.exit`; "" of any other expression."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


@cache
def importing() -> dict[str, set[str]]:
    """Path of each module → what it imports."""
    return {name: imported(tree) for name, tree in sources()}


def calls(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = called(node.func)
            if name in CALLS:
                yield name, node.lineno, " ".join(keyword.arg or "" for keyword in node.keywords)


@pytest.mark.parametrize("module", IMPORTS)
def test_module_is_imported_only_at_its_door(module: str) -> None:
    found = {name for name, modules in importing().items() if module in modules}
    assert found <= IMPORTS[module], f"{module} is imported by {sorted(found - IMPORTS[module])}"


def test_who_prints_and_exits() -> None:
    found = [
        f"{name}:{line}: {call}"
        for name, tree in sources()
        for call, line, keywords in calls(tree)
        if name not in CALLS[call]
        and "file" not in keywords.split()  # print(file=…) writes a file or a stream it was given
    ]
    assert found == []


def test_validator_does_not_know_the_driver() -> None:
    found = [name for name, modules in importing().items() if name.startswith("validator/") and "gpu_ami" in modules]
    assert found == []


def test_programs_of_hosts_import_the_standard_library_alone() -> None:
    """Python of an old image has nothing else; each finds its own package, and those of the event parser, beside it."""
    ours = {"hwevents", "neuron_metrics", "drain_hook", "onhost", "dnf"}  # dnf: of the system's own Python
    found = {
        path.relative_to(ROOT).as_posix(): sorted(modules)
        for path in sorted((ROOT / "onhost").rglob("*.py"))
        if (modules := imported(ast.parse(path.read_text())) - set(sys.stdlib_module_names) - ours)
    }
    assert found == {}


def test_heavy_imports_wait_until_they_are_needed() -> None:
    heavy = {
        "boto3",
        "botocore",
        "moto",
        "paramiko",
        "rich",
        "pytest",
        "testinfra",
        "yaml",
        "ansible",
        "urllib3",
        "debian",
        "zstandard",
        "securesystemslib",
        "cryptography",
        "cyclonedx",
        "packageurl",
        "hcl2",
        "lark",
    }
    assert loaded_by("import gpu_ami.cli; gpu_ami.cli.make_parser()") & heavy == set()


def loaded_by(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after it ran `code`."""
    shown = f"{code}\nimport sys; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_clients_of_the_local_region_load_no_moto() -> None:
    """3.3 of 3.4 s of CPU time, in every command that uses the region, when it was loaded (2026-11-23)."""
    client = "from localregion import images, machines, region"
    assert loaded_by(client) & {"moto", "boto3", "openapi_spec_validator"} == set()


def test_the_region_starts_without_cloudformation() -> None:
    """moto's imports every service that it has. The first call to CloudFormation loads it."""
    daemon = (
        "from localregion import api, backends, machines, server\n"
        "from localregion.machines import factory, reconcile\nbackends.install(stacks=False)"
    )
    loaded = loaded_by(daemon)
    assert "moto" in loaded and "openapi_spec_validator" not in loaded
