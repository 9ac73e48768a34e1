"""Each NCCL check, once green and once red with its message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.validator.checks.conftest import Judge
from validator.checks import nccl
from validator.plan import as_plan

FILE = "/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5"
CACHE = (
    "4 libs found in cache `/etc/ld.so.cache'\n"
    "\tlibnccl.so.2 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnccl.so.2\n"
    "\tlibnccl.so.2 (libc6) => /lib/i386-linux-gnu/libnccl.so.2\n"
    "\tlibnccl-net.so (libc6,x86-64) => /opt/amazon/ofi-nccl/lib/libnccl-net.so\n"
)
OTHER = "/opt/nccl/build/lib/libnccl.so.2.16.2"
TWO = "\tlibnccl.so.2 (libc6,x86-64) => /opt/nccl/build/lib/libnccl.so.2\n" + CACHE
PLAN = as_plan(
    {"os": {"family": "redhat"}, "nccl": {"version": "2.21.5", "packages": {"libnccl": "2.21.5-1+cuda12.4"}}}
)
LOCKED = "libnccl-0:2.21.5-1+cuda12.4.*\n"
NO_SETTINGS = {"cat*": (1, "", "No such file"), "env*": "HOME=/root\n", "systemctl*": "LANG=C.UTF-8\n"}


def said(value: int) -> str:
    return json.dumps({"value": value, "file": FILE})


CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (nccl.test_no_setting_of_a_build_is_left, {"cat*": "# none\n\n"}, "PASS", ""),
    (
        nccl.test_no_setting_of_a_build_is_left,
        {"cat*": "NCCL_SOCKET_IFNAME=eth0\n"},
        "FAIL",
        "settings in /etc/nccl.conf: NCCL_SOCKET_IFNAME=eth0",
    ),
    (
        nccl.test_plugins_resolve,
        NO_SETTINGS | {"cat*": "NCCL_NET_PLUGIN=/opt/own/n.so\nNCCL_TUNER_PLUGIN=none\n", "test -e*": (1, "")},
        "FAIL",
        "plug-ins of NCCL that cannot be found: NCCL_NET_PLUGIN=/opt/own/n.so (/etc/nccl.conf)",
    ),
    (
        nccl.test_plugins_resolve,
        NO_SETTINGS | {"cat*": "NCCL_NET_PLUGIN=own\n", "ldconfig*": CACHE},
        "FAIL",
        "plug-ins of NCCL that cannot be found: NCCL_NET_PLUGIN=own",
    ),
    (
        nccl.test_plugins_resolve,
        NO_SETTINGS | {"cat*": "NCCL_NET_PLUGIN=libnccl-net.so\n", "ldconfig*": CACHE, "readlink*": "/opt/x.so\n"},
        "PASS",
        "",
    ),
    (nccl.test_library_is_the_planned_version, {"*ncclGetVersion*": said(22105)}, "PASS", ""),
    (
        nccl.test_library_is_the_planned_version,
        {"*ncclGetVersion*": said(21602)},
        "FAIL",
        "ncclGetVersion of /usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5: expected '2.21.5', got '2.16.2'",
    ),
    (
        nccl.test_library_is_the_planned_version,
        {"*": (1, "", "OSError: libnccl.so.2: cannot open shared object file: No such file or directory")},
        "FAIL",
        "a program cannot use libnccl.so.2 (ncclGetVersion): OSError: libnccl.so.2",
    ),
    (nccl.test_library_can_be_opened, {"env*": '{"libnccl.so.2": "opened"}'}, "PASS", ""),
    (nccl.test_library_can_be_opened, {"env*": '{"libnccl.so.2": "no file"}'}, "FAIL", "open libnccl.so.2: no file"),
    (nccl.test_only_one_is_on_the_loader_path, {"ldconfig*": CACHE, "readlink*": f"{FILE}\n"}, "PASS", ""),
    (
        nccl.test_only_one_is_on_the_loader_path,
        {"ldconfig*": TWO, "readlink*": f"{OTHER}\n{FILE}\n"},
        "FAIL",
        f"libnccl.so.2 on the loader path: expected one file, got {OTHER}, {FILE}",
    ),
    (
        nccl.test_only_one_is_on_the_loader_path,
        {"ldconfig*": TWO, "readlink*": f"{FILE}\n{FILE}\n"},  # a link to the same file is no second one
        "PASS",
        "",
    ),
    (
        nccl.test_only_one_is_on_the_loader_path,
        {"ldconfig*": ""},
        "FAIL",
        "libnccl.so.2 on the loader path: expected one file, got none",
    ),
    (nccl.test_no_login_shell_puts_another_before_it, {"env*": "::::"}, "PASS", ""),
    (
        nccl.test_no_login_shell_puts_another_before_it,
        {"env*": "::/opt/a:/opt/b::", "ls*": (2, "", "No such file")},
        "PASS",
        "",
    ),
    (
        nccl.test_no_login_shell_puts_another_before_it,
        {"env*": "motd\n::/opt/a:/opt/b::", "ls -d /opt/a/libnccl.so.2 /opt/b/libnccl.so.2": "/opt/b/libnccl.so.2\n"},
        "FAIL",
        "/opt/b/libnccl.so.2",
    ),
    (
        nccl.test_no_login_shell_puts_another_before_it,
        {"env*": "::::/opt/x/libnccl.so.2 /lib/other.so"},
        "FAIL",
        "/opt/x/libnccl.so.2",
    ),
    (nccl.test_no_setting_disables_a_transport, NO_SETTINGS, "PASS", ""),
    (
        nccl.test_no_setting_disables_a_transport,
        {"cat /etc/nccl.conf": "# none\nNCCL_DEBUG=INFO\nNCCL_IB_DISABLE=0\n", "env*": "FI_PROVIDER=efa\n"}
        | NO_SETTINGS,
        "PASS",
        "",
    ),
    (
        nccl.test_no_setting_disables_a_transport,
        {"cat /etc/nccl.conf": "NCCL_P2P_DISABLE=1\n"} | NO_SETTINGS,
        "FAIL",
        "settings that disable a transport of NCCL: NCCL_P2P_DISABLE=1 (/etc/nccl.conf)",
    ),
    (
        nccl.test_no_setting_disables_a_transport,
        {"systemctl show-environment": "LANG=C\nNCCL_NET=Socket\n"} | NO_SETTINGS,
        "FAIL",
        "NCCL_NET=Socket (services)",
    ),
    (nccl.test_packages_are_the_planned_ones, {"rpm*": "libnccl 0:2.21.5-1+cuda12.4\n"}, "PASS", ""),
    (
        nccl.test_packages_are_the_planned_ones,
        {"rpm*": "libnccl 0:2.21.5-1+cuda12.2\n"},
        "FAIL",
        "got {'libnccl': '2.21.5-1+cuda12.2'}",
    ),
    (
        nccl.test_packages_are_the_planned_ones,
        {"rpm*": (1, "package libnccl is not installed\n")},
        "FAIL",
        "{'libnccl': 'missing'}",
    ),
    (nccl.test_packages_are_held, {"cat*": LOCKED}, "PASS", ""),
    (nccl.test_packages_are_held, {"cat*": "0:libnccl-2.21.5-1+cuda12.4.x86_64\n"}, "PASS", ""),
    (nccl.test_packages_are_held, {"cat*": LOCKED.replace("2.21.5", "2.22.3")}, "FAIL", "would change them: libnccl"),
    (nccl.test_packages_are_held, {"cat*": "libnccl-devel-0:2.21.5-1+cuda12.4.*\n"}, "FAIL", "change them: libnccl"),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_nccl(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table, plan=PLAN)
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(("code", "version"), [(2808, "2.8.8"), (20908, "2.9.8"), (22105, "2.21.5"), (22807, "2.28.7")])
def test_version_codes(code: int, version: str) -> None:
    assert nccl.version(code) == version
