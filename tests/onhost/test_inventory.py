"""The program that lists a system: odd names, links, holes, what vanishes, attributes, dpkg's and rpm's own records."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onhost import inventory as program
from tests.validator.file_account import tree
from validator.file_account import Inventory, read

SPEC = """\
Name: demo
Version: 1.0
Release: 1
Summary: x
License: x
BuildArch: noarch
%description
x
%install
mkdir -p %{buildroot}/usr/bin %{buildroot}/etc
echo tool > %{buildroot}/usr/bin/tool
echo other > %{buildroot}/usr/bin/other
ln -s tool %{buildroot}/usr/bin/link
echo a=1 > %{buildroot}/etc/demo.conf
%files
%attr(4755, root, root) /usr/bin/tool
%attr(0755, root, root) /usr/bin/other
/usr/bin/link
%config(noreplace) %attr(0644, root, root) /etc/demo.conf
%ghost /etc/demo.state
"""


def test_odd_names_links_and_holes(tmp_path: Path) -> None:
    (tmp_path / "\udcff\n").mkdir()
    (tmp_path / "a").write_bytes(b"text")
    os.link(tmp_path / "a", tmp_path / "b")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(3 << 20)
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    entries = tree.take(tmp_path).entries
    assert set(entries) == {"/\udcff\n", "/a", "/b", "/sparse", "/link", "/fifo"}
    assert entries["/a"].sha256 == entries["/b"].sha256 == hashlib.sha256(b"text").hexdigest()
    assert entries["/sparse"].sha256 == hashlib.sha256(bytes(3 << 20)).hexdigest()
    assert (entries["/link"].target, entries["/fifo"].kind, entries["/sparse"].size) == ("nowhere", "p", 3 << 20)


def test_what_vanishes_is_left_out_and_what_cannot_be_read_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").write_text("x")
    (tmp_path / "broken").write_text("x")
    original = program.digest

    def digest(path: str, need_md5: bool) -> program.Digest:
        if path.endswith("gone"):
            raise FileNotFoundError
        if path.endswith("broken"):
            raise OSError(5, "Input/output error")
        return original(path, need_md5)

    monkeypatch.setattr(program, "digest", digest)
    entries = tree.take(tmp_path).entries
    assert set(entries) == {"/broken"} and entries["/broken"].error == "Input/output error"


def test_every_digest_is_its_own_file_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read in batches by several threads: full by their number, full by their bytes, and the last."""
    monkeypatch.setattr(program, "BATCH_FILES", 4)
    monkeypatch.setattr(program, "BATCH_BYTES", 1000)
    for number in range(21):
        (tmp_path / f"{number:02}").write_bytes(b"%d" % number * (700 if number % 5 == 0 else 1))
    os.link(tmp_path / "07", tmp_path / "20-link")
    (tmp_path / "empty").touch()
    original = program.digest

    def digest(path: str, need_md5: bool) -> program.Digest:
        if path.endswith("/09"):
            raise OSError(5, "Input/output error")
        return original(path, need_md5)

    monkeypatch.setattr(program, "digest", digest)
    entries = tree.take(tmp_path).entries
    read = {path: entry.sha256 for path, entry in entries.items() if not entry.error}
    files = {f"/{path.name}": path for path in tmp_path.iterdir() if path.name != "09"}
    assert read == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    assert entries["/09"].error == "Input/output error"


def test_a_file_that_grows_or_shrinks_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size that a file had is no limit, and none that must be reached: it is read to its end."""
    (tmp_path / "file").write_bytes(b"x" * 10)
    original = os.fstat

    def fstat_of(size: int) -> None:
        def fstat(file: int) -> os.stat_result:
            words = list(original(file))
            words[6] = size
            return os.stat_result(words)

        monkeypatch.setattr(os, "fstat", fstat)

    for size in (0, 3, 9, 11, 5000, 1 << 21):
        fstat_of(size)
        found = program.digest(str(tmp_path / "file"), need_md5=True)
        assert found[:2] == (hashlib.sha256(b"x" * 10).hexdigest(), hashlib.md5(b"x" * 10).hexdigest()), size


def test_only_what_changed_since_is_read(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x")
    later = (tmp_path / "old").stat().st_ctime + 3600
    assert tree.take(tmp_path).entries["/old"].sha256
    assert tree.take(tmp_path, hash_since=later).entries["/old"].sha256 == ""


@pytest.mark.slow
def test_dpkg_files(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree.make_base(root, tmp_path / "packages")
    (root / "usr/bin/curl").write_text("other")
    (root / "etc/nsswitch.conf").unlink()
    taken = tree.take(root)
    assert taken.packages["demo"].version == "1.0-1"
    assert taken.entries["/usr/bin/curl"].differs == ("content",)
    assert taken.entries["/usr/bin/gcc-12"].differs == ()
    assert taken.entries["/etc/sysctl.conf"].is_setting and taken.entries["/etc/sysctl.conf"].packages == ("demo",)
    assert taken.missing == {"/etc/nsswitch.conf": ("demo",)}
    assert taken.accounts["admin"].password == "locked"
    assert (taken.os, taken.os_version) == ("debian", "12")


@pytest.mark.slow
def test_passwords_are_not_part_of_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree.make_base(root, tmp_path / "packages")
    (root / "etc/shadow").write_text("root:$6$salt$secret:1::::::\ndaemon::1::::::\n")
    records: list[program.Record] = []
    program.inventory(str(root), False, 0.0, set(), records.append)
    assert (records[0]["accounts"]["root"][4], records[0]["accounts"]["daemon"][4]) == ("set", "empty")
    assert "secret" not in str(records)


@pytest.fixture(scope="module")
def rpm_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with one rpm, installed without root's rights."""
    if not shutil.which("rpmbuild") or os.geteuid() != 0:
        pytest.skip("needs rpmbuild and root (rpm --root)")
    work = tmp_path_factory.mktemp("rpm")
    (work / "demo.spec").write_text(SPEC)
    define = ["--define", f"_topdir {work}", "--define", f"_rpmdir {work}", "--define", "_build_id_links none"]
    subprocess.run(["rpmbuild", "-bb", *define, work / "demo.spec"], check=True, capture_output=True)
    root = work / "root"
    root.mkdir()
    (package,) = work.rglob("*.rpm")
    install = ["rpm", "--root", root, "--dbpath", "/usr/lib/sysimage/rpm", "--nodeps", "-i", package]
    subprocess.run(install, check=True, capture_output=True)
    (root / "usr/lib/rpm").mkdir(parents=True, exist_ok=True)
    for name, text in {
        "passwd": "root:x:0:0::/root:/bin/bash\n",
        "group": "root:x:0:\n",
        "os-release": "ID=amzn\n",
    }.items():
        (root / "etc" / name).write_text(text)
    return root


