"""Each check of the driver's packages, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import PLAN, Judge, Since
from validator.checks import nvidia_driver as driver
from validator.plan import as_plan

OWNED: dict[str, Any] = {
    "dpkg-query -W*": "nvidia-open-dkms installed 550.163.01-1\nnvidia-driver-cuda installed 550.163.01-1\n",
    "for p in nvidia-smi nvidia-persistenced*": "nvidia-smi:amd64: /usr/bin/nvidia-smi\n",
}
VERIFIED = """\
??5?????? c /etc/nvidia/x.conf
??5??????   /usr/bin/nvidia-smi
.M.......   /usr/bin/nvidia-debugdump
missing     /usr/share/doc/nvidia-smi/copyright
missing     /usr/lib/libcuda.so.1
"""

CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (driver.test_files_are_the_packages_own, OWNED | {"dpkg --verify*": ""}, "PASS", ""),
    (
        driver.test_files_are_the_packages_own,
        OWNED | {"dpkg --verify*": (1, VERIFIED)},
        "FAIL",
        "files that differ from the packages of nvidia_driver: /usr/bin/nvidia-smi; /usr/lib/libcuda.so.1 (missing)",
    ),
    (
        driver.test_files_are_the_packages_own,
        OWNED | {"dpkg --verify*": (2, "", "dpkg: error: the database is locked\n")},
        "UNPROVEN",
        "dpkg cannot verify the files: dpkg: error: the database is locked",
    ),
    (
        driver.test_files_are_the_packages_own,
        {"dpkg-query -W*": (1, ""), "for p in*": ""},
        "UNPROVEN",
        "nvidia_driver was not installed from a package",
    ),
    (
        driver.test_packages_are_the_planned_ones,
        {"dpkg-query*": "nvidia-driver-cuda installed 550.163.01-1\nnvidia-open-dkms installed 550.163.01-1\n"},
        "PASS",
        "",
    ),
    (
        driver.test_packages_are_the_planned_ones,
        {"dpkg-query*": "nvidia-open-dkms installed 550.163.01-1\n"},
        "FAIL",
        "'nvidia-driver-cuda': 'missing'",
    ),
    (driver.test_packages_are_held, {"apt-mark*": "nvidia-driver-cuda\nnvidia-open-dkms\n"}, "PASS", ""),
    (
        driver.test_packages_are_held,
        {"apt-mark*": "nvidia-driver-cuda\n"},
        "FAIL",
        "not held, so an upgrade would change them: nvidia-open-dkms",
    ),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_packages(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    outcome = judge(check, table)
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome


@pytest.mark.parametrize("check", [driver.test_packages_are_the_planned_ones, driver.test_packages_are_held])
def test_packages_of_the_base_ami_are_unproven(judge: Judge, check: Any) -> None:
    """ParallelCluster's AMI brings its driver along: the plan names its version, and no packages."""
    provided = {"version": "595.112.07", "provided_by": "parallelcluster 3.16.3"}
    outcome = judge(check, {}, plan=as_plan({**PLAN, "nvidia_driver": provided}))
    assert (outcome.verdict, "base AMI's (parallelcluster 3.16.3)" in outcome.message) == ("UNPROVEN", True)


def test_owners_of_programs_are_verified_too(judge: Judge) -> None:
    asked: list[str] = []

    def verify(command: str) -> str:
        asked.append(command)
        return ""

    assert judge(driver.test_files_are_the_packages_own, OWNED | {"dpkg --verify*": verify}).verdict == "PASS"
    assert asked == ["dpkg --verify nvidia-driver-cuda nvidia-open-dkms nvidia-smi"]


def test_rpm_verifies_only_contents(judge: Judge) -> None:
    plan = as_plan({**PLAN, "os": {"id": "amzn", "family": "redhat", "ssh_user": "ec2-user"}})
    table = {
        "rpm -q --qf*": "nvidia-open-dkms 3:550.163.01-1\nnvidia-driver-cuda 3:550.163.01-1\n",
        "for p in*rpm -qf*": "nvidia-driver-cuda: \n",
        "rpm --verify*": (2, "S.5....T.    /usr/bin/nvidia-smi\nS.5....T.  c /etc/x.conf\n.......T.    /usr/bin/y\n"),
    }
    outcome = judge(driver.test_files_are_the_packages_own, table, plan=plan)
    assert outcome.message == "files that differ from the packages of nvidia_driver: /usr/bin/nvidia-smi"


_DKMS_STATUS = "nvidia/550.163.01, 6.1.0-1, x86_64: installed\n"


@pytest.mark.parametrize(("kept", "asked"), [(driver.DKMS_MODULE, False), (driver.DKMS_MODULE[1:], True), ((), True)])
def test_dkms_is_asked_again_where_it_may_have_changed(judge: Judge, kept: tuple[str, ...], asked: bool) -> None:
    since = Since(kept)
    status = {"dkms status": _DKMS_STATUS.replace("installed", "built"), "cd /lib/modules*": "6.1.0-1\n"}
    judgement = judge(driver.test_dkms_built_for_every_kernel, status if asked else {}, since_image=since)
    assert judgement.verdict == ("FAIL" if asked else "PASS"), judgement.message
    assert ("seen" in str(judgement.check.observed)) is not asked
    table = {"dkms status": _DKMS_STATUS, "cd /lib/modules*": "6.1.0-1\n"}
    judgement = judge(driver.test_dkms_built_for_every_kernel, table, since_image=Since(kept, judged=False))
    assert judgement.verdict == "PASS" and "seen" not in str(judgement.check.observed)
