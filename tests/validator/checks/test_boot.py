"""Each boot check, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import PLAN, REAL_DRIVER, REPLICA, FakeMachine, Judge
from validator.checks import boot
from validator.plan import as_plan
from validator.probes.machine import Clock

DEGRADED = {"systemctl is-system-running": (1, "degraded\n"), "systemctl list-units*": ""}
MODULES_FAILED = DEGRADED | {
    "systemctl list-units*": "systemd-modules-load.service loaded failed failed Load Modules\n"
}
DONE = '{"v1": {"datasource": "DataSourceEc2Local", "errors": []}}'
CALM = {
    "dmesg*": "Linux version 6.1\n",
    "journalctl*SYSLOG_FACILITY=0": "Linux version 6.1\n" * 2,
    "journalctl*--list-boots": "-1 a\n 0 b\n",
}

ROOM = {"findmnt*": "rw,relatime,discard\n", "stat*": "2000000 200000 500000 400000\n"}  # exactly a tenth free

BOOTED = {"systemctl show*": "UserspaceTimestampMonotonic=6994000\nFinishTimestampMonotonic=69186000\n"}

CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (boot.test_boot_is_within_its_budget, BOOTED, "PASS", ""),
    (
        boot.test_boot_is_within_its_budget,
        {
            "systemctl show*": "UserspaceTimestampMonotonic=6994000\nFinishTimestampMonotonic=141186000\n",
            "systemd-analyze*": "1min 18.420s cloud-init.service\n     14.799s gpu-ami-drain-hook.service\n",
        },
        "FAIL",
        "the boot took 141 s, expected at most 90 s; longest: cloud-init.service 1min 18.420s, gpu-ami-drain-hook",
    ),
    (
        boot.test_boot_is_within_its_budget,
        {"systemctl show*": "UserspaceTimestampMonotonic=6994000\nFinishTimestampMonotonic=0\n"},
        "FAIL",
        "the boot has not finished",
    ),
    (boot.test_root_volume_can_be_written_and_has_room, ROOM, "PASS", ""),
    (boot.test_root_volume_can_be_written_and_has_room, ROOM | {"stat*": "200 100 0 0\n"}, "PASS", ""),
    (
        boot.test_root_volume_can_be_written_and_has_room,
        ROOM | {"findmnt*": "ro,relatime\n"},
        "FAIL",
        "/ is mounted ro, expected rw: the file system has errors, or /etc/fstab mounts it so",
    ),
    (
        boot.test_root_volume_can_be_written_and_has_room,
        ROOM | {"stat*": "2000000 198000 500000 400000\n"},
        "FAIL",
        "/: expected 10 % of blocks, 5 % of inodes free, got 9.9 % and 80.0 %",
    ),
    (
        boot.test_root_volume_can_be_written_and_has_room,
        ROOM | {"stat*": "2000000 1000000 500000 400\n"},
        "FAIL",
        "/: expected 10 % of blocks, 5 % of inodes free, got 50.0 % and 0.1 %",
    ),
    (boot.test_no_unit_failed, {"systemctl*": ""}, "PASS", ""),
    (
        boot.test_no_unit_failed,
        {"systemctl*": "ssh.service loaded failed failed OpenBSD Secure Shell server\n"},
        "FAIL",
        "failed units: ssh.service",
    ),
    (
        boot.test_no_unit_failed,
        {"systemctl*": (1, "", "Failed to connect to bus: Host is down")},
        "FAIL",
        "exited with status 1: Failed to connect to bus: Host is down",
    ),
    (boot.test_system_is_running, {"systemctl*": "running\n"}, "PASS", ""),
    (boot.test_system_is_running, DEGRADED, "FAIL", "expected 'running', got 'degraded'"),
    (boot.test_system_is_running, MODULES_FAILED | REAL_DRIVER, "UNPROVEN", "the 1 boards are simulated (1af4:1110)"),
    (
        boot.test_no_unit_failed,
        MODULES_FAILED | REAL_DRIVER,
        "UNPROVEN",
        "systemd-modules-load.service failed: no NVIDIA",
    ),
    (boot.test_system_is_running, MODULES_FAILED | REPLICA, "FAIL", "expected 'running', got 'degraded'"),
    (boot.test_no_unit_failed, MODULES_FAILED | REPLICA, "FAIL", "failed units: systemd-modules-load.service"),
    (boot.test_cloud_init_is_done, {"cat*": DONE}, "PASS", ""),
    (
        boot.test_cloud_init_is_done,
        {"cat*": '{"v1": {"datasource": "x", "errors": ["(\'ssh\', KeyError())"]}}'},
        "FAIL",
        "cloud-init errors: ('ssh', KeyError())",
    ),
    (
        boot.test_cloud_init_is_done,
        {"cat*": (1, "", "No such file"), "cloud-init status": "status: running\n"},
        "FAIL",
        "cloud-init has not finished",
    ),
    (boot.test_datasource_is_ec2, {"cat*": DONE}, "PASS", ""),
    (
        boot.test_datasource_is_ec2,
        {"cat*": '{"v1": {"datasource": "DataSourceNoCloud [seed=/var/lib/cloud/seed]", "errors": []}}'},
        "FAIL",
        "cloud-init datasource: expected DataSourceEc2, got DataSourceNoCloud [seed=/var/lib/cloud/seed]",
    ),
    (boot.test_datasource_is_ec2, {"cat*": (1, "")}, "UNPROVEN", "cloud-init has not finished"),
    (boot.test_kernel_has_its_modules, {"uname -r": "6.1.0-44\n", "ls*": "6.1.0-44\n"}, "PASS", ""),
    (
        boot.test_kernel_has_its_modules,
        {"uname -r": "6.1.0-44\n", "ls*": "6.1.0-50\n"},
        "FAIL",
        "kernel 6.1.0-44 is running, but modules are installed for 6.1.0-50",
    ),
    (boot.test_kernel_has_not_panicked, CALM, "PASS", ""),
    (
        boot.test_kernel_has_not_panicked,
        CALM | {"dmesg*": "Linux version 6.1\nBUG: unable to handle page fault for address: 0\n"},
        "FAIL",
        "kernel panic, oops or lockup: BUG: unable to handle page fault for address: 0",
    ),
    (
        boot.test_kernel_has_not_panicked,
        CALM | {"journalctl*SYSLOG_FACILITY=0": "Oops: 0002 [#1] PREEMPT SMP\n"},
        "FAIL",
        "kernel panic, oops or lockup: Oops: 0002 [#1] PREEMPT SMP",
    ),
    (
        boot.test_kernel_has_not_panicked,
        CALM | {"dmesg*": (1, "", "dmesg: read kernel buffer failed: Operation not permitted")},
        "FAIL",
        "Operation not permitted",
    ),
    (boot.test_time_service_starts_at_boot, {"for unit*": "chrony enabled\nchronyd alias\nntp\n"}, "PASS", ""),
    (boot.test_time_service_starts_at_boot, {"for unit*": "chrony\nsystemd-timesyncd enabled\n"}, "PASS", ""),
    (
        boot.test_time_service_starts_at_boot,
        {"for unit*": "chrony masked\nchronyd alias\nsystemd-timesyncd\n"},
        "FAIL",
        "no time service starts at boot (chrony is masked, chronyd is alias): expected one of chrony, chronyd, ",
    ),
    (boot.test_time_service_starts_at_boot, {"for unit*": "chrony\nntp\n"}, "FAIL", "(none is installed)"),
    (boot.test_kernel_log_has_no_critical_message, {"dmesg*": ""}, "PASS", ""),
    (
        boot.test_kernel_log_has_no_critical_message,
        {"dmesg*": "mce: [Hardware Error]: Machine check\n"},
        "FAIL",
        "critical kernel messages: mce: [Hardware Error]: Machine check",
    ),
    (
        boot.test_kernel_log_has_no_critical_message,
        {"dmesg*": (1, "", "dmesg: read failed")},
        "FAIL",
        "dmesg: read failed",
    ),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_boot(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table, plan=as_plan({**PLAN, "boot_seconds": 90}))
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(
    ("clock", "verdict", "message"),
    [
        (Clock(-0.2, 0.3), "PASS", ""),
        (Clock(-601.0, -599.0), "FAIL", "the host's clock is off by -599.00 s, expected at most 2 s"),
        (Clock(599.0, 601.0), "FAIL", "the host's clock is off by +599.00 s, expected at most 2 s"),
    ],
)
def test_clock(judge: Judge, clock: Clock, verdict: str, message: str) -> None:
    found = judge(boot.test_clock_is_right, {}, machine=FakeMachine({}, clock=clock))
    assert found.verdict == verdict
    assert message in found.message


def test_instance_type(judge: Judge) -> None:
    assert judge(boot.test_instance_type_is_the_requested_one, {}).verdict == "PASS"
    other = judge(boot.test_instance_type_is_the_requested_one, {}, machine=FakeMachine({"instance-type": "g5.xlarge"}))
    assert (other.verdict, other.message) == (
        "FAIL",
        "instance type in the metadata: expected 'g5.12xlarge', got 'g5.xlarge'",
    )
    unknown = judge(boot.test_instance_type_is_the_requested_one, {}, machine=FakeMachine({}, instance_type="p9.huge"))
    assert (unknown.verdict, unknown.message) == ("UNPROVEN", "the plan does not have instance type p9.huge")