def rpm_inventory(root: Path, monkeypatch: pytest.MonkeyPatch) -> Inventory:
    original = subprocess.Popen

    def popen(command: list[str], **options: object) -> object:
        words = [*command[:3], "--dbpath", "/usr/lib/sysimage/rpm", *command[3:]] if command[0] == "rpm" else command
        return original(words, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(program.subprocess, "Popen", popen)
    return tree.take(root)


def test_rpm_files(rpm_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = rpm_inventory(rpm_root, monkeypatch)
    assert taken.packages["demo"].version == "0:1.0-1"
    assert [taken.entries[path].differs for path in ("/usr/bin/tool", "/usr/bin/link", "/etc/demo.conf")] == [()] * 3
    assert taken.entries["/etc/demo.conf"].is_setting
    (rpm_root / "usr/bin/tool").chmod(0o755)
    (rpm_root / "usr/bin/other").write_text("changed")
    os.chown(rpm_root / "etc/demo.conf", 0, 1)
    (rpm_root / "usr/bin/link").unlink()
    (rpm_root / "usr/bin/link").symlink_to("other")
    taken = rpm_inventory(rpm_root, monkeypatch)
    paths = ("/usr/bin/tool", "/usr/bin/other", "/etc/demo.conf", "/usr/bin/link")
    assert [taken.entries[path].differs for path in paths] == [("mode",), ("content",), ("owner",), ("target",)]


def test_packages_of_both_managers(rpm_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (rpm_root / "var/lib/dpkg/info").mkdir(parents=True)
    (rpm_root / "var/lib/dpkg/status").write_text(
        "Package: base\nStatus: install ok installed\nArchitecture: all\nVersion: 1\n"
    )
    (rpm_root / "var/lib/dpkg/info/base.list").write_text("/etc/os-release\n")
    taken = rpm_inventory(rpm_root, monkeypatch)
    assert {"base", "demo"} <= set(taken.packages)
    assert taken.entries["/etc/os-release"].packages == ("base",)
    assert taken.entries["/usr/bin/tool"].packages == ("demo",)


def test_database_of_rpm_without_rpm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "var/lib/rpm").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tree.take(tmp_path).packages == {}


def test_file_of_another_layer_is_no_mount_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On overlayfs each file has the device number of its layer."""
    for name in ("file", "mounted"):
        (tmp_path / name).touch()
    (tmp_path / "directory").mkdir()
    monkeypatch.setattr(program, "mount_points", lambda: {f"{tmp_path}/mounted"})
    mounted: set[str] = set()
    assert [path for path, _ in program.walk(str(tmp_path), -1, set(), mounted)] == [f"{tmp_path}/file"]
    assert mounted == {f"{tmp_path}/mounted", f"{tmp_path}/directory"}
    monkeypatch.setattr(program, "mount_points", lambda: None)
    assert list(program.walk(str(tmp_path), -1, set(), mounted)) == []


def test_mount_points_of_this_process() -> None:
    assert {"/", "/proc"} <= (program.mount_points() or set())


def test_it_runs_alone_on_a_running_system(tmp_path: Path) -> None:
    command = [sys.executable, "-IS", "-", f"--root={tmp_path}", "--running"]
    text = Path(program.__file__).read_text(encoding="utf-8")
    (tmp_path / "etc").mkdir()
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=True, timeout=60)
    taken = read(done.stdout)
    assert taken.running and taken.boot_time > 0 and taken.mounts and taken.command_line


def test_its_language_is_that_of_python_3_6() -> None:
    vermin = [Path(sys.executable).with_name("vermin"), "--no-tips", "--violations", "-t=3.6-", program.__file__]
    done = subprocess.run(vermin, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
