"""Each hygiene check, once green and once red with its message."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.validator.checks.conftest import INSTANCE, KEY, FakeMachine, Judge
from validator.checks import hygiene

OTHER = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQDbuilderbuilderbuilder packer"
LAUNCH = f"/home/admin/.ssh/authorized_keys: {KEY}\n"
ROOT = f"/root/.ssh/authorized_keys: no-port-forwarding,command=\"echo 'Please login as'\" {KEY}\n"
SSHD = "port 22\npermitrootlogin without-password\npasswordauthentication yes\npermitemptypasswords no\n"
SUDOERS = """\
Defaults env_reset
root ALL=(ALL:ALL) ALL
%sudo ALL=(ALL:ALL) ALL
@includedir /etc/sudoers.d
admin ALL=(ALL) NOPASSWD:ALL
slurm ALL = (root) NOPASSWD: SLURM_HOOKS_COMMANDS
deploy ALL = (www-data) NOPASSWD: ALL
"""

CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (hygiene.test_only_the_launch_key_lets_in, {"for h*": LAUNCH + ROOT}, "PASS", ""),
    (
        hygiene.test_only_the_launch_key_lets_in,
        {"for h*": LAUNCH + f"/root/.ssh/authorized_keys: {OTHER}\n"},
        "FAIL",
        "authorized keys other than the launch key: /root/.ssh/authorized_keys: ssh-rsa AAAAB3NzaC1y…uilder packer",
    ),
    (hygiene.test_only_the_launch_key_lets_in, {"for h*": ""}, "FAIL", "cloud-init did not install it"),
    (hygiene.test_host_keys_are_this_instances, {"stat*": "1040 /etc/ssh/ssh_host_ed25519_key\n"}, "PASS", ""),
    (
        hygiene.test_host_keys_are_this_instances,
        {"stat*": "1040 /etc/ssh/ssh_host_ed25519_key\n800 /etc/ssh/ssh_host_rsa_key\n"},
        "FAIL",
        "host keys older than this instance: /etc/ssh/ssh_host_rsa_key",
    ),
    (hygiene.test_host_keys_are_this_instances, {"stat*": (1, "")}, "FAIL", "/etc/ssh has no SSH host keys"),
    (hygiene.test_machine_id_is_this_instances, {"cat*": "ab" * 16 + "\n", "stat*": "1005\n"}, "PASS", ""),
    (
        hygiene.test_machine_id_is_this_instances,
        {"cat*": "ab" * 16 + "\n", "stat*": "700\n"},
        "FAIL",
        "/etc/machine-id is 330 s older than this instance's first cloud-init run",
    ),
    (
        hygiene.test_machine_id_is_this_instances,
        {"cat*": "uninitialized\n"},
        "FAIL",
        "/etc/machine-id: expected 32 hex digits, got 'uninitialized'",
    ),
    (hygiene.test_docker_identity_is_this_instances, {"stat*": (1, "")}, "PASS", ""),
    (hygiene.test_docker_identity_is_this_instances, {"stat*": "1100 /etc/docker/key.json\n"}, "PASS", ""),
    (
        hygiene.test_docker_identity_is_this_instances,
        {"stat*": "1100 /etc/docker/key.json\n700 /var/lib/docker/engine-id\n"},
        "FAIL",
        "Docker's identity is older than this instance: /var/lib/docker/engine-id",
    ),
    (hygiene.test_cloud_init_ran_for_this_instance, {"ls*": f"{INSTANCE}\n"}, "PASS", ""),
    (
        hygiene.test_cloud_init_ran_for_this_instance,
        {"ls*": f"i-0bbbbbbbbbbbbbbbb\n{INSTANCE}\n"},
        "FAIL",
        "expected i-0123456789abcdef0, got i-0123456789abcdef0, i-0bbbbbbbbbbbbbbbb",
    ),
    (hygiene.test_no_shell_history, {"find*": ""}, "PASS", ""),
    (hygiene.test_no_shell_history, {"find*": "/root/.bash_history\n"}, "FAIL", "histories: /root/.bash_history"),
    (hygiene.test_no_build_tools_left, {"ls*": ""}, "PASS", ""),
    (
        hygiene.test_no_build_tools_left,
        {"ls*": "/root/.ansible\n"},
        "FAIL",
        "working files of the build: /root/.ansible",
    ),
    (hygiene.test_no_builder_logs, {"find /var/log*@998*": ""}, "PASS", ""),
    (
        hygiene.test_no_builder_logs,
        {"find*": "/var/log/dpkg.log\n"},
        "FAIL",
        "log files older than this instance: /var/log/dpkg.log",
    ),
    (hygiene.test_no_foreign_journal, {"cat*": "ab" * 16, "ls*": "ab" * 16 + "\n"}, "PASS", ""),
    (
        hygiene.test_no_foreign_journal,
        {"cat*": "ab" * 16, "ls*": "cd" * 16 + "\n"},
        "FAIL",
        f"journals of other machine ids: {'cd' * 16}",
    ),
    (hygiene.test_no_foreign_instance_id, {"grep*": f"/etc/hosts:{INSTANCE}\n"}, "PASS", ""),
    (
        hygiene.test_no_foreign_instance_id,
        {"grep*": "/etc/hosts:i-0bbbbbbbbbbbbbbbb\n"},
        "FAIL",
        "ids of other instances: /etc/hosts:i-0bbbbbbbbbbbbbbbb",
    ),
    (hygiene.test_no_password_lets_in, {"cut*": "root:*\nadmin:!\nx:!*\n", "grep*": ""}, "PASS", ""),
    (
        hygiene.test_no_password_lets_in,
        {"cut*": "root:*\n", "grep*": "/etc/shadow-:root\n/etc/gshadow:sudo\n"},
        "FAIL",
        "former states of the account files: /etc/shadow-:root, /etc/gshadow:sudo",
    ),
    (hygiene.test_no_password_lets_in, {"cut*": "root:hash\nadmin:\nx:*\n"}, "FAIL", "password: root, admin"),
    (hygiene.test_only_root_has_user_id_0, {"awk*": "root\n"}, "PASS", ""),
    (hygiene.test_only_root_has_user_id_0, {"awk*": "root\ntoor\n"}, "FAIL", "toor"),
    (hygiene.test_sshd_refuses_root_and_empty_passwords, {"PATH*": SSHD}, "PASS", ""),
    (
        hygiene.test_sshd_refuses_root_and_empty_passwords,
        {"PATH*": SSHD.replace("without-password", "yes")},
        "FAIL",
        "sshd: PermitRootLogin: expected no or prohibit-password, got yes",
    ),
    (
        hygiene.test_sshd_refuses_root_and_empty_passwords,
        {"PATH*": SSHD.replace("passwords no", "passwords yes")},
        "FAIL",
        "sshd: PermitEmptyPasswords: expected no, got yes",
    ),
    (
        hygiene.test_sshd_refuses_root_and_empty_passwords,
        {"PATH*": "port 22\n"},
        "FAIL",
        "sshd: PermitRootLogin: expected no or prohibit-password, got not set",
    ),
    (hygiene.test_no_credentials_left, {"for h*": "", "*grep*": (1, "")}, "PASS", ""),
    (hygiene.test_no_credentials_left, {"for h*": "/root/.netrc\n", "*grep*": (1, "")}, "FAIL", "/root/.netrc"),
    (
        hygiene.test_no_credentials_left,
        {"for h*": "", "find*": "/etc/environment\n", "{ grep*": ""},
        "FAIL",
        "/etc/env",
    ),
    (
        hygiene.test_no_credentials_left,
        {"for h*": "", "find*": (1, ""), "{ grep*": "/etc/pip.conf:https://bot:s3cretword@\n"},
        "FAIL",
        "credentials: /etc/pip.conf",
    ),
    (
        hygiene.test_no_credentials_left,
        {"for h*": "", "find*": (1, ""), "{ grep*": "/etc/wgetrc:http://user:password@\n"},
        "PASS",
        "",
    ),
    (hygiene.test_only_login_user_has_passwordless_sudo, {"cat /etc/sudoers*": SUDOERS}, "PASS", ""),
    (
        hygiene.test_only_login_user_has_passwordless_sudo,
        {"cat /etc/sudoers*": SUDOERS + "builder, %ops ALL = NOPASSWD: SETENV: ALL\n"},
        "FAIL",
        "sudo without a password: expected admin, root, ssm-user, got also %ops, builder",
    ),
    (
        hygiene.test_only_login_user_has_passwordless_sudo,
        {"cat /etc/sudoers*": SUDOERS + "Defaults:builder !authenticate\n"},
        "FAIL",
        "sudo never asks for a password (Defaults !authenticate)",
    ),
    (hygiene.test_no_crontab_left, {"find*": ""}, "PASS", ""),
    (hygiene.test_no_crontab_left, {"find*": "/var/spool/cron/crontabs/root\n"}, "FAIL", "crontabs: /var/spool/cron/"),
    (hygiene.test_no_library_is_preloaded, {"grep*": (2, "", "No such file")}, "PASS", ""),
    (
        hygiene.test_no_library_is_preloaded,
        {"grep*": "/usr/local/lib/x.so\n"},
        "FAIL",
        "/usr/local/lib/x.so",
    ),
    (hygiene.test_no_package_cache, {"find*": ""}, "PASS", ""),
    (hygiene.test_no_package_cache, {"find*": "/var/cache/apt/archives/x.deb\n"}, "FAIL", "archives/x.deb"),
    (hygiene.test_no_private_key_of_the_build, {"find*": ""}, "PASS", ""),
    (
        hygiene.test_no_private_key_of_the_build,
        {"find*": "/var/lib/dkms/mok.key\n", "*for f in*": "of no package: /var/lib/dkms/mok.key\n"},
        "FAIL",
        "dkms/mok.key",
    ),
    (hygiene.test_state_is_of_this_instance, {"find*@998*": ""}, "PASS", ""),
    (
        hygiene.test_state_is_of_this_instance,
        {"find*": "/var/lib/ecs/data/agent.db\n"},
        "FAIL",
        "older than this instance: /var/lib/ecs/data/agent.db",
    ),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_hygiene(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table)
    assert (found.verdict, message in found.message) == (verdict, True), found


def test_authorized_key_without_a_key_pair_fails(judge: Judge) -> None:
    nobody = FakeMachine({"public-keys": []})
    found = judge(hygiene.test_only_the_launch_key_lets_in, {"for h*": LAUNCH}, machine=nobody)
    assert (found.verdict, "other than the launch key" in found.message) == ("FAIL", True)
    found = judge(hygiene.test_only_the_launch_key_lets_in, {"for h*": ""}, machine=nobody)
    assert (found.verdict, found.message) == ("UNPROVEN", "the instance was launched without a key pair")


@pytest.mark.parametrize(
    "secret",
    [
        "AWS_ACCESS_KEY_ID=AKIA" + "A" * 16,
        "token: ghp_" + "a1B2" * 9,
        "HF_TOKEN=hf_" + "aB" * 17,
        "nvapi-" + "a-B_1" * 10,
        '"glpat-' + "x" * 20 + '"',
    ],
)
def test_credentials_are_detected_by_content(secret: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("nothing\n")
    (tmp_path / "b").write_text(f"x\n{secret}\n")
    patterns = ["-e", hygiene.ACCESS_KEY, "-e", hygiene.TOKEN]
    done = subprocess.run(["grep", "-rIlE", *patterns, tmp_path], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(tmp_path / "b")]


def test_secret_key_is_detected_without_its_id() -> None:
    assert re.search(hygiene.SECRET_KEY, f"AWS_SECRET_ACCESS_KEY={'aB3/' * 10}")
    assert not re.search(hygiene.SECRET_KEY, f"AWS_SECRET_ACCESS_KEY={'aB3/' * 11}")


@pytest.mark.parametrize(
    ("fake", "left_out"),
    [
        ("[ $4 = /home ] && echo nfs || echo ext2/ext3", ["/home"]),
        ("[ $4 = /root ] && echo lustre || echo overlayfs", ["/root"]),
        ("echo xfs", []),
    ],
)
def test_data_that_is_mounted_on_a_machine_is_not_searched(fake: str, left_out: list[str], tmp_path: Path) -> None:
    """Terabytes on a file system of a network, or on /mnt, are not the image's."""
    for name, text in (("stat", fake), ("mountpoint", "[ $2 = /mnt ]")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", "-c", f"echo {hygiene.KEY_DIRECTORIES}"], env=environment, capture_output=True, text=True, check=True
    )
    folders = ["/etc", "/root", "/home", "/opt/aws", "/var/lib/cloud", "/usr/local/bin", "/tmp", "/var/tmp", "/srv"]
    assert done.stdout.split() == [name for name in folders if name not in left_out]


