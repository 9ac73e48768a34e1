"""Each check of the system's own programs and records, once green and once red with its message."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.validator.checks.conftest import PLAN, Judge
from tests.validator.probes.test_settings import AWK, LINKS
from validator.checks import system
from validator.plan import as_plan

ROLES = Path(__file__).parents[3] / "roles"
WITH_NODE = as_plan(PLAN | {"node": {"family": "ec2"}, "roles": ["efa"]})
SITE = as_plan(PLAN | {"node": {"family": "ec2"}, "roles": ["acme"]})
EKS = as_plan(PLAN | {"node": {"family": "eks"}, "roles": ["efa"]})
AL2023 = as_plan(PLAN | {"node": {"family": "ec2"}, "roles": ["efa"], "os": {**PLAN["os"], "family": "redhat"}})
OPTIONS = {"roles_path": [ROLES], "base_inventory": None, "plan": None}
REQUEST = SimpleNamespace(config=SimpleNamespace(getoption=OPTIONS.get))
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


def holding(*held: str, unable: str = "") -> dict[str, Any]:
    """A host whose package manager holds these packages; `came-along` is of the stack."""
    answer = {"to_hold": [], "held": held, "changes": [], "problem": "", "unable": unable}
    answer |= {} if unable else {"stack": ["came-along"]}  # packages that cannot be read
    return {"p=*system_upgrade*": json.dumps(answer), "sha256sum*": (1, "")}


def test_tools_of_this_machine_work(judge: Judge) -> None:
    assert judge(_TOOLS, in_shell(), plan=WITH_NODE).verdict == "PASS"


@pytest.mark.parametrize("tool", [name for name, _, _ in system.TOOLS])
def test_tool_that_does_nothing_is_named(judge: Judge, tool: str, tmp_path: Any) -> None:
    (tmp_path / tool).symlink_to("/bin/true")
    judged = judge(_TOOLS, in_shell(str(tmp_path)), plan=WITH_NODE)
    assert (judged.verdict, f"{tool}: expected" in judged.message) == ("FAIL", True), judged


CASES: list[tuple[Any, dict[str, Any], str, str, Any]] = [
    (
        _LINKS,
        {"find -L /var/lib/dpkg/alternatives*": AWK + LINKS.replace("ld\n/usr/bin/ld.bfd\n", "")},
        "PASS",
        "",
        WITH_NODE,
    ),
    (
        _LINKS,
        {"find -L /var/lib/dpkg/alternatives*": AWK + LINKS.replace("awk\n/usr/bin/mawk", "awk\n/usr/bin/true")},
        "FAIL",
        "alternatives that no package registered: awk leads to /usr/bin/true, ld leads to /usr/bin/ld.bfd, nawk leads",
        WITH_NODE,
    ),
    (
        _LINKS,
        {"find -L /var/lib/dpkg/alternatives*": AWK + "\x02"},
        "FAIL",
        "registered: awk leads to nothing",
        WITH_NODE,
    ),
    (_LINKS, {"find -L /var/lib/dpkg/alternatives*": ""}, "UNPROVEN", "no database of update-alternatives", WITH_NODE),
    (_HELD, holding("nvidia-open-dkms", "libnccl-ofi", "came-along"), "PASS", "", WITH_NODE),
    (_HELD, holding("openssl"), "FAIL", "held packages of no planned role: openssl", WITH_NODE),
    (_HELD, holding("acme"), "UNPROVEN", "held: acme (roles without meta/footprint.yml: acme)", SITE),
    (_HELD, holding("containerd"), "UNPROVEN", "held: containerd (which of these the base AMI holds is not known", EKS),
    (_HELD, holding("nvidia-open-dkms"), "PASS", "", EKS),
    (_HELD, holding("openssl"), "FAIL", "held packages of no planned role: openssl", AL2023),
    (_HELD, holding("nvidia-open-dkms"), "PASS", "", AL2023),
    (_HELD, holding(unable="rpm -qa: error"), "UNPROVEN", "packages and their upgrade: rpm -qa: error", AL2023),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message", "plan"), CASES)
def test_check(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str, plan: Any) -> None:
    judged = judge(check, table, plan=plan, **({"request": REQUEST} if check is _HELD else {}))
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
    table = {"dpkg-query*": (2, "", "dpkg-query: error: parsing file\n")}
    judged = judge(_HELD, table, plan=WITH_NODE, request=REQUEST)
    assert judged.verdict == "UNPROVEN" and "system::test_package_database_can_be_read" in judged.message


def test_base_ami_may_hold_its_own_packages(judge: Judge, tmp_path: Path) -> None:
    """As EKS does with containerd: its inventory says so. A lock that the inventory has not is a finding."""
    header = {
        "schema": "gpu-ami/inventory/1",
        "running": True,
        "time": 1,
        "os": "amzn",
        "os_version": "2023",
        "accounts": {},
        "groups": {},
    }
    lines = [header | {"held": ["containerd-0:2.1-1.amzn2023.*"]}, {"end": 0}]
    data = gzip.compress("\n".join(map(json.dumps, lines)).encode())
    (tmp_path / "base-inventory.jsonl.gz").write_bytes(data)
    request = SimpleNamespace(config=SimpleNamespace(getoption=(OPTIONS | {"base_inventory": tmp_path}).get))
    digest = {"sha256sum*": f"{hashlib.sha256(data).hexdigest()}  x\n", "cat *": (1, "")}
    for held, verdict in ((("containerd",), "PASS"), (("containerd", "openssl"), "FAIL")):
        judged = judge(_HELD, holding(*held) | digest, plan=EKS, request=request)
        assert judged.verdict == verdict, judged
    assert judged.message == "held packages of no planned role: openssl"
