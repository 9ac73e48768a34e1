"""One QEMU machine: its command line, its process, how it ended.

The machine's folder is QEMU's working directory and holds every file that it uses. So names are short (a unix socket's
path has at most 107 bytes), and a comma in the home's path does not break QEMU's options.

The serial console of a machine: a file that QEMU appends to.

QEMU's control socket (QMP).

Source: QEMU 7.2, docs/interop/qmp-spec.txt: JSON lines; a greeting, then answers and events.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_ami.errors import MachineError
from gpu_ami.files import write_json
from gpu_ami.process import ProcessIdentity, identify, spawn
from localregion.architectures import DEFAULT
from localregion.machines.boards import Board, device_options
from localregion.machines.firmware import Boot
from localregion.machines.interconnect import Interconnect
from localregion.machines.platforms import PLATFORMS, Platform

CONSOLE = "console.log"


def read_console(folder: Path, limit: int = 64 * 1024) -> bytes:
    """The last `limit` bytes of the machine's serial port, of all its boots."""
    try:
        with (folder / CONSOLE).open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - limit))
            return stream.read()
    except FileNotFoundError:
        return b""


def note_on_console(folder: Path, text: str) -> None:
    """Appends a line of the region's own to the console. On a full disk it is omitted."""
    with contextlib.suppress(OSError), (folder / CONSOLE).open("ab") as stream:
        stream.write(f"\r\n[local region] {text}\r\n".encode())


def cap_console(folder: Path, most: int = 8 * 1024**2, keep: int = 1024**2) -> None:
    """Truncates a console of more than `most` bytes to its last `keep`. QEMU appends at the new end."""
    path = folder / CONSOLE
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > most:
            tail = read_console(folder, keep)
            with path.open("r+b") as stream:
                stream.truncate(0)
                stream.write(tail)


PROCESS = "process.json"
_QMP = "qmp.sock"
_STDERR = "qemu.log"
# Slots of bus 0 that the machine's parts take, beside the platform's own.
_DISK_SLOT, _NETWORK_SLOT, _ENTROPY_SLOT = 2, 3, 4
_INTERCONNECT_SLOT = 5  # of machines that have one


@dataclass(frozen=True)
class MachineSpec:
    """A machine's parts. `address`:`ssh_port` on the host is forwarded to port 22 of the guest, unless `ssh_closed`."""

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
    oem_strings: tuple[str, ...] = ()  # SMBIOS strings of devices that are not on the PCI bus
    relays: tuple[tuple[str, str], ...] = ()  # (address or address:port of the guest's side, program in `folder`)
    ssh_closed: bool = False  # at power-on
    interconnect: Interconnect | None = None  # a second network, with the machines of its placement group
    architecture: str = DEFAULT

    @property
    def platform(self) -> Platform:
        return PLATFORMS[self.architecture]

    @property
    def system_uuid(self) -> str:
        """As on EC2: starts with ec2, the same at every boot of the instance."""
        return "ec2" + str(uuid.uuid5(uuid.NAMESPACE_OID, self.instance_id))[3:]


def reserved_slots(architecture: str, *, interconnect: bool = False) -> tuple[int, ...]:
    """Slots of bus 0 in which no board can be."""
    slots = (*PLATFORMS[architecture].slots, _DISK_SLOT, _NETWORK_SLOT, _ENTROPY_SLOT)
    return (*slots, _INTERCONNECT_SLOT) if interconnect else slots