def test_sudo_rules_are_joined_over_lines(tmp_path: Path) -> None:
    file = tmp_path / "sudoers"
    file.write_text(
        "# x ALL=NOPASSWD: ALL\n#1000 ALL=NOPASSWD: ALL\nbuilder \\\n ALL = \\\n  NOPASSWD: ALL\n\nDefaults x\n"
    )
    command = hygiene.SUDO_RULES.replace("/etc/sudoers /etc/sudoers.d/*", str(file))
    shown = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    rules = [" ".join(line.split()) for line in shown.splitlines()]
    assert rules == ["#1000 ALL=NOPASSWD: ALL", "builder ALL = NOPASSWD: ALL", "Defaults x"]
    assert [hygiene.roots(rule) for rule in rules] == [["#1000"], ["builder"], []]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYabcdefghij", True),
        ('aws_secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYabcdefghij"', True),
        ('{"SecretAccessKey": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYabcdefghij"}', True),
        ("# AWS_SECRET_ACCESS_KEY=<your key>", False),
        ("aws_secret_access_key = f8be2c2e9ff0f0c3d6f7a1b2c3d4e5f60718293a0", False),  # a digest of another length
        ("//registry.npmjs.org/:_authToken=npm_" + "a1B2" * 9, True),
        ("password = pypi-AgE" + "a1B2" * 9, True),
        ('{"auth": "dckr_pat_' + "a1B2" * 6 + '"}', True),
        ("npm_config_registry=https://registry.npmjs.org/", False),
    ],
)
def test_shapes_of_keys_and_tokens(line: str, found: bool) -> None:
    """As grep -E of an image reads them."""
    command = ["grep", "-cE", "-e", hygiene.ACCESS_KEY, "-e", hygiene.SECRET_KEY, "-e", hygiene.TOKEN]
    done = subprocess.run(command, input=line, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is found and not done.stderr
