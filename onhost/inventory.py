"""Lists every file of a system, whether it differs from its package, accounts and packages: JSON lines, gzip.

Runs on the system itself, or on a tree (--root), with Python 3.6 or newer and its standard library alone. File systems
other than that of the root are left out. The format is described in docs/file-account.md; validator/file_account/
inventory.py reads it.
"""

import argparse
import fcntl
import gzip
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple, Union

Record = Dict[str, Any]
Digest = Tuple[str, str, bytes]
Names = Tuple[Dict[int, str], Dict[int, str]]

SCHEMA = "gpu-ami/inventory/1"
BLOCK = 1 << 20
# A task of a reading thread: as many files as are read in some milliseconds.
BATCH_FILES, BATCH_BYTES = 128, 4 << 20
WRITTEN_LINES = 256
TYPES = {
    stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l", stat.S_IFCHR: "c", stat.S_IFBLK: "b", stat.S_IFIFO: "p",
    stat.S_IFSOCK: "s",
}  # fmt: skip
# Labels of SELinux and IMA depend on the policy, and are checked by its tools.
IGNORED_ATTRIBUTES = ("security.selinux", "security.ima", "security.evm")
MERGED = re.compile(r"^/(bin|sbin|lib|lib32|lib64|libx32)/")
RPM_GHOST, RPM_CONFIG = 64, 1
# ioctl_iflags(2): FS_IOC_GETFLAGS, and the flags that keep a file from being changed.
GET_FLAGS = 0x80086601
FLAGS = {0x10: "inode.immutable", 0x20: "inode.append-only"}


