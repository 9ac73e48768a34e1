"""Messages of a kernel panic, oops or lockup, or of a failed early boot, on the console and in the kernel log."""

from __future__ import annotations

import re

# Each with its source. The crash of a process ("traps: x[1] general protection fault ip:…") does not match.
PANIC = re.compile(
    r"Kernel panic - not syncing"  # panic()
    r"|\bOops: [0-9a-f]{4,16}\b|\bOops: general protection fault"  # die(), x86 and arm64; the latter since Linux 6.10
    r"|BUG: unable to handle|BUG: kernel NULL pointer dereference|Unable to handle kernel"  # page faults
    r"|kernel BUG at |general protection fault(?:, (?:probably|maybe)|: [0-9a-f]{4} \[)"  # BUG(); #GP in the kernel
    r"|BUG: soft lockup|Watchdog detected hard LOCKUP|watchdog: Watchdog detected"  # the watchdogs
    r"|VFS: Unable to mount root"  # the kernel finds no root file system
    r"|Gave up waiting for root|ALERT!  \S+ does not exist|dracut: Refusing to continue"  # the initramfs finds none
    r"|You are in (?:emergency|rescue) mode|Entering emergency mode"  # systemd and dracut ask for an operator
)


def troubles(text: str) -> list[str]:
    """The lines of a log with a kernel panic, oops, lockup or failed early boot, in order."""
    return [line.strip() for line in text.splitlines() if PANIC.search(line)]
