"""What the kernel log, or a console, says of a boot: panic, oops or lockup, a failed early boot, a GPU that failed."""

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

# The event parser's grammar (onhost/event_parser/hwevents/initialisation.py) has the sources.
_GPU_FAILED = re.compile(
    r"NVRM: .*(?:RmInitAdapter failed!|rm_init_adapter(?:\(\d+\))? failed\b|\bis already lost\b"
    r"|Cannot initialize GSP firmware RM"
    r"|is not supported by|requires? use of the NVIDIA open|\bis already bound to (?!vfio|pci-stub))"
    r"|nvidia: probe of \S+ failed with error|nvidia \S+: probe with driver nvidia failed with error"
)


def troubles(text: str) -> list[str]:
    """The lines of a log with a kernel panic, oops, lockup or failed early boot, in order."""
    return [line.strip() for line in text.splitlines() if PANIC.search(line)]


def gpu_failures(kernel_log: str) -> list[str]:
    """The lines of GPUs that the driver could not initialise, in order.

    Each text once: every nvidia-smi tries such a GPU again.
    """
    lines = [line.strip() for line in kernel_log.splitlines() if _GPU_FAILED.match(line.strip())]
    return list(dict.fromkeys(lines))
