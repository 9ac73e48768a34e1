"""Whether KVM works on this host: tested by booting a kernel with it, never by looking at /dev/kvm.

In nested virtual machines and containers the device can exist and open while every guest hangs. The result is kept in
the home and is valid for this boot of the host.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from gpu_ami.errors import GpuAmiError
from gpu_ami.files import read_json, write_json
from gpu_ami.process import run
from localregion.architectures import DEFAULT
from localregion.machines.platforms import PLATFORMS

DEVICE = Path("/dev/kvm")
# Where KVM works, a kernel without a root file system panics within one or two seconds.
_DEADLINE_SECONDS = 8.0
_REACHED = "Kernel panic - not syncing"


def usable(kernel: Path, remembered: Path, architecture: str = DEFAULT) -> bool:
    """True if a guest ran to the end of its kernel's boot under KVM. remembered: the file that keeps the result.

    kernel: of the host's architecture.
    """
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return False
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    known = read_json(remembered)
    if known and known.get("host_boot") == boot:
        return bool(known.get("usable"))
    answer = boots(kernel, "kvm", _DEADLINE_SECONDS, architecture)
    probe = {"host_boot": boot, "usable": answer, "how": f"booted {kernel.name} with a deadline"}
    write_json(remembered, probe, mode=0o600)
    return answer


def boots(kernel: Path, accelerator: str, seconds: float, architecture: str = DEFAULT) -> bool:
    """Boots `kernel` without a root file system; it must panic, reboot and so end QEMU within `seconds`."""
    platform = PLATFORMS[architecture]
    qemu = platform.qemu()
    with tempfile.TemporaryDirectory(prefix="gpu-ami-probe-") as scratch:
        console = Path(scratch) / "console"
        command = [
            qemu, "-accel", accelerator, "-cpu", "host" if accelerator == "kvm" else "max",
            "-machine", platform.machine, "-m", "256", "-nodefaults", "-no-user-config",
            "-display", "none", "-no-reboot",
            "-chardev", f"file,id=console,path={console.name}", "-serial", "chardev:console",
            "-kernel", kernel.resolve(), "-append", f"console={platform.console} panic=-1",
        ]  # fmt: skip
        try:
            run(command, timeout=seconds, cwd=Path(scratch), grace=1.0)
            return _REACHED in console.read_text(errors="replace")
        except (GpuAmiError, OSError):
            return False
