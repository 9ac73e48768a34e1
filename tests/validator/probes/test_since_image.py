"""What a machine still has of its image: asked once, believed only where inodes and the clock agree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.scripted_host import table_host
from tests.validator.checks.conftest import METADATA, FakeMachine
from validator import remote
from validator.evidence import INODES_FILE
from validator.probes import since_image
from validator.probes.since_image import ImageFiles, SinceImage
from validator.results import FAIL, PASS, CheckRecord, HostResults

INODES = {"/": 2, "/usr": 10, "/bin": 11, "/opt": 12, "/opt/aws": 13, "/opt/amazon": 14, "/opt/aws/etc": 15}
STATS = "10 /usr\n11 /bin\n13 /opt/aws\n14 /opt/amazon\n"
MOUNTS = "/\n/proc\n"


def since(
    changed: str = "", stats: str = STATS, mounts: str = MOUNTS, end: str = "end\n", **machine: Any
) -> SinceImage:
    shown = f"2000\n//\n{stats}//\n{mounts}//\n{changed}//\n{end}"
    under_test: Any = FakeMachine(METADATA, **machine)
    under_test.host = table_host({"(*": shown})
    return SinceImage(ImageFiles({}, 500.5, INODES), under_test)


TREES = ["/usr", "/bin", "/opt/aws", "/opt/amazon"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, TREES),
        ({"changed": "/etc\n/opt\n/opt/aws/etc/x\n"}, ["/usr", "/bin", "/opt/amazon"]),
        ({"changed": "/usr\n"}, ["/bin", "/opt/aws", "/opt/amazon"]),
        ({"changed": "/usr2/x\n"}, TREES),
        ({"stats": STATS.replace("10 /usr", "99 /usr")}, ["/bin", "/opt/aws", "/opt/amazon"]),  # another directory
        ({"stats": STATS.replace("10 /usr\n", "")}, ["/bin", "/opt/aws", "/opt/amazon"]),  # not there any more
        ({"mounts": "/\n/usr/share/x\n"}, ["/bin", "/opt/aws", "/opt/amazon"]),  # other files hide the image's
        ({"end": ""}, []),
        ({"boot_time": 400.0}, []),  # its clock was behind the image's: a change can have an older time
        ({"first_boot_time": 400.0}, []),
    ],
)
def test_only_what_cannot_have_changed_is_the_images(given: dict[str, Any], kept: list[str]) -> None:
    assert since(**given).unchanged(TREES) == kept


def test_machine_is_asked_once() -> None:
    machine = since()
    machine.unchanged(TREES)
    machine.unchanged(TREES)
    assert len([text for text in machine.machine.host.backend.asked if "newerct" in text]) == 1


def test_results_of_the_files_are_read(tmp_path: Path) -> None:
    records = (CheckRecord("a::b", "a", "T0", "", verdict=PASS), CheckRecord("a::c", "a", "T0", "", verdict=FAIL))
    HostResults("image-files", records).write(tmp_path / "checks.json")
    assert since_image.load(tmp_path) is None
    (tmp_path / INODES_FILE).write_text(json.dumps({"newest": 5.5, "inodes": {"/": 2}}))
    files = since_image.load(tmp_path)
    assert files and (set(files.passed), files.newest, files.inodes) == ({"a::b"}, 5.5, {"/": 2})
    (tmp_path / INODES_FILE).write_text("\n[exit status 2] awk: error")
    assert since_image.load(tmp_path) is None


def run(text: str) -> str:
    return subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=60, check=True).stdout


def test_programs_see_every_kind_of_change(tmp_path: Path) -> None:
    """In a tree of its own: content, mode, a new link and a rename are changes; reading is not."""
    tree = tmp_path / "tree"
    for name in ("written", "mode", "linked", "moved", "read", "deleted"):
        (tree / name).mkdir(parents=True)
        (tree / name / "file").write_text("x")
    (tree / "lib").symlink_to("read")
    listed = json.loads(run(remote.text("image_inodes").replace("find /", f"find {tree}")))
    assert listed["newest"] == pytest.approx((tree / "lib").lstat().st_ctime, abs=1)
    assert listed["inodes"][f"{tree}/read"] == (tree / "read").stat().st_ino
    assert f"{tree}/read/file" not in listed["inodes"]
    time.sleep(2.1)  # times are compared in seconds
    (tree / "written" / "file").write_text("y")
    os.utime(tree / "written" / "file", (1, 1))
    (tree / "mode" / "file").chmod(0o777)
    os.link(tree / "linked" / "file", tmp_path / "link")
    (tree / "moved").rename(tree / "moved2")
    (tree / "deleted" / "file").unlink()
    (tree / "read" / "file").read_text()
    text = remote.with_arguments("changed_since", str(int(listed["newest"]) + 1), f"{tree}/read", f"{tree}/none")
    parts = run(text.replace("find /", f"find {tree}")).split("//\n")
    assert len(parts) == 5 and parts[4] == "end\n" and abs(int(parts[0]) - time.time()) < 60
    assert parts[1] == f"{(tree / 'read').stat().st_ino} {tree}/read\n" and "/proc\n" in parts[2]
    changed = {line.removeprefix(f"{tree}/") for line in parts[3].splitlines()}
    assert changed == {str(tree), "written/file", "mode/file", "linked/file", "moved2", "deleted"}


@pytest.mark.skipif(not shutil.which("dpkg"), reason="dpkg is not installed")
def test_rest_is_verified_by_dpkg_itself(tmp_path: Path) -> None:
    """A changed file, a changed configuration file and a missing one are found; a tree that is left out is not read."""
    import hashlib

    admin = tmp_path / "dpkg"
    (admin / "info").mkdir(parents=True)
    for name in ("diversions", "statoverride"):
        (admin / name).write_text("")
    (admin / "arch").write_text("amd64\n")
    (admin / "info" / "format").write_text("1\n")
    digest = hashlib.md5(b"good\n", usedforsecurity=False).hexdigest()
    paths = [f"{tmp_path}/{name}"[1:] for name in ("usr/kept", "opt/changed", "opt/same", "usr/missing")]
    for path in paths[:3]:
        Path(f"/{path}").parent.mkdir(exist_ok=True)
        Path(f"/{path}").write_text("good\n" if path.endswith("same") else "bad\n")
    conf = tmp_path / "x.conf"
    conf.write_text("bad\n")
    (admin / "status").write_text(
        "Package: x\nStatus: install ok installed\nPriority: optional\nSection: admin\nMaintainer: x <x@x>\n"
        f"Architecture: amd64\nVersion: 1\nConffiles:\n {conf} {digest}\nDescription: x\n\n"
    )
    (admin / "info" / "x.list").write_text("".join(f"/{path}\n" for path in paths) + f"{conf}\n")
    (admin / "info" / "x.md5sums").write_text("".join(f"{digest}  {path}\n" for path in paths))
    text = since_image.verify_partly([f"{tmp_path}/usr"]).replace("/var/lib/dpkg", str(admin))
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=60, check=False)
    rows = {line.split()[-1].removeprefix(f"{tmp_path}/"): line.split()[:-1] for line in done.stdout.splitlines()}
    assert rows == {"opt/changed": ["??5??????"], "x.conf": ["??5??????", "c"], "usr/missing": ["missing"]}, done
    assert not list(Path("/dev/shm").glob("dpkg.*"))


@pytest.mark.parametrize(
    ("trees", "left_out"),
    [
        (["/usr", "/lib", "/opt/a.b"], "(usr|lib|opt/a[.]b)/"),
        (["/lib", "/boot"], "(boot)/"),  # what /lib leads to may have changed
    ],
)
def test_links_count_only_with_what_they_lead_to(trees: list[str], left_out: str) -> None:
    assert f"set -- '{left_out}'\n" in since_image.verify_partly(trees)
