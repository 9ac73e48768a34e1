"""The local region's source AMIs: a release of Debian for an architecture, made by mmdebstrap from Debian's archive.

It stands in for Debian's own cloud AMI: cloud kernel, systemd, OpenSSH, stock cloud-init with the Ec2 datasource, user
`admin`. What differs is what emulation asks for: a short list of cloud-init modules, a small initrd, few timers
(`replicas/debian_ami/` holds every file and the package list, with the reasons, its `releases/<suite>` what one release
has).

The disk is raw and sparse: MBR, one ext4 partition at 1 MiB, made by `mke2fs -d` without root or a loop device. There
is no boot loader in it; whoever boots it reads kernel, initrd and command line from /boot/grub/grub.cfg, which
`update-grub` writes inside the guest as on any Debian machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import struct
import tarfile
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_ami.errors import CloudError
from gpu_ami.files import locked
from gpu_ami.process import find_tool, run
from gpu_ami.progress import Progress
from localregion.architectures import ARCHITECTURES, DEFAULT, require_programs
from localregion.debian import BOOKWORM, Release
from localregion.host import archive_lines, proxies

PARTITION_OFFSET = 1024 * 1024
SOURCE = Path(__file__).parents[1] / "replicas" / "debian_ami"
_RELEASES = "releases"  # in SOURCE: a folder for each suite
SSH_USER = "admin"
DISK_BYTES = 8 * 1024**3
_BUILD_SECONDS = 1200.0
_EMULATED_BUILD_SECONDS = 10800.0  # two processors under load took 3547 s
_KEPT_SECONDS = 7 * 24 * 3600.0
# No flush of each file that dpkg unpacks: an interrupted build is thrown away. The first two are dpkg's defaults.
_DPKG = {"DPKG_FORCE": "security-mac,downgrade,unsafe-io"}
_MMDEBSTRAP = ("--variant=apt", "--architectures={}", "--dpkgopt=force-confold")
# $0 tar, $1 scratch folder, $2 mke2fs, $3 UUID, $4 offset in bytes, $5 disk, $6 KiB
_DISK_SCRIPT = (
    'set -e; mkdir -p "$1"; tar -C "$1" --numeric-owner --xattrs --exclude="./dev/*" -xf "$0"; '
    '"$2" -q -t ext4 -L root -U "$3" -d "$1" -O ^metadata_csum '
    '-E "offset=$4,lazy_itable_init=1,lazy_journal_init=1" -F "$5" "$6"k; rm -rf "$1"'
)


@dataclass(frozen=True)
class BaseImage:
    """A disk image to boot from: raw, ext4 in partition 1 at PARTITION_OFFSET."""

    path: Path
    name: str
    ssh_user: str
    digest: str


def digest(architecture: str = DEFAULT, release: Release = BOOKWORM) -> str:
    """Digest of the image's sources: package list, files, build steps."""
    steps = (release.suite, DISK_BYTES, _options(architecture), _DISK_SCRIPT, root_uuid(architecture))
    sha = hashlib.sha256(repr(steps).encode())
    add_files(sha, SOURCE, without=_RELEASES)
    add_files(sha, SOURCE / _RELEASES / release.suite)
    sha.update("".join(f"{old} {new}\0" for old, new in ARCHITECTURES[architecture].packages.items()).encode())
    return sha.hexdigest()[:16]


