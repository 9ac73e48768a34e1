"""Each kernel check, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import Judge
from validator.checks import kernel
from validator.plan import as_plan
from validator.plan_document import PlanDocument

SECTION = {"version": "6.1", "package": "linux-image-cloud-amd64", "hold": ["linux-headers-cloud-amd64", "linux-aws"]}
PLAN = as_plan({"os": {"family": "debian"}, "kernel": SECTION})
FOLLOWS = as_plan({"os": {"family": "debian"}, "kernel": {**SECTION, "version": "7.0", "follows": ["7.0", "6.17"]}})
REDHAT = as_plan(
    {"os": {"family": "redhat"}, "kernel": {"version": "6.1", "package": "kernel", "hold": ["kernel-devel"]}}
)
HELD = "linux-image-cloud-amd64 hold hold ok installed\nlinux-headers-cloud-amd64 hold hold ok installed\n"
RELEASE = "6.1.0-44-cloud-amd64"
HEADERS = f'#define UTS_RELEASE "{RELEASE}"\n'
RPMS = "kernel 6.1.155-176.282.amzn2023\nkernel-devel 6.1.155-176.282.amzn2023\n"
LOCKS = "kernel-0:6.1.155-176.282.amzn2023.*\nkernel-devel-0:6.1.155-176.282.amzn2023.*\n"

CASES: list[tuple[Any, PlanDocument, dict[str, Any], str, str]] = [
    (kernel.test_running_kernel_is_of_the_planned_line, PLAN, {"uname*": f"{RELEASE}\n"}, "PASS", ""),
    (
        kernel.test_running_kernel_is_of_the_planned_line, PLAN, {"uname*": "6.12.58-82.121.amzn2023.x86_64\n"}, "FAIL",
        "running kernel: expected line 6.1, got 6.12.58-82.121.amzn2023.x86_64",
    ),
    # Ubuntu's AMIs of one name boot one series after the other; a newer one is judged by what is built for it.
    (kernel.test_running_kernel_is_of_the_planned_line, FOLLOWS, {"uname*": "6.17.0-1019-aws\n"}, "PASS", ""),
    (kernel.test_running_kernel_is_of_the_planned_line, FOLLOWS, {"uname*": "7.2.0-1001-aws\n"}, "PASS", ""),
    (
        kernel.test_running_kernel_is_of_the_planned_line, FOLLOWS, {"uname*": "6.14.0-1011-aws\n"}, "FAIL",
        "running kernel: expected line 7.0 or 6.17, got 6.14.0-1011-aws",
    ),
    (
        kernel.test_every_installed_kernel_is_of_the_planned_line, PLAN,
        {"ls*": f"config-{RELEASE}\nvmlinuz-{RELEASE}\nvmlinuz-0-rescue-abc\n"}, "PASS", "",
    ),
    (
        kernel.test_every_installed_kernel_is_of_the_planned_line, PLAN,
        {"ls*": f"vmlinuz-{RELEASE}\nvmlinuz-6.12.57+deb12-cloud-amd64\n"}, "FAIL",
        "kernels in /boot: expected only line 6.1, got 6.12.57+deb12-cloud-amd64",
    ),
    (kernel.test_every_installed_kernel_is_of_the_planned_line, PLAN, {"ls*": "grub\n"}, "FAIL",
     "kernels in /boot: expected only line 6.1, got none"),
    (
        kernel.test_modules_can_be_built_for_the_running_kernel, PLAN, {"uname*": f"{RELEASE}\n", "cat*": HEADERS},
        "PASS", "",
    ),
    (
        kernel.test_modules_can_be_built_for_the_running_kernel, PLAN,
        {"uname*": "6.1.0-50-cloud-amd64\n", "cat*": HEADERS}, "FAIL",
        f"headers in /lib/modules/6.1.0-50-cloud-amd64/build: expected 6.1.0-50-cloud-amd64, got {RELEASE}",
    ),
    (
        kernel.test_modules_can_be_built_for_the_running_kernel, PLAN,
        {"uname*": f"{RELEASE}\n", "cat*": (1, "", "No such file")}, "FAIL",
         "headers in /lib/modules/6.1.0-44-cloud-amd64/build: expected 6.1.0-44-cloud-amd64, got none",
    ),
    (kernel.test_kernel_is_held, PLAN, {"dpkg-query*": HELD}, "PASS", ""),
    (
        kernel.test_kernel_is_held, PLAN,
        {"dpkg-query*": HELD.replace("headers-cloud-amd64 hold hold", "headers-cloud-amd64 install install")}, "FAIL",
        "not held: linux-headers-cloud-amd64",
    ),
    (
        kernel.test_kernel_is_held, PLAN, {"dpkg-query*": HELD.splitlines()[1]}, "FAIL",
        "linux-image-cloud-amd64 is not installed",
    ),
    (kernel.test_kernel_is_held, REDHAT, {"rpm*": RPMS, "cat*": LOCKS}, "PASS", ""),
    (
        kernel.test_kernel_is_held, REDHAT, {"rpm*": RPMS, "cat*": LOCKS.splitlines()[1]}, "FAIL",
        "not held: kernel",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("check", "plan", "table", "verdict", "message"), CASES)
def test_kernel(
    judge: Judge, check: Any, plan: PlanDocument, table: dict[str, Any], verdict: str, message: str
) -> None:
    found = judge(check, table, plan=plan)
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(
    ("release", "line", "same"),
    [
        ("6.1.0-44-cloud-amd64", "6.1", True),
        ("6.12.58-82.121.amzn2023.x86_64", "6.1", False),
        ("6.17.0-1009-aws", "6.17", True),
        ("5.10.245-241.978.amzn2.x86_64", "5.1", False),
    ],
)
def test_line_of_a_release(release: str, line: str, same: bool) -> None:
    assert kernel.is_of_line(release, line) is same
