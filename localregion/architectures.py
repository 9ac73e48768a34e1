"""The architectures of base images and machines, and programs of another one than this host's.

Programs of a foreign architecture run by QEMU's user-mode emulation, which the kernel starts by their ELF header
(binfmt_misc). `require_programs` registers it where that is missing: the registration ends with the host's boot.
Standard library alone: `make prove` prepares base images before anything else is installed.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_ami.errors import CloudError, GpuAmiError, MissingTool
from gpu_ami.process import find_tool, run

DEFAULT = "x86_64"
BINFMT = Path("/proc/sys/fs/binfmt_misc")
# Debian's package has the interpreter under this name, by which it knows that a program's own name is kept (P).
_INTERPRETERS = Path("/usr/libexec/qemu-binfmt")
# O, C: a setuid program gets its owner's rights (sudo in a sandbox). F: the interpreter is opened now, so that it is
# found in every root. P: argv[0] stays. Source: Linux, Documentation/admin-guide/binfmt-misc.rst.
_FLAGS = "POCF"
_ELF = r"\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00{}\x00"
# Ignored: the ABI's number, and whether a program is position-independent (e_type 2 or 3).
_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"


@dataclass(frozen=True)
class Architecture:
    """name: as in plans. machine: of `uname -m`, QEMU and rpm. elf: its number in a program's header (e_machine).

    compiler, options: gcc of the replicas' libraries where another architecture is the host's, and what it takes
    beside the common options. packages: of the base image, those that amd64 has under other names. tools: programs and
    files that a host of another architecture needs, with their Debian packages (ARM64_PACKAGES of the Makefile).
    """

    name: str
    machine: str
    debian: str
    elf: int
    compiler: str
    options: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)
    tools: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_native(self) -> bool:
        """Whether this host runs its programs without emulation."""
        return platform.machine() == self.machine

    def gcc(self) -> str:
        """Absolute path of the compiler of its programs. MissingTool names the package that has it."""
        if self.is_native:
            return find_tool("gcc", package="gcc")
        return find_tool(self.compiler, package=self.tools.get(self.compiler, f"gcc-{self.name}-linux-gnu"))

    def can_compile(self) -> bool:
        """Whether `gcc` finds a compiler."""
        return is_there("gcc" if self.is_native else self.compiler)

    def missing_packages(self) -> list[str]:
        """Debian packages with what this host lacks for it; none on a host of this architecture."""
        tools = {} if self.is_native else self.tools
        return sorted({package for tool, package in tools.items() if not is_there(tool)})


ARCHITECTURES = {
    "x86_64": Architecture("x86_64", "x86_64", "amd64", 0x3E, "x86_64-linux-gnu-gcc", ("-fcf-protection=none",)),
    "arm64": Architecture(
        "arm64",
        "aarch64",
        "arm64",
        0xB7,
        "aarch64-linux-gnu-gcc",
        packages={
            "linux-image-cloud-amd64": "linux-image-cloud-arm64",
            "linux-headers-cloud-amd64": "linux-headers-cloud-arm64",
            "grub-pc-bin": "grub-efi-arm64-bin",
        },
        tools={
            "qemu-aarch64-static": "qemu-user-static",
            "qemu-system-aarch64": "qemu-system-arm",
            "/usr/share/qemu-efi-aarch64/QEMU_EFI.fd": "qemu-efi-aarch64",
            "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
        },
    ),
}


def is_there(tool: str) -> bool:
    """Whether a program, or a file by its path, is installed."""
    return Path(tool).exists() if tool.startswith("/") else shutil.which(tool) is not None


def require_packages(name: str) -> None:
    """MissingTool: packages for images of that architecture are not installed on this host."""
    missing = ARCHITECTURES[name].missing_packages()
    if missing:
        install = f"apt-get install --no-install-recommends {' '.join(missing)}"
        message = f"this host is {platform.machine()}, and for images of {name} these packages are not installed"
        raise MissingTool(f"{message}: {', '.join(missing)}", hint=f"{install} (make prove and make recipes do that)")


def require_programs(name: str) -> None:
    """Makes this host run programs of an architecture, also in other roots.

    CloudError: the kernel has no binfmt_misc, or only root could register the interpreter. MissingTool: as
    `require_packages`.
    """
    require_packages(name)
    architecture = ARCHITECTURES[name]
    if architecture.is_native or is_registered(architecture):
        return
    interpreter = _INTERPRETERS / f"{architecture.machine}-binfmt-P"
    if not interpreter.exists():
        interpreter = Path(find_tool(f"qemu-{architecture.machine}-static", package="qemu-user-static"))
    _mount()
    try:
        (BINFMT / "register").write_text(_registration(architecture, interpreter), encoding="ascii")
    except OSError as error:
        raise CloudError(
            f"programs of {name} cannot run on this host: {BINFMT}/register: {error.strerror}",
            hint="run it as root: the kernel has to be told how to start them (binfmt_misc)",
        ) from error


def is_registered(architecture: Architecture) -> bool:
    """Whether the kernel starts its programs in every root (F), and sudo with its owner's rights (C)."""
    magic = "7f454c460201010000000000000000000200" + f"{architecture.elf:02x}00"
    for path in BINFMT.glob("*"):
        if path.name in ("register", "status"):
            continue
        rows = dict(line.partition(" ")[::2] for line in path.read_text(encoding="ascii").splitlines())
        if "enabled" in rows and rows.get("magic") == magic and {"F", "C"} <= set(rows.get("flags:", "")):
            return True
    return False


def _registration(architecture: Architecture, interpreter: Path) -> str:
    flags = _FLAGS if interpreter.name.endswith("-P") else _FLAGS.replace("P", "")
    magic = _ELF.format(rf"\x{architecture.elf:02x}")
    return f":gpu-ami-{architecture.name}:M::{magic}:{_MASK}:{interpreter}:{flags}"


def _mount() -> None:
    """Mounts the kernel's register, which in containers nothing does; the kernel loads the module for it."""
    if (BINFMT / "register").exists():
        return
    try:
        mount = find_tool("mount", package="mount")
        run([mount, "-t", "binfmt_misc", "binfmt_misc", BINFMT], timeout=30, error=CloudError)
    except GpuAmiError as error:
        raise CloudError(
            f"this host's kernel cannot start programs of another architecture: binfmt_misc is not at {BINFMT}",
            details=[error.message],
            hint="use a kernel with CONFIG_BINFMT_MISC (modprobe binfmt_misc), or build on AWS with --where FILE",
        ) from error
