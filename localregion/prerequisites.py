"""Programs and packages that this machine lacks, what they are needed for, and how to install them."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from gpu_ami.region import Prerequisite

# Program → the Debian package that has it. `make packages` installs the same list
# (tests/localregion/test_host_packages.py compares).
TOOLS = {
    "packer": "packer",
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "newuidmap": "uidmap",
    "mke2fs": "e2fsprogs",
    "debugfs": "e2fsprogs",
    "dpkg-deb": "dpkg",
    "dpkg-scanpackages": "dpkg-dev",
    "apt-ftparchive": "apt-utils",
    "fakeroot": "fakeroot",
    "gpg": "gnupg",
    "rpmbuild": "rpm",
    "rpmsign": "rpm",
    "createrepo_c": "createrepo-c",
    "gcc": "gcc",
    "ssh-keygen": "openssh-client",
}
LOCAL_ONLY = frozenset(TOOLS) - {"packer", "ssh-keygen"}
_MODULES = {
    "ansible": "ansible-core",
    "boto3": "boto3",
    "paramiko": "paramiko",
    "testinfra": "pytest-testinfra",
    "yaml": "pyyaml",
}
_LOCAL_MODULES = {"moto": "moto[server]", "ansible_mitogen": "mitogen"}
_NEEDED_GIB = 8


def examine(home: Path) -> list[Prerequisite]:
    """Looks at programs, Python packages, disk and memory. Starts nothing."""
    return [*_tools(), *_modules(), _disk(home), _memory(), _network()]


def _tools() -> list[Prerequisite]:
    findings = []
    for name, package in TOOLS.items():
        path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
        purpose = "the local region" if name in LOCAL_ONLY else "every build"
        remedy = f"apt-get install {package}"
        findings.append(Prerequisite(name, path is not None, path or "missing", remedy, purpose, path or ""))
    return findings


def _modules() -> list[Prerequisite]:
    findings = []
    for modules, purpose in ((_MODULES, "every build"), (_LOCAL_MODULES, "the local region")):
        for name, package in modules.items():
            there = importlib.util.find_spec(name) is not None
            remedy = f"pip install '{package}'" if purpose == "every build" else "pip install 'gpu-ami[local]'"
            findings.append(
                Prerequisite(f"python: {name}", there, "installed" if there else "missing", remedy, purpose)
            )
    return findings


def _disk(home: Path) -> Prerequisite:
    free = shutil.disk_usage(home).free / 2**30
    remedy = f"free {_NEEDED_GIB} GiB, or set GPU_AMI_HOME to a folder on a larger disk"
    return Prerequisite("disk", free >= _NEEDED_GIB, f"{free:.0f} GiB free at {home}", remedy, "the local region")


def _memory() -> Prerequisite:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    remedy = "6 GiB let two machines run side by side; --instance-type boots one at a time"
    return Prerequisite("memory", total >= 6, f"{total:.0f} GiB", remedy, "the local region")


def _network() -> Prerequisite:
    """Machines of the local region get loopback addresses of their own; that needs Linux's 127.0.0.0/8."""
    import socket

    with socket.socket() as probe:
        try:
            probe.bind(("127.20.255.254", 0))
        except OSError as error:
            return Prerequisite(
                "loopback addresses", False, str(error), "allow binding to 127.0.0.0/8", "the local region"
            )
    return Prerequisite("loopback addresses", True, "127.0.0.0/8 can be bound", "", "the local region")


def missing_packages(findings: Sequence[Prerequisite]) -> list[str]:
    """Debian packages that would bring what is missing, each once."""
    return sorted({TOOLS[finding.name] for finding in findings if not finding.ok and finding.name in TOOLS})