class Packages:
    """The package manager's database: packages, and for each path its packages and their recorded attributes."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.packages: List[Record] = []
        self.owners: Dict[str, List[str]] = {}
        self.md5: Dict[str, str] = {}
        self.settings: Set[str] = set()
        self.expected: Dict[str, Tuple[int, str, str, str, str, str]] = {}
        self.merged = os.path.islink(os.path.join(root, "bin"))
        # A system can have both: a base of one kind, and packages of the other.
        if os.path.exists(self.at("/var/lib/dpkg/status")):
            self.read_dpkg()
        if os.path.isdir(self.at("/usr/lib/sysimage/rpm")) or os.path.isdir(self.at("/var/lib/rpm")):
            self.read_rpm()

    def at(self, path: str) -> str:
        return self.root.rstrip("/") + path

    def real(self, path: str) -> str:
        """The path with a merged /usr; packages list some files by their former path."""
        return "/usr" + path if self.merged and MERGED.match(path) else path

    def own(self, path: str, name: str) -> None:
        owners = self.owners.setdefault(path, [])
        if name not in owners:
            owners.append(name)

    def read(self, path: str) -> str:
        try:
            with open(self.at(path), encoding="utf-8", errors="surrogateescape") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return ""

    def read_dpkg(self) -> None:
        folder = "/var/lib/dpkg/info/"
        names = set(os.listdir(self.at(folder))) if os.path.isdir(self.at(folder)) else set()
        lines = self.read("/var/lib/dpkg/diversions").splitlines()
        diverted = {path: (to, by) for path, to, by in zip(lines[::3], lines[1::3], lines[2::3])}
        automatic = set(
            re.findall(r"(?m)^Package: (\S+)\n(?:.+\n)*?Auto-Installed: 1", self.read("/var/lib/apt/extended_states"))
        )
        for block in self.read("/var/lib/dpkg/status").split("\n\n"):
            fields = dict(re.findall(r"(?m)^([A-Z][\w-]*):[ ]?((?:.*)(?:\n[ ].*)*)", block))
            state = fields.get("Status", "").split()
            if "Package" not in fields or not state or state[-1] in ("not-installed", "config-files"):
                continue
            name, architecture = fields["Package"], fields.get("Architecture", "")
            depends = ",".join(fields[key] for key in ("Pre-Depends", "Depends", "Recommends") if key in fields)
            self.packages.append({
                "name": name, "version": fields.get("Version", ""), "architecture": architecture, "state": state[-1],
                "depends": requirements(depends), "automatic": name in automatic,
                "provides": [row[0] for row in requirements(fields.get("Provides", "")) if row],
            })  # fmt: skip
            stem = name if name + ".list" in names else name + ":" + architecture
            for path in self.read(folder + stem + ".list").splitlines():
                to, by = diverted.get(path, (path, name))
                self.own(self.real(path if by == name else to), name)
            for line in self.read(folder + stem + ".md5sums").splitlines():
                digest, _, path = line.partition("  ")
                to, by = diverted.get("/" + path, ("/" + path, name))
                self.md5[self.real("/" + path if by == name else to)] = digest
            for line in fields.get("Conffiles", "").splitlines():
                words = line.split()
                if len(words) >= 2 and "obsolete" not in words[2:] and "remove-on-upgrade" not in words[2:]:
                    path = self.real(words[0])
                    self.settings.add(path)
                    self.own(path, name)
                    self.md5[path] = words[1]

    def read_rpm(self) -> None:
        """rpm's database has owner, mode and digest of every file."""
        form = (
            "P\\t%{NAME}\\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\\t%{ARCH}\\n[R\\t%{REQUIRENAME}\\n][V\\t%{PROVIDENAME}\\n]"
            "[F\\t%{FILEFLAGS}\\t%{FILEMODES}\\t%{FILEUSERNAME}\\t%{FILEGROUPNAME}\\t%{FILEDIGESTS}\\t%{FILECAPS}"
            "\\t%{FILESTATES}\\t%{FILELINKTOS}\\t%{FILENAMES}\\n]"
        )
        command = ["rpm", "--root", os.path.abspath(self.root), "-qa", "--qf", form]
        try:
            listed = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except FileNotFoundError:
            return
        package: Record = {}
        for line in listed.stdout or ():
            row = os.fsdecode(line.rstrip(b"\n")).split("\t")
            if row[0] == "P":
                # Each imported key is a package of this name, and its version is the key's id.
                name = row[1] if row[1] != "gpg-pubkey" else "gpg-pubkey-" + row[2].split(":")[-1].split("-")[0]
                package = {
                    "name": name, "version": row[2], "architecture": row[3], "state": "installed", "depends": [],
                    "provides": [], "automatic": False,
                }  # fmt: skip
                self.packages.append(package)
            elif row[0] == "R" and not row[1].startswith("rpmlib("):
                package["depends"].append([row[1]])
            elif row[0] == "V":
                package["provides"].append(row[1])
            elif row[0] == "F" and len(row) == 10 and row[7] in ("0", "(none)", "normal"):
                flags, mode, path = int(row[1]), int(row[2]) & 0xFFFF, self.real(row[9])
                self.own(path, package["name"])
                if flags & RPM_CONFIG:
                    self.settings.add(path)
                if flags & RPM_GHOST:
                    continue
                self.expected[path] = (mode, row[3], row[4], row[5], row[6], row[8])
        listed.wait()

    def differences(self, path: str, entry: Record, md5: str, names: Names) -> Optional[List[str]]:
        """What differs from the package: None where it records nothing, else names of attributes."""
        if path in self.expected:
            mode, user, group, digest, capabilities, target = self.expected[path]
            differs = []
            if TYPES.get(stat.S_IFMT(mode)) != entry["t"]:
                return ["type"]
            if entry["t"] != "l" and stat.S_IMODE(mode) != entry["m"]:
                differs.append("mode")
            if names[0].get(entry["u"], entry["u"]) != user or names[1].get(entry["g"], entry["g"]) != group:
                differs.append("owner")
            if entry.get("h") and digest not in ("", "(none)") and digest not in (entry["h"], md5):
                differs.append("content")
            if entry["t"] == "l" and target != entry.get("l"):
                differs.append("target")
            if bool(capabilities.strip("= ") not in ("", "(none)")) != ("security.capability" in entry.get("x", {})):
                differs.append("capabilities")
            return differs
        if path in self.md5:
            if entry["t"] != "f":
                return ["type"]
            return None if not md5 else [] if md5 == self.md5[path] else ["content"]
        return None


def requirements(text: str) -> List[List[str]]:
    """`a (>= 1), b | c:any` as [[a], [b, c]]."""
    rows = []
    for part in text.replace("\n", " ").split(","):
        names = [re.sub(r"[\s(\[<:].*", "", choice.strip()) for choice in part.split("|")]
        if any(names):
            rows.append([name for name in names if name])
    return rows


