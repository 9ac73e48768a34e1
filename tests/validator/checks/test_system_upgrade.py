"""The simulated upgrade of a system, once green and once red with its message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.validator.checks.conftest import PLAN, Judge, Since
from tests.validator.checks.test_system import REQUEST
from validator.checks import system, system_upgrade
from validator.plan import as_plan

REPOSITORY = {"url": "https://nvidia.example/amzn2023/", "suite": "./"}
DOCUMENT = as_plan(PLAN | {"roles": ["nvidia_driver"], "nvidia_driver": {"package": "kmod", "repository": REPOSITORY}})
_OFFERED = system_upgrade.test_newer_versions_leave_the_stack_alone
_ASKED = system_upgrade.test_repositories_leave_the_stack_alone


def says(*changes: tuple[str, str, str, str], **other: Any) -> dict[str, str]:
    """What the program answers."""
    rows = [dict(zip(("name", "from", "to", "source"), change, strict=True)) for change in changes]
    answer = {"stack": ["dkms", "kmod"], "to_hold": ["dkms", "kmod"], "held": ["dkms", "kmod"], "changes": rows}
    answer |= {"problem": "", "unable": ""}
    return {"p=*system_upgrade*": json.dumps(answer | other)}


PROBLEM = "\n Problem: package common-3:595 requires kmod = 3:595, but none of the providers can be installed"
CASES = [
    (_OFFERED, says(), "PASS", ""),
    (
        _OFFERED,
        says(("dkms", "3.0", "3.0.9999", "offer"), ("linux-image-9999", "", "6.1", "")),
        "FAIL",
        "an upgrade would change the stack: dkms 3.0 → 3.0.9999 from offer; linux-image-9999 (new) 6.1",
    ),
    (_OFFERED, says(("kmod", "3", "", "")), "FAIL", "an upgrade would change the stack: kmod 3 (removed)"),
    (
        _OFFERED,
        says(problem=PROBLEM, held=["kmod"]),
        "FAIL",
        f"an upgrade is refused: {PROBLEM.strip()}\nnot held: dkms",
    ),
    (_OFFERED, says(held=["kmod"]), "FAIL", "packages of the stack that are not held: dkms"),
    (_OFFERED, says(stack=[]), "UNPROVEN", "the plan names no package"),
    (_OFFERED, says(unable="no dnf"), "UNPROVEN", "packages and their upgrade: no dnf"),
    (_ASKED, says(("bash", "5.1", "5.2", "amazonlinux")), "PASS", ""),
    (_ASKED, says(("dkms", "3.0", "3.4", "any")), "FAIL", "an upgrade would change the stack: dkms 3.0 → 3.4 from any"),
    # a package that came with the planned ones, and of which the check's own closure knows nothing
    (
        _ASKED,
        says(("extra", "1", "2", "nvidia.example-amzn2023")),
        "FAIL",
        "an upgrade would change the stack: extra 1 → 2 from nvidia.example-amzn2023",
    ),
    (_ASKED, says(problem=PROBLEM), "FAIL", "an upgrade is refused"),
    (_ASKED, says(problem="Problem: bash needs glibc"), "UNPROVEN", "refused, and not for a package of the plan"),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_check(judge: Judge, check: Any, table: dict[str, str], verdict: str, message: str) -> None:
    judged = judge(check, table, plan=DOCUMENT)
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


_INPUTS = ("/usr", "/etc/apt", "/var/lib/dpkg")
_EFA = as_plan(DOCUMENT | {"roles": ["nvidia_driver", "efa"], "efa": {"version": "1.43.0"}})
_RPM = as_plan(DOCUMENT | {"os": {"id": "amzn", "family": "redhat", "ssh_user": "ec2-user"}})


@pytest.mark.parametrize(
    ("plan", "since", "asked"),
    [
        (DOCUMENT, Since(_INPUTS), False),
        *((DOCUMENT, Since(tuple(path for path in _INPUTS if path != changed)), True) for changed in _INPUTS),
        (DOCUMENT, Since(_INPUTS, judged=False), True),
        (_EFA, Since(_INPUTS), True),  # the installer's record of its packages may have changed
        (_EFA, Since((*_INPUTS, "/opt/amazon")), False),
        (_RPM, Since((*_INPUTS, "/var/lib/rpm")), True),
    ],
)
@pytest.mark.parametrize("check", [_OFFERED, system.test_held_packages_are_of_roles])
def test_a_machine_is_asked_where_an_input_may_have_changed(
    judge: Judge, check: Any, plan: Any, since: Since, asked: bool
) -> None:
    """Else the verdict on the image's files stands, and the report says of which directories."""
    table = says(("dkms", "3.0", "3.0.9999", "offer"), held=["other"])
    further = {"request": REQUEST} if check is system.test_held_packages_are_of_roles else {}
    judged = judge(check, table if asked else {}, plan=plan, since_image=since, **further)
    assert judged.verdict == ("FAIL" if asked else "PASS"), judged.message
    assert ("unchanged since the image" in str(judged.check.observed)) is not asked


def test_both_checks_send_the_same_command(judge: Judge) -> None:
    """The engine runs it once for both."""
    sent: list[str] = []

    def answer(text: str) -> str:
        sent.append(text)
        return says()["p=*system_upgrade*"]

    judge(_OFFERED, {"p=*system_upgrade*": answer}, plan=DOCUMENT)
    judge(system.test_held_packages_are_of_roles, {"p=*system_upgrade*": answer}, plan=DOCUMENT, request=REQUEST)
    assert len(sent) == 2 and sent[0] == sent[1]


def test_holds_are_known_where_no_upgrade_can_be_simulated(judge: Judge) -> None:
    check = system.test_held_packages_are_of_roles
    judged = judge(check, says(unable="apt-get update: no space"), plan=DOCUMENT, request=REQUEST)
    assert judged.verdict == "PASS", judged.message


def test_many_changes_are_counted(judge: Judge) -> None:
    judged = judge(_OFFERED, says(*((f"p{number}", "1", "2", "") for number in range(13))), plan=DOCUMENT)
    assert judged.message.endswith("p9 1 → 2 and 3 more")


def test_components_of_the_base_ami_are_its_own(judge: Judge) -> None:
    """What the base AMI brings it holds, or not; the plan's roles have installed none of it."""
    asked: list[str] = []
    provided = as_plan(PLAN | {"roles": ["nvidia_driver", "cloudwatch_agent"], "nvidia_driver": {"provided_by": "x"}})
    judge(
        _OFFERED, {"p=*system_upgrade*": lambda text: asked.append(text) or says()["p=*system_upgrade*"]}, plan=provided
    )
    assert '"planned": ["amazon-cloudwatch-agent"], "records": [], "kernel": []' in asked[0]
