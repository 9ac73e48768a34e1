"""Each check of the plugin, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import Judge
from validator.checks import ofi_nccl
from validator.plan import as_plan

PLAN = as_plan({"os": {"family": "debian"}, "ofi_nccl": {"version": "1.16.3"}})
OURS, OTHER = "/opt/amazon/ofi-nccl/lib/libnccl-net.so", "/opt/other/libnccl-net.so"
ROW = "\tlibnccl-net.so (libc6,x86-64) => {}\n"
ONE = {"ldconfig*": ROW.format(OURS), "readlink*": f"{OURS}\n"}
TWO = {"ldconfig*": ROW.format(OURS) + ROW.format(OTHER), "readlink*": f"{OURS}\n{OTHER}\n"}
# Newer releases install a link of the second name: the same file is no second plugin.
LINKED = {
    "ldconfig*": ROW.format(OURS) + ROW.replace("net.so", "net-ofi.so").format(OURS),
    "readlink*": f"{OURS}\n",
}
# From 1.17.0 on there are two libraries of one build in one folder, and no link.
BOTH = {
    "ldconfig*": ROW.format(OURS) + ROW.replace("net.so", "net-ofi.so").format(OURS.replace("net.so", "net-ofi.so")),
    "readlink*": f"{OURS}\n{OURS.replace('net.so', 'net-ofi.so')}\n",
}
SAID = {"grep*": "NET/OFI Initializing aws-ofi-nccl 1.16.3\n"}

VERSION = f"version `FABRIC_1.7' not found (required by {OURS})"

CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (ofi_nccl.test_plugin_is_the_planned_one, ONE | SAID, "PASS", ""),
    (ofi_nccl.test_plugin_is_the_planned_one, LINKED | SAID, "PASS", ""),
    (ofi_nccl.test_plugin_is_the_planned_one, BOTH | SAID, "PASS", ""),
    (
        ofi_nccl.test_plugin_is_the_planned_one,
        BOTH | {"grep*net-ofi.so": "NET/OFI Initializing aws-ofi-nccl 1.15.0\n"} | SAID,
        "FAIL",
        "expected one plugin on the loader path, got 2; load order is undefined",
    ),
    (
        ofi_nccl.test_plugin_is_the_planned_one,
        ONE | {"grep*": "NET/OFI Initializing aws-ofi-nccl 1.7.4\n"},
        "FAIL",
        f"{OURS}: expected aws-ofi-nccl 1.16.3, got 1.7.4",
    ),
    (
        ofi_nccl.test_plugin_is_the_planned_one,
        ONE | {"grep*": (1, "")},
        "FAIL",
        "/opt/amazon/ofi-nccl/lib/libnccl-net.so: expected aws-ofi-nccl 1.16.3, got no version",
    ),
    (
        ofi_nccl.test_plugin_is_the_planned_one,
        {"ldconfig*": ""},
        "FAIL",
        "no libnccl-net.so is on the loader path: NCCL would use TCP instead of EFA without a message",
    ),
    (
        ofi_nccl.test_plugin_is_the_planned_one,
        TWO | SAID,
        "FAIL",
        "expected one plugin on the loader path, got 2; load",
    ),
    (ofi_nccl.test_plugin_finds_its_libraries, ONE | {"env*": "\tlibfabric.so.1 => /opt/x (0x7f)\n"}, "PASS", ""),
    (
        ofi_nccl.test_plugin_finds_its_libraries,
        ONE | {"env*": "\tlibfabric.so.1 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n"},
        "FAIL",
        f"{OURS}: the loader does not find libfabric.so.1",
    ),
    (ofi_nccl.test_plugin_finds_its_libraries, {"ldconfig*": ""}, "FAIL", "no libnccl-net.so is on the loader path"),
    (
        ofi_nccl.test_plugin_finds_its_libraries,
        ONE | {"env*": (0, "\tlibfabric.so.1 => /opt/x (0x7f)\n", f"{OURS}: /opt/x: {VERSION}\n")},
        "FAIL",
        f"{OURS}: the loader does not find {VERSION}",
    ),
    (ofi_nccl.test_plugin_can_be_opened, ONE | {"env*": f'{{"{OURS}": "opened"}}'}, "PASS", ""),
    (
        ofi_nccl.test_plugin_can_be_opened,
        ONE | {"env*": f'{{"{OURS}": "/opt/x: {VERSION}"}}'},
        "FAIL",
        f"the loader does not open {OURS}: /opt/x: {VERSION}",
    ),
    (ofi_nccl.test_plugin_can_be_opened, {"ldconfig*": ""}, "FAIL", "no libnccl-net.so is on the loader path"),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_ofi_nccl(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table, plan=PLAN)
    assert (found.verdict, message in found.message) == (verdict, True), found
