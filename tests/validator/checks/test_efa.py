"""Each EFA check, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import METADATA, FakeMachine, Judge
from validator.checks import efa
from validator.plan import as_plan
from validator.plan_document import PlanDocument

CONTENTS = {"kernel_module": "2.13.0", "libfabric": "1.22.0", "ofi_nccl": "1.14.0"}
TYPES = [{"name": "g5.12xlarge", "efa_interfaces": 2}, {"name": "inf2.xlarge", "efa_interfaces": 0}]


def plan(family: str = "debian", **section: Any) -> PlanDocument:
    row = {"version": "1.38.0", "mode": "full", "contents": CONTENTS} | section
    return as_plan({"os": {"family": family}, "instance_types": TYPES, "efa": row})


FULL, MINIMAL = plan(), plan(mode="minimal")
BARE = plan(contents={})
GIVEN = as_plan({"os": {"family": "debian"}, "instance_types": TYPES,
              "efa": {"version": "1.38.0", "provided_by": "dlami 1"}})  # fmt: skip
NAMES = "libfabric1-aws_1.22.0amzn1.0_amd64 rdma-core_54.0-1_amd64 efa_2.13.0-1.amzn1_amd64"
RECORD = f"# EFA installer version: 1.38.0\n# Debug packages installed: no\n# Packages installed:\n{NAMES}\n"
LEAN = RECORD.replace("libfabric1-aws_1.22.0amzn1.0_amd64 ", "")
RPMS = RECORD.replace(NAMES, "rdma-core-54.0-1.amzn2023.x86_64 efa-2.13.0-1.amzn2023.x86_64")
DPKG = "libfabric1-aws installed 1.22.0amzn1.0\nrdma-core installed 54.0-1\nefa installed 2.13.0-1.amzn1\n"
RPM = "rdma-core 0:54.0-1.amzn2023\nefa 0:2.13.0-1.amzn2023\n"
LOCKS = "rdma-core-0:54.0-1.amzn2023.*\nefa-0:2.13.0-1.amzn2023.*\n"
VERBS = "    device          \t   node GUID\n    ------\t---\n    rdmap0s0        \t00\n    rdmap1s0\t00\n"
DOMAINS = "".join(f"provider: efa\n    domain: rdmap{n}s0-{kind}\n" for n in (0, 1) for kind in ("rdm", "dgrm"))
EFA_DRIVER = "../../../../bus/pci/drivers/efa"
DEVICES = f"device|rdmap0s0|{EFA_DRIVER}|NVIDIA\ndevice|rdmap1s0|{EFA_DRIVER}|NVIDIA\n"
NODES = "node|uverbs0|rdmap0s0|\nnode|uverbs1|rdmap1s0|\n"
# The InfiniBand ports of a p6-b200 (sagemaker-hyperpod-cli#282, read 2026-11-27): two ConnectX bridges beside the EFAs.
BRIDGES = "".join(
    f"device|ibp11{n}s0f0|../../../../bus/pci/drivers/mlx5_core|\nnode|uverbs{n}|ibp11{n}s0f0|\n" for n in (5, 6)
)
ADAPTERS = {
    "for d in*": DEVICES + NODES,
    "ibv_devices": VERBS,
    "*fi_info -p*": DOMAINS,
}
CACHE = "\tlibnccl-net.so (libc6,x86-64) => /opt/amazon/ofi-nccl/lib/libnccl-net.so\n"
PLUGIN = {"ldconfig*": CACHE, "readlink*": "/opt/amazon/ofi-nccl/lib/libnccl-net.so\n"}
SAID = "NET/OFI Initializing aws-ofi-nccl 1.14.0\n"

OPENED = '{"/opt/amazon/efa/lib/libfabric.so.1": "opened", "/opt/amazon/ofi-nccl/lib/libnccl-net.so": "opened"}'
PEERMEM = {"cat*": RECORD.replace(NAMES, f"{NAMES} efa-nv-peermem_1.2.1_amd64")}
DRIVER = {"nvidia_driver": {"version": "580.95.05"}}
WITH_DRIVER = as_plan({**FULL, **DRIVER, "instance_types": [dict(row, gpu_count=4) for row in TYPES]})
MAGIC = "6.1.0-40-cloud-amd64 SMP preempt mod_unload modversions"


def symbols(
    needs: str = "0x1234abcd", exports: str = "0x1234abcd", magic: str = MAGIC, file: str = "/m/p.ko"
) -> dict[str, str]:
    """What the modules of one kernel say; exports "" of a driver that shows none."""
    lines = ["kernel 6.1.0-40", f"module efa_nv_peermem {file}"]
    if file:
        lines += [f"magic efa_nv_peermem {magic}", "needs efa_nv_peermem 0x00000001\tmodule_layout"]
        lines += [f"needs efa_nv_peermem {needs}\tnvidia_p2p_get_pages"] if needs else []
    lines += ["module nvidia /m/nvidia.ko", f"magic nvidia {MAGIC}"]
    lines += [f"exports nvidia {exports}\tnvidia_p2p_get_pages"] if exports else []
    return PEERMEM | {"PATH=*modinfo*": "\n".join(lines) + "\n"}


CASES: list[tuple[Any, PlanDocument, dict[str, Any], str, str]] = [
    (efa.test_installer_is_the_planned_one, FULL, {"cat*": RECORD}, "PASS", ""),
    (
        efa.test_installer_is_the_planned_one, FULL, {"cat*": RECORD.replace("1.38.0", "1.30.0")}, "FAIL",
        "EFA installer (/opt/amazon/efa_installed_packages): expected '1.38.0', got '1.30.0'",
    ),
    (
        efa.test_installer_is_the_planned_one, FULL, {"cat*": (1, "", "No such file")}, "FAIL",
        "EFA is not installed: no /opt/amazon/efa_installed_packages",
    ),
    (efa.test_peer_memory_module_fits_the_driver, WITH_DRIVER, symbols(), "PASS", ""),
    (
        efa.test_peer_memory_module_fits_the_driver, WITH_DRIVER, symbols(needs="0x99999999"), "FAIL",
        "efa_nv_peermem: 6.1.0-40: built against other symbols: nvidia_p2p_get_pages 0x99999999, exported: 0x1234abcd",
    ),
    (
        efa.test_peer_memory_module_fits_the_driver, WITH_DRIVER, symbols(magic="6.1.0-39 SMP"), "FAIL",
        "6.1.0-40: built for '6.1.0-39 SMP'",
    ),
    (
        efa.test_peer_memory_module_fits_the_driver, WITH_DRIVER, symbols(needs=""), "FAIL",
        "built without the versions of nvidia_p2p_*",
    ),
    (efa.test_peer_memory_module_fits_the_driver, WITH_DRIVER, symbols(file=""), "FAIL", "there is no module"),
    (
        efa.test_peer_memory_module_fits_the_driver, WITH_DRIVER, symbols(exports=""), "UNPROVEN",
        "no symbols of nvidia are known for 6.1.0-40",
    ),
    (
        efa.test_peer_memory_module_fits_the_driver, WITH_DRIVER, {"cat*": RECORD}, "UNPROVEN",
        "the installer has recorded no efa-nv-peermem",
    ),
    (efa.test_parts_are_those_of_the_mode, FULL, {"cat*": RECORD, "test*": ""}, "PASS", ""),
    (
        efa.test_parts_are_those_of_the_mode, FULL, {"cat*": LEAN, "test*": (1, "")}, "FAIL",
        "expected mode full, got a minimal installation (/opt/amazon/efa_installed_packages), libfabric not installed",
    ),
    (
        efa.test_parts_are_those_of_the_mode, FULL, {"cat*": RECORD, "test*": (1, "")}, "FAIL",
        "a full installation (/opt/amazon/efa_installed_packages), libfabric not",
    ),
    (
        efa.test_parts_are_those_of_the_mode, plan("redhat"),
        {"cat*": RECORD, "test -e /opt/amazon/efa/lib64/libfabric.so.1": "", "test*": (1, "")}, "PASS", "",
    ),
    (efa.test_parts_are_those_of_the_mode, MINIMAL, {"cat*": LEAN, "test*": (1, "")}, "PASS", ""),
    (
        efa.test_parts_are_those_of_the_mode, MINIMAL, {"cat*": LEAN, "test*": ""}, "FAIL",
        "libfabric installed",
    ),
    (efa.test_parts_are_those_of_the_mode, GIVEN, {}, "UNPROVEN", "EFA is the base AMI's (dlami 1)"),
    (efa.test_recorded_packages_are_installed, FULL, {"cat*": RECORD, "dpkg-query*": DPKG}, "PASS", ""),
    (
        efa.test_recorded_packages_are_installed, FULL,
        {"cat*": RECORD, "dpkg-query*": DPKG.replace("54.0-1", "44.0-2")}, "FAIL",
        "installed version differs from the record: rdma-core 54.0-1: 44.0-2",
    ),
    (efa.test_recorded_packages_are_installed, plan("redhat"), {"cat*": RPMS, "rpm*": RPM}, "PASS", ""),
    (
        efa.test_recorded_packages_are_installed, plan("redhat"),
        {"cat*": RPMS, "rpm*": "package rdma-core is not installed\nefa 0:2.13.0-1.amzn2023\n"}, "FAIL",
        "rdma-core 54.0-1.amzn2023: missing",
    ),
    (
        efa.test_recorded_packages_are_installed, FULL, {"cat*": "# EFA installer version: 1.38.0\n", "dpkg*": ""},
        "FAIL", "no package is recorded",
    ),
    (
        efa.test_packages_are_held, FULL,
        {"cat*": RECORD, "dpkg-query*": DPKG, "apt-mark*": "efa\nlibfabric1-aws\nrdma-core\n"}, "PASS", "",
    ),
    (
        efa.test_packages_are_held, FULL, {"cat*": RECORD, "dpkg-query*": DPKG, "apt-mark*": "efa\nlibfabric1-aws\n"},
        "FAIL", "not held: rdma-core",
    ),
    (
        efa.test_packages_are_held, plan("redhat"),
        {"cat /opt*": RPMS, "rpm*": RPM, "cat /etc/dnf*": LOCKS}, "PASS", "",
    ),
    (
        efa.test_packages_are_held, plan("redhat"),
        {"cat /opt*": RPMS, "rpm*": RPM, "cat /etc/dnf*": LOCKS.replace("rdma-core-0:54", "rdma-core-0:44")}, "FAIL",
        "not held: rdma-core",
    ),
    (efa.test_packages_are_held, GIVEN, {}, "UNPROVEN", "EFA is the base AMI's"),
    (efa.test_module_on_disk_is_the_planned_one, FULL, {"for k*": "6.1.0-44 2.13.0g\n"}, "PASS", ""),
    (efa.test_module_on_disk_is_the_planned_one, FULL, {"for k*": "6.1.0-44 2.13.0\n"}, "PASS", ""),
    (
        efa.test_module_on_disk_is_the_planned_one, FULL, {"for k*": "6.1.0-44 2.13.0g\n6.1.0-50 missing\n"}, "FAIL",
        "module efa on disk: expected 2.13.0, got 6.1.0-50: missing",
    ),
    (
        efa.test_module_on_disk_is_the_planned_one, BARE, {"cat*": RECORD, "for k*": "6.1.0-44 2.10.0g\n"}, "FAIL",
        "module efa on disk: expected 2.13.0, got 6.1.0-44: 2.10.0g",
    ),
    (efa.test_module_on_disk_is_the_planned_one, FULL, {"for k*": ""}, "FAIL", "no installed kernel"),
    (
        efa.test_libfabric_is_the_planned_one, FULL,
        {"*fi_info*": "fi_info: 1.22.0amzn4.0\nlibfabric: 1.22.0amzn4.0\n"},
        "PASS", "",
    ),
    (
        efa.test_libfabric_is_the_planned_one, FULL, {"*fi_info*": "libfabric: 1.18.1amzn1.0\n"}, "FAIL",
        "libfabric: expected 1.22.0 (EFA installer 1.38.0), got 1.18.1",
    ),
    (
        efa.test_libfabric_is_the_planned_one, FULL, {"*fi_info*": (127, "", "fi_info: not found")}, "FAIL",
        "fi_info: not found",
    ),
    (efa.test_libfabric_is_the_planned_one, FULL, {"*fi_info*": "no words\n"}, "FAIL",
     "/opt/amazon/efa/bin/fi_info --version shows no libfabric version: 'no words'"),
    (efa.test_libfabric_is_the_planned_one, BARE, {"*fi_info*": "libfabric: 2.1.0\n"}, "UNPROVEN",
     "libfabric is 2.1.0; no source states that of installer 1.38.0"),
    (efa.test_libfabric_is_the_planned_one, MINIMAL, {}, "UNPROVEN", "a minimal installation has no libfabric"),
    (efa.test_libraries_can_be_opened, MINIMAL, {}, "UNPROVEN", "a minimal installation has no libfabric"),
    (efa.test_libraries_can_be_opened, FULL, PLUGIN | {"env*": OPENED}, "PASS", ""),
    (
        efa.test_libraries_can_be_opened, plan("redhat"),
        {name: text.replace("/lib/", "/lib64/") for name, text in (PLUGIN | {"env*": OPENED}).items()}, "PASS", "",
    ),
    (
        efa.test_libraries_can_be_opened, FULL, PLUGIN | {"env*": OPENED.replace('"opened"}', '"no FABRIC_1.7"}')},
        "FAIL",
        "libnccl-net.so: no FABRIC_1.7",
    ),
    (efa.test_bundled_plugin_is_the_installer_s, FULL, PLUGIN | {"grep*": SAID}, "PASS", ""),
    (
        efa.test_bundled_plugin_is_the_installer_s, FULL, PLUGIN | {"grep*": SAID.replace("1.14.0", "1.7.4")}, "FAIL",
        "/opt/amazon/ofi-nccl/lib/libnccl-net.so: expected aws-ofi-nccl 1.14.0, got 1.7.4",
    ),
    (efa.test_bundled_plugin_is_the_installer_s, FULL, {"ldconfig*": ""}, "FAIL", "no libnccl-net.so is on the loader"),
    (efa.test_bundled_plugin_is_the_installer_s, MINIMAL, {}, "UNPROVEN", "this installation has no plugin of its own"),
    (efa.test_loaded_module_is_the_planned_one, FULL, {"cat*": "2.13.0g\n"}, "PASS", ""),
    (
        efa.test_loaded_module_is_the_planned_one, FULL, {"cat*": (1, "", "No such file")}, "FAIL",
        "module efa: expected 2.13.0, got not loaded; g5.12xlarge has 2 adapters",
    ),
    (efa.test_loaded_module_is_the_planned_one, FULL, {"cat*": "2.10.0g\n"}, "FAIL",
     "module efa: expected 2.13.0, got 2.10.0g; g5.12xlarge has 2 adapters"),
    (efa.test_every_promised_adapter_is_there, FULL, ADAPTERS, "PASS", ""),
    (efa.test_every_promised_adapter_is_there, MINIMAL, {k: v for k, v in ADAPTERS.items() if "fi_info" not in k},
     "PASS", ""),
    (
        efa.test_every_promised_adapter_is_there, FULL,
        ADAPTERS | {"for d in*": DEVICES + NODES.partition("\n")[0]}, "FAIL",
        "adapters of g5.12xlarge: expected 2, got 1 in /dev/infiniband/uverbs* (adapters are",
    ),
    (
        efa.test_every_promised_adapter_is_there, FULL, ADAPTERS | {"*fi_info -p*": (61, "", "No data available")},
        "FAIL", "expected 2, got 0 in fi_info -p efa",
    ),
    (
        efa.test_every_promised_adapter_is_there, FULL,
        ADAPTERS | {"for d in*": (DEVICES + NODES).replace("rdmap1s0", "rdmap9s0")}, "FAIL",
        "sources show different adapters:",
    ),
    (efa.test_every_promised_adapter_is_there, FULL,
     ADAPTERS | {"for d in*": DEVICES + BRIDGES + NODES, "ibv_devices": VERBS + " ibp115s0f0 00\n ibp116s0f0 00\n"},
     "PASS", ""),
    (
        efa.test_every_promised_adapter_is_there, FULL,
        ADAPTERS | {"for d in*": DEVICES.splitlines()[0] + "\n" + BRIDGES + NODES},
        "FAIL", "expected 2, got 1 in /sys/class/infiniband",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("check", "given", "table", "verdict", "message"), CASES)
def test_efa(judge: Judge, check: Any, given: PlanDocument, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table, plan=given)
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(
    ("instance_type", "listed", "verdict", "message"),
    [
        ("p4d.24xlarge", "rdmap0s0|NVIDIA\nrdmap1s0|NVIDIA peermem\n", "PASS", ""),
        ("p4d.24xlarge", "rdmap0s0|NVIDIA\nrdmap1s0|\n", "FAIL", "device/p2p: expected NVIDIA, got rdmap1s0: none"),
        ("p4d.24xlarge", "rdmap0s0|NEURON\n", "FAIL", "device/p2p: expected NVIDIA, got rdmap0s0: NEURON"),
        ("p4d.24xlarge", "", "UNPROVEN", "no EFA device"),
        ("g5.12xlarge", "rdmap0s0|NVIDIA\n", "PASS", ""),
        ("g5.12xlarge", "rdmap0s0|\n", "UNPROVEN", "device/p2p: rdmap0s0: none; AWS documents GPUDirect RDMA for P4d"),
        ("inf2.xlarge", "", "UNPROVEN", "inf2.xlarge has no EFA adapter beside a GPU"),
    ],
)
def test_gpu_memory_is_reached(judge: Judge, instance_type: str, listed: str, verdict: str, message: str) -> None:
    types = [*(dict(row, gpu_count=4) for row in TYPES), {"name": "p4d.24xlarge", "efa_interfaces": 4, "gpu_count": 8}]
    machine = FakeMachine(METADATA, instance_type=instance_type)
    given = as_plan({**WITH_DRIVER, "instance_types": types})
    rows = "".join(f"device|{row.split('|')[0]}|{EFA_DRIVER}|\n" for row in listed.splitlines())
    files = "".join(f"/sys/class/infiniband/{row.replace('|', '/device/p2p:')}\n" for row in listed.splitlines())
    table = {"for d in*": rows + BRIDGES, "grep -s*": files}
    found = judge(efa.test_adapters_reach_gpu_memory, table, plan=given, machine=machine)
    assert (found.verdict, message in found.message) == (verdict, True), found


def test_instance_type_without_adapters_must_show_none(judge: Judge) -> None:
    machine = FakeMachine(METADATA, instance_type="inf2.xlarge")
    none = {
        "for d in*": "",
        "ibv_devices": VERBS.split("    rdmap")[0],
        "*fi_info*": (61, "", "no data"),
    }
    assert judge(efa.test_every_promised_adapter_is_there, none, plan=FULL, machine=machine).verdict == "PASS"
    there = judge(efa.test_every_promised_adapter_is_there, ADAPTERS, plan=FULL, machine=machine)
    assert "EFA adapters of inf2.xlarge: expected 0, got 2 in" in there.message
    loaded = judge(efa.test_loaded_module_is_the_planned_one, {}, plan=FULL, machine=machine)
    assert (loaded.verdict, loaded.message) == ("UNPROVEN", "inf2.xlarge has no EFA")


def test_record_of_nothing() -> None:
    assert efa.read_record("") == efa.Record("", ())
    assert efa.read_record("").driver == ""
