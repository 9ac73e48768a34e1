"""Settings of login shells and services, each with its source.

Masked units and kernel options of a genuine base AMI, and those that are none.
The database of update-alternatives, as dpkg and chkconfig write it, and as damage leaves it.
An operator's policy as the list of codes that it changes.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.scripted_host import table_host
from validator.checks import event_parser, system
from validator.checks.system import Alternative
from validator.probes import base_ami, machine


def test_each_setting_has_its_source() -> None:
    replies = {
        "cat /etc/environment": "# comment\nexport A=1\nB=2\nnot a setting\n",
        "systemctl show-environment": "C=3\n",
    }
    assert machine.environments(table_host(lambda command: replies.get(command, ""))) == [
        ("/etc/environment", "A=1"),
        ("/etc/environment", "B=2"),
        ("services", "C=3"),
    ]


def test_login_shell_does_not_inherit_the_environment() -> None:
    command = machine.in_login_shell("printf %s \"${LEAKED-none} $HOME 'x'\"")
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, env=os.environ | {"LEAKED": "1"}, check=False
    )
    assert done.stdout.endswith("none /root 'x'")


ROOT = Path(__file__).resolve().parents[3]


def test_masks_of_the_local_region_are_those_of_its_base_images() -> None:
    lists = sorted((ROOT / "localregion/replicas/debian_ami").rglob("masked.txt"))
    lines = [line.strip() for path in lists for line in path.read_text(encoding="utf-8").splitlines()]
    units = {line for line in lines if line and not line.startswith("#")}
    assert len(lists) == 3 and "cloud-config.service" in units
    assert all(base_ami.is_harmless_mask(unit, "ec2") for unit in units)
    assert not base_ami.is_harmless_mask("ssh.service", "eks")
    assert base_ami.is_harmless_mask("update-motd.service", "eks")
    assert not base_ami.is_harmless_mask("update-motd.service", "ec2")


@pytest.mark.parametrize(
    ("word", "is_unsafe"),
    [
        ("mitigations=auto", False), ("modprobe.blacklist=nouveau", False), ("console=ttyS0,115200n8", False),
        ("ds=ec2", False), ("cloud-init=disabled", True), ("ds=nocloud;s=/seed", True), ("init=/bin/sh", True),
        ("module_blacklist=nouveau,nvidia_uvm", True), ("mitigations=off", True), ("systemd.mask=sshd.service", True),
    ],
)  # fmt: skip
def test_kernel_options(word: str, is_unsafe: bool) -> None:
    assert base_ami.is_unsafe_option(word) is is_unsafe


# /var/lib/dpkg/alternatives/awk of Debian 12, without most slaves.
AWK = (
    "\x01awk\nauto\n/usr/bin/awk\nawk.1.gz\n/usr/share/man/man1/awk.1.gz\nnawk\n/usr/bin/nawk\n\n"
    "/usr/bin/gawk\n10\n\n/usr/bin/gawk\n/usr/bin/mawk\n5\n/usr/share/man/man1/mawk.1.gz\n/usr/bin/mawk\n\n"
)
# /var/lib/alternatives/ld of Amazon Linux 2023.
LD = "\x01ld\nauto\n/usr/bin/ld\n\n/usr/bin/ld.bfd\n50\n/usr/bin/ld.gold\n30\n"
LINKS = "\x02awk\n/usr/bin/mawk\nnawk\n/usr/bin/mawk\nld\n/usr/bin/ld.bfd\n"


def host(stdout: str) -> Any:
    return table_host({"*": stdout})


def test_candidates_are_the_registered_paths() -> None:
    """A slave without a link (the manual page, which an image without documentation lacks) is none."""
    awks = frozenset({"/usr/bin/gawk", "/usr/bin/mawk"})
    assert system.read(host(AWK + LD + LINKS)) == [
        Alternative("awk", "/usr/bin/mawk", awks),
        Alternative("ld", "/usr/bin/ld.bfd", frozenset({"/usr/bin/ld.bfd", "/usr/bin/ld.gold"})),
        Alternative("nawk", "/usr/bin/mawk", awks),
    ]
    assert system.read(host("")) == []
    assert system.read(host("\x02cc\n/opt/cc\n")) == [Alternative("cc", "/opt/cc", frozenset())]


@pytest.mark.parametrize("damaged", ["\x01awk\n\n", "\x01awk\nauto\n/bin/x\n", "\x01awk\n"])
def test_cut_off_file_registers_nothing(damaged: str) -> None:
    (read,) = system.read(host(damaged + "\x02awk\n/bin/x\n"))
    assert read.candidates == frozenset()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"xid": []}', '{"xid": {"79": {"note": "x"}, "48": "fatal"}}'])
def test_no_policy_changes_nothing(text: str) -> None:
    assert event_parser.policy_overrides(text) == []


def test_each_changed_code_is_listed() -> None:
    text = '{"xid": {"79": {"severity": "info", "action": "none"}, "48": {"action": "reset"}}}'
    assert event_parser.policy_overrides(text) == ["xid 79: info, none", "xid 48: reset"]
