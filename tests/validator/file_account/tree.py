"""A small system in a folder, with packages that dpkg installed, for tests of the file account.

`base` is what an AMI has; `build` adds a planned package with its dependency, a role's files and derived ones. Files
are the test user's own; `take` shows them as root's, so that no test needs to be root.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from onhost import initial_ramdisk
from onhost import inventory as program
from tests.validator.file_account.ramdisks import FILE, cpio
from validator.file_account import Inventory, read, read_ramdisks

PASSWD = (
    "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
    "admin:x:1000:1000::/home/admin:/bin/bash\n"
)
BASE_FILES: Mapping[str, str] = {
    "etc/passwd": PASSWD,
    "etc/group": "root:x:0:\nsudo:x:27:admin\nadmin:x:1000:\n",
    "etc/shadow": "root:*:1::::::\ndaemon:*:1::::::\nadmin:!:1::::::\n",
    "etc/os-release": "ID=debian\nVERSION_ID=12\n",
    "etc/environment": "",
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/fstab": "LABEL=root / ext4 defaults 0 1\n",
    "etc/ssl/certs/ca-certificates.crt": "CERTS\n",
    "etc/apt/sources.list.d/debian.sources": "Types: deb\n",
    "etc/apt/apt.conf.d/90defaults": "// none\n",
    "usr/share/zoneinfo/Etc/UTC": "UTC0\n",
    "boot/vmlinuz-6.1.0-1-amd64": "kernel",
    "var/lib/dpkg/diversions": "",
}
# Package → path → (content, mode); paths below etc are configuration files.
BASE_PACKAGES: Mapping[str, Mapping[str, tuple[str, int]]] = {
    "demo": {
        "usr/bin/sudo": ("sudo", 0o4755),
        "usr/bin/curl": ("ELF curl", 0o755),
        "usr/bin/gcc-12": ("ELF gcc", 0o755),
        "usr/lib/x86_64-linux-gnu/libdemo.so.1.0": ("ELF library", 0o644),
        "usr/lib/python3/dist-packages/demo.py": ("x = 1\n", 0o644),
        "usr/lib/systemd/system/cron.service": ("[Service]\n", 0o644),
        "usr/lib/systemd/system/quiet.service": ("[Service]\n", 0o644),
        "usr/lib/systemd/system/multi-user.target": ("[Unit]\n", 0o644),
        "usr/share/demo/data.txt": ("newer\n", 0o644),
        "usr/share/demo/LICENSE": ("free\n", 0o644),
        "etc/bash.bashrc": ("# bash\n", 0o644),
        "etc/sysctl.conf": ("# sysctl\n", 0o644),
        "etc/nsswitch.conf": ("hosts: files dns\n", 0o644),
        "etc/ssh/sshd_config": ("UsePAM yes\n", 0o644),
        "etc/pam.d/sshd": ("@include common-auth\n", 0o644),
        "etc/sudoers.d/README": ("# empty\n", 0o440),
        "etc/cron.daily/backup": ("#!/bin/sh\n", 0o755),
    }
}
BUILD_PACKAGES: Mapping[str, Mapping[str, tuple[str, int]]] = {
    "planned-library": {"usr/lib/x86_64-linux-gnu/libplanned.so.2": ("ELF planned", 0o644)},
    "planned": {
        "usr/bin/planned": ("ELF program", 0o755),
        "usr/lib/python3/dist-packages/planned.py": ("y = 2\n", 0o644),
        "etc/planned.conf": ("a = 1\n", 0o644),
    },
}
DEPENDS = {"planned": "planned-library (>= 1)"}


def install(root: Path, packages: Mapping[str, Mapping[str, tuple[str, int]]], work: Path) -> None:
    """Builds packages with dpkg-deb and installs them into the tree with dpkg."""
    archives = []
    for name, files in packages.items():
        folder = work / name
        (folder / "DEBIAN").mkdir(parents=True)
        depends = f"Depends: {DEPENDS[name]}\n" if name in DEPENDS else ""
        (folder / "DEBIAN/control").write_text(
            f"Package: {name}\nVersion: 1.0-1\nArchitecture: all\nMaintainer: x <x@x.org>\n{depends}Description: x\n"
        )
        for path, (content, mode) in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(content)
            (folder / path).chmod(mode)
        settings = [f"/{path}\n" for path in files if path.startswith("etc/")]
        (folder / "DEBIAN/conffiles").write_text("".join(settings))
        archives.append(work / f"{name}.deb")
        subprocess.run(["dpkg-deb", "--root-owner-group", "-b", folder, archives[-1]], check=True, capture_output=True)
    command = ["dpkg", f"--root={root}", "--force-not-root", "--force-bad-path", f"--log={work}/log", "--install"]
    subprocess.run([*command, *archives], check=True, capture_output=True)


def make_base(root: Path, work: Path) -> None:
    """The tree of a base AMI."""
    for folder in (
        "usr/bin",
        "usr/lib",
        "opt",
        "srv",
        "tmp",
        "root",
        "var/lib/dpkg/updates",
        "var/lib/dpkg/info",
        "home/admin",
    ):
        (root / folder).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    for name in ("bin", "lib"):
        (root / name).symlink_to(f"usr/{name}")
    for path, content in BASE_FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    (root / "var/lib/dpkg/status").touch()
    (root / "var/lib/dpkg/available").touch()
    (root / "etc/shadow").chmod(0o640)
    install(root, BASE_PACKAGES, work)
    (root / "etc/localtime").symlink_to("/usr/share/zoneinfo/Etc/UTC")
    (root / "etc/resolv.conf").symlink_to("/run/systemd/resolve/stub-resolv.conf")
    (root / "etc/alternatives").mkdir()
    (root / "etc/alternatives/cc").symlink_to("/usr/bin/gcc-12")
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "cron.service").symlink_to("/lib/systemd/system/cron.service")


def build(root: Path, work: Path) -> None:
    """What a build adds: a planned package and what it requires, a role's file, and files that the system derives."""
    install(root, BUILD_PACKAGES, work)
    for path, content in {
        "etc/profile.d/cuda.sh": "PATH=x\n",
        "etc/ld.so.cache": "cache",
        "var/lib/dpkg/lock": "",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    ramdisk = cpio({"usr/bin/planned": (FILE | 0o755, (root / "usr/bin/planned").read_bytes())})
    (root / "boot/initrd.img-6.1.0-1-amd64").write_bytes(gzip.compress(ramdisk))
    source = root / "usr/lib/python3/dist-packages/planned.py"
    folder = source.parent / "__pycache__"
    folder.mkdir()
    words = (0, int(source.stat().st_mtime), source.stat().st_size)
    (folder / "planned.cpython-311.pyc").write_bytes(
        b"\xa7\r\r\n" + b"".join(word.to_bytes(4, "little") for word in words)
    )


def plant(root: Path, command: str) -> None:
    """Runs a trace's shell text with R as the tree."""
    subprocess.run(["sh", "-euc", command], env={"R": str(root), "PATH": os.environ["PATH"]}, check=True)


def take(root: Path, **options: Any) -> Inventory:
    """The inventory of a tree, with the test user's files as root's."""
    buffer = io.BytesIO()
    program.inventory(
        str(root), False, options.get("hash_since", 0.0), set(), lambda record: buffer.write(line(record))
    )
    taken = read(buffer.getvalue())
    mine = {str(os.getuid()), "root"}
    entries = {
        path: replace(entry, owner="root", group="root") if entry.owner in mine else entry
        for path, entry in taken.entries.items()
    }
    command = [sys.executable, "-IS", initial_ramdisk.__file__, "--root", str(root)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return replace(taken, entries=entries, ramdisks=read_ramdisks(listed))


def line(record: dict[str, Any]) -> bytes:
    """One record as the program writes it."""
    import json

    return json.dumps(record).encode("ascii") + b"\n"


def copy(root: Path, to: Path) -> Path:
    """A copy of a tree with modes and times."""
    shutil.copytree(root, to, symlinks=True)
    return to
