"""Files of no package: how they are listed on a host, and which of them are expected."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.files import data_dir
from tests.scripted_host import on_this_machine, table_host
from validator import remote
from validator.file_account import Entry as BaseEntry
from validator.file_account import load_footprint
from validator.probes import footprints
from validator.probes.footprints import Entry

LISTED = "f\t755\t/usr/bin/tool\t\nl\t777\t/etc/link\t/usr/bin/tool\nf\t644\t/etc/cron.d/job\t\n"
END = "-\t\tend\n"


def host(rc: int, stdout: str) -> Any:
    return table_host({"*": (rc, stdout)})


def test_entries_have_type_mode_and_target() -> None:
    assert footprints.find(host(0, LISTED + END)) == [
        Entry("f", 0o755, "/usr/bin/tool"),
        Entry("l", 0o777, "/etc/link", "/usr/bin/tool"),
        Entry("f", 0o644, "/etc/cron.d/job"),
    ]
    assert footprints.find(host(3, "")) is None


@pytest.mark.parametrize("listed", ["", LISTED])
def test_list_without_its_end_is_not_believed(listed: str) -> None:
    with pytest.raises(footprints.NotListed, match="cut off"):
        footprints.find(host(0, listed))


def test_links_and_declared_files_are_expected() -> None:
    entries = [
        Entry("f", 0o644, "/etc/sysctl.d/90-tuning.conf"),
        Entry("f", 0o644, "/etc/sysctl.d/99-build.conf"),
        Entry("l", 0o777, "/etc/sysctl.d/link.conf", "../sysctl.conf"),
        Entry("f", 0o644, "/etc/sysctl.data"),
    ]
    roles = data_dir("roles")
    tuned = footprints.Declared((load_footprint(roles / "tuning/meta/footprint.yml", "tuning"),), ())
    assert footprints.unexpected(entries, ["/etc/sysctl.d"], tuned) == ["/etc/sysctl.d/99-build.conf"]
    plain = footprints.Declared((), ())
    assert footprints.unexpected(entries, ["/etc/sysctl.d/"], plain) == [entry.path for entry in entries[:2]]


@pytest.mark.parametrize("family", ["debian", "redhat"])
def test_program_lists_unowned_files(family: str, tmp_path: Path) -> None:
    """In a tree of its own: the package manager's answers and find's root are replaced."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "etc").mkdir()
    generated = ["generated", "generated and changed"] if family == "debian" else []
    for name in ("owned", "moved.real", "own file", *generated):
        (tmp_path / "etc" / name).write_text("x")
    for name in ("own-1.0", "linux-headers-6.1"):  # the kernel's headers are thousands of packaged files
        (tmp_path / "src" / name).mkdir(parents=True)
        (tmp_path / "src" / name / "Makefile").write_text("x")
    digests = [hashlib.md5(content).hexdigest() for content in (b"x", b"y")]
    hashes = tmp_path / "hashfile"
    hashes.write_text("".join(f"{one}  {tmp_path}/etc/{name}\n" for one, name in zip(digests, generated, strict=False)))
    owned = f"/usr/bin/su\n{tmp_path}/etc/owned\n"
    (tmp_path / "bin" / "rpm").write_text(
        f"#!/bin/sh\nprintf '{owned}{tmp_path}/etc/moved.real\\n'\n".replace("\n/", "\\n/")
    )
    (tmp_path / "bin" / "dpkg-query").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "dpkg-divert").write_text(
        f"#!/bin/sh\necho 'diversion of {tmp_path}/etc/moved to {tmp_path}/etc/moved.real by other'\n"
    )
    (tmp_path / "bin" / "su").write_text("#!/bin/sh\n")
    (tmp_path / "list").write_text(owned)
    status = tmp_path / "status"
    status.write_text("Package: x\n" if family == "debian" else "")
    for program in (tmp_path / "bin").iterdir():
        program.chmod(0o755)
    text = (
        remote.text("unpackaged")
        .replace("PATH=/usr/sbin:/usr/bin:/sbin:/bin", f"PATH={tmp_path}/bin:/usr/bin:/bin")
        .replace("/var/lib/dpkg/status", str(status))
        .replace("/var/lib/dpkg/info/*.list", str(tmp_path / "list"))
        .replace("/var/lib/ucf/hashfile", str(hashes))
        .replace("find /etc /usr /boot /opt /srv", f"find {tmp_path}/etc {tmp_path}/src")
        .replace("/usr/src/", f"{tmp_path}/src/")
        .replace('su=$(readlink -f "$(command -v su)")', "su=/usr/bin/su")
    )
    done = subprocess.run(
        ["sh", "-c", text], capture_output=True, text=True, timeout=30, env=dict(os.environ), check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    listed = [line.split("\t")[2] for line in done.stdout.splitlines()]
    assert listed == [
        *(f"{tmp_path}/etc/{name}" for name in (*generated[1:], "own file")),
        f"{tmp_path}/src/own-1.0/Makefile",
        "end",
    ]
    (tmp_path / "list").write_text("/etc/other\n")
    (tmp_path / "bin" / "rpm").write_text("#!/bin/sh\n")
    assert subprocess.run(["sh", "-c", text], capture_output=True, timeout=30, check=False).returncode == 3


def test_files_of_the_base_ami_are_told_by_type_mode_content_and_target(tmp_path: Path) -> None:
    """Names that sha256sum would escape, too. What the builder's own first boot wrote is not the base AMI's."""
    names = ["same", "changed", "mode", "of\\x2dunit", "by-first-boot"]
    before = {}
    for name in names:
        path = str(tmp_path / name)
        (tmp_path / name).write_text("other" if name == "changed" else name)
        digest = hashlib.sha256(name.encode()).hexdigest()
        changed = 100 if name == "by-first-boot" else 1
        before[path] = BaseEntry(path, "f", 0o600 if name == "mode" else 0o644, "root", "root", 1, changed, 1, digest)
    before["/link"] = BaseEntry("/link", "l", 0o777, "root", "root", target="a")
    before["/moved"] = BaseEntry("/moved", "l", 0o777, "root", "root", target="a")
    base = SimpleNamespace(entries=before, running=True, boot_time=50)

    entries = [Entry("f", 0o644, str(tmp_path / name)) for name in (*names, "new")]
    entries += [Entry("l", 0o777, "/link", "a"), Entry("l", 0o777, "/moved", "b")]
    left = footprints.not_of_base(table_host(on_this_machine), entries, base)  # type: ignore[arg-type]
    assert [Path(entry.path).name for entry in left] == ["changed", "mode", "by-first-boot", "new", "moved"]


@pytest.mark.parametrize(("whole", "status"), [("", 3), ("whole=1\n", 0)])
def test_whole_lists_systems_whose_packages_own_nothing(tmp_path: Path, whole: str, status: int) -> None:
    """Without a package manager that knows `su`."""
    text = remote.text("unpackaged").replace("/var/lib/dpkg/status", str(tmp_path / "none"))
    text = text.replace("command -v rpm", "false").replace("find /etc /usr /boot /opt /srv", f"find {tmp_path}")
    (tmp_path / "file").write_text("x")
    done = subprocess.run(["sh", "-c", whole + text], capture_output=True, text=True, check=False)
    assert done.returncode == status and (str(tmp_path / "file") in done.stdout) is (status == 0)


def test_the_region_s_base_image_leaves_what_is_expected() -> None:
    """A file that its builder adds, and no package owns, would fail the proof of every image built on it."""
    root = Path(__file__).resolve().parents[3] / "localregion/replicas/debian_ami/rootfs"
    left = [f"/{path.relative_to(root)}" for path in sorted(root.rglob("*")) if path.is_file()]
    judged = (
        "/etc/systemd/",
        "/etc/ssh/",
        "/etc/default/grub.d/",
        "/etc/cloud/",
        "/etc/apt/",
        "/etc/initramfs-tools/conf.d/",
    )
    declared = footprints.Declared((), ())
    assert [path for path in left if path.startswith(judged) and not declared.has(path)] == []