def digest(path: str, need_md5: bool) -> Digest:
    """SHA-256 and, where the package records it, MD5, in hexadecimal."""
    sha256 = hashlib.sha256()
    options: Record = {"usedforsecurity": False} if sys.version_info >= (3, 9) else {}
    md5 = hashlib.new("md5", **options) if need_md5 else None
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("no longer a regular file")
        # A small file is one read: one byte more than it should have tells that it has ended.
        wanted = min(BLOCK, status.st_size + 1)
        while True:
            block = os.read(file, wanted)
            sha256.update(block)
            if md5:
                md5.update(block)
            if not block or len(block) == status.st_size < wanted:
                break
        head = os.pread(file, 16, 0) if path.endswith(".pyc") else b""
    finally:
        os.close(file)
    return sha256.hexdigest(), md5.hexdigest() if md5 else "", head


class Digests:
    """Digests of files that several threads read. A task has many files: one a file costs more than reading it."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.batch: List[Tuple[str, bool]] = []
        self.bytes = 0
        self.tasks: List[Any] = []
        self.places: Dict[str, Tuple[int, int]] = {}

    def add(self, path: str, size: int, need_md5: bool) -> Tuple[int, int]:
        """Where the file's digest will be; another path of the same file can be given the same place."""
        place = self.places[path] = (len(self.tasks), len(self.batch))
        self.batch.append((path, need_md5))
        self.bytes += size
        if self.bytes >= BATCH_BYTES or len(self.batch) == BATCH_FILES:
            self.start()
        return place

    def start(self) -> None:
        """Hands over the files that have been added."""
        if self.batch:
            self.tasks.append(self.pool.submit(digests_of, self.batch))
            self.batch, self.bytes = [], 0

    def take(self, path: str) -> Digest:
        """Waits for the file's digest. OSError: it could not be read."""
        task, index = self.places.pop(path)
        found = self.tasks[task].result()[index]
        if isinstance(found, OSError):
            raise found
        return found  # type: ignore[no-any-return]


def digests_of(batch: List[Tuple[str, bool]]) -> List[Union[Digest, OSError]]:
    found: List[Union[Digest, OSError]] = []
    for path, need_md5 in batch:
        try:
            found.append(digest(path, need_md5))
        except OSError as error:
            found.append(error)
    return found


def mount_points() -> Optional[Set[str]]:
    """The mount points of this process; None if they cannot be read."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            escaped = {line.split()[4] for line in file}
    except OSError:
        return None
    return {re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), path) for path in escaped}


def walk(root: str, device: int, skipped: Set[str], mounted: Set[str]) -> Iterator[Tuple[str, os.stat_result]]:
    """(path, status) of everything below root on its file system; files that are removed meanwhile are left out.

    mounted: gets the paths on which other file systems are mounted. On overlayfs a file has the device number of the
    layer that it is from, so that a file is on another file system only if it is a mount point itself.
    """
    points = mount_points()
    pending = [root.rstrip("/")]
    while pending:
        folder = pending.pop()
        try:
            entries = sorted(os.scandir(folder or "/"), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            path = folder + "/" + entry.name
            if status.st_dev != device and (points is None or stat.S_ISDIR(status.st_mode) or path in points):
                mounted.add(path)
                continue
            if path in skipped:
                continue
            yield path, status
            if stat.S_ISDIR(status.st_mode):
                pending.append(path)


def describe(
    path: str,
    inside: str,
    status: os.stat_result,
    packages: Packages,
    digests: "Digests",
    read: bool,
    names: Names,
) -> Optional[Record]:
    """The entry of one path; None if the file was removed meanwhile. read: a regular file has a digest."""
    kind = TYPES.get(stat.S_IFMT(status.st_mode), "?")
    entry: Record = {
        "p": inside, "t": kind, "m": stat.S_IMODE(status.st_mode), "u": status.st_uid, "g": status.st_gid,
        "a": int(status.st_mtime), "c": int(status.st_ctime),
    }  # fmt: skip
    md5 = ""
    try:
        if kind == "l":
            entry["l"] = os.readlink(path)
        elif kind == "f":
            entry["s"] = status.st_size
            entry["h"], md5, head = digests.take(path) if read else ("", "", b"")
            if head:
                entry["y"] = [int.from_bytes(head[at : at + 4], "little") for at in (4, 8, 12)]
        elif kind in "cb":
            entry["d"] = [os.major(status.st_rdev), os.minor(status.st_rdev)]
    except FileNotFoundError:
        return None
    except OSError as error:
        entry["e"] = error.strerror or str(error)
    try:
        attributes = [name for name in os.listxattr(path, follow_symlinks=False) if name not in IGNORED_ATTRIBUTES]
        if attributes:
            entry["x"] = {name: os.getxattr(path, name, follow_symlinks=False).hex() for name in sorted(attributes)}
    except OSError:
        pass
    if kind in "fd":
        for name in flags(path):
            entry.setdefault("x", {})[name] = ""
    if inside in packages.owners:
        entry["o"] = packages.owners[inside]
        if inside in packages.settings:
            entry["k"] = 1
        differs = packages.differences(inside, entry, md5, names)
        if differs is not None:
            entry["v"] = differs
    return entry


def flags(path: str) -> List[str]:
    """The inode flags (chattr) that keep a file or directory as it is; none where the file system has no such flags."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        buffer = bytearray(8)
        fcntl.ioctl(file, GET_FLAGS, buffer)
    except OSError:
        return []
    finally:
        os.close(file)
    value = int.from_bytes(buffer[:4], sys.byteorder)
    return [name for bit, name in sorted(FLAGS.items()) if value & bit]


