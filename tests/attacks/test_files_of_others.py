"""Attempts 6, 7 and 9: what a host prints, shards and logs that somebody sent."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpu_ami.report import writer
from tests.attacks.conftest import GpuAmi
from tests.report.examples import a_check, a_host, a_report

pytestmark = pytest.mark.slow
EVIL = "\x1b]0;x\x07\x9b2J\x00\n::set-output name=a::b\n##[error]x <img src=x onerror=y>"


def shard(folder: Path, instance_type: str) -> Path:
    host = replace(a_host(instance_type), host="ssh://admin@127.0.0.2")
    report = a_report(host, instance_types=[{"name": instance_type}])
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(report.to_json()))
    (folder / "plan.json").write_text("{}")
    return folder


@pytest.mark.parametrize("instance_type", ["a/../../../../victim", "..", "/victim", "a/b"])
def test_a_shard_writes_nothing_outside(instance_type: str, gpu_ami: GpuAmi, tmp_path: Path) -> None:
    folder = shard(tmp_path / "shard", instance_type)
    (tmp_path / "victim").mkdir()
    evidence = folder / "evidence" / "a"
    evidence.mkdir(parents=True)
    (evidence / "x").write_text("x")
    before = set(tmp_path.rglob("*"))
    done = gpu_ami("merge", folder, "-o", "out")
    assert b"Traceback" not in done.stderr
    made = {path for path in set(tmp_path.rglob("*")) - before if not path.is_relative_to(tmp_path / "home")}
    assert all(path.is_relative_to(tmp_path / "out") for path in made), made


@pytest.mark.parametrize("link", ["evidence", "evidence/g5.xlarge", "evidence/g5.xlarge/journal.txt", "plan.json"])
def test_links_of_a_shard_are_refused(link: str, gpu_ami: GpuAmi, tmp_path: Path) -> None:
    folder = shard(tmp_path / "shard", "g5.xlarge")
    (folder / "plan.json").unlink()
    (folder / link).parent.mkdir(parents=True, exist_ok=True)
    (folder / link).symlink_to("/etc/shadow" if "." in Path(link).name and link.count("/") != 1 else "/etc")
    done = gpu_ami("merge", folder, "-o", "out")
    assert done.returncode == 2 and b"a symbolic link, expected a file or folder of its own" in done.stderr, done.stderr
    assert not list(tmp_path.glob("out/evidence/**/*"))


def test_what_a_host_says_is_shown_and_not_obeyed(gpu_ami: GpuAmi, tmp_path: Path) -> None:
    report = a_report(a_host("g5.xlarge", a_check("mine", "FAIL", message=EVIL, observed=EVIL)))
    (tmp_path / "report.json").write_text(json.dumps(report.to_json()))
    for words in (("certify", "."), ("certify", ".", "--json")):
        done = gpu_ami(*words)
        said = done.stdout + done.stderr
        assert b"\x1b" not in said and b"\xc2\x9b" not in said and b"##[" not in said
        assert not any(line.lstrip().startswith(b"::") for line in said.splitlines())
    for page in ("certificate.md", "summary.md", "report.html"):
        if (tmp_path / page).exists():
            assert "<img src=x" not in (tmp_path / page).read_text()
    ElementTree.fromstring(writer.text(report))


def test_a_tar_that_names_an_endless_member_ends(gpu_ami: GpuAmi, tmp_path: Path) -> None:
    entry = tarfile.TarInfo("kern.log")
    entry.size = 1 << 60
    (tmp_path / "logs.tar").write_bytes(entry.tobuf(tarfile.GNU_FORMAT) + b"x" * 5000)
    done = gpu_ami("events", "logs.tar", timeout=60)
    assert done.returncode in (0, 2) and b"Traceback" not in done.stderr
    plain = BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        entry = tarfile.TarInfo("kern.log")
        entry.size = 3
        archive.addfile(entry, BytesIO(b"a\nb"))
    (tmp_path / "plain.tar").write_bytes(plain.getvalue())
    assert gpu_ami("events", "plain.tar").returncode == 0
