"""A builder without a kernel of its own: the disk of an instance, its partition mounted, in a sandbox of this host.

Roles run in it at native speed, and what they write is on the disk, of which CreateImage makes the AMI as of any other
instance's. It is not booted: no kernel and systemd of its own, no cloud-init (the sandbox makes the login user and the
host key), no API of the region. The launch asks for it by the tag `gpu-ami:machine` = `sandbox`; root only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.errors import CloudError, GpuAmiError, MachineError
from gpu_ami.files import write_json
from gpu_ami.process import find_tool, identify, run
from localregion.architectures import DEFAULT, require_programs
from localregion.images import LoopDevice, base_image
from localregion.machines import CONSOLE, PROCESS, Exit
from localregion.sandbox import sandbox

if TYPE_CHECKING:
    from localregion.backends import InstanceView

_SECTOR = 512
_ENTRY = 446  # of the first partition in a master boot record


@dataclass(frozen=True)
class BuilderSpec:
    """A builder's parts. The sshd of its tree answers at `address`:`ssh_port` of the host.

    loop: the disk's partition as a block device, which the sandbox then mounts; None: it sets one up itself.
    """

    instance_id: str
    folder: Path
    address: str
    ssh_port: int
    public_key: str
    home: Path
    loop: LoopDevice | None = None
    architecture: str = DEFAULT


def grow(disk: Path) -> None:
    """Lets partition 1 and its ext4 file system fill the disk, as cloud-init does at a machine's first boot."""
    size = disk.stat().st_size
    sectors = (size - base_image.PARTITION_OFFSET) // _SECTOR
    with disk.open("r+b") as handle:
        handle.seek(_ENTRY + 12)
        (present,) = struct.unpack("<I", handle.read(4))
        if present >= sectors:
            return
        handle.seek(_ENTRY + 12)
        handle.write(struct.pack("<I", sectors))
    file_system = f"{disk.name}?offset={base_image.PARTITION_OFFSET}"
    kibibytes = f"{sectors * _SECTOR // 4096 * 4}K"
    resize = [find_tool("resize2fs", package="e2fsprogs"), "-f", file_system, kibibytes]
    run(resize, cwd=disk.parent, timeout=300, error=CloudError)
    os.truncate(disk, size)  # resize2fs cuts the file as if the file system began where the file does


class SandboxMachine:
    """A builder that runs; has the methods of a QEMU machine. It ends with the thread that created this object."""

    stopped_by = ""  # no emulator stops it: the host's full disk is an error of the program that writes

    def __init__(self, spec: BuilderSpec, wake: Callable[[], None]) -> None:
        self.spec, self._wake = spec, wake
        self._ready = threading.Event()
        self.failure = ""
        self._killed = False
        settings = {
            "home": str(spec.home),
            "public_key": spec.public_key,
            "disk": str(spec.loop.path if spec.loop else spec.folder / "disk.raw"),
            "metadata": str(spec.folder / "to-metadata"),
            "architecture": spec.architecture,
        }
        with socket.create_server((spec.address, spec.ssh_port)) as listener, self._console.open("ab") as console:
            kept = [spec.loop.fileno()] if spec.loop else []
            self.process, report = sandbox.start(spec.folder, settings, listener, console.fileno(), kept)
        if spec.loop:
            spec.loop.close()  # the sandbox keeps it
        identity = identify(self.process.pid)
        if identity:
            write_json(spec.folder / PROCESS, asdict(identity), mode=0o600)
        threading.Thread(target=self._listen, args=(report,), name=f"sandbox {spec.instance_id}", daemon=True).start()

    @property
    def _console(self) -> Path:
        return self.spec.folder / CONSOLE

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    def poll(self) -> Exit | None:
        """How it ended, or None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        if code == 0:
            return Exit("shutdown")
        return Exit("died", self.failure or f"the sandbox ended with {code}")

    def power_down(self) -> None:
        """Ends what runs in it and unmounts the disk."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.first_line, signal.SIGTERM)  # not its parent, unshare, whose end would kill it

    def pause(self) -> None:
        """NoReboot: every process stops, and what was written is on the disk."""
        self._signal_inside(signal.SIGSTOP)
        os.sync()

    def resume(self) -> None:
        self._signal_inside(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it at once; the kernel unmounts the disk with the name space."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    @property
    def first_line(self) -> int:
        """Process 1 of the name space. ProcessLookupError: it has ended."""
        try:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        except OSError:
            children = []
        if not children:
            raise ProcessLookupError
        return int(children[0])

    def _signal_inside(self, signum: int) -> None:
        """To the processes of its PID name space other than the first, which ends it."""
        first = self.first_line
        space = Path(f"/proc/{first}/ns/pid").stat().st_ino
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if int(entry.name) != first and (entry / "ns/pid").stat().st_ino == space:
                    os.kill(int(entry.name), signum)

    def _listen(self, report: int) -> None:
        with os.fdopen(report) as stream:
            line = stream.readline()
        try:
            sandbox.read_report(line, self._console)
            self._ready.set()
        except GpuAmiError as error:
            self.failure = "; ".join([error.message, *error.details])
        self._wake()
        self.process.wait()
        self._wake()


@dataclass(frozen=True)
class Sandboxes:
    """Makes builders of a home, for the region's machine factory."""

    home: Path

    def prepare(self, view: InstanceView, folder: Path, ssh_port: int, loop: LoopDevice | None = None) -> BuilderSpec:
        """Grows the instance's disk. loop: of its partition.

        MachineError: the launch named no key pair. CloudError: this host cannot run programs of its architecture.
        """
        require_programs(view.architecture)
        if not view.public_key:
            raise MachineError(f"{view.instance_id}: a sandbox needs a key pair", hint="launch it with KeyName")
        grow(folder / "disk.raw")
        if loop:
            loop.refresh()
        key = view.public_key.strip()
        return BuilderSpec(view.instance_id, folder, view.address, ssh_port, key, self.home, loop, view.architecture)

    def power_on(self, prepared: BuilderSpec, wake: Callable[[], None]) -> SandboxMachine:
        return SandboxMachine(prepared, wake)


def unusable() -> str:
    """Why this host can run no such builder; "" where it can."""
    if os.geteuid() != 0:
        return "it needs root (mounts, files of many owners)"
    for tool, package in (("unshare", "util-linux"), ("mount", "mount"), ("resize2fs", "e2fsprogs"), ("gcc", "gcc")):
        try:
            find_tool(tool, package=package)
        except GpuAmiError as error:
            return error.message
    return "" if os.access("/dev/loop-control", os.R_OK | os.W_OK) else "there is no /dev/loop-control"
