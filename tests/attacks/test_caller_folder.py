"""Attempt 2: files and variables of the folder in which a host is validated take no part in the proof."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.conftest import GpuAmi
from tests.validate.recorded import write_plan
from tests.validator.conftest import Sshd

pytestmark = pytest.mark.slow
_EVIL = "import os, pathlib\npathlib.Path(os.environ['MARK']).write_text(__name__)\n"
_PASSES = f"{_EVIL}\ndef pytest_pyfunc_call(pyfuncitem):\n    return True\n"
# Files of the folder → content; checks/ is what the user names with --checks.
FILES = {
    "conftest.py": _PASSES,
    "secrets.py": _EVIL,
    "json.py": _EVIL,
    "testinfra.py": _EVIL,
    "evil.py": _PASSES,
    "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-n auto -k nothing"\n',
    "checks/secrets.py": _EVIL,
    "checks/shlex.py": _EVIL,
}
CONFIGURATIONS = {
    "pytest.ini": "[pytest]\naddopts = --deselect checks/test_mine.py -m nothing\n",
    "tox.ini": "[pytest]\npython_functions = none_*\naddopts = -p evil\n",
}
VARIABLES = {
    "PYTEST_PLUGINS": "evil",
    "PYTEST_ADDOPTS": "--deselect checks/test_mine.py -k nothing",
    "PYTHONOPTIMIZE": "2",
}
_CHECKS = "def test_fails(host):\n    assert host.run('echo seen').stdout == 'other'\n"


def validate(gpu_ami: GpuAmi, sshd: Sshd, folder: Path, env: dict[str, str] | None = None) -> dict[str, Any]:
    """The report of a host whose only selected check fails."""
    checks = folder / "checks"
    checks.mkdir(exist_ok=True)
    (checks / "test_mine.py").write_text(_CHECKS)
    address = f"{getpass.getuser()}@127.0.0.1:{sshd.port}"
    words = ("validate", "--host", address, "-i", sshd.key, "--checks", "checks", "-k", "test_fails", "-q")
    done = gpu_ami(*words, cwd=folder, env={"MARK": str(folder / "mark")} | (env or {}))
    assert done.returncode == 1, done.stdout + done.stderr
    report: dict[str, Any] = json.loads((folder / "out" / "host" / "report.json").read_text())
    return report


def verdicts(host: dict[str, Any]) -> dict[str, str]:
    """Those of checks that ran: restarts were not asked for."""
    return {check["id"]: check["verdict"] for check in host["checks"] if not check["id"].startswith("boot::")}


def unnamed(host: dict[str, Any]) -> list[str]:
    return [program["name"] for program in host["programs"] if not program["named"]]


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_files_and_variables_of_the_caller_do_nothing(
    configuration: str, gpu_ami: GpuAmi, sshd: Sshd, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    for file, text in (FILES | {configuration: CONFIGURATIONS[configuration]}).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    (host,) = validate(gpu_ami, sshd, folder, VARIABLES)["hosts"]
    assert not (folder / "mark").exists(), (folder / "mark").read_text()
    assert verdicts(host) == {"test_mine::test_fails": "FAIL"}
    assert host["isolated"] and unnamed(host) == []


def test_a_conftest_of_a_named_folder_is_listed(gpu_ami: GpuAmi, sshd: Sshd, tmp_path: Path) -> None:
    """Its owner may do all that checks do; the report says that it was there, and from which content."""
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "conftest.py").write_text("import helper\n")
    (tmp_path / "checks" / "helper.py").write_text("")
    (host,) = validate(gpu_ami, sshd, tmp_path)["hosts"]
    listed = {(program["kind"], Path(program["name"]).name): program for program in host["programs"]}
    assert {("conftest", "conftest.py"), ("checks", "test_mine.py"), ("module", "helper.py")} <= set(listed)
    assert ("plugin", "validator.plugin") in listed and any(name.startswith("pytest ") for _, name in listed)
    assert unnamed(host) == [] and all(program["digest"].startswith("sha256:") for program in listed.values())


# What public suites have in their conftest.py, and what would change verdicts of the built-in checks.
_SUITE = """\
import pytest


@pytest.fixture(autouse=True)
def broken_for_others(request):
    assert "test_mine" in request.node.nodeid


@pytest.fixture
def host(host):
    return host


@pytest.fixture
def observe():
    return None


@pytest.fixture
def plan():
    return {}


def pytest_collection_modifyitems(config, items):
    for item in items:
        item.add_marker(pytest.mark.xfail(reason="of the folder"))
        item.obj = lambda **_: None
    items[:] = [item for item in items if "another" not in item.nodeid]
"""
_SUITE_CHECKS = """\
def test_own(host, observe, plan):
    assert (observe, plan) == (None, {})


def test_another(host):
    assert False
"""
_WRAPPER = """\
import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items):
    del items[1:]
    return (yield)
