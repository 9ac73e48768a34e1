"""Each check of a base AMI with several drivers, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest
import testinfra.host

from tests.scripted_host import ScriptedHost
from tests.validator.checks.conftest import METADATA, PLAN, FakeMachine, Judge
from validator.checks import device_nodes, driver_branches, efa, fabric_manager, nvidia_driver
from validator.observe import Observe
from validator.plan import as_plan
from validator.results import CheckRecord, RunningCheck
from validator.transport import backend

LTS, PB = "580.178.04", "595.91.07"
A10G, RTX = "NVIDIA A10G", "NVIDIA RTX PRO 4500 Blackwell Server Edition"
LIST = "/etc/eks/nvidia-open-supported-devices-%s.txt"


def branch(name: str, version: str, *types: str) -> dict[str, Any]:
    listed = LIST % version[:3]
    return {"version": version, "tree": f"/opt/nvidia/{name}", "open_list": listed, "instance_types": list(types)}


ON_EKS = as_plan(
    PLAN
    | {
        "node": {"family": "eks", "version": "1.35", "variant": "nvidia"},
        "instance_types": [
            {"name": "g5.12xlarge", "gpu_count": 4, "gpu": {"name": A10G}, "nvswitch": False},
            {"name": "g7.12xlarge", "gpu_count": 2, "gpu": {"name": RTX}, "nvswitch": False},
        ],
        "fabric_manager": {"version": LTS, "provided_by": "eks 1.35 nvidia v20260923", "instance_types": []},
        "nvidia_driver": {
            "version": LTS,
            "provided_by": "eks 1.35 nvidia v20260923",
            "flavour": "boot",
            "flavour_by_instance_type": {"g5.12xlarge": "proprietary", "g7.12xlarge": "open"},
            "branches": {"lts": branch("lts", LTS, "g5.12xlarge"), "pb": branch("pb", PB, "g7.12xlarge")},
            "selects_at_boot": ["nvidia-driver-resolve.service", "usr-lib64.mount"],
            "without_gsp": ["g5.12xlarge"],
        },
    }
)
# The same AMI observed: what is known of its trees is read on the machine.
FOUND = as_plan(
    {"origin": "observed", "nvidia_driver": {"version": LTS, "packages": {"nvidia-driver-cuda": f"{LTS}-1.amzn2023"}}}
)
TREES: dict[str, Any] = {
    "ls -A /opt/nvidia": "lts\npb\n",
    "cat /opt/nvidia/lts/.version": f"{LTS}\n",
    "cat /opt/nvidia/pb/.version": f"{PB}\n",
    "test -e*": "",
}
KERNEL = "6.12.40-63.114.amzn2023.x86_64"
MODULES: dict[str, Any] = {
    "for k in *": f"{KERNEL}\n",
    f"f=*/lts/flavors/proprietary/lib/modules/{KERNEL}/*": f"{LTS}\n",
    f"f=*/pb/flavors/open/lib/modules/{KERNEL}/*": f"{PB}\n",
}
LISTS: dict[str, Any] = {
    f"cat {LIST % 580}": f"0x2237 {A10G}\n0x27B8 NVIDIA L4\n",
    f"cat {LIST % 595}": f"0x2237 {A10G}\n0x2C3A {RTX}\n",
}
TAKEN: dict[str, Any] = {
    "ls -A /opt/nvidia": "current\n",
    "ls -A /opt/nvidia/current": ".driver-flavor\n.tree-lts\n.version\nusr\n",
    "cat /opt/nvidia/current/.version": f"{LTS}\n",
    "cat /opt/nvidia/current/.driver-flavor": "proprietary\n",
}
check = driver_branches

CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (check.test_every_tree_is_there, TREES, "PASS", ""),
    (
        check.test_every_tree_is_there,
        TREES | {"ls -A /opt/nvidia": "current\n", "cat /opt/nvidia/current/.version": f"{LTS}\n"},
        "FAIL",
        f"/opt/nvidia/current: driver {LTS} was taken during the build",
    ),
    (
        check.test_every_tree_is_there,
        TREES | {"ls -A /opt/nvidia": "lts\n", "cat /opt/nvidia/pb/.version": (1, "")},
        "FAIL",
        "got pb: missing",
    ),
    (
        check.test_every_tree_is_there,
        {"test -e*lts*": (1, "")} | TREES | {"cat /opt/nvidia/pb/.version": "595.71.05\n"},
        "FAIL",
        "got pb: 595.71.05; lts: no .tree-lts, without which it is not taken",
    ),
    (check.test_trees_are_complete, {"test -e*": ""}, "PASS", ""),
    (
        check.test_trees_are_complete,
        {"test -e*": f"/opt/nvidia/pb/usr/lib64/libcuda.so.{PB}\n/opt/nvidia/pb/usr/bin/nv-fabricmanager\n"},
        "FAIL",
        f"missing: /opt/nvidia/pb/usr/lib64/libcuda.so.{PB}, /opt/nvidia/pb/usr/bin/nv-fabricmanager",
    ),
    (check.test_modules_are_there_for_every_kernel, MODULES, "PASS", ""),
    (
        check.test_modules_are_there_for_every_kernel,
        {
            "for k in *": f"{KERNEL}\n6.12.99\n",
            f"f=*{KERNEL}*": MODULES[f"f=*/lts/flavors/proprietary/lib/modules/{KERNEL}/*"],
            "f=*": "",
        },
        "FAIL",
        f"pb open {KERNEL}: {LTS}; pb open 6.12.99: missing",
    ),
    (check.test_modules_are_there_for_every_kernel, {"for k in *": ""}, "FAIL", "no installed kernel"),
    (check.test_lists_select_the_planned_driver, LISTS, "PASS", ""),
    (
        check.test_lists_select_the_planned_driver,
        LISTS | {f"cat {LIST % 580}": f"0x2237 {A10G}\n0x2C3A {RTX}\n"},
        "FAIL",
        "g7.12xlarge: expected pb open, got lts open",
    ),
    (
        check.test_lists_select_the_planned_driver,
        LISTS | {f"cat {LIST % 595}": "0x27B8 NVIDIA L4\n"},
        "FAIL",
        "g7.12xlarge: expected pb open, got lts proprietary",
    ),
    (
        check.test_lists_select_the_planned_driver,
        LISTS | {f"cat {LIST % 595}": (1, "")},
        "FAIL",
        f"no GPU in {LIST % 595}: at the first boot no driver can be selected",
    ),
    (check.test_selection_starts_at_boot, {"systemctl*": "enabled\n"}, "PASS", ""),
    (
        check.test_selection_starts_at_boot,
        {"systemctl*mount*": (1, "disabled\n"), "systemctl*": "enabled\n"},
        "FAIL",
        "'usr-lib64.mount': 'disabled'",
    ),
    (check.test_taken_driver_is_that_of_this_type, TAKEN, "PASS", ""),
    (
        check.test_taken_driver_is_that_of_this_type,
        TAKEN | {"ls -A /opt/nvidia/current": ".tree-pb\n", "cat /opt/nvidia/current/.version": f"{PB}\n"},
        "FAIL",
        f"driver of g5.12xlarge: expected lts {LTS} proprietary, got pb {PB} proprietary (/opt/nvidia/current)",
    ),
    (
        check.test_taken_driver_is_that_of_this_type,
        TAKEN | {"cat /opt/nvidia/current/.driver-flavor": (1, "")},
        "FAIL",
        f"got lts {LTS} none",
    ),
    (
        check.test_taken_driver_is_that_of_this_type,
        TREES,
        "FAIL",
        "g5.12xlarge has taken no driver: no /opt/nvidia/current",
    ),
    (
        check.test_taken_driver_is_that_of_this_type,
        {"ls -A /opt/nvidia": (2, "", "ls: Input/output error")},
        "UNPROVEN",
        "/opt/nvidia cannot be read: ls: Input/output error",
    ),
]


@pytest.mark.parametrize(("function", "table", "verdict", "message"), CASES)
def test_driver_branches(judge: Judge, function: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(function, table, plan=ON_EKS)
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(("instance_type", "version", "message"), [
    ("g5.12xlarge", LTS, ""), ("g7.12xlarge", PB, ""), ("g7.12xlarge", LTS, f"expected '{PB}', got '{LTS}'"),
])  # fmt: skip
def test_loaded_driver_is_that_of_the_type(judge: Judge, instance_type: str, version: str, message: str) -> None:
    text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (dvs@u)\n"
    machine = FakeMachine(METADATA, instance_type=instance_type)
    found = judge(nvidia_driver.test_loaded_driver_is_the_planned_one, {"cat*": text}, plan=ON_EKS, machine=machine)
    assert (found.verdict, message in found.message) == ("FAIL" if message else "PASS", True), found


FRACTION = "g6f.xlarge"
OF_AN_L4 = {"name": "NVIDIA L4-3Q", "fraction_of": "NVIDIA L4"}
WITH_FRACTION = as_plan(
    ON_EKS
    | {
        "instance_types": [
            *ON_EKS["instance_types"],
            {"name": FRACTION, "gpu_count": 1, "gpu": OF_AN_L4, "nvswitch": False},
        ],
        "nvidia_driver": ON_EKS["nvidia_driver"]
        | {
            "flavour_by_instance_type": ON_EKS["nvidia_driver"]["flavour_by_instance_type"] | {FRACTION: "grid"},
            "branches": ON_EKS["nvidia_driver"]["branches"] | {"lts": branch("lts", LTS, "g5.12xlarge", FRACTION)},
            "fractions": [FRACTION],
        },
    }
)
LICENSED = "    License Status                    : Licensed (Expiry: N/A)\n"
OPEN = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {LTS}  Release Build  (dvs@u)\n"
OF_FRACTIONS: list[tuple[Any, dict[str, Any], str, str]] = [
    (check.test_lists_select_the_planned_driver, LISTS, "PASS", ""),
    (
        check.test_lists_select_the_planned_driver,
        LISTS | {f"cat {LIST % 580}": f"0x2237 {A10G}\n", f"cat {LIST % 595}": f"0x27B8 NVIDIA L4\n0x2C3A {RTX}\n"},
        "FAIL",
        "g6f.xlarge: expected lts grid, got pb grid",
    ),
    (nvidia_driver.test_loaded_flavour_is_the_one_for_this_gpu, {"cat*": OPEN}, "PASS", ""),
    (
        nvidia_driver.test_loaded_flavour_is_the_one_for_this_gpu,
        {"cat*": OPEN.replace("Open ", "")},
        "FAIL",
        "flavour of the loaded module on g6f.xlarge: expected 'open', got 'proprietary'",
    ),
    (
        check.test_taken_driver_is_that_of_this_type,
        TAKEN,
        "FAIL",
        f"expected lts {LTS} grid, got lts {LTS} proprietary",
    ),
    (check.test_every_fraction_is_licensed, {"nvidia-smi -q": LICENSED}, "PASS", ""),
    (
        check.test_every_fraction_is_licensed,
        {"nvidia-smi -q": LICENSED.replace("Licensed (Expiry: N/A)", "Unlicensed (Unrestricted)")},
        "FAIL",
        "License Status of 1 GPUs: expected Licensed, got Unlicensed (Unrestricted)",
    ),
]


@pytest.mark.parametrize(("function", "table", "verdict", "message"), OF_FRACTIONS)
def test_a_fraction_of_a_gpu(judge: Judge, function: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    machine = FakeMachine(METADATA, instance_type=FRACTION)
    table = {"for d in*": "0000:00:1e.0 0x10de 0x27b8 0x030200 nvidia\n"} | table
    found = judge(function, table, plan=WITH_FRACTION, machine=machine)
    assert (found.verdict, message in found.message) == (verdict, True), found


def test_whole_gpus_of_the_same_plan_need_no_licence(judge: Judge) -> None:
    machine = FakeMachine(METADATA, instance_type="g5.12xlarge")
    assert judge(check.test_every_fraction_is_licensed, {}, plan=WITH_FRACTION, machine=machine).verdict == "PASS"


def test_type_without_a_branch_is_unproven(judge: Judge) -> None:
    machine = FakeMachine(METADATA, instance_type="p5.48xlarge")
    found = judge(check.test_taken_driver_is_that_of_this_type, TAKEN, plan=ON_EKS, machine=machine)
    assert (found.verdict, found.message) == ("UNPROVEN", "the plan has no driver branch for p5.48xlarge")


@pytest.mark.parametrize(("instance_type", "firmware", "verdict"), [
    ("g5.12xlarge", "0", "PASS"), ("g5.12xlarge", "18", "FAIL"),
    ("g7.12xlarge", "18", "PASS"), ("g7.12xlarge", "0", "FAIL"),
])  # fmt: skip
def test_firmware_is_off_where_the_base_ami_has_it_off(
    judge: Judge, instance_type: str, firmware: str, verdict: str
) -> None:
    machine = FakeMachine(METADATA, instance_type=instance_type)
    table = {"cat*": f"EnableGpuFirmware: {firmware}\n"}
    function = nvidia_driver.test_firmware_of_gpus_is_used_as_planned
    assert judge(function, table, plan=ON_EKS, machine=machine).verdict == verdict


@pytest.mark.parametrize(("on_disk", "verdict"), [("missing", "PASS"), ("", "FAIL")])
def test_nouveau_need_not_be_blacklisted_where_no_kernel_has_it(judge: Judge, on_disk: str, verdict: str) -> None:
    table = {"cat /proc/modules": "nvidia 1 0 - Live 0x0\n", "modprobe*": "", "for k*": f"{KERNEL} {on_disk}\n"}
    assert judge(nvidia_driver.test_nouveau_is_blacklisted, table, plan=ON_EKS).verdict == verdict
    assert judge(nvidia_driver.test_nouveau_is_blacklisted, table, plan=FOUND).verdict == verdict


class FilesOfAnImage(ScriptedHost, backend.ImageBackend):
    """A table that is asked as an image's files are."""


