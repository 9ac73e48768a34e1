"""Accounts, kernel options, mounts and listening programs against the base AMI."""

from __future__ import annotations

from dataclasses import replace

import pytest

from validator.file_account import (
    Footprint,
    Inventory,
    unexplained_accounts,
    unexplained_boot_options,
    unexplained_kernel_options,
    unexplained_listeners,
    unexplained_mounts,
)
from validator.file_account.inventory import Account

ROOT = Account("root", 0, 0, "/root", "/bin/bash", "locked")
AGENT = Account("cwagent", 998, 998, "/home/cwagent", "/usr/sbin/nologin", "locked")
BASE = Inventory(
    {},
    accounts={"root": ROOT},
    groups={"root": (0, ()), "sudo": (27, ("admin",))},
    running=True,
    command_line=("BOOT_IMAGE=/boot/vmlinuz-1", "root=UUID=1", "quiet"),
    mounts=(("/", "ext4"), ("/run", "tmpfs")),
    listeners=(("tcp", 22, "sshd"),),
)
ROLE = Footprint(
    "x",
    accounts=("cwagent",),
    groups=("video",),
    kernel_options=("log_buf_len",),
    listeners=("agent",),
    mounts=("/fsx",),
)


def test_accounts() -> None:
    image = replace(
        BASE,
        accounts={"root": replace(ROOT, password="set"), "cwagent": AGENT, "jenkins": replace(AGENT, name="jenkins")},
        groups=BASE.groups | {"cwagent": (998, ()), "wheel": (10, ()), "sudo": (27, ("admin", "jenkins"))},
    )
    found = unexplained_accounts(image, BASE, [ROLE], "admin")
    assert [text.split(":")[0] for text in found] == [
        "account root (changed", "account jenkins (new", "group sudo (changed", "group wheel (new",
    ]  # fmt: skip


def test_an_account_of_a_role_must_not_log_in() -> None:
    image = replace(BASE, accounts={"root": ROOT, "cwagent": replace(AGENT, shell="/bin/bash")})
    assert "it can log in" in unexplained_accounts(image, BASE, [ROLE], "admin")[0]


def test_removed_accounts_and_groups() -> None:
    image = replace(BASE, accounts={}, groups={"root": (0, ())})
    assert unexplained_accounts(image, BASE, [], "admin") == ["account root (removed)", "group sudo (removed)"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("\tlinux\t/boot/vmlinuz-1 root=UUID=1 ro quiet log_buf_len=4M", []),
        ("linux16 /vmlinuz root=LABEL=x single nokaslr", ["nokaslr (new)"]),
        ("options root=UUID=1 ro mitigations=off", ["mitigations=off (new)"]),
        ('GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT quiet iommu=pt"', ["iommu=pt (new)"]),
        ("GRUB_CMDLINE_LINUX='init=/bin/sh'", ["init=/bin/sh (new)"]),
        ("GRUB_TIMEOUT=1", []),
    ],
)
def test_boot_options(line: str, found: list[str]) -> None:
    assert unexplained_boot_options([line, line], BASE, [ROLE]) == found


def test_kernel_options() -> None:
    image = replace(BASE, command_line=("BOOT_IMAGE=/boot/vmlinuz-2", "root=/dev/vda1", "log_buf_len=4M", "nokaslr"))
    assert unexplained_kernel_options(image, BASE, [ROLE]) == ["nokaslr (new)", "quiet (gone)"]


def test_mounts() -> None:
    image = replace(BASE, mounts=(*BASE.mounts, ("/fsx", "lustre"), ("/data", "xfs"), ("/run/user/0", "tmpfs")))
    assert unexplained_mounts(image, BASE, [ROLE]) == ["/data (xfs)"]


def test_listeners() -> None:
    image = replace(BASE, listeners=(*BASE.listeners, ("tcp", 25888, "agent"), ("tcp", 8000, "python3")))
    assert unexplained_listeners(image, BASE, [ROLE]) == ["python3 on tcp/8000"]