def command_line(spec: MachineSpec) -> list[str]:
    """QEMU's arguments (without the program) for `spec`; relative paths are below `spec.folder`."""
    return [
        "-name", spec.instance_id,
        *spec.platform.options(kvm=spec.kvm),
        "-smp", str(spec.vcpus), "-m", str(spec.memory_mib),
        "-nodefaults", "-no-user-config", "-display", "none", "-rtc", "base=utc",
        # A reset ends the process: the region reads the boot menu again and starts it, as firmware would.
        "-action", "reboot=shutdown",
        *_identity(spec),
        "-drive", "file=disk.raw,format=raw,if=none,id=root,cache=unsafe,discard=unmap,detect-zeroes=unmap",
        "-device", f"virtio-blk-pci,drive=root,bus=pcie.0,addr={_DISK_SLOT:#x},bootindex=1",
        *_network(spec),
        "-device", f"virtio-rng-pci,bus=pcie.0,addr={_ENTROPY_SLOT:#x}",
        "-chardev", f"file,id=console,path={CONSOLE},append=on", "-serial", "chardev:console",
        "-qmp", f"unix:{_QMP},server=on,wait=off",
        *device_options(spec.boards, reserved_slots(spec.architecture, interconnect=spec.interconnect is not None)),
        *_direct_boot(spec),
    ]  # fmt: skip


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
    ends = [(address if ":" in address else f"{address}:80", program) for address, program in spec.relays]
    forwards = [f"guestfwd=tcp:{end}-cmd:./{program}" for end, program in ends]
    user = [
        "user", "id=net0", "net=169.254.0.0/16", "restrict=on", "ipv6=off",
        f"hostname=ip-{spec.address.replace('.', '-')}",
        *([] if spec.ssh_closed else [f"hostfwd={_forward(spec)}-:22"]),
        *forwards,
    ]  # fmt: skip
    return ["-netdev", ",".join(user), "-device", _card("net0", spec.mac, _NETWORK_SLOT), *_interconnect(spec)]


def _interconnect(spec: MachineSpec) -> list[str]:
    if spec.interconnect is None:
        return []
    return [
        "-netdev",
        spec.interconnect.netdev("net1"),
        "-device",
        _card("net1", spec.interconnect.mac, _INTERCONNECT_SLOT),
    ]


def _card(netdev: str, mac: str, slot: int) -> str:
    return f"virtio-net-pci,netdev={netdev},mac={mac},romfile=,bus=pcie.0,addr={slot:#x}"


def _forward(spec: MachineSpec) -> str:
    return f"tcp:{spec.address}:{spec.ssh_port}"


# What an emulated processor does slowly and the image does not ask for: the kernel's tests of its ciphers (when udev
# loads them), and work at each allocation, copy and system call that only a machine with attackers needs. No option may
# be here that the checks judge (mitigations=, nokaslr, audit= and others): they would judge the region, not the image.
EMULATED_KERNEL = ("cryptomgr.notests", "init_on_alloc=0", "hardened_usercopy=off", "randomize_kstack_offset=off")


def _direct_boot(spec: MachineSpec) -> list[str]:
    boot = spec.boot
    if boot is None:
        return []
    initrd = ["-initrd", boot.initrd.name] if boot.initrd else []
    options = [] if spec.kvm else EMULATED_KERNEL
    return ["-kernel", boot.kernel.name, *initrd, "-append", " ".join([boot.command_line, *options])]


@dataclass(frozen=True)
class Exit:
    """How a machine ended. cause: "shutdown" (by the guest), "reset" (the guest reboots), "died" (QEMU ended)."""

    cause: str
    detail: str = ""


