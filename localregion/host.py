"""Programs and packages that this machine lacks, what they are needed for, and how to install them.

Debian's archive, of which base images are made and some replicas have files: where it is.

Free space on the host's disks: checked before a boot and a build, and while a machine is paused for lack of it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpu_ami.errors import CloudError, MissingTool
from gpu_ami.process import find_tool, run
from gpu_ami.region import Prerequisite
from localregion import architectures

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
    return [*_tools(), *_modules(), _disk(home), _memory(), _network(), *foreign_architectures()]


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


def foreign_architectures() -> list[Prerequisite]:
    """Of each architecture but this host's: packages for its recipes, and whether the kernel starts its programs."""
    foreign = (each for each in architectures.ARCHITECTURES.values() if each.tools and not each.is_native)
    return [_architecture(each) for each in foreign]


def _architecture(architecture: architectures.Architecture) -> Prerequisite:
    name, purpose = architecture.name, f"recipes of {architecture.name}"
    missing = architecture.missing_packages()
    if missing:
        remedy = f"apt-get install --no-install-recommends {' '.join(missing)}"
        return Prerequisite(name, False, f"not installed: {', '.join(missing)}", remedy, purpose)
    if architectures.is_registered(architecture):
        return Prerequisite(
            name, True, "emulators, firmware and compiler; binfmt_misc starts its programs", "", purpose
        )
    remedy = "build the first recipe as root: it registers the emulator with binfmt_misc, until the next boot"
    found = "emulators, firmware and compiler; binfmt_misc does not start its programs yet"
    return Prerequisite(name, os.geteuid() == 0, f"{found} (a build as root does it)", remedy, purpose)


def missing_packages(findings: Sequence[Prerequisite]) -> list[str]:
    """Debian packages that would bring what is missing, each once."""
    return sorted({TOOLS[finding.name] for finding in findings if not finding.ok and finding.name in TOOLS})


def proxies() -> dict[str, str]:
    """What a download needs of our environment."""
    return {key: os.environ[key] for key in ("http_proxy", "https_proxy", "no_proxy") if key in os.environ}


def archive_lines(suite: str) -> list[str]:
    """sources.list lines of a release: the mirror that this host's own apt uses; none: mmdebstrap's default.

    Where apt has no lines of the release, those of another release of Debian with this one's suites: a mirror has all.
    """
    try:
        apt_get = find_tool("apt-get", package="apt")
    except MissingTool:
        return []
    form = "$(ORIGIN)|$(CODENAME)|$(REPO_URI)|$(COMPONENT)"
    listed = run([apt_get, "indextargets", "--format", form, "Created-By: Packages"], timeout=300, check=False)
    rows = [line.split("|") for line in listed.stdout.splitlines()]
    found = [
        (codename, uri)
        for origin, codename, uri, component in (row for row in rows if len(row) == 4)
        if origin == "Debian" and component == "main"
    ]
    releases = [codename for codename, _ in found if "-" not in codename]
    known = suite if suite in releases else next(iter(releases), "")
    return [
        f"deb {uri} {codename.replace(known, suite, 1)} main"
        for codename, uri in found
        if codename.partition("-")[0] == known and (known == suite or not codename.endswith("-backports"))
    ]


def archive_sources(suite: str) -> list[str]:
    """`archive_lines`, or Debian's own address where this host names none."""
    return archive_lines(suite) or [f"deb http://deb.debian.org/debian {suite} main"]


_GIB = 1024**3
# What a booted guest may write before its checks end: journal, package lists, logs.
BOOT_BYTES = _GIB // 2
# A build writes packages and modules into the builder's disk, and its image is a copy of that disk.
BUILD_BYTES = 4 * _GIB
# A machine that QEMU stopped goes on when so much is free: enough to not stop again at once.
RESUME_BYTES = _GIB // 4


def allocated(file: Path) -> int:
    """Bytes that a file takes on the disk; a sparse file takes less than its size."""
    return file.stat().st_blocks * 512


def build_bytes(source: Path) -> int:
    """Bytes that a build on an image's disk needs: the builder's disk and its image, with what the roles install."""
    return 2 * allocated(source) + BUILD_BYTES


def free(folder: Path) -> int:
    """Bytes that a process without privileges can still write below `folder`."""
    return shutil.disk_usage(folder).free


def require(folder: Path, needed: int, purpose: str) -> None:
    """CloudError if fewer than `needed` bytes are free below `folder`."""
    available = free(folder)
    if available < needed:
        raise CloudError(
            f"no space for {purpose}: {gib(needed)} needed in {folder}, {gib(available)} free",
            hint="free space there, or set GPU_AMI_HOME to a folder on a larger disk",
        )


def require_for_build(images: Path, source: Path, purpose: str, spare: Path) -> None:
    """CloudError if the folder of images has no space for a build on the disk `source`. It says what images take.

    spare: folder of copies that the build takes as its disk, or that are given up for it.
    """
    copied = _total(spare.glob("*.raw"))
    try:
        require(images, build_bytes(source) - copied, purpose)
    except CloudError as error:
        disks = list(images.glob("*/disk.raw"))
        if not disks:
            raise
        raise CloudError(
            error.message,
            hint=f"{len(disks)} images take {gib(_total(disks))} there: gpu-ami region down, and remove "
            "the folders of images that nobody needs; or set GPU_AMI_HOME to a folder on a larger disk",
        ) from error


def _total(files: Iterable[Path]) -> int:
    """Bytes that files take on the disk; one that is removed meanwhile takes none."""
    total = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            total += allocated(file)
    return total


def require_writable(folder: Path) -> None:
    """Makes the folder, private to its owner. CloudError if it cannot be made or written."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise CloudError(
            f"cannot write to the state folder {folder}: {error.strerror}",
            hint="make it writable, or set GPU_AMI_HOME to another folder",
        ) from error


def gib(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"
