"""The cage: the only way in which a program of an image runs on this machine.

`command(…)` is a command line of this file, which is a program too: it needs root, builds the cage and runs one command
in it. Three kinds:

files    an image's files, read-only (T0, `validate --root`, `diff`): mount, pid, net, ipc, uts and cgroup namespaces, a
         user namespace where the kernel allows one, pivot_root, CAPABILITIES alone, no_new_privs, a filter of system
         calls
sandbox  a root that the sandbox builder has mounted, in its namespaces: pivot_root in a mount namespace of its own, the
         capabilities SANDBOX_DROPPED and the kernel's own system calls taken away. What it keeps, and why: chown,
         fowner, setuid, setgid, setfcap, dac_override (packages have files of many owners; sshd and sudo change users),
         mknod and sys_chroot (packages' scripts and update-initramfs make nodes, which nodev mounts do not open; sshd
         separates its privileges), net_admin, net_bind_service (in its own network namespace). It has no user
         namespace, because overlay layers and loop devices of the host are mounted in it, and not no_new_privs, because
         its user needs sudo. Mounts are made before it is entered.
init     process 1 of a sandbox's PID namespace, which runs the builder outside of the cage as its child. Its own root
         is empty and it has no capability: programs inside may look at /proc/1/root (systemd's tools learn from it that
         they run in a chroot), and find nothing there. They cannot look at the builder's, which has more
         capabilities than they have.

Ours and not bubblewrap: bubblewrap cannot mount a raw disk, nor give a sandbox chown and mknod, so there would
be two cages; it filters no system calls without a filter of ours, and it would be one more package.
Where a host refuses what the cage needs, nothing runs, and the message says what to allow.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import resource
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

FAILED = 125  # exit status: the cage was not built, and the command did not run
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# linux/sched.h, linux/mount.h, linux/prctl.h, linux/capability.h
_NEW_NS, _NEW_CGROUP, _NEW_UTS, _NEW_IPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
_NEW_USER, _NEW_PID, _NEW_NET = 0x10000000, 0x20000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_CAPBSET_DROP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 15, 24, 22, 38
_CAPABILITY_VERSION = 0x20080522
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_CAPABILITIES = """
    chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable net_bind_service
    net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct sys_admin
    sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write audit_control setfcap mac_override
    mac_admin syslog wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore
"""
_CAP = {name: number for number, name in enumerate(_CAPABILITIES.split())}
# What reading an image's files needs: files of all owners; sshd -T and su change users.
CAPABILITIES = ("dac_read_search", "setuid", "setgid")
# What reaches the host's kernel from a sandbox.
SANDBOX_DROPPED = (
    "sys_module", "sys_rawio", "sys_boot", "sys_time", "sys_pacct", "syslog", "mac_admin", "mac_override",
    "audit_control", "audit_read", "perfmon", "bpf", "checkpoint_restore", "wake_alarm", "block_suspend",
    "dac_read_search", "sys_ptrace", "sys_admin", "linux_immutable", "lease",
)  # fmt: skip
# name → number on x86_64 and aarch64; arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h.
_KERNEL_CALLS = {
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "open_by_handle_at": (304, 265),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "acct": (163, 89), "quotactl": (179, 60),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "io_uring_setup": (425, 425),
    "syslog": (103, 116), "kcmp": (312, 272), "setns": (308, 268), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
}  # fmt: skip
_MOUNT_CALLS = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "unshare": (272, 97), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442),
}  # fmt: skip
_CLONE, _CLONE3, _IOCTL = (56, 220), (435, 435), (16, 29)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # put characters into a terminal's input
_EPERM, _ENOSYS = 1, 38
_KEYCTL_JOIN_SESSION_KEYRING = 1
_HIDDEN = ("kcore", "keys", "key-users", "kmsg", "sysrq-trigger", "timer_list", "sched_debug")  # the kernel's, in /proc
HIDDEN_FILES = "/dev/gpu-ami-hidden-files"  # what an image has below /dev and /proc, a path a line
_MOST_HIDDEN, _HIDDEN_BYTES = 200, 16 << 10
_DEVICES = ("null", "zero", "full", "random", "urandom")


class CageError(Exception):
    """The cage cannot be built. hint: what to allow, "" if that is not known."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)