"""


def of_a_suite(gpu_ami: GpuAmi, sshd: Sshd, folder: Path, files: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Verdict and message of one file of built-in checks and of those of a folder with these files."""
    for name, text in files.items():
        (folder / "checks" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "checks" / name).write_text(text)
    address = f"{getpass.getuser()}@127.0.0.1:{sshd.port}"
    words = ("validate", "--host", address, "-i", sshd.key, "--checks", "checks", "-k", "system.py or mine", "-q")
    done = gpu_ami(*words, cwd=folder)
    assert done.returncode in (0, 1, 7), done.stdout + done.stderr
    (host,) = json.loads((folder / "out" / "host" / "report.json").read_text())["hosts"]
    return {
        check["id"]: (check["verdict"], check.get("message", ""))
        for check in host["checks"]
        if check["id"].startswith(("system::", "test_mine")) and check["id"] != "test_mine::test_it"
    }


def test_a_conftest_of_a_named_folder_is_of_that_folder(gpu_ami: GpuAmi, sshd: Sshd, tmp_path: Path) -> None:
    """Its fixtures and pytest_collection_modifyitems change neither machine nor verdict of the built-in checks."""
    alone = of_a_suite(gpu_ami, sshd, tmp_path / "alone", {"test_mine.py": "def test_it(host):\n    pass\n"})
    files = {"conftest.py": _SUITE, "test_mine.py": _SUITE_CHECKS}
    files |= {"sub/conftest.py": _WRAPPER, "sub/test_mine_too.py": "def test_1(host): ...\ndef test_2(host): ...\n"}
    suite = of_a_suite(gpu_ami, sshd, tmp_path / "suite", files)
    mine = {"test_mine::test_own": ("PASS", ""), "test_mine_too::test_1": ("PASS", "")}
    assert len(alone) > 3 and suite == {**alone, **mine}


@pytest.mark.parametrize("file", ["conftest.py", "test_mine.py"])
def test_a_fixture_host_of_another_machine_is_refused(file: str, gpu_ami: GpuAmi, sshd: Sshd, tmp_path: Path) -> None:
    """Public suites have `testinfra.get_host("local://")`: this machine would be judged for the examined one."""
    checks = tmp_path / "checks"
    checks.mkdir()
    (checks / "test_mine.py").write_text("def test_own(host):\n    pass\n")
    fixture = 'import pytest, testinfra\n\n@pytest.fixture\ndef host():\n    return testinfra.get_host("local://")\n'
    with (checks / file).open("a") as text:
        text.write(fixture)
    address = f"{getpass.getuser()}@127.0.0.1:{sshd.port}"
    done = gpu_ami("validate", "--host", address, "-i", sshd.key, "--checks", "checks", "-q", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    said = f"test_own: the fixture host in {checks / file} replaces the examined machine; let it take `host`"
    assert said in done.stderr.decode()


def test_a_filter_of_warnings_works_as_in_pytest(gpu_ami: GpuAmi, sshd: Sshd, tmp_path: Path) -> None:
    checks = tmp_path / "checks"
    checks.mkdir()
    text = (
        "import warnings, pytest\n\n@pytest.mark.filterwarnings('error')\ndef test_own(host):\n    warnings.warn('x')\n"
    )
    (checks / "test_mine.py").write_text(text)
    address = f"{getpass.getuser()}@127.0.0.1:{sshd.port}"
    gpu_ami("validate", "--host", address, "-i", sshd.key, "--checks", "checks", "-k", "mine", "-q", cwd=tmp_path)
    (host,) = json.loads((tmp_path / "out" / "host" / "report.json").read_text())["hosts"]
    assert verdicts(host) == {"test_mine::test_own": "ERROR"}


def test_a_package_above_a_named_folder_is_listed_as_unnamed(gpu_ami: GpuAmi, sshd: Sshd, tmp_path: Path) -> None:
    """Python runs the package that a check is in. Such a run gets no certificate (tests/report/test_certificate.py)."""
    folder = tmp_path / "project"
    (folder / "checks").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "checks" / "__init__.py").write_text("")
    (host,) = validate(gpu_ami, sshd, folder)["hosts"]
    assert unnamed(host) == [str(folder / "__init__.py")]


def test_a_checkout_is_no_folder_of_strangers(gpu_ami: GpuAmi, sshd: Sshd, tmp_path: Path) -> None:
    """`make prove` works in the checkout from which gpu-ami is installed: nothing of ours is unnamed there."""
    checks, out = tmp_path / "checks", tmp_path / "out"
    checks.mkdir()
    out.mkdir()
    write_plan(out)
    (checks / "test_mine.py").write_text(_CHECKS)
    address = f"{getpass.getuser()}@127.0.0.1:{sshd.port}"
    words = ("validate", out, "--host", address, "-i", sshd.key, "--checks", checks, "-k", "test_fails", "-q")
    done = gpu_ami(*words, cwd=Path(__file__).resolve().parents[2])
    assert done.returncode == 1, done.stdout + done.stderr
    (host,) = json.loads((out / "report.json").read_text())["hosts"]
    assert unnamed(host) == []
