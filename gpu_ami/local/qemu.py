"""One QEMU machine: its command line, its process and its control socket (QMP).

The machine's folder is QEMU's working directory and holds every file it uses, so that names are short (a unix socket's
path has 107 bytes) and a comma in the home's path means nothing to QEMU's option parser.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_ami.errors import MachineError
from gpu_ami.local.boards import Board, device_options
from gpu_ami.local.firmware import Boot
from gpu_ami.local.state import ProcessIdentity, identify, write_json
from gpu_ami.run import find_tool, spawn

METADATA_ADDRESS = "169.254.169.254"
API_ADDRESS = "169.254.169.251"
MIRROR_ADDRESS = "169.254.169.252"
CONSOLE = "console.log"
PROCESS = "process.json"
_QMP = "qmp.sock"
_STDERR = "qemu.log"
# Slots of bus 0 that the machine itself takes: host bridge, disk, network, entropy, and q35's own at 1f.
_DISK_SLOT, _NETWORK_SLOT, _ENTROPY_SLOT = 2, 3, 4
RESERVED_SLOTS = (0, _DISK_SLOT, _NETWORK_SLOT, _ENTROPY_SLOT, 0x1F)


@dataclass(frozen=True)
class MachineSpec:
    """What a machine is made of. `address`:`ssh_port` on the host leads to port 22 of the guest."""

    instance_id: str
    instance_type: str
    folder: Path
    address: str
    ssh_port: int
    mac: str
    memory_mib: int
    vcpus: int
    kvm: bool
    boot: Boot | None = None
    boards: tuple[Board, ...] = ()
    oem_strings: tuple[str, ...] = ()  # what SMBIOS says of devices that are not on the PCI bus
    relays: tuple[tuple[str, str], ...] = ()  # (address seen from the guest, program in `folder`), port 80 each

    @property
    def system_uuid(self) -> str:
        """As on EC2: starts with ec2, the same at every boot of the instance."""
        return "ec2" + str(uuid.uuid5(uuid.NAMESPACE_OID, self.instance_id))[3:]


def command_line(spec: MachineSpec) -> list[str]:
    """QEMU's arguments (without the program) for `spec`; relative paths are below `spec.folder`."""
    # la57 off: five-level page tables make every emulated TLB miss dearer, and no guest here has the memory for them.
    accelerator = ["-accel", "kvm", "-cpu", "host"] if spec.kvm else _EMULATION
    return [
        "-name", spec.instance_id,
        "-machine", "q35,vmport=off", *accelerator,
        "-smp", str(spec.vcpus), "-m", str(spec.memory_mib),
        "-nodefaults", "-no-user-config", "-display", "none", "-rtc", "base=utc",
        # A reset ends the process: the region reads the boot menu anew and starts it again, as a firmware would.
        "-action", "reboot=shutdown",
        *_identity(spec),
        "-drive", "file=disk.raw,format=raw,if=none,id=root,cache=unsafe,discard=unmap,detect-zeroes=unmap",
        "-device", f"virtio-blk-pci,drive=root,bus=pcie.0,addr={_DISK_SLOT:#x},bootindex=1",
        *_network(spec),
        "-device", f"virtio-rng-pci,bus=pcie.0,addr={_ENTROPY_SLOT:#x}",
        "-chardev", f"file,id=console,path={CONSOLE},append=on", "-serial", "chardev:console",
        "-qmp", f"unix:{_QMP},server=on,wait=off",
        *device_options(spec.boards, RESERVED_SLOTS),
        *_direct_boot(spec.boot),
    ]  # fmt: skip


_EMULATION = ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,la57=off"]


def _identity(spec: MachineSpec) -> list[str]:
    # cloud-init and dmidecode's users recognise EC2 by these (cloud-init: ds-identify, "ec2" uuid and serial).
    system = f"manufacturer=Amazon EC2,product={spec.instance_type},uuid={spec.system_uuid},serial={spec.system_uuid}"
    return [
        "-smbios", f"type=1,{system}",
        "-smbios", f"type=2,manufacturer=Amazon EC2,asset={spec.instance_id}",
        "-smbios", "type=3,manufacturer=Amazon EC2,asset=Amazon EC2",
        *(word for text in spec.oem_strings for word in ("-smbios", f"type=11,value={text}")),
        "-uuid", spec.system_uuid,
    ]  # fmt: skip


def _network(spec: MachineSpec) -> list[str]:
    forwards = [f"guestfwd=tcp:{address}:80-cmd:./{program}" for address, program in spec.relays]
    user = [
        "user", "id=net0", "net=169.254.0.0/16", "restrict=on", "ipv6=off",
        f"hostname=ip-{spec.address.replace('.', '-')}",
        f"hostfwd=tcp:{spec.address}:{spec.ssh_port}-:22",
        *forwards,
    ]  # fmt: skip
    device = f"virtio-net-pci,netdev=net0,mac={spec.mac},romfile=,bus=pcie.0,addr={_NETWORK_SLOT:#x}"
    return ["-netdev", ",".join(user), "-device", device]