@pytest.mark.parametrize("function", [
    nvidia_driver.test_module_on_disk_is_the_planned_one, device_nodes.test_uvm_module_is_on_disk_for_every_kernel,
    fabric_manager.test_fabric_manager_is_the_planned_version, fabric_manager.test_fabric_manager_is_enabled,
])  # fmt: skip
def test_image_files_have_no_driver_yet(function: Any) -> None:
    """What the first boot installs is judged in the trees."""
    host = testinfra.host.Host(FilesOfAnImage({}))
    host.backend.set_host(host)
    known = {
        "host": host, "plan": ON_EKS, "machine": FakeMachine(METADATA),
        "observe": Observe(RunningCheck(CheckRecord("x", "", "T0", ""))),
    }  # fmt: skip
    with pytest.raises(pytest.skip.Exception, match=r"installs its driver at the first boot .*: see driver_branches::"):
        function(**{name: known[name] for name in function.__code__.co_varnames[: function.__code__.co_argcount]})


ARCHIVE = "/var/lib/dkms-archive/nvidia-open/nvidia-open-580.126.09-kernel6.12-x86_64.dkms.tar.gz"


@pytest.mark.parametrize("function", [
    nvidia_driver.test_module_on_disk_is_the_planned_one, device_nodes.test_uvm_module_is_on_disk_for_every_kernel,
])  # fmt: skip
@pytest.mark.parametrize(("kept", "raised", "message"), [
    (ARCHIVE, pytest.skip.Exception, f"at its first boot, of {ARCHIVE}"), ("", pytest.fail.Exception, "6.12: missing"),
])  # fmt: skip
def test_image_as_found_may_keep_modules_for_its_first_boot(
    function: Any, kept: str, raised: type[BaseException], message: str
) -> None:
    """EKS's accelerated AMI has no module in /lib/modules; a machine that has booted is judged by what it loads."""
    answers = {"ls -d /var/lib/dkms-archive*": kept, "for k*": "6.12 missing\n"}
    plan = as_plan(PLAN | {"origin": "observed"})
    for backend_class, expected, text in (
        (FilesOfAnImage, raised, message),
        (ScriptedHost, pytest.fail.Exception, "6.12: missing"),
    ):
        host = testinfra.host.Host(backend_class(answers))
        host.backend.set_host(host)
        observe = Observe(RunningCheck(CheckRecord("x", "", "T0", "")))
        with pytest.raises(expected, match=text):
            function(host=host, plan=plan, machine=FakeMachine(METADATA), observe=observe)