def add_files(sha: hashlib._Hash, folder: Path, without: str = "") -> None:
    """Adds names, modes and content of a folder's files to a digest. without: the name of a folder in it."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.relative_to(folder).parts[0] != without:
            sha.update(f"{path.relative_to(folder)}\0{path.stat().st_mode & 0o111:o}\0".encode())
            sha.update(path.read_bytes())


def ensure(home: Path, progress: Progress, architecture: str = DEFAULT, release: Release = BOOKWORM) -> BaseImage:
    """The image in `home/base`, built when what makes it has changed (about a minute; emulated, several)."""
    image = make_image(home / "base", architecture, release)
    with only_one(home / "base", progress) as base:
        if image.path.exists():
            os.utime(image.path)
            return image
        archive = _archive(base, progress, architecture, release)
        with progress.stage("write the disk"), scratch(base) as work:
            _write_disk(archive, work / "disk.raw", root_uuid(architecture))
            (work / "disk.raw").rename(image.path)
    return image


def ensure_archive(home: Path, progress: Progress, architecture: str = DEFAULT, release: Release = BOOKWORM) -> Path:
    """The image's tree as a tar, of which emulated distributions and sandboxes are made; kept beside the image."""
    with only_one(home / "base", progress) as base:
        return _archive(base, progress, architecture, release)


def image_name(architecture: str = DEFAULT, release: Release = BOOKWORM) -> str:
    """The image's name without its digest."""
    return f"debian-{release.version}-{ARCHITECTURES[architecture].debian}-gpu-ami"


def make_image(base: Path, architecture: str = DEFAULT, release: Release = BOOKWORM) -> BaseImage:
    current = digest(architecture, release)
    name = f"{image_name(architecture, release)}-{current}"
    return BaseImage(base / f"{name}.raw", name, SSH_USER, current)


def root_uuid(architecture: str = DEFAULT) -> str:
    """Of the root file system: the boot menu in a tree names it, so every disk of the architecture has it."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{ARCHITECTURES[architecture].debian}-gpu-ami"))


def _archive(base: Path, progress: Progress, architecture: str, release: Release) -> Path:
    archive = base / f"{image_name(architecture, release)}-{digest(architecture, release)}.tar"
    if archive.exists():
        os.utime(archive)
        return archive
    for stale in base.glob("build-*"):
        shutil.rmtree(stale, ignore_errors=True)
    require_programs(architecture)
    of = "" if architecture == DEFAULT else f" of {architecture}"
    with progress.stage(f"base image: {release.name}{of} by mmdebstrap"), scratch(base) as work:
        overlay = work / "overlay.tar"
        pack_overlay(SOURCE / "rootfs", overlay)
        bootstrap(overlay, work, work / "tree.tar", architecture, release)
        (work / "tree.tar").rename(archive)
    _forget_old(base)
    return archive


def _forget_old(base: Path) -> None:
    """Removes old images of other digests; recent ones stay, a stopped instance may still use them."""
    for old in (*base.glob("*.raw"), *base.glob("*.tar")):
        if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
            old.unlink()


@contextlib.contextmanager
def only_one(base: Path, progress: Progress | None = None) -> Iterator[Path]:
    """`base`, made where it is not there; one process at a time is inside. progress: gets a line of a wait."""

    def say() -> None:
        if progress is not None:
            progress.note(f"another gpu-ami makes images in {base}; waiting for it")

    with locked(base / "lock", say):
        yield base


@contextlib.contextmanager
def scratch(base: Path) -> Iterator[Path]:
    work = Path(tempfile.mkdtemp(prefix="build-", dir=base))
    work.chmod(0o755)  # mmdebstrap's unprivileged user reads from it
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def pack_overlay(folder: Path, archive: Path) -> None:
    """Packs files as root's: neither a checkout's owner nor its umask may reach the image."""

    def as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        member.mode = 0o755 if member.isdir() or member.mode & 0o111 else 0o644
        return member

    with tarfile.open(archive, "w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, arcname=path.name, filter=as_root)


def _options(architecture: str) -> tuple[str, ...]:
    return tuple(option.format(ARCHITECTURES[architecture].debian) for option in _MMDEBSTRAP)


def bootstrap(overlay: Path, work: Path, tree: Path, architecture: str, release: Release = BOOKWORM) -> None:
    renamed, is_native = ARCHITECTURES[architecture].packages, ARCHITECTURES[architecture].is_native
    packages = ",".join(renamed.get(name, name) for name in listed(SOURCE / "packages.txt"))
    customise = work / "customise"
    customise.write_text((SOURCE / "customise.sh").read_text())
    customise.chmod(0o755)
    masked = " ".join(
        path for folder in (SOURCE, SOURCE / _RELEASES / release.suite) for path in listed(folder / "masked.txt")
    )
    is_root = os.geteuid() == 0
    # As root it mounts /proc, /sys and /dev in its tree: in a name space of its own and below `work`, they go with it
    # when it is killed, and whoever removes the tree does not find this machine's files in it.
    namespace: list[str | Path] = [find_tool("unshare", package="util-linux"), "--mount"] if is_root else []
    command: list[str | Path] = [
        *namespace,
        find_tool("mmdebstrap", package="mmdebstrap"),
        f"--mode={'root' if is_root else 'unshare'}",
        *_options(architecture),
        *([] if is_native else ["--skip=check/qemu"]),  # require_programs has looked, without a further package
        f"--include={packages}",
        # Both before anything is installed: initramfs settings and dpkg filters count from the first package.
        f"--extract-hook={filter_hook(dpkg_filters())}",
        f"--essential-hook=tar-in {overlay} /",
        f'--customize-hook={customise} "$1" {release.suite} {root_uuid(architecture)} {masked}',
        release.suite,
        tree,
        *archive_lines(release.suite),
    ]
    temporary = {"TMPDIR": str(work)} if is_root else {}  # as another user it needs a folder open to all
    seconds = _BUILD_SECONDS if is_native else _EMULATED_BUILD_SECONDS
    run(command, timeout=seconds, env=proxies() | _DPKG | temporary, error=CloudError)


def filter_hook(filters: Sequence[str]) -> str:
    """Adds dpkg's filters to its options in a tree, and removes what of the unpacked packages they exclude.

    Given as --dpkgopt, mmdebstrap would send each package that it unpacks through a filter in Python, which takes a
    fifth of its time. dpkg then installs the same packages and brings back what the filters include.
    """
    excluded = [line.removeprefix("path-exclude=") for line in filters if line.startswith("path-exclude=")]
    lines, paths = shlex.join(filters), " ".join(f'"$1"{path}' for path in excluded)
    return f"printf '%s\\n' {lines} >>\"$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap\"; rm -rf {paths}"


def listed(path: Path) -> list[str]:
    """The lines of a list, without its comments."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def dpkg_filters() -> list[str]:
    return (SOURCE / "rootfs/etc/dpkg/dpkg.cfg.d/gpu-ami").read_text().split()