def settings(packages: Packages) -> Record:
    """What small files say that programs write: of the boot loader, of dpkg, of apt."""
    rows = packages.read("/var/lib/dpkg/diversions").splitlines()
    overrides = packages.read("/var/lib/dpkg/statoverride").splitlines()
    automatic = re.findall(
        r"(?m)^Package: (\S+)\n(?:.+\n)*?Auto-Installed: 1", packages.read("/var/lib/apt/extended_states")
    )
    return {
        "grubenv": {
            path: dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line and line[0] != "#")
            for path in ("/boot/grub/grubenv", "/boot/grub2/grubenv")
            for text in [packages.read(path)]
            if text
        },
        "diversions": list(zip(rows[::3], rows[1::3], rows[2::3])),
        "overrides": [line.split(None, 3) for line in overrides if len(line.split(None, 3)) == 4],
        "marked": sorted(set(automatic)),
        "held": sorted(held(packages)),
    }


def held(packages: Packages) -> Iterator[str]:
    """Packages that dpkg holds, by name, and the lines of dnf's and yum's version locks."""
    status = packages.read("/var/lib/dpkg/status")
    yield from re.findall(r"(?m)^Package: (\S+)\n(?:.+\n)*?Status: hold ", status)
    for path in ("/etc/dnf/plugins/versionlock.list", "/etc/yum/pluginconf.d/versionlock.list"):
        for line in packages.read(path).splitlines():
            if line.strip() and not line.startswith("#"):
                yield line.strip()


def accounts(packages: Packages) -> Record:
    """Accounts and groups, and of each password only whether there is one."""
    rows = [line.split(":") for line in packages.read("/etc/passwd").splitlines()]
    groups = [line.split(":") for line in packages.read("/etc/group").splitlines()]
    locks = {}
    for line in packages.read("/etc/shadow").splitlines():
        row = line.split(":")
        if len(row) > 1:
            locks[row[0]] = "empty" if not row[1] else "locked" if row[1][0] in "!*" else "set"
    return {
        "accounts": {r[0]: [int(r[2]), int(r[3]), r[5], r[6], locks.get(r[0], "")] for r in rows if len(r) == 7},
        "groups": {r[0]: [int(r[2]), sorted(filter(None, r[3].split(",")))] for r in groups if len(r) == 4},
    }


def listeners() -> List[Tuple[str, int, str]]:
    """Protocol, port and program of each socket that takes connections or datagrams."""
    inodes: Dict[str, str] = {}
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/comm" % number, encoding="utf-8", errors="replace") as file:
                name = file.read().strip()
            for descriptor in os.listdir("/proc/%s/fd" % number):
                target = os.readlink("/proc/%s/fd/%s" % (number, descriptor))
                if target.startswith("socket:["):
                    inodes[target[8:-1]] = name
        except OSError:
            continue
    found = set()
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        try:
            with open("/proc/net/" + protocol, encoding="ascii") as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        for row in rows:
            if row[3] == ("0A" if protocol.startswith("tcp") else "07"):
                found.add((protocol[:3], int(row[1].rpartition(":")[2], 16), inodes.get(row[9], "")))
    return sorted(found)


