"""The builder of a sandbox: builds the root, serves the mirror and accepts SSH connections.

Started by localregion.sandbox.sandbox under unshare. This process stays outside the root that it builds, so programs
inside run in a chroot: systemd's tools then change files and skip what needs a running system.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_ami.errors import CloudError, GpuAmiError
from gpu_ami.process import find_tool, run, spawn
from localregion.architectures import ARCHITECTURES, DEFAULT
from localregion.images import Tree, base_image
from localregion.loopback import API_ADDRESS, METADATA_ADDRESS, MIRROR_ADDRESS
from localregion.machines import default_entry
from validator.transport import cage

_INSIDE_SECONDS = 300  # a program of another architecture is emulated
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _IFF_UP = 0x8914, 0x8916, 0x891C, 1
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
# uname(2) returns the host's release; this preloaded library returns the tree's.
_PRELOAD = Path(__file__).parents[1] / "replicas" / "sandbox_preload.c"
OF_THE_HOST = "settings-of-the-host.json"  # in the folder: /proc/sys/net where the sandbox was started
_OWN = "run/gpu-ami-sandbox"  # of the sandbox in the root: it goes with /run
_PRELOADED = "etc/ld.so.preload"
# update-grub asks for the device of /, which does not exist: the answers of a machine of this base, by the library.
_OF_THE_KERNEL = ("acpi", "bus", "fs", "irq", "scsi")  # of /proc: what root writes there, the host's kernel does
_ASKED = "/usr/sbin/grub-probe"
_GRUB_PROBE = """\
#!/bin/sh
case "$*" in
    *target=device*) echo /dev/vda1 ;;
    *target=fs_uuid*) echo UUID ;;
    *target=fs_label*) echo root ;;
    *target=fs*) echo ext2 ;;
    *target=partuuid*) echo 67707561-01 ;;
    *target=partmap*) echo msdos ;;
esac
"""


# update-initramfs copies what `ldd` lists of its programs, the preloaded library too: such ramdisks are made again.
_RAMDISKS = f"""\
command -v lsinitramfs > /dev/null || exit 0
for file in /boot/initrd.img-*; do
    [ "$file" -nt /{_OWN}/preload.so ] && lsinitramfs "$file" | grep -q '^{_OWN}/' || continue
    update-initramfs -u -k "${{file#/boot/initrd.img-}}" || exit
