"""Each check of an image's files, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import PLAN, Judge
from validator.checks import image
from validator.plan import as_plan

ENTRY = "\tlinux\t/boot/vmlinuz-6.1 root=UUID=1 ro console=ttyS0{}\n"

MODPROBE = "/opt/nvidia/pb/usr/bin/nvidia-modprobe"
SET_ID = {"find*": "/usr/bin/su\n/usr/bin/sudo\n", "*owner $(readlink -f $(command -v su))": ""}

CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (image.test_services_start_at_boot, {"systemctl is-enabled*": "enabled\n"}, "PASS", ""),
    (image.test_nothing_is_below_dev_and_proc, {"cat /dev/*": ""}, "PASS", ""),
    (image.test_nothing_is_below_dev_and_proc, {"cat /dev/*": "/dev/null\n"}, "FAIL", "below /dev and /proc"),
    (
        image.test_services_start_at_boot,
        {"*amazon*": "enabled\n", "*aws-hw*": (1, "disabled\n")},
        "FAIL",
        "'aws-hw-monitor.service': 'disabled'",
    ),
    (image.test_services_start_at_boot, {"systemctl*": (1, "", "No such file")}, "FAIL", "'not installed'"),
    (
        image.test_kernel_log_buffer_is_configured,
        {"grep*grub.cfg": ENTRY.format(" log_buf_len=4M") * 2, "grep*": (2, "")},
        "PASS",
        "",
    ),
    (
        image.test_kernel_log_buffer_is_configured,
        {"grep*grub.cfg": ENTRY.format(" log_buf_len=4M") + ENTRY.format(" log_buf_len=4Mi"), "grep*": (2, "")},
        "FAIL",
        "1 of 2 boot entries have no log_buf_len=4M, the first: linux\t/boot/vmlinuz-6.1",
    ),
    (
        image.test_kernel_log_buffer_is_configured,
        {"grep*grub.cfg": (2, ""), "grep*": "options root=UUID=1 ro\n"},
        "FAIL",
        "1 of 1 boot entries have no log_buf_len=4M, the first: options root=UUID=1 ro",
    ),
    (
        image.test_kernel_log_buffer_is_configured,
        {"grep*": (2, "")},
        "UNPROVEN",
        "no boot entry in /boot/grub/grub.cfg or /boot/loader/entries",
    ),
    (image.test_image_has_no_event_policy, {"cat*": '{"xid": {}, "sxid": {}}'}, "PASS", ""),
    (image.test_image_has_no_event_policy, {"cat*": (1, "", "No such file")}, "PASS", ""),
    (
        image.test_image_has_no_event_policy,
        {"cat*": '{"xid": {"79": {"severity": "info", "action": "IGNORE"}}}'},
        "FAIL",
        "Xids with a policy in the image: xid 79: info, IGNORE",
    ),
    (image.test_no_key_lets_in, {"for*": (1, "")}, "PASS", ""),
    (
        image.test_no_key_lets_in,
        {"for*": "/root/.ssh/authorized_keys:ssh-ed25519 AAAAsecret me\n"},
        "FAIL",
        "authorized keys in the image: /root/.ssh/authorized_keys",
    ),
    (image.test_no_host_keys, {"find*": ""}, "PASS", ""),
    (image.test_no_host_keys, {"find*": "/etc/ssh/ssh_host_rsa_key\n"}, "FAIL", "/etc/ssh/ssh_host_rsa_key"),
    (image.test_no_host_keys, {"find*": (1, "", "No such file or directory")}, "FAIL", "exited with status 1"),
    (image.test_no_machine_id, {"cat*": "\n"}, "PASS", ""),
    (image.test_no_machine_id, {"cat*": "uninitialized\n"}, "PASS", ""),
    (image.test_no_machine_id, {"cat*": f"{'ab' * 16}\n"}, "FAIL", "instances of this image would share it"),
    (image.test_cloud_init_has_run_nowhere, {"ls*": (2, "", "No such file")}, "PASS", ""),
    (image.test_cloud_init_has_run_nowhere, {"ls*": "i-0123456789abcdef0\n"}, "FAIL", "i-0123456789abcdef0"),
    (image.test_no_instance_id, {"grep*": ""}, "PASS", ""),
    (image.test_no_instance_id, {"grep*": "/etc/x:i-0123456789abcdef0\n"}, "FAIL", "/etc/x:i-0123456789abcdef0"),
    (image.test_setuid_programs_are_packaged, SET_ID | {"*for f in /usr/bin/su *": ""}, "PASS", ""),
    (
        image.test_setuid_programs_are_packaged,
        SET_ID | {"*for f in /usr/bin/su *": "of no package: /usr/bin/sh2\n"},
        "FAIL",
        "setuid and setgid programs of no package: /usr/bin/sh2",
    ),
    (  # a kept driver of EKS's AMI, whose package lies beside it
        image.test_setuid_programs_are_packaged,
        SET_ID
        | {"*for f in /usr/bin/su *": f"of no package: {MODPROBE}\n", "*nvidia-modprobe-*.rpm*": f"{MODPROBE}\n"},
        "PASS",
        "",
    ),
    (
        image.test_setuid_programs_are_packaged,
        SET_ID | {"*for f in /usr/bin/su *": f"of no package: {MODPROBE}\n", "*nvidia-modprobe-*.rpm*": ""},
        "FAIL",
        f"of no package: {MODPROBE}",
    ),
    # A package manager that did not bring the system itself: what lies elsewhere than programs do is strange.
    (image.test_setuid_programs_are_packaged, {"*command -v su))": (1, "")} | SET_ID, "PASS", ""),
    (
        image.test_setuid_programs_are_packaged,
        {"*command -v su))": (1, ""), "find*": "/usr/bin/su\n/usr/local/bin/sh\n"},
        "FAIL",
        "setuid and setgid programs of no package: /usr/local/bin/sh",
    ),
    (image.test_no_log, {"find*": "/var/log/lastlog\n"}, "PASS", ""),
    (
        image.test_no_log,
        {"find*": "/var/log/lastlog\n/var/log/apt/term.log\n"},
        "FAIL",
        "image: /var/log/apt/term.log",
    ),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_image(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    plan = as_plan(PLAN | {"roles": ["cloudwatch_agent", "event_parser"]})
    found = judge(check, table, plan=plan)
    assert (found.verdict, message in found.message) == (verdict, True), found


def test_no_secret_of_a_key_is_shown(judge: Judge) -> None:
    found = judge(image.test_no_key_lets_in, {"for*": "/root/.ssh/authorized_keys:ssh-ed25519 AAAAsecret me\n"})
    assert "AAAAsecret" not in found.message + str(found.check.observed)


@pytest.mark.parametrize(
    ("roles", "configured", "state", "verdict", "message"),
    [
        ([], [], "disabled\n", "UNPROVEN", "the image has none of amazon-cloudwatch-agent.service, aws-hw-monitor"),
        (["cloudwatch_agent"], [], "disabled\n", "UNPROVEN", "disabled and not configured: the files do not say"),
        (["cloudwatch_agent"], ["/etc/x.json"], "disabled\n", "FAIL", "'amazon-cloudwatch-agent.service': 'disabled'"),
        (["cloudwatch_agent"], [], "", "FAIL", "'not installed'"),
        (["cloudwatch_agent"], [], "enabled\n", "PASS", ""),
    ],
)
def test_agent_of_an_image_as_found(
    judge: Judge, roles: list[str], configured: list[str], state: str, verdict: str, message: str
) -> None:
    """ParallelCluster's AMI has the agent disabled: the cluster configures and starts it on each node."""
    found = {"request": {}, "absent": [], "absent_by": [], "captures": [], "agent_from": configured}
    plan = as_plan(PLAN | {"origin": "observed", "observed": found, "roles": roles})
    judgement = judge(image.test_services_start_at_boot, {"systemctl*": state}, plan=plan)
    assert (judgement.verdict, message in judgement.message) == (verdict, True), judgement