def test_modules_on_a_machine_are_those_of_its_type(judge: Judge) -> None:
    table = {"for k*": f"{KERNEL} {LTS}\n"}
    function = nvidia_driver.test_module_on_disk_is_the_planned_one
    assert judge(function, table, plan=ON_EKS).verdict == "PASS"
    machine = FakeMachine(METADATA, instance_type="g7.12xlarge")
    assert f"expected {PB}, got {KERNEL}: {LTS}" in judge(function, table, plan=ON_EKS, machine=machine).message


@pytest.mark.parametrize(("missing", "verdict"), [
    ("/usr/src/nvidia-580.178.04/nv.c", "PASS"), ("/usr/bin/nvidia-smi", "FAIL"),
])  # fmt: skip
def test_packages_that_are_registered_may_lack_files(judge: Judge, missing: str, verdict: str) -> None:
    """The base AMI registers the module's package, whose source is not on the machine."""
    table = {
        "for p in*": "nvidia-driver-cuda: \n",
        "rpm --verify*": (1, f"missing     {missing}\n"),
        "rpm --query --package*": "/usr/src/nvidia-580.178.04/nv.c\n",
        "rpm -q --qf*": f"nvidia-driver-cuda 0:{LTS}-1.amzn2023\n",
    }
    for plan in (ON_EKS, FOUND):
        plan = as_plan(plan | {"os": {"id": "amzn", "family": "redhat", "ssh_user": "ec2-user"}})
        found = judge(nvidia_driver.test_files_are_the_packages_own, table, plan=plan)
        assert found.verdict == verdict, found


def test_peer_memory_module_of_the_base_ami_is_unproven(judge: Judge) -> None:
    table = {"cat*": "# EFA installer version: 1.50.0\nefa-nv-peermem-1.2.3-1.amzn2023.x86_64\n"}
    table["ls -d /var/lib/dkms-archive*"] = "/opt/nvidia/lts/flavors/open/lib/modules/6.1.0\n"
    for plan in (ON_EKS, FOUND):
        plan = as_plan(plan | {"efa": {"version": "1.50.0", "mode": "minimal"}})
        found = judge(efa.test_peer_memory_module_fits_the_driver, table, plan=plan)
        assert (found.verdict, "built once beside several drivers" in found.message) == ("UNPROVEN", True), found