def command(
    kind: str, root: Path | str, words: Sequence[str], source: str = "", offset: int | None = None
) -> list[str]:
    """The command line that runs `words` in a cage, with the caller's descriptors 0 to 2 and environment.

    kind: files, sandbox or init. root: an empty folder (files, init), or what is mounted already (sandbox). source: a
    tree or a raw disk; offset: of its file system in bytes, None for a tree. Exit status: the command's, or FAILED.
    """
    settings = {"kind": kind, "root": str(root), "words": list(words), "source": source, "offset": offset}
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), json.dumps(settings)]


_libc = ctypes.CDLL(None, use_errno=True)


def _call(what: str, result: int, hint: str = "") -> int:
    if result < 0:
        raise CageError(f"{what}: {os.strerror(ctypes.get_errno())}", hint)
    return result


_ALLOW = "run it where root may make namespaces and mounts: on the machine itself, or in a container with --privileged"


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = [word.encode() or None for word in (source, target, kind)]
    _call(f"mount {target}", _libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None), _ALLOW)


def _restrict(root: str) -> None:
    """Makes the mounts at and below `root` read-only, without set-user-id programs and devices."""
    attributes = struct.pack("=QQQQ", 1 | 2 | 4, 0, 0, 0)  # MOUNT_ATTR_RDONLY, NOSUID, NODEV
    arguments = (_AT_FDCWD, root.encode(), _AT_RECURSIVE, attributes, ctypes.c_size_t(len(attributes)))
    if _libc.syscall(ctypes.c_long(442), *arguments) == 0:
        return
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        point = line.split(" ")[4].encode("latin-1", "backslashreplace").decode("unicode_escape")
        if point == root or point.startswith(f"{root}/"):
            _mount("", point, "", _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)


