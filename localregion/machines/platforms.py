"""What QEMU emulates for an image of each architecture: program, machine, processor, firmware.

Whether KVM works on this host: tested by booting a kernel with it, never by looking at /dev/kvm.

In nested virtual machines and containers the device can exist and open while every guest hangs. The result is kept in
the home and is valid for this boot of the host.
"""

from __future__ import annotations

import functools
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpu_ami.errors import GpuAmiError
from gpu_ami.files import read_json, write_json
from gpu_ami.process import find_tool, run
from localregion.architectures import ARCHITECTURES, DEFAULT


@dataclass(frozen=True)
class Platform:
    """package: of Debian, with QEMU's program. processor: `-cpu` of an emulated machine.

    firmware: its path, "" for QEMU's own. It reads kernel and initrd from QEMU, as a boot loader
    would from the disk. slots: of bus 0, which the machine takes itself. console: the kernel's name of the serial port.
    """

    program: str
    package: str
    machine: str
    processor: str
    slots: tuple[int, ...]
    console: str
    firmware: str = ""

    def qemu(self) -> str:
        """Absolute path of the program. MissingTool: it is not installed."""
        return find_tool(self.program, package=self.package)

    def options(self, *, kvm: bool) -> list[str]:
        """QEMU's options for machine, processor and firmware."""
        accelerator = ["-accel", "kvm", "-cpu", "host"] if kvm else [*_TCG, "-cpu", self.processor]
        firmware = ["-bios", self.firmware] if self.firmware else []
        return ["-machine", self.machine, *accelerator, *firmware]


_TCG = ["-accel", "tcg,thread=multi,tb-size=512"]
PLATFORMS = {
    # la57 off: five-level page tables make each emulated TLB miss slower, and no guest has that much memory. erms off:
    # with it Linux copies and clears memory by `rep movsb` and `rep stosb`, which TCG does byte by byte; without it, by
    # words. fsrm off: no processor has it without erms, and Linux 6.1 then ends at a memmove (QEMU 10's "max" has it,
    # 7.2's not). svm off: as on EC2, where virtual instances cannot run machines of their own; with it udev loads KVM
    # at each boot.
    "x86_64": Platform(
        "qemu-system-x86_64",
        "qemu-system-x86",
        "q35,vmport=off",
        "max,la57=off,erms=off,fsrm=off,svm=off",
        slots=(0, 0x1F),
        console="ttyS0",
    ),
    # Graviton2's core; "max" also has pointer authentication, which TCG computes with every call of a function.
    "arm64": Platform(
        "qemu-system-aarch64",
        "qemu-system-arm",
        "virt,gic-version=3",
        "neoverse-n1",
        slots=(0,),
        console="ttyAMA0",
        firmware="/usr/share/qemu-efi-aarch64/QEMU_EFI.fd",
    ),
}


@functools.cache
def qemu_version() -> str:
    """Which QEMU runs the machines: "QEMU 10.0.2 (Debian 1:10.0.2+ds-2)"; "" where none is installed.

    Asked once: the daemon's status says it, also while the daemon ends. The programs of all architectures are of one
    version: their packages depend on one package of it.
    """
    try:
        done = run([PLATFORMS[DEFAULT].qemu(), "--version"], timeout=30)
    except GpuAmiError:
        return ""
    return done.stdout.partition("\n")[0].replace("QEMU emulator version", "QEMU")


def can_use_kvm(architecture: str) -> bool:
    """Whether machines of this architecture can run on the host's own processor."""
    return ARCHITECTURES[architecture].is_native


DEVICE = Path("/dev/kvm")
# Where KVM works, a kernel without a root file system panics within one or two seconds.
DEADLINE_SECONDS = 8.0
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
    answer = boots(kernel, "kvm", DEADLINE_SECONDS, architecture)
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