def _write_disk(tree: Path, disk: Path, root_uuid: str) -> None:
    """MBR and file system. Extracting with right owners needs root, or a user name space with subordinate ids."""
    start_disk(disk)
    size = DISK_BYTES - PARTITION_OFFSET
    scratch = disk.parent / "tree"
    mke2fs = find_tool("mke2fs", package="e2fsprogs")
    arguments: list[str | Path] = [tree, scratch, mke2fs, root_uuid, str(PARTITION_OFFSET), disk, str(size // 1024)]
    namespace = [find_tool("unshare", package="util-linux"), "--map-root-user", "--map-auto"]
    inside = [] if os.geteuid() == 0 else namespace
    run([*inside, "sh", "-c", _DISK_SCRIPT, *arguments], timeout=300, error=CloudError)


def start_disk(disk: Path) -> None:
    """A sparse disk with its master boot record, and nothing in its partition yet."""
    with disk.open("wb") as handle:
        handle.truncate(DISK_BYTES)
        handle.write(mbr(PARTITION_OFFSET // 512, (DISK_BYTES - PARTITION_OFFSET) // 512))


def mbr(first_sector: int, sectors: int) -> bytes:
    """A master boot record with one bootable Linux partition, in LBA (the CHS fields say "beyond CHS")."""
    beyond = b"\xfe\xff\xff"
    entry = b"\x80" + beyond + b"\x83" + beyond + struct.pack("<II", first_sector, sectors)
    signature = struct.pack("<I", 0x67707561)
    return bytes(440) + signature + bytes(2) + entry + bytes(48) + b"\x55\xaa"