def _mount_image(root: str, source: str, offset: int | None) -> None:
    if offset is None:
        _mount(source, root, "", _BIND | _REC)
        _restrict(root)
        return
    options = f"ro,loop,nosuid,nodev,offset={offset}"
    # norecovery: the journal of a file system that is in use cannot be replayed.
    for tried in (options, f"{options},norecovery"):
        words = ["mount", "-o", tried, "--", source, root]
        done = subprocess.run(words, env={"PATH": _PATH}, stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode == 0:
            return
    raise CageError(done.stderr.decode(errors="replace").strip())


def _own_folder(root: str, name: str) -> str:
    """A folder of the image that is mounted over. A link would lead the mount to the host's files."""
    path = os.path.join(root, name)  # noqa: PTH118
    if not os.path.lexists(path):
        raise CageError(f"it has no /{name}: not the root of a system")
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise CageError(f"/{name} of the image is not a directory")
    return path


def _below_mounts(root: str) -> list[bytes]:
    """Files with content that the image has in /dev and /proc: the mounts hide them, here and on a machine.

    None where something is mounted there already: that is the host's.
    """
    device, found = os.lstat(root).st_dev, []
    for name in ("proc", "dev"):
        for folder, folders, files in os.walk(os.fsencode(_own_folder(root, name))):
            if os.lstat(folder).st_dev != device:
                folders.clear()
                continue
            for file in files:
                status = os.lstat(os.path.join(folder, file))  # noqa: PTH118
                if stat.S_ISREG(status.st_mode) and status.st_size:
                    found.append(os.path.join(folder, file).removeprefix(os.fsencode(root)))  # noqa: PTH118
    return sorted(found)[:_MOST_HIDDEN]


def _mount_kernel_files(root: str) -> None:
    """/proc of the cage's own processes, read-only; /dev with plain devices; /dev/shm is the only writable folder."""
    hidden = b"".join(path.replace(b"\n", b"?") + b"\n" for path in _below_mounts(root))
    _mount("proc", _own_folder(root, "proc"), "proc", _RDONLY | _NOSUID | _NODEV | _NOEXEC)
    for name in _HIDDEN:
        if os.path.exists(f"{root}/proc/{name}"):  # noqa: PTH110
            _mount("/dev/null", f"{root}/proc/{name}", "", _BIND)
    dev = _own_folder(root, "dev")
    _mount("tmpfs", dev, "tmpfs", _NOSUID, "mode=755,size=64k")
    for device in _DEVICES:
        os.close(os.open(f"{dev}/{device}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        _mount(f"/dev/{device}", f"{dev}/{device}", "", _BIND)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{dev}/{name}")  # noqa: PTH211
    os.mkdir(f"{dev}/shm")  # noqa: PTH102
    _mount("tmpfs", f"{dev}/shm", "tmpfs", _NOSUID | _NODEV, "mode=1777,size=256m")
    with open(root + HIDDEN_FILES, "xb") as file:  # noqa: PTH123
        file.write(hidden[:_HIDDEN_BYTES])
    _mount("", dev, "", _REMOUNT | _BIND | _RDONLY | _NOSUID)


def _pivot(root: str) -> None:
    """The root of the mount namespace becomes `root`; nothing of the old one stays mounted."""
    os.chdir(root)
    _call("pivot_root", _libc.syscall(ctypes.c_long(_number((155, 41))), b".", b"."), _ALLOW)
    _call("umount", _libc.umount2(b".", _DETACH))
    os.chdir("/")


def _number(numbers: tuple[int, int]) -> int:
    return numbers[_architecture()[0]]


def _architecture() -> tuple[int, int]:
    """Column of the tables of system calls, and AUDIT_ARCH."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise CageError(f"no table of system calls for {machine}", f"expected {' or '.join(_ARCHITECTURES)}")
    return _ARCHITECTURES[machine]


def _limit_capabilities(kept: Iterable[str]) -> None:
    """Keeps those that the caller has, which a container may not have all."""
    header, present = struct.pack("=Ii", _CAPABILITY_VERSION, 0), ctypes.create_string_buffer(24)
    _call("capget", _libc.capget(header, present))
    _, low, _, _, high, _ = struct.unpack("=6I", present.raw)
    mask = sum(1 << _CAP[name] for name in kept) & (low | high << 32)
    for number in range(64):
        if not mask >> number & 1:
            _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # EINVAL: above the kernel's last
    sets = [mask & 0xFFFFFFFF, mask & 0xFFFFFFFF, 0, mask >> 32, mask >> 32, 0]
    _call("capset", _libc.capset(header, struct.pack("=6I", *sets)))


def _filter_calls(denied: Iterable[tuple[int, int]]) -> None:
    """A seccomp filter: `denied`, and clone with new namespaces, end with EPERM. Other architectures get ENOSYS."""
    column, audit = _architecture()
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, absent = 0x7FFF0000, 0x00050000 | _EPERM, 0x00050000 | _ENOSYS
    rows = [(load, 0, 0, 4), (equal, 1, 0, audit), (give, 0, 0, absent), (load, 0, 0, 0)]
    if column == 0:
        rows += [(at_least, 0, 1, 0x40000000), (give, 0, 0, absent)]  # x32
    for numbers in denied:
        rows += [(equal, 0, 1, numbers[column]), (give, 0, 0, refuse)]
    rows += [(equal, 0, 4, _IOCTL[column]), (load, 0, 0, 24), (equal, 1, 0, _TIOCSTI), (equal, 0, 1, _TIOCLINUX)]
    rows += [(give, 0, 0, refuse), (load, 0, 0, 0)]
    flags = _NEW_NS | _NEW_CGROUP | _NEW_UTS | _NEW_IPC | _NEW_USER | _NEW_PID | _NEW_NET
    rows += [(equal, 0, 1, _CLONE3[column]), (give, 0, 0, absent)]  # its flags are in memory: libc uses clone
    rows += [(equal, 0, 3, _CLONE[column]), (load, 0, 0, 16), (any_bit, 0, 1, flags), (give, 0, 0, refuse)]
    rows.append((give, 0, 0, allow))
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *row) for row in rows))
    header = struct.pack("@HP", len(rows), ctypes.addressof(program))
    _call("seccomp", _libc.prctl(_PR_SET_SECCOMP, 2, header, 0, 0), "the kernel needs CONFIG_SECCOMP_FILTER")


def _enter_user_namespace(ready: int, mapped: int) -> None:
    """All users as they are, but no capability over the host: the parent writes the maps."""
    made = _libc.unshare(_NEW_USER) == 0
    os.write(ready, b"1" if made else b"0")
    if os.read(mapped, 1) == b"1":
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    elif made:
        raise CageError("the maps of the user namespace could not be written", _ALLOW)


def _map_users(child: int, proc: int) -> bool:
    """Maps the child's users and groups to those of this namespace. False if the kernel refuses. proc: fd of /proc."""
    try:
        for name in ("uid_map", "gid_map"):
            with open(os.open(f"self/{name}", os.O_RDONLY, dir_fd=proc)) as file:  # noqa: PTH123
                rows = [line.split() for line in file]
            with open(os.open(f"{child}/{name}", os.O_WRONLY, dir_fd=proc), "w") as file:  # noqa: PTH123
                file.write("".join(f"{at} {at} {count}\n" for at, _, count in rows))
    except OSError:
        return False
    return True


def _run_files(settings: dict[str, object]) -> int:
    kinds = _NEW_NS | _NEW_NET | _NEW_UTS | _NEW_IPC
    _call("unshare", _libc.unshare(kinds), _ALLOW)
    _libc.unshare(_NEW_CGROUP)
    _mount("", "/", "", _REC | _PRIVATE)
    root, offset = str(settings["root"]), settings["offset"]
    _mount_image(root, str(settings["source"]), offset if isinstance(offset, int) else None)
    # After mount(8), which a disk is mounted by: the first process of a PID namespace ends it, and nothing forks again.
    _call("unshare", _libc.unshare(_NEW_PID), _ALLOW)
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)  # the child's pivot_root moves this process, too
    ready, is_ready = os.pipe()
    mapped, is_mapped = os.pipe()
    child = os.fork()
    if child == 0:
        _die_with_parent()
        _mount_kernel_files(root)
        _pivot(root)
        _enter_user_namespace(is_ready, mapped)
        for descriptor in (ready, is_ready, mapped, is_mapped, proc):
            os.close(descriptor)
        _libc.syscall(ctypes.c_long(_number(_KERNEL_CALLS["keyctl"])), _KEYCTL_JOIN_SESSION_KEYRING, None)
        os.setsid()
        _limit_capabilities(CAPABILITIES)
        _call("no_new_privs", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _filter_calls([*_KERNEL_CALLS.values(), *_MOUNT_CALLS.values()])
        return _execute(settings)
    os.close(is_ready)
    made = os.read(ready, 1)  # b"" if the child has ended
    os.write(is_mapped, b"1" if made == b"1" and _map_users(child, proc) else b"0")
    for descriptor in (0, 1):  # the reader sees the end of the output when the command ends
        os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run_sandbox(settings: dict[str, object]) -> int:
    _call("unshare", _libc.unshare(_NEW_NS), _ALLOW)
    _mount("", "/", "", _REC | _PRIVATE)
    _forget_login()
    _pivot(str(settings["root"]))
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    _filter_calls([*_KERNEL_CALLS.values(), *_MOUNT_CALLS.values()])  # it needs a capability that is dropped next
    _limit_capabilities(set(_CAP) - set(SANDBOX_DROPPED))
    return _execute(settings)


def _forget_login() -> None:
    """pam_loginuid may set the audit's login user where none is set, and sshd's sessions need that to succeed."""
    with contextlib.suppress(OSError), open("/proc/self/loginuid", "w") as file:  # noqa: PTH123
        file.write("4294967295")


def _run_init(settings: dict[str, object]) -> int:
    """Starts the command, passes SIGTERM on to it, reaps orphans, and ends with the command, and with it all others."""
    child = os.fork()
    if child == 0:
        return _execute(settings)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    _libc.prctl(_PR_SET_NAME, b"systemd", 0, 0, 0)  # Ansible reads there which init system runs
    _call("unshare", _libc.unshare(_NEW_NS), _ALLOW)
    _mount("", "/", "", _REC | _PRIVATE)
    _mount("init", str(settings["root"]), "tmpfs", _NOSUID | _NODEV | _NOEXEC, "mode=755,size=4k")
    _pivot(str(settings["root"]))
    _limit_capabilities(())
    while True:
        ended, status = os.wait()
        if ended == child:
            return max(0, os.waitstatus_to_exitcode(status)) or (128 if os.WIFSIGNALED(status) else 0)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _execute(settings: dict[str, object]) -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))  # no core file, and no program of core_pattern on the host
    if settings["kind"] == "files":
        _die_with_parent()  # again: a change of capabilities has reset it
    words = settings["words"]
    assert isinstance(words, list)
    try:
        os.execvpe(words[0], words, os.environ)
    except OSError as error:
        raise CageError(f"{words[0]}: {error.strerror}") from error


_KINDS = {"files": _run_files, "sandbox": _run_sandbox, "init": _run_init}


def main(arguments: Sequence[str]) -> int:
    """Runs the command of `command(…)`; an error is one line on stderr."""
    settings = json.loads(arguments[0])
    try:
        return _KINDS[settings["kind"]](settings)
    except (CageError, OSError) as error:
        print(f"cage: {error}", file=sys.stderr, flush=True)
        os._exit(FAILED)  # of the child or of the parent: neither goes on


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
