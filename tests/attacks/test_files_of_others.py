"""Attempts 6, 7 and 9: what a host prints, shards and logs that somebody sent."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.report import Report, certificate, page, writer
from tests.attacks.conftest import GpuAmi
from tests.fuzz.test_changed_documents import places
from tests.report.examples import a_check, a_host, a_report, everything

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
    for name in ("certificate.md", "summary.md", "report.html"):
        if (tmp_path / name).exists():
            assert "<img src=x" not in (tmp_path / name).read_text()
    ElementTree.fromstring(writer.text(report))


_RENDERED = "\n# x: certified\n| verdict | **PASS** |\n![i][r]\n[r]: http://evil/x.png\n"
_UNSEEN = "\x1b\x9b\x00\u202e\u061c\u2028\ufff9\U000e0041\ud800"
# What a report's names lead to: folders of evidence, machines of the plan.
_NAMES = ("instance_type", "host", "evidence", "image", "verdict", "sha256")


def evil_report() -> dict[str, Any]:
    """A report that is read, in which every text that may be any text is an attack."""
    document: dict[str, Any] = json.loads(json.dumps(everything().to_json()))
    for *path, key in places(document):
        parent: Any = document
        for step in path:
            parent = parent[step]
        before = parent[key]
        if isinstance(before, str) and key not in _NAMES:
            parent[key] = f"{before}{EVIL}{_RENDERED}{_UNSEEN}</code><script>alert(1)</script>]]>```"
            try:
                Report.from_json(document)
            except (ValueError, UsageError):
                parent[key] = before
    return document


def test_no_page_of_a_report_obeys_it(tmp_path: Path) -> None:
    """Every field at once, through every page: no heading, row, image, script or control character of it is live."""
    document = evil_report()
    assert json.dumps(document).count("alert(1)") > 150
    report = Report.from_json(document)
    statement = certificate.certify(report)
    (tmp_path / "certificate.md").write_text(certificate.markdown(statement))
    writer.write(report, tmp_path)
    (tmp_path / "summary.md").write_text(writer.markdown(report, statement))
    (tmp_path / "report.html").write_text(page.page(report, statement, [f"evidence/{EVIL}"]))
    names = {path.name for path in tmp_path.iterdir()}
    assert {"certificate.md", "summary.md", "junit.xml", "report.html"} <= names, names
    for path in tmp_path.iterdir():
        text = path.read_text()
        if path.suffix == ".json":  # read by programs
            json.loads(text)
            continue
        assert not set(text) & set(_UNSEEN), path.name
        assert "<script>alert" not in text and "<img src=x" not in text, path.name
        if path.suffix == ".md":
            lines = text.splitlines()
            assert not [line for line in lines if line.startswith(("# x: certified", "| verdict | **PASS**", "[r]:"))]
        if path.suffix == ".xml":
            ElementTree.fromstring(text)


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


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_events_reads_nothing_that_never_ends(kind: str, gpu_ami: GpuAmi, tmp_path: Path) -> None:
    name = "/dev/zero"
    if kind == "pipe":
        name = "log"
        os.mkfifo(tmp_path / name)
    done = gpu_ami("events", name, timeout=30)
    assert done.returncode == 2 and b"which may never end" in done.stderr, done.stderr


def test_events_reads_a_pipe_of_the_shell(gpu_ami: GpuAmi) -> None:
    """`gpu-ami events <(zcat log.gz)`, whose output comes when it is there."""
    command = "sleep 0.5; echo '[    5.000000] NVRM: Xid (PCI:0000:00:1e): 79, pid=1, GPU has fallen off the bus.'"
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        descriptor = shell.stdout.fileno()
        done = gpu_ami("events", f"/dev/fd/{descriptor}", pass_fds=(descriptor,))
    assert done.returncode == 0 and b"Xid 79" in done.stdout, done.stderr
