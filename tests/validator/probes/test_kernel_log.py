"""Which kernel messages mean a panic, or a GPU that could not be initialised, and which only look like it."""

from __future__ import annotations

import pytest

from validator.probes.kernel_log import gpu_failures, troubles


@pytest.mark.parametrize(
    "line",
    [
        "[    1.0] Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)",
        "[   12.3] Oops: 0002 [#1] PREEMPT SMP NOPTI",
        "[   12.3] Oops: general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP",
        "[   12.3] Internal error: Oops: 0000000096000004 [#1] SMP",
        "[   12.3] BUG: unable to handle page fault for address: ffffffffc0a5b000",
        "[   12.3] BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "[   12.3] Unable to handle kernel NULL pointer dereference at virtual address 0000000000000010",
        "[   12.3] kernel BUG at mm/slub.c:4023!",
        "[   12.3] general protection fault, probably for non-canonical address 0xdead000000000108: 0000 [#1] SMP",
        "[   12.3] general protection fault: 0000 [#1] SMP PTI",
        "[   12.3] watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [nvidia-smi:1234]",
        "[   12.3] NMI watchdog: Watchdog detected hard LOCKUP on cpu 3",
        "Gave up waiting for root file system device.  Common problems:",
        "ALERT!  UUID=1234-5678 does not exist.  Dropping to a shell!",
        "dracut: Refusing to continue",
        "You are in emergency mode. After logging in, type \"journalctl -xb\" to view",
    ],
)  # fmt: skip
def test_panics_are_recognized(line: str) -> None:
    assert troubles(f"[ 0.0] Linux version 6.1\n{line}\n") == [line]


@pytest.mark.parametrize(
    "line",
    [
        "[   12.3] traps: python3[99] general protection fault ip:7f01 sp:7ffd error:0 in libc.so.6[7f00+1000]",
        "[   12.3] Command line: BOOT_IMAGE=/vmlinuz ro panic=1 oops=panic",
        "[   12.3] nmi_watchdog: Enabled. Permanently consumes one hw-PMU counter.",
        "[   12.3] WARNING: CPU: 0 PID: 1 at nvidia/nv.c:100",
        "[   12.3] NVRM: Xid (PCI:0000:00:1b): 31, pid=1, name=x, MMU Fault",
        "[   12.3] pstore: Registered erst as persistent store backend",
    ],
)
def test_other_messages_are_not_panics(line: str) -> None:
    assert troubles(line) == []


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU 0000:4b:00.0: RmInitAdapter failed! (0x22:0x56:894)",
        "NVRM: GPU 0000:4b:00.0: rm_init_adapter failed, device minor number 5",
        "NVRM: rm_init_adapter(0) failed",
        "NVRM: GPU 0000:4b:00.0 is already lost",
        "NVRM: GPU6 RmInitAdapter: Cannot initialize GSP firmware RM",
        "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
        "nvidia: probe of 0000:4b:00.0 failed with error -1",
        "nvidia 0000:4b:00.0: probe with driver nvidia failed with error -1",
    ],
)
def test_gpu_failure(line: str) -> None:
    assert gpu_failures(f"something else\n{line}\n{line}\n") == [line]


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.163.01",
        "NVRM: Xid (PCI:0000:4b:00): 79, GPU has fallen off the bus.",
        "nouveau 0000:4b:00.0: probe with driver nouveau failed with error -12",
        "saw NVRM: GPU 0000:4b:00.0: RmInitAdapter failed! (0x22:0x56:894)",
    ],
)
def test_no_gpu_failure(line: str) -> None:
    assert gpu_failures(line) == []