def state(packages: Packages, running: bool) -> Record:
    """The header: operating system, and of a running system kernel, command line, sockets and mounts."""
    release: Dict[str, str] = {}
    for line in (packages.read("/etc/os-release") or packages.read("/usr/lib/os-release")).splitlines():
        key, _, value = line.partition("=")
        release[key] = value.strip("\"'")
    header: Record = {
        "schema": SCHEMA, "time": time.time(), "os": release.get("ID", ""), "os_version": release.get("VERSION_ID", ""),
        "machine": os.uname().machine, "running": bool(running),
    }  # fmt: skip
    if running:
        with open("/proc/stat", encoding="ascii") as file:
            header["boot_time"] = int(re.findall(r"(?m)^btime (\d+)", file.read())[0])
        with open("/proc/cmdline", encoding="utf-8", errors="replace") as file:
            header["command_line"] = file.read().split()
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            header["mounts"] = sorted({tuple(line.split()[1:3]) for line in file})
        header["kernel"] = os.uname().release
        header["listeners"] = listeners()
    return header


def to_be_read(status: os.stat_result, hash_since: float) -> bool:
    return stat.S_ISREG(status.st_mode) and max(status.st_ctime, status.st_mtime) >= hash_since


def inventory(
    root: str, running: bool, hash_since: float, skipped: Set[str], write: Callable[[Record], object]
) -> None:
    """Writes header, packages, entries, files that packages miss, and the number of entries at the end."""
    packages = Packages(root)
    named = accounts(packages)
    names = (
        {row[0]: name for name, row in named["accounts"].items()},
        {row[0]: name for name, row in named["groups"].items()},
    )
    header = state(packages, running)
    header.update(named, hash_since=hash_since)
    header.update(settings(packages))
    write(header)
    for package in packages.packages:
        write({"package": package})
    top = root.rstrip("/") or "/"
    prefix = len(root.rstrip("/"))
    mounted: Set[str] = set()
    listed = sorted(walk(root, os.lstat(top).st_dev, skipped, mounted))
    seen: Set[str] = set()
    count = 0
    links: Dict[Tuple[int, int, bool, bool], Tuple[int, int]] = {}
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        digests = Digests(pool)
        for path, status in listed:
            if not to_be_read(status, hash_since):
                continue
            need_md5 = path[prefix:] in packages.md5
            identity = (status.st_dev, status.st_ino, need_md5, path.endswith(".pyc"))
            if identity in links:
                digests.places[path] = links[identity]
                continue
            place = digests.add(path, status.st_size, need_md5)
            if status.st_nlink > 1:
                links[identity] = place
        digests.start()
        links.clear()
        for path, status in listed:
            inside = path[prefix:]
            seen.add(inside)
            entry = describe(path, inside, status, packages, digests, to_be_read(status, hash_since), names)
            if entry is not None:
                write(entry)
                count += 1
    for path in sorted(packages.owners):
        if path not in seen and (path in packages.md5 or path in packages.expected):
            write({"missing": path, "o": packages.owners[path]})
    for path in sorted(mounted):
        write({"mounted": path[prefix:]})
    write({"end": count})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default="/", help="the tree to list [%(default)s]")
    parser.add_argument("--running", action="store_true", help="the system runs: list sockets, mounts and kernel too")
    parser.add_argument("--hash-since", type=float, default=0.0, help="no digest of files unchanged since (epoch)")
    parser.add_argument("--skip", action="append", default=[], help="a path that is left out with all below it")
    parser.add_argument("--out", help="the file to write [standard output]")
    given = parser.parse_args()
    skipped = {given.root.rstrip("/") + path for path in given.skip}
    part = ""
    if given.out:
        part = os.path.abspath(given.out) + ".part"
        os.makedirs(os.path.dirname(part), mode=0o755, exist_ok=True)
        skipped |= {part, os.path.abspath(given.out)}
    with open(part or 1, "wb", closefd=bool(part)) as target, gzip.GzipFile("", "wb", 6, target, mtime=0) as packed:
        encode = json.JSONEncoder(separators=(",", ":")).encode
        lines: List[str] = []

        def write(record: Record) -> None:
            lines.append(encode(record))
            if len(lines) == WRITTEN_LINES:
                flush()

        def flush() -> None:
            packed.write("".join(line + "\n" for line in lines).encode("ascii"))
            lines.clear()

        inventory(given.root, given.running, given.hash_since, skipped, write)
        flush()
    if part:
        os.chmod(part, 0o644)
        os.rename(part, given.out)


if __name__ == "__main__":
    main()