done"""
# cloud-init's files of a first boot that is over. Source: cloud-init 22.4, cloudinit/cmd/status.py.
_CLOUD_INIT = {
    "status.json": {"v1": {"stage": None, "datasource": "sandbox", "modules-final": {"errors": [], "finished": 1}}},
    "result.json": {"v1": {"datasource": "sandbox", "errors": []}},
}


@dataclass(frozen=True)
class Settings:
    """What starts a sandbox. listener, report, packages: fds of a listening socket, a pipe, and a connection to the
    process that fetches Debian's packages.

    layers: of a tree, topmost first, which is not changed; or disk: a raw disk, whose partition is the root itself, or
    the partition's block device, which the descriptors `kept` keep until it is mounted.
    metadata: the program that connects to the instance's metadata service, "" for none. architecture: of the tree.
    """

    folder: str
    home: str
    public_key: str
    listener: int
    report: int
    packages: int
    layers: list[str] = field(default_factory=list)
    devices: dict[str, int] = field(default_factory=dict)
    disk: str = ""
    metadata: str = ""
    kept: list[int] = field(default_factory=list)
    architecture: str = DEFAULT


class SandboxRoot:
    """The root file system of the sandbox."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.folder = Path(settings.folder)
        self.root = self.folder / "root"
        self._mounted: list[Path] = []  # files of the root on which others are mounted
        self._root_uuid = base_image.root_uuid(settings.architecture)

    def mount(self, *words: str | Path) -> None:
        run([find_tool("mount", package="mount"), *words], cwd=self.folder, timeout=30, error=CloudError)

    def inside(self, *words: str) -> None:
        """Runs a command of the tree in it."""
        run(self.caged(*words), timeout=_INSIDE_SECONDS, error=CloudError)

    def caged(self, *words: str) -> list[str]:
        """The command line of a program of the tree, whose environment is the path alone."""
        return cage.command("sandbox", self.root, ["/usr/bin/env", "-i", f"PATH={_PATH}", *words])

    def write(self, path: str, content: str, mode: int = 0o644) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
        target.chmod(mode)

    def build(self) -> str:
        """Builds a root that accepts logins; returns the login user's name."""
        for name in ("memory", "root"):
            (self.folder / name).mkdir(exist_ok=True)
        self.mount("-t", "tmpfs", "-o", "mode=755,nodev", "sandbox", "memory")
        for name in ("upper", "work", "proc-sys", "sys", "sys-upper", "sys-work"):
            (self.folder / "memory" / name).mkdir(mode=0o755)
        self._mount_root()
        self.mount("-t", "tmpfs", "-o", "mode=755,nosuid,nodev", "run", "root/run")
        (self.root / "run/sshd").mkdir(mode=0o755)
        kernel = Tree((self.root,)).kernel()
        self._make_dev()
        self._make_proc(kernel)
        self._make_sys()
        self._preload(kernel)
        if self.settings.disk:
            self._boot_files()
        self._finish_cloud_init()
        take_addresses(MIRROR_ADDRESS, API_ADDRESS, METADATA_ADDRESS)
        return self._make_user()

    def _mount_root(self) -> None:
        if self.settings.disk:
            # No flush of the journal has to reach the host's disk: a build that the host's end cuts off is made anew.
            options = ["barrier=0", "nodev"]
            if not Path(self.settings.disk).is_block_device():
                options += ["loop", f"offset={base_image.PARTITION_OFFSET}"]
            self.mount("-o", ",".join(options), self.settings.disk, "root")
            for descriptor in self.settings.kept:
                os.close(descriptor)
            return
        lower = [f"layer{index}" for index in range(len(self.settings.layers))]
        for name, layer in zip(lower, self.settings.layers, strict=True):
            (self.folder / name).symlink_to(layer)
        layers = f"lowerdir={':'.join(lower)},upperdir=memory/upper,workdir=memory/work,nodev"
        self.mount("-t", "overlay", "sandbox", "root", "-o", layers)

    def _make_dev(self) -> None:
        dev = self.root / "dev"
        dev.mkdir(exist_ok=True)
        # A node that root makes inside cannot be opened anywhere: those bound from the host, and ptys, can.
        self.mount("-t", "tmpfs", "-o", "mode=755,nosuid,nodev", "dev", "root/dev")
        for name in ("null", "zero", "full", "random", "urandom", "tty"):
            (dev / name).touch()
            self.mount("--bind", f"/dev/{name}", f"root/dev/{name}")
        for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
            (dev / name).symlink_to(f"/proc/self/fd{target}")
        for name, options in (
            ("pts", "devpts:newinstance,ptmxmode=0666,mode=620,gid=5"),
            ("shm", "tmpfs:mode=1777,nodev"),
        ):
            (dev / name).mkdir()
            kind, _, how = options.partition(":")
            self.mount("-t", kind, "-o", how, name, f"root/dev/{name}")
        (dev / "ptmx").symlink_to("pts/ptmx")
        (dev / "disk/by-uuid").mkdir(parents=True)
        (dev / "disk/by-uuid" / self._root_uuid).touch()  # update-grub names / by it
        for path in (*device_nodes(self.settings.devices), "kmsg"):
            (dev / path).parent.mkdir(exist_ok=True)
            (dev / path).touch(mode=0o666)

    def _make_proc(self, kernel: str) -> None:
        """/proc with a copy of /proc/sys: what a role sets there stays in the sandbox.

        It has booted just now, with the options of the tree's own boot entry.
        """
        self.mount("-t", "proc", "-o", "nosuid,nodev,noexec", "proc", "root/proc")
        stat = (self.root / "proc/stat").read_text(encoding="ascii")
        booted = re.sub(r"(?m)^btime .*", f"btime {int(time.time())}", stat)
        (self.folder / "memory/stat").write_text(booted, encoding="ascii")
        self.mount("--bind", "memory/stat", "root/proc/stat")
        config = self.root / "boot/grub/grub.cfg"
        entry = default_entry(config.read_text(encoding="utf-8")) if config.exists() else None
        (self.folder / "memory/cmdline").write_text(f"{entry.command_line if entry else ''}\n", encoding="utf-8")
        self.mount("--bind", "memory/cmdline", "root/proc/cmdline")
        copy = self.folder / "memory/proc-sys"
        # Some settings of the network are those of the whole kernel, and only its first name space shows them.
        write_settings(json.loads((self.folder / OF_THE_HOST).read_text(encoding="ascii")), f"{copy}/net")
        write_settings(read_settings(f"{self.root}/proc/sys"), str(copy))
        (copy / "kernel/osrelease").write_text(f"{kernel}\n")
        (copy / "kernel/random").mkdir(exist_ok=True)
        self.mount("--bind", "root/proc/sys/kernel/random", "memory/proc-sys/kernel/random")
        self.mount("--rbind", "memory/proc-sys", "root/proc/sys")
        if (self.root / "proc/sysrq-trigger").exists():
            self.mount("--bind", "/dev/null", "root/proc/sysrq-trigger")
        for name in _OF_THE_KERNEL:
            if (self.root / "proc" / name).is_dir():
                self.mount("--bind", "-o", "ro,nosuid,nodev,noexec", f"root/proc/{name}", f"root/proc/{name}")

    def _make_sys(self) -> None:
        """The kernel's own /sys below, and above it what the sandbox adds or a role writes."""
        upper = self.folder / "memory/sys-upper"
        for node, (name, driver) in enumerate(_rdma_devices(self.settings.devices)):
            device = upper / f"class/infiniband/{name}/device"
            device.mkdir(parents=True)
            (device / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
            verbs = upper / f"class/infiniband_verbs/uverbs{node}"
            verbs.mkdir(parents=True)
            (verbs / "ibdev").write_text(f"{name}\n", encoding="ascii")
        self.mount("-t", "sysfs", "-o", "nosuid,nodev,noexec", "sys", "memory/sys")
        layers = "lowerdir=memory/sys,upperdir=memory/sys-upper,workdir=memory/sys-work,nosuid,nodev"
        self.mount("-t", "overlay", "sys", "root/sys", "-o", layers)

    def _preload(self, kernel: str) -> None:
        """The library that every program in the root loads. No file of the root is changed: one is mounted over."""
        library, stand_in, listed = (f"{_OWN}/{name}" for name in ("preload.so", "grub-probe", "ld.so.preload"))
        self.write(stand_in, _GRUB_PROBE.replace("UUID", self._root_uuid), 0o755)
        macros = {"RELEASE": kernel, "PROGRAM": _ASKED, "STAND_IN": f"/{stand_in}"}
        gcc = ARCHITECTURES[self.settings.architecture].gcc()
        compiler: list[str | Path] = [gcc, "-shared", "-nostdlib", "-fPIC", "-O"]
        words = [f'-D{name}="{value}"' for name, value in macros.items()]
        run([*compiler, *words, "-o", self.root / library, _PRELOAD], timeout=60, error=CloudError)
        self.write(listed, f"/{library}\n")
        target = self.root / _PRELOADED
        if not target.exists():
            target.touch()
            self._mounted.append(target)
        self.mount("--bind", f"root/{listed}", f"root/{_PRELOADED}")

    def _boot_files(self) -> None:
        """Directories and attributes that systemd makes at each boot."""
        self.inside("systemd-tmpfiles", "--create", "--remove", "--boot", "--exclude-prefix=/dev")
        (self.root / "run/nologin").unlink(missing_ok=True)  # as systemd-user-sessions does when the boot is complete

    def _finish_cloud_init(self) -> None:
        """The sandbox does what cloud-init would: who waits for it, waits no longer."""
        for name, content in _CLOUD_INIT.items():
            self.write(f"run/cloud-init/{name}", json.dumps(content))

    def leave(self) -> None:
        """Takes the sandbox's own files from the root, and unmounts it: the disk is complete."""
        for path in self._mounted:
            run([find_tool("umount", package="mount"), path], timeout=30, error=CloudError)
            path.unlink()
        self.inside("sh", "-c", _RAMDISKS)
        # What roles have written and removed again is not copied with the image: 1279 MiB become 753. Where the host's
        # file system cannot make holes, it is.
        with contextlib.suppress(CloudError):
            # Blocks of a file that was removed are free once the journal says so.
            run([find_tool("sync", package="coreutils"), "-f", self.root], timeout=300, error=CloudError)
            run([find_tool("fstrim", package="util-linux"), self.root], timeout=60, error=CloudError)
        run([find_tool("umount", package="mount"), "--recursive", self.root], timeout=300, error=CloudError)

    def _make_user(self) -> str:
        """The login user, as cloud-init makes it at a machine's first boot, and a host key."""
        user = default_user(self.root)
        name = user.name
        known = re.search(rf"(?m)^{re.escape(name)}:", (self.root / "etc/passwd").read_text(encoding="utf-8"))
        if not known:  # a layer's image has it
            self.inside("useradd", "-m", "-s", user.shell, "-c", user.gecos, "-G", ",".join(user.groups), name)
        lines = "".join(f"{name} {rule}\n" for rule in user.sudo)
        self.write("etc/sudoers.d/90-cloud-init-users", lines, 0o440)
        (self.root / "etc/sudoers.d").chmod(0o750)
        self.write(f"home/{name}/.ssh/authorized_keys", f"{self.settings.public_key}\n", 0o600)
        self.inside("chown", "-R", f"{name}:{name}", f"/home/{name}/.ssh")
        self.inside("chmod", "700", f"/home/{name}/.ssh")
        for old in (self.root / "etc/ssh").glob("ssh_host_*"):
            old.unlink()
        self.inside("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/etc/ssh/ssh_host_ed25519_key")
        return name


def take_addresses(*addresses: str) -> None:
    """Gives the loopback interface these addresses beside 127.0.0.1, and switches it on (netdevice(7))."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for index, address in enumerate(addresses):
            for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.255")):
                ifreq = struct.pack("16sH2x4s8x", f"lo:{index}".encode(), socket.AF_INET, socket.inet_aton(value))
                fcntl.ioctl(control, request, ifreq)
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def device_nodes(devices: Mapping[str, int]) -> Iterable[str]:
    """Names below /dev, as the drivers make them."""
    yield from (f"nvidia{index}" for index in range(devices.get("gpu", 0)))
    yield from ("nvidiactl",) if devices.get("gpu") else ()
    yield from (f"nvidia-nvswitch{index}" for index in range(devices.get("nvswitch", 0)))
    yield from ("nvidia-nvswitchctl",) if devices.get("nvswitch") else ()
    yield from (f"infiniband/uverbs{index}" for index in range(len(_rdma_devices(devices))))
    yield from (f"infiniband/umad{index}" for index in range(devices.get("umad", 0)))
    yield from (f"neuron{index}" for index in range(devices.get("neuron", 0)))


def _rdma_devices(devices: Mapping[str, int]) -> list[tuple[str, str]]:
    """(name, driver) of each, in the order of the nodes: EFAs, and the bridges to the NVSwitches, two ports each."""
    efa = [(f"rdmap{index}s0", "efa") for index in range(devices.get("efa", 0))]
    return efa + [(f"ibp{115 + index}s0f0", "mlx5_core") for index in range(devices.get("umad", 0) // 2 if efa else 0)]


@dataclass(frozen=True)
class DefaultUser:
    """cloud-init's `default_user`. sudo: its rules."""

    name: str
    shell: str
    gecos: str
    groups: tuple[str, ...]
    sudo: tuple[str, ...]


def default_user(root: Path) -> DefaultUser:
    """cloud-init's default user as the tree's configuration has it: the last file that names one counts."""
    import yaml

    user: dict[str, object] = {}
    for path in (root / "etc/cloud/cloud.cfg", *sorted((root / "etc/cloud/cloud.cfg.d").glob("*.cfg"))):
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        user = (document.get("system_info") or {}).get("default_user") or user
    if not user.get("name"):
        raise CloudError(f"{root}/etc/cloud names no default user")
    name, shell, gecos = str(user["name"]), str(user.get("shell", "")), str(user.get("gecos", ""))
    return DefaultUser(name, shell, gecos, _texts(user.get("groups")), _texts(user.get("sudo")))


def _texts(value: object) -> tuple[str, ...]:
    """A text or a list of them, as cloud-init accepts it."""
    if isinstance(value, list):
        return tuple(str(item) for item in value)
    return (str(value),) if value else ()


def serve_mirror(home: Path, packages: socket.socket) -> str | None:
    """Serves the home's package mirror at its address; None where there is none.

    packages: to the process outside, with a network, that fetches Debian's packages.
    """
    from localregion.mirror import Mirror, debian_archive

    if not (home / "mirror" / "current").exists():
        return None
    Mirror(home, debian_archive.Remote(packages)).start((MIRROR_ADDRESS, 80))
    return f"http://{MIRROR_ADDRESS}"


def accept_ssh(root: SandboxRoot, listener: socket.socket, stopped: threading.Event) -> None:
    """Starts one sshd of the tree per connection, until `stopped`; reaps processes that have ended.

    To be called in the main thread: a signal ends the wait, of which otherwise the rest would pass first.
    """
    signalled, wakes = socket.socketpair()
    wakes.setblocking(False)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(signalled, selectors.EVENT_READ)
    with signalled, wakes, selector:
        before = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        try:
            while not stopped.is_set():
                ready = [key.fileobj for key, _ in selector.select(0.5)]
                if listener in ready:
                    connection, _ = listener.accept()
                    with connection:
                        # sshd sets it after the login alone, of which two steps would wait 40 ms each.
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        _serve_ssh(root, connection)
                if signalled in ready:
                    signalled.recv(64)
                collect_children()
        finally:
            signal.set_wakeup_fd(before)


def _serve_ssh(root: SandboxRoot, connection: socket.socket) -> None:
    serve(root.caged("/usr/sbin/sshd", "-i", "-e"), connection)


def serve(command: Sequence[str | Path], connection: socket.socket, cwd: Path | None = None) -> None:
    """Starts a program with the connection as its standard input and output; its errors are in the log."""
    number = connection.fileno()
    spawn(command, cwd=cwd, stdin=number, stdout=number, stderr=None, death_signal=None)


def serve_metadata(program: str) -> None:
    """Connects each client of the metadata service's address to the instance's own, by a relay."""
    listener = socket.create_server((METADATA_ADDRESS, 80))
    while True:
        connection, _ = listener.accept()
        with connection:
            serve([program], connection, Path(program).parent)


def end_all(seconds: float = 5.0) -> None:
    """Ends every other process of the namespace: SIGTERM, and SIGKILL after some seconds."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signum)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            collect_children()
            if not _others():
                return
            time.sleep(0.02)


def _others() -> bool:
    try:
        os.kill(-1, 0)
    except ProcessLookupError:
        return False
    return True


def collect_children() -> None:
    """Reaps ended processes: process 1 is the parent of every orphan."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def main(argv: list[str]) -> int:
    """Builds the root and serves it; an error before that is written to the pipe, one line of JSON."""
    settings = Settings(**json.loads(argv[1]))
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    socket.sethostname("ip-127-0-0-1")
    with os.fdopen(settings.report, "w") as report, socket.socket(fileno=settings.listener) as listener:
        root = SandboxRoot(settings)
        try:
            user = root.build()
            mirror = serve_mirror(Path(settings.home), socket.socket(fileno=settings.packages))
            if settings.metadata:
                threading.Thread(target=serve_metadata, args=(settings.metadata,), daemon=True).start()
        except GpuAmiError as error:
            print(json.dumps({"error": error.message, "details": error.details}), file=report)
            return error.exit_code
        except Exception as error:  # reported to the parent; the traceback is in the log
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=report)
            raise
        print(json.dumps({"user": user, "mirror": mirror}), file=report)
        report.close()
        accept_ssh(root, listener, stopped)
        if settings.disk:
            end_all()
            root.leave()
    return 0


def read_settings(source: str) -> dict[str, str]:
    """The files below a folder of /proc/sys by their path in it, without those that cannot be read.

    What is bound from the host is left out. There are a thousand of them, hence no Path.
    """
    found = {}
    for folder, folders, files in os.walk(source):
        folders[:] = [name for name in folders if name not in ("binfmt_misc", "random")]
        for name in files:
            with contextlib.suppress(OSError), open(f"{folder}/{name}", encoding="latin-1") as file:  # noqa: PTH123
                found[os.path.relpath(f"{folder}/{name}", source)] = file.read()
    return found


def write_settings(settings: Mapping[str, str], target: str) -> None:
    """Writes what `read_settings` returned as plain files."""
    made: set[str] = set()
    for name, content in settings.items():
        path = f"{target}/{name}"
        folder = os.path.dirname(path)  # noqa: PTH120
        if folder not in made:
            made.add(folder)
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        with open(path, "w", encoding="latin-1") as file:  # noqa: PTH123
            file.write(content)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