def _direct_boot(boot: Boot | None) -> list[str]:
    if boot is None:
        return []
    initrd = ["-initrd", boot.initrd.name] if boot.initrd else []
    return ["-kernel", boot.kernel.name, *initrd, "-append", boot.command_line]


@dataclass(frozen=True)
class Exit:
    """How a machine ended. cause: "shutdown" (the guest went down), "reset" (it wants to boot again), "died"."""

    cause: str
    detail: str = ""


class QemuMachine:
    """A running machine. The kernel ends QEMU with the thread that made this object: let that one live long enough."""

    def __init__(self, spec: MachineSpec, wake: Callable[[], None]) -> None:
        self.spec = spec
        self._wake = wake
        self._ready = threading.Event()
        self._reason = ""
        self._qmp: Qmp | None = None
        qemu = find_tool("qemu-system-x86_64", package="qemu-system-x86")
        (spec.folder / _QMP).unlink(missing_ok=True)
        with (spec.folder / _STDERR).open("wb") as stderr:
            self.process = spawn(
                [qemu, *command_line(spec)],
                cwd=spec.folder,
                stdout=stderr.fileno(),
                death_signal=signal.SIGKILL,
            )
        self.identity: ProcessIdentity | None = identify(self.process.pid)
        if self.identity:
            write_json(spec.folder / PROCESS, {"pid": self.identity.pid, "started": self.identity.started})
        self._listener = threading.Thread(target=self._listen, name=f"qmp {spec.instance_id}", daemon=True)
        self._listener.start()

    @property
    def ready(self) -> bool:
        """The machine is powered on: QEMU has set it up and answers."""
        return self._ready.is_set()

    def poll(self) -> Exit | None:
        """How it ended, or None while it runs."""
        if self.process.poll() is None:
            return None
        self._listener.join(5)
        if self._reason == "guest-shutdown":
            return Exit("shutdown")
        if self._reason == "guest-reset":
            return Exit("reset")
        said = (self.spec.folder / _STDERR).read_text(errors="replace").strip().splitlines()[-3:]
        return Exit("died", "; ".join([f"QEMU ended with {self.process.returncode}", *said]))

    def power_down(self) -> None:
        """Presses the power button (ACPI): the guest shuts down if it listens."""
        self._tell("system_powerdown")

    def pause(self) -> None:
        self._tell("stop")

    def resume(self) -> None:
        self._tell("cont")

    def kill(self) -> None:
        """Pulls the plug and waits till the process is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def _tell(self, command: str) -> None:
        if self._qmp is None:
            raise MachineError(f"{self.spec.instance_id}: QEMU does not answer yet", hint="try again in a second")
        self._qmp.execute(command)

    def _listen(self) -> None:
        try:
            self._qmp = Qmp(self.spec.folder / _QMP, still_there=lambda: self.process.poll() is None)
            self._ready.set()
            self._wake()
            for event in self._qmp.events():
                if event["event"] == "SHUTDOWN":
                    self._reason = str(event["data"]["reason"])
        except (OSError, MachineError):
            pass  # QEMU has ended; poll() says how
        self.process.wait()
        self._wake()


class Qmp:
    """A connection to QEMU's control socket. One thread iterates over `events`; any may `execute`."""

    def __init__(self, path: Path, still_there: Callable[[], bool], timeout: float = 30.0) -> None:
        self._socket = _connect(path, still_there, timeout)
        self._lines = self._socket.makefile("rb")
        self._lock = threading.Lock()
        self._lines.readline()  # the greeting
        self.execute("qmp_capabilities")

    def execute(self, command: str) -> None:
        """Sends a command; its answer comes among the events and is not waited for."""
        with self._lock:
            self._socket.sendall(json.dumps({"execute": command}).encode() + b"\n")

    def events(self) -> Iterator[dict[str, Any]]:
        """What QEMU reports till it ends."""
        for line in self._lines:
            message = json.loads(line)
            if "event" in message:
                yield message


def _connect(path: Path, still_there: Callable[[], bool], timeout: float) -> socket.socket:
    deadline = time.monotonic() + timeout
    while still_there() and time.monotonic() < deadline:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with short_path(path) as name:
                connection.connect(name)
            return connection
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            time.sleep(0.02)  # QEMU makes the socket within milliseconds of its start and tells nobody
    raise MachineError(f"{path}: QEMU did not open its control socket")


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name for a socket whose own path may be longer than the 107 bytes that the kernel takes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def read_console(folder: Path, limit: int = 64 * 1024) -> bytes:
    """The last `limit` bytes that the machine wrote to its serial port, over all its boots."""
    try:
        with (folder / CONSOLE).open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - limit))
            return stream.read()
    except FileNotFoundError:
        return b""


def cap_console(folder: Path, most: int = 8 * 1024**2, keep: int = 1024**2) -> None:
    """Drops the head of a console that has grown past `most` bytes. QEMU appends, so it goes on at the new end."""
    path = folder / CONSOLE
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > most:
            tail = read_console(folder, keep)
            with path.open("r+b") as stream:
                stream.truncate(0)
                stream.write(tail)