class QemuMachine:
    """A running machine. The kernel ends QEMU with the thread that created this object."""

    def __init__(self, spec: MachineSpec, wake: Callable[[], None]) -> None:
        self.spec = spec
        self._wake = wake
        self._ready = threading.Event()
        self._reason = ""
        self._killed = False
        self._stopped_by = ""
        self._qmp: Qmp | None = None
        qemu = spec.platform.qemu()
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
            identity = {"pid": self.identity.pid, "started": self.identity.started}
            write_json(spec.folder / PROCESS, identity, mode=0o600)
        self._listener = threading.Thread(target=self._listen, name=f"qmp {spec.instance_id}", daemon=True)
        self._listener.start()

    @property
    def ready(self) -> bool:
        """The machine is powered on: QEMU has set it up and answers."""
        return self._ready.is_set()

    @property
    def stopped_by(self) -> str:
        """Why QEMU stopped the guest by itself: "no space" (the host's disk is full), "I/O error", or ""."""
        return self._stopped_by

    def poll(self) -> Exit | None:
        """How it ended, or None while it runs."""
        if self.process.poll() is None:
            return None
        self._listener.join(5)
        if self._reason == "guest-shutdown":
            return Exit("shutdown")
        if self._reason == "guest-reset":
            return Exit("reset")
        if self.process.returncode == -signal.SIGKILL and not self._killed:
            return Exit("died", out_of_memory_text(self.spec.memory_mib))
        tail = (self.spec.folder / _STDERR).read_text(errors="replace").strip().splitlines()[-3:]
        return Exit("died", "; ".join([f"QEMU ended with {self.process.returncode}", *tail]))

    def power_down(self) -> None:
        """Sends ACPI power-button; the guest shuts down if it handles it."""
        self._tell("system_powerdown")

    def pause(self) -> None:
        self._tell("stop")

    def resume(self) -> None:
        self._tell("cont")

    def open_ssh(self) -> None:
        """Forwards connections to the guest's sshd."""
        self._tell_monitor(f"hostfwd_add net0 {_forward(self.spec)}-:22")

    def close_ssh(self) -> None:
        """Frees the forwarded port. Connections that are established stay, as AWS's tracked ones do."""
        self._tell_monitor(f"hostfwd_remove net0 {_forward(self.spec)}")

    def kill(self) -> None:
        """Ends QEMU at once and waits until its process has ended."""
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def _tell_monitor(self, command: str) -> None:
        self._tell("human-monitor-command", {"command-line": command})  # QMP has no command of its own for it

    def _tell(self, command: str, arguments: Mapping[str, str] | None = None) -> None:
        if self._qmp is None:
            raise MachineError(
                f"{self.spec.instance_id}: QEMU's control socket does not answer yet", hint="try again in a second"
            )
        self._qmp.execute(command, arguments)

    def _listen(self) -> None:
        try:
            self._qmp = Qmp(self.spec.folder / _QMP, still_there=lambda: self.process.poll() is None)
            self._ready.set()
            self._wake()
            for message in self._qmp.messages():
                self._handle(message)
        except (OSError, MachineError):
            pass  # QEMU has ended; poll() says how
        self.process.wait()
        self._wake()

    def _handle(self, message: dict[str, object]) -> None:
        """Keeps what an event, or the answer to query-status, says of the machine.

        QEMU's default `werror=enospc` stops the guest when a write finds no space, and passes other errors to it.
        Source: QEMU 7.2, docs/interop/qemu-qmp-ref (BLOCK_IO_ERROR, STOP, RESUME, RunState "io-error").
        """
        event, details, answer = message.get("event"), message.get("data"), message.get("return")
        data = details if isinstance(details, dict) else {}
        stopped_by = self._stopped_by
        if event == "SHUTDOWN":
            self._reason = str(data["reason"])
        elif event == "BLOCK_IO_ERROR" and data.get("action") == "stop":
            stopped_by = "no space" if data.get("nospace") else "I/O error"
        elif event == "STOP" and self._qmp:
            self._qmp.execute("query-status")  # an event of the same kind within a second is not repeated
        elif event == "RESUME":
            stopped_by = ""
        elif isinstance(answer, dict) and answer.get("status") == "io-error":
            stopped_by = stopped_by or "I/O error"
        if stopped_by != self._stopped_by:
            self._stopped_by = stopped_by
            self._wake()


def out_of_memory_text(memory_mib: int) -> str:
    """The reason of a machine whose QEMU was killed by SIGKILL, which the kernel does when memory is full."""
    available = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())
    now = f"{int(available[1]) // 1024} MiB are available now" if available else "how much is available is unknown"
    return f"QEMU was killed (signal 9), as the kernel does when memory is full: it needs {memory_mib} MiB, {now}"


class Qmp:
    """A connection to QEMU's control socket. One thread iterates over `messages`; any may `execute`."""

    def __init__(self, path: Path, still_there: Callable[[], bool], timeout: float = 30.0) -> None:
        self._socket = _connect(path, still_there, timeout)
        self._lines = self._socket.makefile("rb")
        self._lock = threading.Lock()
        self._lines.readline()  # the greeting
        self.execute("qmp_capabilities")

    def execute(self, command: str, arguments: Mapping[str, str] | None = None) -> None:
        """Sends a command; its answer comes among the messages and is not waited for."""
        message = {"execute": command} | ({"arguments": arguments} if arguments else {})
        with self._lock:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def messages(self) -> Iterator[dict[str, object]]:
        """Events and answers, until QEMU ends."""
        for line in self._lines:
            yield json.loads(line)


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
            time.sleep(0.02)  # QEMU creates the socket within milliseconds and does not signal it
    raise MachineError(f"{path}: QEMU did not open its control socket")


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name for a socket whose path may be longer than the 107 bytes that the kernel accepts."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
