"""Each check of the system's own programs and records, once green and once red with its message."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.validator.checks.conftest import PLAN, Judge
from tests.validator.probes.test_alternatives import AWK
from validator.checks import system
from validator.plan import as_plan

ROLES = Path(__file__).parents[3] / "roles"
WITH_NODE = as_plan(PLAN | {"node": {"family": "ec2"}, "roles": ["efa"]})
SITE = as_plan(PLAN | {"node": {"family": "ec2"}, "roles": ["acme"]})
EKS = as_plan(PLAN | {"node": {"family": "eks"}})
AL2023 = as_plan(PLAN | {"node": {"family": "ec2"}, "os": {**PLAN["os"], "family": "redhat"}})
_TOOLS, _LINKS, _HELD = (
    system.test_tools_of_the_checks_work,
    system.test_alternatives_are_registered,
    system.test_held_packages_are_of_roles,
)


def in_shell(path: str = "") -> Any:
    """Runs the command here, with a folder of programs before the system's."""

    def run(command: str) -> tuple[int, str]:
        done = subprocess.run(
            ["sh", "-c", f"PATH={path}:$PATH\n{command}"], capture_output=True, text=True, timeout=30, check=False
        )
        return done.returncode, done.stdout

    return {"*": run}


def test_tools_of_this_machine_work(judge: Judge) -> None:
    assert judge(_TOOLS, in_shell(), plan=WITH_NODE).verdict == "PASS"


@pytest.mark.parametrize("tool", [name for name, _, _ in system._TOOLS])
def test_tool_that_does_nothing_is_named(judge: Judge, tool: str, tmp_path: Any) -> None:
    (tmp_path / tool).symlink_to("/bin/true")
    judged = judge(_TOOLS, in_shell(str(tmp_path)), plan=WITH_NODE)
    assert (judged.verdict, f"{tool}: expected" in judged.message) == ("FAIL", True), judged


CASES: list[tuple[Any, dict[str, Any], str, str, Any]] = [
    (_LINKS, {"for file*": AWK}, "PASS", "", WITH_NODE),
    (
        _LINKS,
        {"for file*": AWK.replace("/usr/bin/mawk\nauto", "/usr/bin/true\nauto")},
        "FAIL",
        "alternatives that no package registered: awk leads to /usr/bin/true",
        WITH_NODE,
    ),
    (_LINKS, {"for file*": ""}, "UNPROVEN", "no database of update-alternatives", WITH_NODE),
    (_HELD, {"dpkg-query*": "install bash\nhold nvidia-open-dkms\nhold libnccl-ofi\n"}, "PASS", "", WITH_NODE),
    (
        _HELD,
        {"dpkg-query*": "install bash\nhold openssl\n"},
        "FAIL",
        "held packages of no planned role: openssl",
        WITH_NODE,
    ),
    (_HELD, {"dpkg-query*": "hold acme\n"}, "UNPROVEN", "held: acme (roles without meta/footprint.yml: acme)", SITE),
    (_HELD, {}, "UNPROVEN", "holds packages of its own", EKS),
    (_HELD, {}, "UNPROVEN", "files of the package manager", AL2023),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message", "plan"), CASES)
def test_check(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str, plan: Any) -> None:
    request = SimpleNamespace(config=SimpleNamespace(getoption=lambda _: [ROLES]))
    judged = judge(check, table, plan=plan, **({"request": request} if check is _HELD else {}))
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("installed", "PASS"),
        ((2, "", "dpkg-query: error: parsing file '/var/lib/dpkg/status' near line 2:\n"), "FAIL"),
    ],
)
def test_damaged_package_database_is_the_finding(judge: Judge, reply: Any, verdict: str) -> None:
    judged = judge(system.test_package_database_can_be_read, {"dpkg-query*": reply}, plan=WITH_NODE)
    assert judged.verdict == verdict
    assert verdict == "PASS" or judged.message.startswith("the package database cannot be read: /var/lib/dpkg/status")


def test_damaged_package_database_is_no_second_finding(judge: Judge) -> None:
    request = SimpleNamespace(config=SimpleNamespace(getoption=lambda _: [ROLES]))
    table = {"dpkg-query*": (2, "", "dpkg-query: error: parsing file\n")}
    judged = judge(_HELD, table, plan=WITH_NODE, request=request)
    assert judged.verdict == "UNPROVEN" and "system::test_package_database_can_be_read" in judged.message
