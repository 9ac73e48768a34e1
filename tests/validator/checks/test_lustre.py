"""Each Lustre check, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import Judge
from validator.checks import lustre
from validator.plan import as_plan
from validator.plan_document import PlanDocument

AMAZON = as_plan({"os": {"family": "redhat"}, "lustre": {"package": "lustre-client"}})
PINNED = as_plan({"os": {"family": "redhat"}, "lustre": {"package": "lustre-client", "version": "2.15.6-1.amzn2023"}})
UBUNTU = as_plan({"os": {"family": "debian"}, "lustre": {"package": "lustre-client-modules-{release}"}})
RPM = {"rpm*": "lustre-client 0:2.15.6-1.amzn2023\n"}
NONE = {"rpm*": "package lustre-client is not installed\n"}
KERNEL = {"for k*": "6.17.0-1012-aws 2.15.6\n"}
DEB = {"dpkg-query*": "lustre-client-modules-6.17.0-1012-aws installed 2.15.6-1fsx32\n"} | KERNEL
# What lustre-client-modules-aws brings: the module of the newest release, not of the one that runs
# (littlemex/distributed-ai, captured output).
OTHER = {"dpkg-query*": "lustre-client-modules-6.17.0-1019-aws installed 2.15.6-1fsx32\n"} | KERNEL
LFS = {"lfs*": "lfs 2.15.6\n"}

CASES: list[tuple[Any, PlanDocument, dict[str, Any], str, str]] = [
    (lustre.test_client_is_installed, AMAZON, RPM, "PASS", ""),
    (lustre.test_client_is_installed, UBUNTU, DEB, "PASS", ""),
    (
        lustre.test_client_is_installed, UBUNTU, OTHER, "FAIL",
        "lustre-client-modules-6.17.0-1012-aws: expected any version, got missing",
    ),
    (lustre.test_client_is_installed, AMAZON, NONE, "FAIL", "lustre-client: expected any version, got missing"),
    (lustre.test_client_is_installed, PINNED, RPM, "PASS", ""),
    (
        lustre.test_client_is_installed, PINNED, {"rpm*": "lustre-client 0:2.12.8-1.amzn2023\n"}, "FAIL",
        "lustre-client: expected 2.15.6-1.amzn2023, got 2.12.8-1.amzn2023",
    ),
    (lustre.test_client_is_held, AMAZON, RPM | {"cat*": "lustre-client-0:2.15.6-1.amzn2023.*\n"}, "PASS", ""),
    (lustre.test_client_is_held, AMAZON, RPM | {"cat*": ""}, "FAIL", "lustre-client 2.15.6-1.amzn2023 is not held"),
    (lustre.test_client_is_held, AMAZON, NONE, "FAIL", "lustre-client missing is not held"),
    (lustre.test_client_is_held, UBUNTU, DEB | {"apt-mark*": "lustre-client-modules-6.17.0-1012-aws\n"}, "PASS", ""),
    (lustre.test_client_is_held, UBUNTU, DEB | {"apt-mark*": "bash\n"}, "FAIL", "is not held"),
    (lustre.test_every_kernel_has_the_module, AMAZON, LFS | {"for k*": "6.1.0-44 2.15.6\n"}, "PASS", ""),
    (
        lustre.test_every_kernel_has_the_module, AMAZON,
        LFS | {"for k*": "6.1.0-44 2.15.6\n6.1.0-50 missing\n"}, "FAIL",
        "module lustre on disk: expected 2.15.6, got 6.1.0-50: missing",
    ),
    (
        lustre.test_every_kernel_has_the_module, AMAZON, LFS | {"for k*": "6.1.0-44 2.12.8\n"}, "FAIL",
        "expected 2.15.6, got 6.1.0-44: 2.12.8",
    ),
    (lustre.test_every_kernel_has_the_module, AMAZON, {"lfs*": (127, "", "lfs: not found")}, "FAIL", "lfs: not found"),
    (lustre.test_every_kernel_has_the_module, AMAZON, {"lfs*": "\n"}, "FAIL", "lfs --version shows no version: ''"),
    (lustre.test_mount_knows_lustre, AMAZON, {"command*": "/usr/sbin/mount.lustre\n"}, "PASS", ""),
    (lustre.test_mount_knows_lustre, AMAZON, {"command*": (1, "")}, "FAIL", "no mount.lustre in PATH"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "given", "table", "verdict", "message"), CASES)
def test_lustre(
    judge: Judge, check: Any, given: PlanDocument, table: dict[str, Any], verdict: str, message: str
) -> None:
    found = judge(check, table, plan=given)
    assert (found.verdict, message in found.message) == (verdict, True), found
