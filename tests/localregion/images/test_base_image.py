"""The base image's recipe: what it is keyed by, its disk's first sector, and that a broken build leaves nothing."""

from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
import tarfile
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_ami.errors import CloudError
from gpu_ami.process import Completed
from gpu_ami.progress import Progress
from localregion.debian import BOOKWORM, RELEASES
from localregion.images import base_image
from tests.waiting import until

QUIET = Progress(mode="quiet")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = tmp_path / "debian_ami"
    shutil.copytree(base_image.SOURCE, copy)
    monkeypatch.setattr(base_image, "SOURCE", copy)
    return copy


def test_digest_follows_every_file_its_mode_and_the_disk_recipe(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = [base_image.digest()]
    assert base_image.digest() == digests[0]
    (sources / "packages.txt").write_text("linux-image-cloud-amd64\n")
    digests.append(base_image.digest())
    (sources / "rootfs/etc/added").write_text("x")
    digests.append(base_image.digest())
    (sources / "rootfs/etc/added").chmod(0o755)
    digests.append(base_image.digest())
    monkeypatch.setattr(base_image, "DISK_BYTES", 1)
    digests.append(base_image.digest())
    assert len(set(digests)) == 5


def test_master_boot_record_has_one_linux_partition_at_one_mebibyte() -> None:
    sector = base_image.mbr(2048, 4096)
    assert len(sector) == 512 and sector[510:] == b"\x55\xaa"
    assert (sector[446], sector[450]) == (0x80, 0x83)
    assert struct.unpack("<II", sector[454:462]) == (2048, 4096)
    assert not any(sector[462:510])


def test_architectures_are_told_apart(sources: Path) -> None:
    assert base_image.digest("arm64") != base_image.digest("x86_64") == base_image.digest()
    assert base_image.root_uuid("arm64") != base_image.root_uuid()
    assert base_image.image_name("arm64") == "debian-12-arm64-gpu-ami"


def test_releases_are_told_apart_by_their_own_files(sources: Path) -> None:
    trixie = RELEASES["debian13"]
    before = [base_image.digest(release=release) for release in (BOOKWORM, trixie)]
    (sources / "releases/trixie/masked.txt").write_text("cloud-final.service\n")
    after = [base_image.digest(release=release) for release in (BOOKWORM, trixie)]
    assert before[0] == after[0] and len({*before, *after}) == 3
    assert base_image.image_name(release=trixie) == "debian-13-amd64-gpu-ami"


def test_package_list_has_what_roles_and_region_build_on() -> None:
    listed = set(base_image.listed(base_image.SOURCE / "packages.txt"))
    assert {
        "linux-headers-cloud-amd64",
        "dkms",
        "gcc",
        "cloud-init",
        "openssh-server",
        "python3-apt",
        "libpam-systemd",
    } <= listed
    assert all(" " not in name and "#" not in name for name in listed)


def _tools(monkeypatch: pytest.MonkeyPatch, *, mke2fs_works: bool) -> list[str]:
    """mmdebstrap and mke2fs at the door: the calls, in order."""
    calls: list[str] = []

    def run(command: Sequence[str | Path], **_: object) -> Completed:
        words = [str(word) for word in command]
        if words[:2] == ["unshare", "--mount"]:  # as root
            words = words[2:]
        calls.append(Path(words[0]).name)
        if words[0] == "mmdebstrap":
            hook = next(word for word in words if word.startswith("--essential-hook=tar-in"))
            with tarfile.open(hook.split()[1]) as overlay:
                members = {member.name: member for member in overlay}
            assert {(member.uid, member.gid) for member in members.values()} == {(0, 0)}
            assert (members["etc/fstab"].mode, members["etc"].mode) == (0o644, 0o755)
            Path(words[words.index("bookworm" if "bookworm" in words else "trixie") + 1]).write_bytes(b"tar")
        elif not mke2fs_works:
            raise CloudError("mke2fs ended with 1")
        return Completed(tuple(words), 0, "", "", 0.0)

    monkeypatch.setattr(base_image, "run", run)
    monkeypatch.setattr(base_image, "find_tool", lambda name, **_: name)
    monkeypatch.setattr(base_image, "archive_lines", lambda suite: [f"deb http://mirror.example {suite} main"])
    monkeypatch.setattr(base_image, "DISK_BYTES", 4 * 1024 * 1024)
    return calls


def test_image_is_built_once_and_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _tools(monkeypatch, mke2fs_works=True)
    image = base_image.ensure(home, QUIET)
    assert image.path.stat().st_size == 4 * 1024 * 1024 and image.ssh_user == "admin"
    assert base_image.ensure(home, QUIET) == image
    archive = base_image.ensure_archive(home, QUIET)
    assert archive.read_bytes() == b"tar"
    assert calls.count("mmdebstrap") == 1
    assert sorted(path.name for path in (home / "base").iterdir()) == [image.path.name, archive.name, "lock"]


def _recorded(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that are run from now on, which are those of `_tools`."""
    commands: list[list[str]] = []
    _tools(monkeypatch, mke2fs_works=True)
    fake = base_image.run

    def run(command: Sequence[str | Path], **options: object) -> Completed:
        commands.append([str(word) for word in command])
        return fake(command, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(base_image, "run", run)
    return commands


def test_an_image_of_another_architecture_has_its_packages(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = _recorded(monkeypatch)
    required: list[str] = []
    monkeypatch.setattr(base_image, "require_programs", required.append)
    image = base_image.ensure(home, QUIET, "arm64")
    assert image.path.name.startswith("debian-12-arm64-gpu-ami-") and required == ["arm64"]
    (bootstrap,) = [command for command in commands if "mmdebstrap" in command]
    assert "--architectures=arm64" in bootstrap
    included = next(word for word in bootstrap if word.startswith("--include=")).removeprefix("--include=").split(",")
    assert {"linux-image-cloud-arm64", "linux-headers-cloud-arm64", "grub-efi-arm64-bin"} <= set(included)
    assert not [name for name in included if "amd64" in name or "grub-pc" in name]


def test_an_image_of_another_release_is_of_its_suite(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = _recorded(monkeypatch)
    for release in (BOOKWORM, RELEASES["debian13"]):
        base_image.ensure(home, QUIET, release=release)
    calls = [command for command in commands if "mmdebstrap" in command]
    assert [command[-1] for command in calls] == [
        f"deb http://mirror.example {suite} main" for suite in ("bookworm", "trixie")
    ]
    hooks = [next(word for word in call if word.startswith("--customize-hook")) for call in calls]
    # cloud-init of Debian 13 is one process, which waits for the unit of each stage.
    assert [("cloud-config.service" in hook, "getty@tty1.service" in hook) for hook in hooks] == [
        (True, True),
        (False, True),
    ]


def test_broken_build_leaves_nothing_half_done(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tools(monkeypatch, mke2fs_works=False)
    (home / "base/build-dead").mkdir(parents=True)  # of a build that was killed
    with pytest.raises(CloudError, match="mke2fs"):
        base_image.ensure(home, QUIET)
    assert sorted(path.name for path in (home / "base").iterdir()) == [
        f"{base_image.make_image(home).name}.tar",
        "lock",
    ]


def test_images_of_former_recipes_go_when_they_are_old(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tools(monkeypatch, mke2fs_works=True)
    (home / "base").mkdir()
    old, young = (home / "base" / f"{base_image.image_name()}-{word}.raw" for word in ("old", "young"))
    old.touch()
    young.touch()
    os.utime(old, (0, 0))
    base_image.ensure(home, QUIET)
    assert (old.exists(), young.exists()) == (False, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts in this machine's own name space")
def test_a_killed_mmdebstrap_leaves_no_mount_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mounts of /proc, /sys and /dev stayed in a folder below /tmp, for the next `rm -r` to descend into."""
    program = tmp_path / "bin" / "mmdebstrap"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nmkdir -p "$TMPDIR/tree" && mount -t tmpfs gpu-ami-test "$TMPDIR/tree" || exit 1\n'
        "grep -c gpu-ami-test /proc/self/mounts\nkill -KILL $$\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(CloudError) as caught:
        base_image.bootstrap(tmp_path / "overlay.tar", work, work / "tree.tar", "x86_64")
    assert caught.value.details[-1] == "1", "it had mounted"
    assert (work / "tree").is_dir() and "gpu-ami-test" not in Path("/proc/self/mounts").read_text()


def test_filters_of_dpkg_are_applied_to_what_is_already_unpacked(tmp_path: Path) -> None:
    """As dpkg would: its options get the filters, and what they exclude goes, also from a path with a space."""
    tree = tmp_path / "a tree"
    for name in (
        "etc/dpkg/dpkg.cfg.d/99mmdebstrap",
        "usr/share/doc/perl/README",
        "usr/share/man/man1/ls.1",
        "usr/bin/ls",
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("force-confold\n")
    filters = base_image.dpkg_filters()
    subprocess.run(["sh", "-c", base_image.filter_hook(filters), "sh", tree], check=True)
    options = (tree / "etc/dpkg/dpkg.cfg.d/99mmdebstrap").read_text().splitlines()
    assert options == ["force-confold", *filters]
    assert [path.name for path in sorted((tree / "usr").rglob("*"))] == ["bin", "ls", "share", "doc", "man"]


def test_a_wait_for_another_process_is_said(tmp_path: Path) -> None:
    """Minutes, while the other one makes a base image: a command that stands still looks broken."""
    notes, entered = io.StringIO(), threading.Event()

    def enter() -> None:
        with base_image.only_one(tmp_path, Progress(stream=notes)):
            entered.set()

    with base_image.only_one(tmp_path, Progress(stream=notes)):
        assert notes.getvalue() == ""
        thread = threading.Thread(target=enter)
        thread.start()
        until(lambda: "waiting for it" in notes.getvalue())
        assert not entered.is_set()
    thread.join(30)
    assert entered.is_set() and f"another gpu-ami makes images in {tmp_path}" in notes.getvalue()
